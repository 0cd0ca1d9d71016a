"""The rule: which masked boxes become robust detections, and what that proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Detections, Floats
from objectseeker.core.certification import Certificates, certify_objects, evidence_prover, object_proofs
from objectseeker.core.joint import JointCertificate, certify_jointly, require_anywhere
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import cut_by_mask, prune_by_evidence
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError, require_flag, require_fraction, require_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is output, and what is certified of it: one object holds every setting that both depend on.

    With `evidence_threshold=None` (the paper's rule) one masked box of at least `mask_threshold` decides alone.
    Otherwise a masked
    box of score s carries evidence clip((s - evidence_threshold) / (mask_threshold - evidence_threshold), 0, 1) **
    power, and a cluster is
    output once the evidence of its views adds up to 1. Boxes are clustered whose IoA, either way, is at least
    1 - cluster_distance.
    """

    base_threshold: float = 0.5
    mask_threshold: float = 0.7
    filter_ioa: float = 0.6
    classwise: bool = True
    evidence_threshold: float | None = None
    evidence_power: float = 1.0
    edge_factor: float = 1.0
    cluster_distance: float = 0.1

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
        ):
            if getattr(self, name) is not None or name != "evidence_threshold":
                checked[name] = require_fraction(getattr(self, name), name)
        checked["evidence_power"] = require_number(self.evidence_power, "evidence_power")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.cluster_distance == 1:  # boxes that share no area would be neighbors
            raise ObjectSeekerError(f"cluster_distance must be below 1, got {self.cluster_distance!r}")
        if self.evidence_power <= 0:
            raise ObjectSeekerError(f"evidence_power must be above 0, got {self.evidence_power!r}")
        if self.evidence_threshold is not None and self.evidence_threshold > self.mask_threshold:
            raise ObjectSeekerError(
                f"evidence_threshold must not exceed mask_threshold {self.mask_threshold!r}, "
                f"got {self.evidence_threshold!r}"
            )

    @property
    def min_mask_score(self) -> float:
        """The lowest score at which a masked box plays a part."""
        return self.mask_threshold if self.evidence_threshold is None else self.evidence_threshold

    def prune(self, observation: Observation) -> Detections:
        """Robust detections: base boxes from `base_threshold` on, then one hull per cluster of unexplained masked
        boxes.

        `classwise=False` ignores labels when filtering and clustering; a hull then takes the label of its best box.
        """
        return prune_by_evidence(self, observation)

    def certify(
        self,
        observation: Observation,
        objects: Detections,
        patches: Patch | Sequence[Patch],
        *,
        certification_threshold: float = 0.0,
        bound: Bound = "exact",
    ) -> Certificates:
        """Decide for every object of `truth` and every threat whether any allowed patch could hide the object.

        Guarantee: if object g is certified against patch p, then for every allowed position of p (any two of them, if
        its count is 2) and whatever the attacker draws there, `prune` outputs a box (of g's label, if classwise) that
        covers more than `threshold` of g; so it would with any other `base_threshold`. It holds in exact arithmetic,
        for a
        detector that is a pure function of the pixels a mask keeps; ties are not certified. An object with no visible
        area is never certified. Any masks certify any count; against two patches `Pairs` certify most.
        """
        proving = evidence_prover(self, observation, certification_threshold, bound)
        return certify_objects(observation, objects, patches, proving, multi_view=self.evidence_threshold is not None)

    def certify_jointly(
        self,
        observation: Observation,
        objects: Detections,
        patch: Patch,
        *,
        certification_threshold: float = 0.0,
        bound: Bound = "exact",
    ) -> JointCertificate:
        """How many of the objects surely remain, all in one output, wherever a single patch lies: see `joint`."""
        proving = evidence_prover(self, observation, certification_threshold, bound)
        proofs = object_proofs(observation, objects, proving, multi_view=self.evidence_threshold is not None)
        return certify_jointly(
            observation.masks, proofs, require_anywhere(patch).size(observation.width, observation.height)
        )

    def discounted_scores(self, observation: Observation) -> Floats:
        """The score of every masked box, lowered by `edge_factor` where the mask's line cuts the box."""
        score = observation.all_masked.score
        if self.edge_factor == 1.0:
            return score
        cut = cut_by_mask(observation.all_masked.xyxy, observation.mask_index, observation.masks)
        return np.where(cut, score * self.edge_factor, score)

    def evidence(self, score: Floats) -> Floats:
        """What a masked box of each score adds to its cluster: exactly 1 from `mask_threshold` on."""
        if self.evidence_threshold is None or self.evidence_threshold == self.mask_threshold:
            return np.where(score >= self.mask_threshold, 1.0, 0.0)
        share = (score - self.evidence_threshold) / (self.mask_threshold - self.evidence_threshold)
        return np.where(score >= self.mask_threshold, 1.0, np.clip(share, 0, 1) ** self.evidence_power)
