"""The evidence rule, and the paper's: boxes are filtered and clustered by covered area."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from objectseeker.core.bounds import Bound, lower_bound
from objectseeker.core.boxes import Detections, Floats
from objectseeker.core.fabrication import DEFAULT_SUPPORT, SupportCriteria, SupportFit
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import cut_by_mask, prune_by_evidence
from objectseeker.core.rules.interface import PruningRule, register_rule
from objectseeker.errors import ObjectSeekerError, require_flag, require_fraction, require_number


@register_rule
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(PruningRule):
    """The rule of covered area: the paper's if `evidence_threshold` is None, else the evidence rule.

    In the paper's rule one masked box of at least `mask_threshold` is sufficient on its own. In the evidence rule a
    masked box of score s carries evidence clip((s - evidence_threshold) / (mask_threshold - evidence_threshold), 0, 1)
    ** evidence_power, and a cluster is output once the evidence of its views adds up to 1. Boxes are clustered whose
    IoA, either way, is at least 1 - cluster_distance.

    Guarantee: if object g is certified against patch p, then for every allowed position of p (every `p.count` positions
    if it is 2 or more; and whatever is drawn outside g's grown box, if `p.owns_outside`) and any pixels drawn there,
    `prune` outputs a box (with g's label, if `classwise`) that covers more
    than `certification_threshold` of g. The same holds for any other `base_threshold`. The guarantee holds in exact
    arithmetic, for a detector that is a pure function of the pixels a mask keeps. Ties are not certified; nor is an
    object without visible area.

    Example:
        >>> Rule(base_threshold=0.3, mask_threshold=0.6).name
        'paper'
        >>> Rule(base_threshold=0.3, mask_threshold=0.6, evidence_threshold=0.4).name
        'evidence'
    """

    kind: ClassVar[str] = "evidence"
    proof_settings: ClassVar[tuple[str, ...]] = ("filter_ioa", "classwise", "edge_factor")
    candidate_settings: ClassVar[tuple[str, ...]] = ("filter_ioa", "classwise", "edge_factor", "cluster_distance")

    base_threshold: float = 0.5
    mask_threshold: float = 0.7
    filter_ioa: float = 0.6
    classwise: bool = True
    evidence_threshold: float | None = None
    evidence_power: float = 1.0
    edge_factor: float = 1.0
    cluster_distance: float = 0.1
    support_threshold: float = DEFAULT_SUPPORT.threshold
    support_fit: SupportFit = DEFAULT_SUPPORT.fit
    support_overlap: float = DEFAULT_SUPPORT.overlap

    def __post_init__(self) -> None:
        # Stored as checked: equal rules are then written alike, whatever type of number they were given.
        checked: dict[str, object] = {"classwise": require_flag(self.classwise, "classwise")}
        for name in (
            "base_threshold",
            "mask_threshold",
            "filter_ioa",
            "edge_factor",
            "cluster_distance",
            "evidence_threshold",
            "support_threshold",
            "support_overlap",
        ):
            if getattr(self, name) is not None or name != "evidence_threshold":
                checked[name] = require_fraction(getattr(self, name), name)
        checked["evidence_power"] = require_number(self.evidence_power, "evidence_power")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        _ = self.support_criteria  # rejects invalid settings
        if self.mask_threshold < self.base_threshold:
            warnings.warn(
                f"mask_threshold {self.mask_threshold!r} is below base_threshold {self.base_threshold!r}: masks then "
                "add boxes that the detector itself does not output",
                stacklevel=3,
            )
        if self.cluster_distance == 1:  # boxes that share no area would be neighbors
            raise ObjectSeekerError(f"cluster_distance must be below 1: got {self.cluster_distance!r}")
        if self.evidence_power <= 0:
            raise ObjectSeekerError(f"evidence_power must be above 0: got {self.evidence_power!r}")
        if self.evidence_threshold is not None and self.evidence_threshold > self.mask_threshold:
            raise ObjectSeekerError(
                f"evidence_threshold must not exceed mask_threshold {self.mask_threshold!r}: "
                f"got {self.evidence_threshold!r}"
            )

    @property
    def support_criteria(self) -> SupportCriteria:
        return SupportCriteria(
            threshold=self.support_threshold,
            fit=self.support_fit,
            overlap=self.support_overlap,
            classwise=self.classwise,
        )

    @property
    def filter_threshold(self) -> float:
        return self.filter_ioa

    @property
    def name(self) -> str:
        return "paper" if self.evidence_threshold is None else "evidence"

    def describe(self) -> str:
        if self.evidence_threshold is None:
            return "the paper's: one masked box is sufficient"
        return "evidence accumulates over views"

    def prune(self, observation: Observation) -> Detections:
        """Return base boxes of at least `base_threshold`, and one hull per cluster of unfiltered masked boxes.

        `classwise=False` ignores labels when filtering and clustering; a hull then takes the label of its best box.
        """
        return prune_by_evidence(self, observation)

    def lower_bound(self, boxes: Floats, objects: Floats, bound: Bound) -> Floats:
        return lower_bound(boxes, objects, self.filter_ioa, bound)

    def discounted_scores(self, observation: Observation) -> Floats:
        """The score of every masked box, lowered by `edge_factor` where the mask's line cuts the box."""
        score = observation.all_masked.score
        if self.edge_factor == 1.0:
            return score
        cut = cut_by_mask(observation.all_masked.xyxy, observation.mask_index, observation.masks)
        return np.where(cut, score * self.edge_factor, score)

    def evidence(self, score: Floats) -> Floats:
        """Return the evidence of masked boxes by score: exactly 1 at and above `mask_threshold`."""
        if self.evidence_threshold is None or self.evidence_threshold == self.mask_threshold:
            return np.where(score >= self.mask_threshold, 1.0, 0.0)
        share = (score - self.evidence_threshold) / (self.mask_threshold - self.evidence_threshold)
        return np.where(score >= self.mask_threshold, 1.0, np.clip(share, 0, 1) ** self.evidence_power)
