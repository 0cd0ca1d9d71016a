"""How the scores of masked boxes follow base_threshold: what makes one rule a curve of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import overload

from objectseeker.core.iou_rule import AnyRule, IouRule
from objectseeker.core.rule import Rule
from objectseeker.errors import ObjectSeekerError, require_fraction

DECIMALS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSchedule:
    """mask_threshold = max(alpha, base_threshold + (1 - base_threshold) * beta), so it never falls below
    base_threshold.

    What follows is rounded to DECIMALS: a score is then what is shown of it, and can be typed again as the same rule.

    Under the evidence rule evidence_threshold follows base_threshold in the same way by `evidence_alpha` and
    `evidence_beta`, but never above
    mask_threshold.
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
                f"the evidence rule needs both evidence_alpha and evidence_beta, "
                f"got {self.evidence_alpha!r} and {self.evidence_beta!r}"
            )

    @classmethod
    def from_rule(cls, rule: AnyRule) -> ThresholdSchedule:
        """The curve through a rule's own scores: straight up to 1 from there on, level below."""
        ioa = rule.ioa_rule if isinstance(rule, IouRule) else rule

        def beta(score: float) -> float:
            return max((score - ioa.base_threshold) / (1 - ioa.base_threshold), 0.0) if ioa.base_threshold < 1 else 0.0

        if ioa.evidence_threshold is None:
            return cls(alpha=ioa.mask_threshold, beta=beta(ioa.mask_threshold))
        return cls(
            alpha=ioa.mask_threshold,
            beta=beta(ioa.mask_threshold),
            evidence_alpha=ioa.evidence_threshold,
            evidence_beta=beta(ioa.evidence_threshold),
        )

    def thresholds_at(self, base_threshold: float) -> tuple[float, float | None]:
        """mask_threshold and evidence_threshold at a base_threshold."""
        mask_threshold = _follow(base_threshold, self.alpha, self.beta)
        if self.evidence_alpha is None or self.evidence_beta is None:
            return mask_threshold, None
        return mask_threshold, min(mask_threshold, _follow(base_threshold, self.evidence_alpha, self.evidence_beta))

    @overload
    def rule(self, template: Rule, base_threshold: float) -> Rule: ...
    @overload
    def rule(self, template: IouRule, base_threshold: float) -> IouRule: ...
    def rule(self, template: AnyRule, base_threshold: float) -> AnyRule:
        """The rule at another base_threshold: scores follow, everything else is as in `template`."""
        if isinstance(template, IouRule):
            return replace(template, ioa_rule=self.rule(template.ioa_rule, base_threshold))
        mask_threshold, evidence_threshold = self.thresholds_at(base_threshold)
        return replace(
            template,
            base_threshold=base_threshold,
            mask_threshold=mask_threshold,
            evidence_threshold=evidence_threshold,
        )


def _follow(base_threshold: float, alpha: float, beta: float) -> float:
    """A score between base_threshold and 1 that follows base_threshold, from `alpha` on."""
    return max(alpha, base_threshold, round(base_threshold + (1 - base_threshold) * beta, DECIMALS))
