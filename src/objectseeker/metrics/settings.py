"""Settings of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats
from objectseeker.core.rules import PruningRule, Rule
from objectseeker.core.rules.iou import FILTER_IOU, with_filter_iou
from objectseeker.core.threats import ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number

# The settings a curve is made of. A run stores base boxes with scores of at least its floor (.01 by default): below
# it every base_threshold gives the same boxes.
BASE_THRESHOLDS: Floats = np.arange(100) / 100
BASE_THRESHOLDS.setflags(write=False)

OPERATING_POINT_KEYS = ("clean_recall", "base_threshold", "fppi")  # what can fix an operating point, one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """A rule, how its scores follow base_threshold, what it is certified against, and where on its curve.

    The operating point is where the defended detector reaches `clean_recall` (the r of CertR@r, a fraction), or at
    `base_threshold`, or at the lowest base_threshold at and above which it has at most `fppi` false positives per
    image; with none of these it is the rule itself.
    """

    rule: PruningRule
    threshold_schedule: ThresholdSchedule
    threat: ThreatModel = field(default_factory=ThreatModel)
    clean_recall: float | None = None
    base_threshold: float | None = None
    fppi: float | None = None
    base_floor: float = 0.0  # base boxes below it are not stored, so false positives there are unknown

    def __post_init__(self) -> None:
        for name in ("clean_recall", "base_threshold", "base_floor"):
            if getattr(self, name) is not None:
                require_fraction(getattr(self, name), name)
        if self.fppi is not None:
            require_fppi(self.fppi)
        given = {name: getattr(self, name) for name in OPERATING_POINT_KEYS if getattr(self, name) is not None}
        if len(given) > 1:
            several = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ObjectSeekerError(f"at most one operating point is possible: got {several}. Omit the others.")
        if (self.rule.evidence_threshold is None) != (self.threshold_schedule.evidence_alpha is None):
            raise ObjectSeekerError(
                f"the rule's evidence_threshold is {self.rule.evidence_threshold!r}, but its scores are "
                f"{self.threshold_schedule}: change one of them"
            )

    @classmethod
    def from_schedule(
        cls, follow: ThresholdSchedule, like: PruningRule | None = None, **others: Any
    ) -> EvaluationSettings:
        """Settings whose rule is the one on the curve at its base_threshold; all but scores is as in `like`."""
        like = Rule() if like is None else like
        return cls(rule=follow.rule(like, like.base_threshold), threshold_schedule=follow, **others)

    def on_curve(self, base_threshold: float) -> PruningRule:
        """The rule whose scores follow this base_threshold: what the curve of an average precision is made of."""
        return self.threshold_schedule.rule(self.rule, base_threshold)

    def rule_at(self, base_threshold: float) -> PruningRule:
        """The rule at a base_threshold: the rule itself at its own."""
        return self.rule if base_threshold == self.rule.base_threshold else self.on_curve(base_threshold)

    @property
    def selected_by(self) -> str:
        """Return the setting that fixes the operating point: one of OPERATING_POINT_KEYS, or "rule"."""
        return next((name for name in OPERATING_POINT_KEYS if getattr(self, name) is not None), "rule")

    @property
    def fixed_rule(self) -> PruningRule | None:
        """The rule at the operating point, unless the curve must say where that is."""
        if self.clean_recall is not None or self.fppi is not None:
            return None
        return self.rule if self.base_threshold is None else self.rule_at(self.base_threshold)

    @property
    def min_mask_score(self) -> float:
        """Return the lowest score at which a masked box can count, at any base_threshold."""
        return min(self.rule.min_mask_score, self.on_curve(0.0).min_mask_score)

    def with_rule(self, **changes: Any) -> EvaluationSettings:
        """Another rule: these settings changed, scores aside."""
        return replace(self, rule=self.rule.with_settings(**changes))

    def with_schedule(self, **changes: Any) -> EvaluationSettings:
        """Scores that follow base_threshold in another way, those of the rule itself included."""
        follow = replace(self.threshold_schedule, **changes)
        return replace(self, threshold_schedule=follow, rule=follow.rule(self.rule, self.rule.base_threshold))

    def at_clean_recall(self, clean_recall: float) -> EvaluationSettings:
        return replace(self, clean_recall=clean_recall, base_threshold=None, fppi=None)

    def at_fppi(self, most: float) -> EvaluationSettings:
        return replace(self, clean_recall=None, base_threshold=None, fppi=most)

    def class_agnostic(self) -> EvaluationSettings:
        """Return the class-agnostic settings."""
        return self.with_rule(classwise=False)

    def iou_variant(self) -> EvaluationSettings:
        """The IoU variant of the same rule, at its own threshold."""
        if self.rule.overlap == "iou":
            return self
        rule = with_filter_iou(self.rule, FILTER_IOU)
        return replace(self, rule=rule, threat=replace(self.threat, certification_threshold=None))

    def protocol(self) -> str:
        """Name the protocol: standard-1, or standard-1 with what differs from it.

        standard-1: one square patch of 1 % of the image; certification threshold 0; the exact bound; the rule itself is
        the operating point.
        """
        threat = self.threat
        threshold = self.rule.resolve_threshold(threat.certification_threshold)
        standard = {
            "patch_area": 0.01,
            "patch_aspect": 1.0,
            "patch_count": 1,
            "certification_threshold": 0.0,
            "bound": "exact",
        }
        values = threat.to_dict(self.rule) | {"certification_threshold": threshold}
        differs = [f"{name}={values[name]}" for name, usual in standard.items() if values[name] != usual]
        if self.selected_by != "rule":
            differs.append(f"{self.selected_by}={getattr(self, self.selected_by)}")
        return "standard-1" if not differs else f"standard-1 with {', '.join(differs)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            **{
                name: getattr(self.threshold_schedule, name)
                for name in ("alpha", "beta", "evidence_alpha", "evidence_beta")
            },
            "rule": self.rule.kind,
            **self.rule.hyperparameters(),
            **self.threat.to_dict(self.rule),
            "clean_recall": self.clean_recall,
            "base_threshold": self.base_threshold,
            "fppi": self.fppi,
        }


def require_fppi(most: float) -> float:
    """Return a limit of false positives per image; reject a negative one."""
    number = require_number(most, "fppi")
    if number < 0:
        raise ObjectSeekerError(f"fppi must be at least 0: got {most!r}. Choose another.")
    return number


def describe_fppi(fppi: float) -> str:
    """Describe an operating point with this many false positives per image."""
    return f"at most {fppi:g} false positive{'' if fppi == 1 else 's'} per image"


def describe_point(settings: EvaluationSettings) -> str:
    """Describe the operating point that settings ask for."""
    if settings.clean_recall is not None:
        return f"clean recall {100 * settings.clean_recall:g} %"
    if settings.fppi is not None:
        return f"a base_threshold with {describe_fppi(settings.fppi)}"
    base_threshold = settings.rule.base_threshold if settings.base_threshold is None else settings.base_threshold
    return f"base_threshold {base_threshold:g}"


def require_seed(seed: int) -> int:
    """Return a seed for random numbers; reject all but whole numbers of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ObjectSeekerError(f"seed must be a whole number of at least 0: got {seed!r}. Choose another.")
    return seed
