"""What one evaluation is run with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Floats
from objectseeker.core.iou_rule import IOU_THRESHOLD, AnyRule, IouRule
from objectseeker.core.rule import Rule
from objectseeker.core.threats import PATCH_LOCATIONS, Patch
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number

# The settings a curve is made of. A run keeps base boxes from a floor on (.01 unless told otherwise): below it every
# base_score gives the same boxes.
BASE_SCORES: Floats = np.arange(100) / 100
BASE_SCORES.setflags(write=False)

OPERATING_POINT_KEYS = ("clean_recall", "base_score", "wrong_boxes")  # what can fix an operating point, one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreatModel:
    """What is certified against: a patch, everywhere it may lie, and how well an object must stay found.

    `threshold` is the T of the certificates; None is the rule's own: 0, for an `IouRule` 0.5.
    """

    area: float = 0.01
    aspect: float = 1.0
    count: int = 1
    threshold: float | None = None
    bound: Bound = "exact"

    def __post_init__(self) -> None:
        if self.threshold is not None:
            require_fraction(self.threshold, "threshold")
        if self.bound not in get_args(Bound):
            raise ObjectSeekerError(f"bound must be one of {', '.join(get_args(Bound))}, got {self.bound!r}")
        self.patches()

    def patches(self) -> list[Patch]:
        """The patch at every place, in the order of WHERES."""
        return [Patch(self.area, self.aspect, where, self.count) for where in PATCH_LOCATIONS]

    def described(self, rule: AnyRule) -> dict[str, Any]:
        """What certificates of `rule` are about, for files."""
        return {
            "patch_area": self.area,
            "patch_aspect": self.aspect,
            "patch_count": self.count,
            "threshold": threshold_of(rule, self.threshold),
            "bound": self.bound,
        }

    def anywhere(self) -> Patch:
        """The patch of a joint certificate, which is about a single one."""
        return Patch(self.area, self.aspect, "anywhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """A rule, how its scores follow base_score, what it is certified against, and where on its curve.

    The operating point is where the defended detector reaches `clean_recall` (the r of CertR@r, a fraction), or at
    `base_score`, or at the smallest base_score from which on it gives at most `wrong_boxes` wrong boxes an image; with
    none of these it is the rule itself. A clean recall that nobody asked for (`clean_recall_is_default`) gives way to
    the highest that is reached.
    """

    rule: AnyRule
    follow: ThresholdSchedule
    threat: ThreatModel = field(default_factory=ThreatModel)
    clean_recall: float | None = None
    base_score: float | None = None
    clean_recall_is_default: bool = False
    wrong_boxes: float | None = None
    base_floor: float = 0.0  # below it base boxes are not known, so nobody can say how many of them are wrong

    def __post_init__(self) -> None:
        for name in ("clean_recall", "base_score", "base_floor"):
            if getattr(self, name) is not None:
                require_fraction(getattr(self, name), name)
        if self.wrong_boxes is not None:
            require_wrong_boxes(self.wrong_boxes)
        given = {name: getattr(self, name) for name in OPERATING_POINT_KEYS if getattr(self, name) is not None}
        if len(given) > 1:
            several = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ObjectSeekerError(f"give a clean recall, a base score or wrong boxes, one of them: got {several}")
        if (self.ioa.low_score is None) != (self.follow.low_alpha is None):
            raise ObjectSeekerError(f"the rule's low_score is {self.ioa.low_score!r}, but its scores are {self.follow}")

    @classmethod
    def along(cls, follow: ThresholdSchedule, like: AnyRule | None = None, **others: Any) -> EvaluationSettings:
        """Settings whose rule is the one on the curve at its base_score; all but scores is as in `like`."""
        like = Rule() if like is None else like
        return cls(rule=follow.rule(like, like.base_score), follow=follow, **others)

    @property
    def ioa(self) -> Rule:
        """The rule, or that of the boxes that are not clear."""
        return ioa_of(self.rule)

    def on_curve(self, base_score: float) -> AnyRule:
        """The rule whose scores follow this base_score: what the curve of an average precision is made of."""
        return self.follow.rule(self.rule, base_score)

    def rule_at(self, base_score: float) -> AnyRule:
        """The rule at a base_score: the rule itself at its own."""
        return self.rule if base_score == self.rule.base_score else self.on_curve(base_score)

    @property
    def asked(self) -> str:
        """What fixes the operating point: one of POINTS, or the rule itself."""
        return next((name for name in OPERATING_POINT_KEYS if getattr(self, name) is not None), "rule")

    @property
    def fixed_rule(self) -> AnyRule | None:
        """The rule at the operating point, unless the curve must say where that is."""
        if self.clean_recall is not None or self.wrong_boxes is not None:
            return None
        return self.rule if self.base_score is None else self.rule_at(self.base_score)

    @property
    def floor(self) -> float:
        """The lowest score at which a masked box can play a part, whatever the base_score."""
        return min(self.rule.floor, self.on_curve(0.0).floor)

    def with_rule(self, **changes: Any) -> EvaluationSettings:
        """Another rule: these fields of `Rule` changed, scores aside."""
        ioa = replace(self.ioa, **changes)
        return replace(self, rule=replace(self.rule, ioa=ioa) if isinstance(self.rule, IouRule) else ioa)

    def following(self, **changes: Any) -> EvaluationSettings:
        """Scores that follow base_score in another way, those of the rule itself included."""
        follow = replace(self.follow, **changes)
        return replace(self, follow=follow, rule=follow.rule(self.rule, self.rule.base_score))

    def at_clean_recall(self, clean_recall: float) -> EvaluationSettings:
        return replace(
            self, clean_recall=clean_recall, base_score=None, wrong_boxes=None, clean_recall_is_default=False
        )

    def at_wrong_boxes(self, most: float) -> EvaluationSettings:
        return replace(self, clean_recall=None, base_score=None, wrong_boxes=most, clean_recall_is_default=False)

    def label_free(self) -> EvaluationSettings:
        """The same without regard to labels."""
        return self.with_rule(classwise=False)

    def by_iou(self) -> EvaluationSettings:
        """The IoU variant of the same rule, at its own threshold."""
        if isinstance(self.rule, IouRule):
            return self
        return replace(self, rule=IouRule(ioa=self.rule), threat=replace(self.threat, threshold=None))

    def to_json(self) -> dict[str, Any]:
        ioa = self.ioa
        return {
            **{name: getattr(self.follow, name) for name in ("alpha", "beta", "low_alpha", "low_beta")},
            "power": ioa.power,
            "filter_ioa": ioa.filter_ioa,
            "edge_factor": ioa.edge_factor,
            "cluster_distance": ioa.cluster_distance,
            "classwise": ioa.classwise,
            "tau_iou": self.rule.tau_iou if isinstance(self.rule, IouRule) else None,
            **self.threat.described(self.rule),
            "clean_recall": self.clean_recall,
            "base_score": self.base_score,
            "wrong_boxes": self.wrong_boxes,
        }


def ioa_of(rule: AnyRule) -> Rule:
    """The rule itself, or the one inside an `IouRule`."""
    return rule.ioa if isinstance(rule, IouRule) else rule


def threshold_of(rule: AnyRule, threshold: float | None) -> float:
    """The T of a rule's certificates: its own, unless given."""
    if threshold is not None:
        return threshold
    return IOU_THRESHOLD if isinstance(rule, IouRule) else 0.0


def require_wrong_boxes(most: float) -> float:
    """How many wrong boxes an image may have, on average."""
    number = require_number(most, "wrong_boxes")
    if number < 0:
        raise ObjectSeekerError(f"wrong_boxes must be at least 0, got {most!r}")
    return number


def at_most(wrong_boxes: float) -> str:
    """An operating point in words."""
    return f"at most {wrong_boxes:g} wrong box{'' if wrong_boxes == 1 else 'es'} an image"


def require_seed(seed: int) -> int:
    """A seed that random numbers can be drawn from."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ObjectSeekerError(f"seed must be a whole number of at least 0, got {seed!r}")
    return seed
