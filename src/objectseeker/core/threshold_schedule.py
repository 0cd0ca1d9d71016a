"""How the scores of masked boxes follow base_score: what makes one rule a curve of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import overload

from objectseeker.core.iou_rule import AnyRule, IouRule
from objectseeker.core.rule import Rule
from objectseeker.errors import ObjectSeekerError, require_fraction

DECIMALS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSchedule:
    """mask_score = max(alpha, base_score + (1 - base_score) * beta), so it never falls below base_score.

    What follows is rounded to DECIMALS: a score is then what is shown of it, and can be typed again as the same rule.

    Under the evidence rule low_score follows base_score in the same way by `low_alpha` and `low_beta`, but never above
    mask_score.
    """

    alpha: float = 0.8
    beta: float = 0.5
    low_alpha: float | None = None
    low_beta: float | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "low_alpha", "low_beta"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, require_fraction(getattr(self, name), name))
        if (self.low_alpha is None) != (self.low_beta is None):
            raise ObjectSeekerError(
                f"the evidence rule needs both low_alpha and low_beta, got {self.low_alpha!r} and {self.low_beta!r}"
            )

    @classmethod
    def through(cls, rule: AnyRule) -> ThresholdSchedule:
        """The curve through a rule's own scores: straight up to 1 from there on, level below."""
        ioa = rule.ioa if isinstance(rule, IouRule) else rule

        def beta(score: float) -> float:
            return max((score - ioa.base_score) / (1 - ioa.base_score), 0.0) if ioa.base_score < 1 else 0.0

        if ioa.low_score is None:
            return cls(alpha=ioa.mask_score, beta=beta(ioa.mask_score))
        return cls(
            alpha=ioa.mask_score, beta=beta(ioa.mask_score), low_alpha=ioa.low_score, low_beta=beta(ioa.low_score)
        )

    def scores(self, base_score: float) -> tuple[float, float | None]:
        """mask_score and low_score at a base_score."""
        mask_score = _follow(base_score, self.alpha, self.beta)
        if self.low_alpha is None or self.low_beta is None:
            return mask_score, None
        return mask_score, min(mask_score, _follow(base_score, self.low_alpha, self.low_beta))

    @overload
    def rule(self, like: Rule, base_score: float) -> Rule: ...
    @overload
    def rule(self, like: IouRule, base_score: float) -> IouRule: ...
    def rule(self, like: AnyRule, base_score: float) -> AnyRule:
        """The rule at another base_score: scores follow, everything else is as in `like`."""
        if isinstance(like, IouRule):
            return replace(like, ioa=self.rule(like.ioa, base_score))
        mask_score, low_score = self.scores(base_score)
        return replace(like, base_score=base_score, mask_score=mask_score, low_score=low_score)


def _follow(base_score: float, alpha: float, beta: float) -> float:
    """A score between base_score and 1 that follows base_score, from `alpha` on."""
    return max(alpha, base_score, round(base_score + (1 - base_score) * beta, DECIMALS))
