"""Threshold schedules: mask thresholds as functions of the base threshold, so one rule is a curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from objectseeker.core.rules import PruningRule
from objectseeker.errors import ObjectSeekerError, require_fraction

DECIMALS = 12

R = TypeVar("R", bound=PruningRule)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSchedule:
    """The mask threshold, and the evidence threshold, as a function of the base threshold.

    mask_threshold = max(alpha, base_threshold + (1 - base_threshold) * beta), so it never falls below base_threshold.

    What follows is rounded to DECIMALS: a score then equals what is shown, and can be typed again as the same rule.

    Under the evidence rule evidence_threshold follows base_threshold in the same way by `evidence_alpha` and
    `evidence_beta`, but never above mask_threshold.
    """

    alpha: float = 0.8
    beta: float = 0.5
    evidence_alpha: float | None = None
    evidence_beta: float | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "evidence_alpha", "evidence_beta"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, require_fraction(getattr(self, name), name))
        if (self.evidence_alpha is None) != (self.evidence_beta is None):
            raise ObjectSeekerError(
                f"the evidence rule needs both evidence_alpha and evidence_beta: "
                f"got {self.evidence_alpha!r} and {self.evidence_beta!r}"
            )

    @classmethod
    def from_rule(cls, rule: PruningRule) -> ThresholdSchedule:
        """The curve through a rule's own scores: straight up to 1 from there on, level below."""
        start = rule.base_threshold

        def beta(score: float) -> float:
            return max((score - start) / (1 - start), 0.0) if start < 1 else 0.0

        if rule.evidence_threshold is None:
            return cls(alpha=rule.mask_threshold, beta=beta(rule.mask_threshold))
        return cls(
            alpha=rule.mask_threshold,
            beta=beta(rule.mask_threshold),
            evidence_alpha=rule.evidence_threshold,
            evidence_beta=beta(rule.evidence_threshold),
        )

    def thresholds_at(self, base_threshold: float) -> tuple[float, float | None]:
        """mask_threshold and evidence_threshold at a base_threshold."""
        mask_threshold = _follow(base_threshold, self.alpha, self.beta)
        if self.evidence_alpha is None or self.evidence_beta is None:
            return mask_threshold, None
        return mask_threshold, min(mask_threshold, _follow(base_threshold, self.evidence_alpha, self.evidence_beta))

    def rule(self, template: R, base_threshold: float) -> R:
        """The rule at another base_threshold: scores follow, everything else is as in `template`."""
        return template.with_thresholds(base_threshold, *self.thresholds_at(base_threshold))


def _follow(base_threshold: float, alpha: float, beta: float) -> float:
    """A score between base_threshold and 1 that follows base_threshold, from `alpha` on."""
    return max(alpha, base_threshold, round(base_threshold + (1 - base_threshold) * beta, DECIMALS))
