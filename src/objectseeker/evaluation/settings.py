"""What one evaluation is run with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Floats
from objectseeker.core.rule import Rule
from objectseeker.core.threats import Patch, Where
from objectseeker.errors import ObjectSeekerError, require_fraction

WHERES: tuple[Where, ...] = ("far", "close", "over", "anywhere")

# The settings a curve is made of. A run keeps base boxes from a floor on (.01 unless told otherwise): below it every
# base_score gives the same boxes.
BASE_SCORES: Floats = np.arange(100) / 100
BASE_SCORES.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the defended detector follows `base_score`, and what it is certified against.

    mask_score = max(alpha, base_score + (1 - base_score) * beta), so it never falls below base_score. With `low_alpha`
    and `low_beta` the evidence rule is used: low_score follows base_score in the same way, but never above mask_score.
    `clean_recall` is the r of CertR@r, a fraction. Everything else is as in `Rule`, `certify` and `Patch`.
    """

    alpha: float = 0.8
    beta: float = 0.5
    low_alpha: float | None = None
    low_beta: float | None = None
    power: float = 1.0
    filter_ioa: float = 0.6
    threshold: float = 0.0
    edge_factor: float = 1.0
    cluster_distance: float = 0.1
    bound: Bound = "exact"
    patch_area: float = 0.01
    patch_aspect: float = 1.0
    patch_count: int = 1
    clean_recall: float = 0.8

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "threshold", "clean_recall"):
            require_fraction(getattr(self, name), name)
        if (self.low_alpha is None) != (self.low_beta is None):
            raise ObjectSeekerError(
                f"the evidence rule needs both low_alpha and low_beta, got {self.low_alpha!r} and {self.low_beta!r}"
            )
        for name in ("low_alpha", "low_beta"):
            if getattr(self, name) is not None:
                require_fraction(getattr(self, name), name)
        if self.bound not in get_args(Bound):
            raise ObjectSeekerError(f"bound must be one of {', '.join(get_args(Bound))}, got {self.bound!r}")
        self.rule(0.0)
        self.patches()

    def rule(self, base_score: float, *, classwise: bool = True) -> Rule:
        """The output rule at one `base_score`."""
        mask_score = follow(base_score, self.alpha, self.beta)
        low_score = None
        if self.low_alpha is not None and self.low_beta is not None:
            low_score = min(mask_score, follow(base_score, self.low_alpha, self.low_beta))
        return Rule(
            base_score=base_score,
            mask_score=mask_score,
            filter_ioa=self.filter_ioa,
            classwise=classwise,
            low_score=low_score,
            power=self.power,
            edge_factor=self.edge_factor,
            cluster_distance=self.cluster_distance,
        )

    def patches(self) -> list[Patch]:
        """The threat at every place, in the order of WHERES."""
        return [Patch(self.patch_area, self.patch_aspect, where, self.patch_count) for where in WHERES]

    @property
    def floor(self) -> float:
        """The lowest score at which a masked box can play a part, whatever the base_score."""
        rule = self.rule(0.0)
        return rule.mask_score if rule.low_score is None else rule.low_score


def follow(base_score: float, alpha: float, beta: float) -> float:
    """A score between base_score and 1 that follows base_score, from `alpha` on."""
    return max(alpha, base_score + (1 - base_score) * beta)


# What commands use when they are given no scores: the evidence rule at round values that lose about a point of AP at
# most on VOC and COCO images (docs/reproduce.md). alpha .8, beta .5 alone is the paper's rule with the paper's values.
RECOMMENDED = Settings(alpha=0.35, beta=0.25, low_alpha=0.2, low_beta=0.15, edge_factor=0.7)
