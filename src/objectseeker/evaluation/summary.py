"""One run, one defence, one table.

Images are looked at a few hundred at a time: for the curves and, where the rule is known beforehand, for its
certificates. Where a clean recall is asked for, only the curves say which rule reaches it, and the images are looked at
once more. Everything but COCO's AP is a sum over images; see `Judged` for that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.iou_variant import AnyRule, IouRule
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import WHERES, Where
from objectseeker.core.vocabulary import Vocabulary
from objectseeker.defence import Defence
from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.average_precision import Judged
from objectseeker.evaluation.curves import NO_BOXES, Curve, curve_of
from objectseeker.evaluation.replayed import OperatingPoint, Replayed, counted, row_asked_for
from objectseeker.evaluation.scene import NO_IMAGES, Boxes, Census, Scene, nothing_counts
from objectseeker.evaluation.settings import BASE_SCORES, Settings, threshold_of

TOGETHER = 256  # images that are in memory at a time,
BOXES_TOGETHER = 2**20  # or as few as have so many masked boxes


@dataclass(frozen=True, slots=True, eq=False)
class Undefended:
    """The detector as it is: its curve by the paper's protocol, and COCO's AP50 for every class."""

    curve: Curve
    coco: Floats

    @property
    def ap50(self) -> float:
        return self.curve.mean_ap50

    @property
    def ap50_coco(self) -> float:
        return float(self.curve.scene.macro(self.coco))


@dataclass(frozen=True, slots=True, eq=False)
class DefendedOutcome:
    """What a defended detector costs and brings: the AP of its curve, and its operating point.

    The point is None, and so is all that depends on it, if a clean recall was asked for that is not reached.
    """

    settings: Settings
    curve: Curve
    point: OperatingPoint | None
    alerts: int | None = None  # clean images there to whose base boxes something is added, where counted

    @property
    def ap50(self) -> float:
        return self.curve.mean_ap50

    @property
    def highest_clean_recall(self) -> float:
        return self.curve.highest_clean_recall

    @property
    def base_score(self) -> float | None:
        return None if self.point is None else self.point.ioa.base_score

    @property
    def mask_score(self) -> float | None:
        return None if self.point is None else self.point.ioa.mask_score

    @property
    def low_score(self) -> float | None:
        return None if self.point is None else self.point.ioa.low_score

    @property
    def clean_recall(self) -> float | None:
        return None if self.point is None else self.point.clean_recall

    @property
    def vacuous_far(self) -> int | None:
        return None if self.point is None else self.point.vacuous_far()

    @property
    def joint_recall(self) -> float | None:
        return None if self.point is None else self.point.joint_recall

    def certified_recall(self, c: int | None = None) -> dict[Where, float | None]:
        """Of all objects, or of those of class `c`, where by where."""
        return dict.fromkeys(WHERES) if self.point is None else self.point.certified_recall(c)

    def recall(self, c: int) -> float | None:
        """The clean recall of one class."""
        return None if self.point is None else float(self.point.recall_per_class[c])

    def remark(self) -> str | None:
        """Why there is no point, or why it is at another clean recall than the usual one."""
        asked, reached = self.settings.clean_recall, self.highest_clean_recall
        if asked is None or (self.point is not None and not self.settings.clean_recall_is_default):
            return None
        if self.point is None:
            return f"clean recall {asked:.0%} is not reached, at most {reached:.1f} %: ask for less with --clean-recall"
        if self.curve.row_at_recall(asked) is None:
            return f"clean recall {asked:.0%} is not reached: measured at the highest that is, {reached:.1f} %"
        return None

    def operating_row(self) -> dict[str, float | None]:
        """Where on its curve the detector was certified."""
        names = ("base_score", "mask_score", "low_score", "clean_recall", "highest_clean_recall")
        return {name: getattr(self, name) for name in names}

    def to_row(self) -> dict[str, Any]:
        """The columns that every sweep has."""
        certified = {f"certified_{where}": share for where, share in self.certified_recall().items()}
        return {"ap50": self.ap50, **self.operating_row(), **certified, "vacuous_far": self.vacuous_far}


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The figures of a run. APs, recalls and rates are percentages, scores are not.

    `ours` is the deployed rule, `label_free` the same without regard to labels, `iou` and `iou_label_free` its IoU
    variant (the same as `ours` and `label_free` where that is what is deployed). Each is another detector: at a clean
    recall each has a base_score of its own.
    """

    names: tuple[str, ...]  # the classes of the data set
    images: int
    ignored_objects: int
    objects_per_class: Ints
    settings: Settings
    undefended: Undefended
    ours: DefendedOutcome
    label_free: DefendedOutcome
    iou: DefendedOutcome
    iou_label_free: DefendedOutcome
    defence: Defence | None = None

    @property
    def deployed(self) -> Defence | None:
        """The defence that these figures are about: with the rule of the operating point, its own or another one."""
        point = self.ours.point
        if self.defence is None or point is None or point.rule == self.defence.rule:
            return self.defence
        return replace(self.defence, rule=point.rule, follow=self.settings.follow)

    @property
    def objects(self) -> int:
        return int(self.objects_per_class.sum())

    @property
    def classes(self) -> list[int]:
        """Those that have objects."""
        return [int(c) for c in np.flatnonzero(self.objects_per_class)]

    @property
    def vacuous_far(self) -> int | None:
        """It depends on the objects alone, so any operating point has it."""
        return next((one.vacuous_far for one in (self.ours, self.label_free) if one.point is not None), None)

    @property
    def iou_rule(self) -> IouRule:
        assert isinstance(self.iou.settings.rule, IouRule)
        return self.iou.settings.rule

    @property
    def iou_threshold(self) -> float:
        return threshold_of(self.iou_rule, self.iou.settings.threat.threshold)

    @property
    def remarks(self) -> list[str]:
        """What stands in for figures that are not there, or not where one would expect them."""
        remark = self.ours.remark()
        return [] if remark is None else [remark]

    def alert_rate(self, outcome: DefendedOutcome) -> float | None:
        return None if outcome.alerts is None else 100 * outcome.alerts / self.images

    def to_json(self) -> dict[str, Any]:
        undefended, settings = self.undefended, self.settings
        asked = "rule" if settings.base_score is None else "base_score"
        return {
            "images": self.images,
            "objects": self.objects,
            "ignored_objects": self.ignored_objects,
            "classes": len(self.classes),
            "defence": None if self.deployed is None else self.deployed.described(),
            "settings": settings.to_json(),
            "operating_point": {
                "asked": "clean_recall" if settings.clean_recall is not None else asked,
                "clean_recall": settings.clean_recall,
                "base_score": settings.base_score,
                "remarks": self.remarks,
            },
            "vanilla": {"ap50": undefended.ap50, "ap50_coco": undefended.ap50_coco},
            "objectseeker": self._block(self.ours, self.label_free),
            "iou_variant": {
                "tau_iou": self.iou_rule.tau_iou,
                "threshold": self.iou_threshold,
                **self._block(self.iou, self.iou_label_free),
            },
            "per_class": [self._class_row(c) for c in self.classes],
        }

    def _block(self, ours: DefendedOutcome, free: DefendedOutcome) -> dict[str, Any]:
        """One way to prune: label by label, and without labels."""
        return {
            "ap50": ours.ap50,
            "ap50_label_free": free.ap50,
            **ours.operating_row(),
            "certified_recall": ours.certified_recall(),
            "joint_recall": ours.joint_recall,
            "false_alerts": {"images": ours.alerts, "rate": self.alert_rate(ours)},
            "label_free": free.operating_row(),
            "certified_recall_label_free": free.certified_recall(),
            "false_alerts_label_free": {"images": free.alerts, "rate": self.alert_rate(free)},
            "vacuous_far": next((one.vacuous_far for one in (ours, free) if one.point is not None), None),
        }

    def _class_row(self, c: int) -> dict[str, Any]:
        ours, free, iou, iou_free = self.ours, self.label_free, self.iou, self.iou_label_free
        return {
            "class": self.names[c],
            "objects": int(self.objects_per_class[c]),
            "vanilla_ap50": float(self.undefended.curve.ap50[c]),
            "vanilla_ap50_coco": float(self.undefended.coco[c]),
            "ap50": float(ours.curve.ap50[c]),
            "ap50_label_free": float(free.curve.ap50[c]),
            "clean_recall": ours.recall(c),
            "clean_recall_label_free": free.recall(c),
            "certified_recall": ours.certified_recall(c),
            "vacuous_far": None if ours.point is None else ours.point.vacuous_far(c),
            "certified_recall_label_free": free.certified_recall(c),
            "iou_variant": {
                "ap50": float(iou.curve.ap50[c]),
                "ap50_label_free": float(iou_free.curve.ap50[c]),
                "certified_recall": iou.certified_recall(c),
                "certified_recall_label_free": iou_free.certified_recall(c),
            },
        }


def evaluate(
    images: Sequence[ObservedImage], vocabulary: Vocabulary, settings: Settings, *, defence: Defence | None = None
) -> Evaluation:
    """The figures of a run; `defence`, if given, is what the settings' rule is deployed as, and is named by the result.

    - ap50: the paper's protocol, mean over the classes that have objects; the undefended detector gets the same
      protocol, and beside it its ordinary COCO AP50.
    - base_score, mask_score, low_score, clean_recall: the operating point that `settings` ask for. The clean recall is
      the mean over classes.
    - certified_recall: the certified share of all objects there. `vacuous_far` of them count as certified against far
      patches because no position is far from them.
    - joint_recall: the share of all objects that surely remain, image by image and all in one output, under any single
      patch of that size, wherever it lies; of `ours` alone. Never below the certified recall for anywhere.
    - alerts: how many of these clean images are flagged there, because masks add a box to the base boxes; as when it
      is deployed, of whatever class.

    If no base_score reaches the clean recall, all that depends on it is None; see highest_clean_recall.

    The images are gone through, twice for a clean recall, and not kept: a stored run may be more than memory holds.
    """
    if not vocabulary.dataset_names:  # nobody said what there is to see
        raise ObjectSeekerError(nothing_counts(len(images)) if len(images) else NO_IMAGES)
    ways = [settings, settings.label_free()]
    if not isinstance(settings.rule, IouRule):
        ways += [way.by_iou() for way in ways]
    totals = Totals(vocabulary, ways)
    for scene in scenes(images, vocabulary):
        totals.add(scene)
    if not totals.objects.any():
        raise ObjectSeekerError(nothing_counts(totals.images) if totals.images else NO_IMAGES)
    outcomes = [totals.outcome(number) for number in range(len(ways))]
    open_points = [(one.settings, one.point) for one in outcomes if one.settings.fixed_rule is None and one.point]
    remaining = 0
    for scene in scenes(images, vocabulary) if open_points else ():
        for way, point in open_points:
            replayed = Replayed.of(scene, way)
            _certify(replayed, point.rule, (point.certified, point.vacuous))
            remaining += _remaining(replayed, point.rule) if way is settings else 0
    ours, label_free, *by_iou = outcomes
    if settings.fixed_rule is None and ours.point is not None and settings.threat.count == 1:
        ours = replace(ours, point=replace(ours.point, remaining=remaining))
    iou, iou_label_free = by_iou or (ours, label_free)
    return Evaluation(
        names=vocabulary.dataset_names,
        images=totals.images,
        ignored_objects=totals.ignored,
        objects_per_class=totals.objects,
        settings=settings,
        undefended=totals.undefended(),
        ours=ours,
        label_free=label_free,
        iou=iou,
        iou_label_free=iou_label_free,
        defence=defence,
    )


class Sums:
    """One detector while images pass by: right and wrong boxes and flagged images, one row per base_score."""

    def __init__(self, base_scores: Floats, classes: int) -> None:
        self._base_scores = base_scores
        self._right, self._wrong = np.zeros((2, len(base_scores), classes), np.int64)
        self.alerts = np.zeros(len(base_scores), np.int64)

    def add(self, scene: Scene, added: Iterable[Boxes]) -> None:
        """`added` to the base boxes at each base_score, in the detector's labels."""
        curve = curve_of(scene, self._base_scores, self._flagging(scene, added))
        self._right += curve.right
        self._wrong += curve.wrong

    def _flagging(self, scene: Scene, added: Iterable[Boxes]) -> Iterator[Boxes]:
        for row, boxes in enumerate(added):
            self.alerts[row] += len(np.unique(boxes.image))
            yield boxes.in_dataset(scene.vocabulary)

    def curve(self, objects: Ints, rows: slice) -> Curve:
        return Curve(Census(objects), self._base_scores[rows], self._right[rows], self._wrong[rows])


def _certify(replayed: Replayed, rule: AnyRule, totals: Iterable[Ints]) -> None:
    """Add the certified and the vacuous objects of a scene to totals of (WHERES, classes)."""
    for total, holds in zip(totals, replayed.certified(rule, replayed.settings.threat), strict=True):
        total += counted(replayed.scene, holds)


def _remaining(replayed: Replayed, rule: AnyRule) -> int:
    """Of a scene's objects, how many surely remain under a patch anywhere, image by image; two patches: nothing yet."""
    threat = replayed.settings.threat
    return sum(one.count for one in replayed.remaining(rule, threat)) if threat.count == 1 else 0


class Totals:
    """The first time through: what all detectors do at every base_score, and what is certified of known rules."""

    def __init__(self, vocabulary: Vocabulary, ways: Sequence[Settings]) -> None:
        classes = len(vocabulary.dataset_names)
        self.images = self.ignored = 0
        self.objects = np.zeros(classes, np.int64)
        self._judged: list[Judged] = []
        self._undefended = Sums(BASE_SCORES, classes)
        self._ways = ways
        # A rule that is no point of the curve comes after it: it has no part in the AP.
        self._rules = [[way.on_curve(score) for score in BASE_SCORES.tolist()] for way in ways]
        for way, rules in zip(ways, self._rules, strict=True):
            rules += [] if way.fixed_rule is None else [way.fixed_rule]
        self._sums = [Sums(np.array([rule.base_score for rule in rules]), classes) for rules in self._rules]
        self._certified = np.zeros((len(ways), 2, len(WHERES), classes), np.int64)
        self._remaining = 0  # of the first way

    def add(self, scene: Scene) -> None:
        self.images += len(scene.images)
        self.ignored += int(scene.ignore.sum())
        self.objects += scene.objects_per_class
        self._judged.append(Judged.of(scene))
        self._undefended.add(scene, [NO_BOXES] * len(BASE_SCORES))
        for way, rules, sums, totals in zip(self._ways, self._rules, self._sums, self._certified, strict=True):
            replayed = Replayed.of(scene, way)
            sums.add(scene, replayed.added(rules))
            if way.fixed_rule is not None:
                _certify(replayed, way.fixed_rule, totals)
                self._remaining += _remaining(replayed, way.fixed_rule) if way is self._ways[0] else 0

    def undefended(self) -> Undefended:
        return Undefended(
            self._undefended.curve(self.objects, slice(None)), Judged.join(self._judged).ap50(self.objects)
        )

    def outcome(self, number: int) -> DefendedOutcome:
        """One of the ways, at the point that it asks for; at a clean recall nothing is certified yet."""
        way, rules, sums = self._ways[number], self._rules[number], self._sums[number]
        curve = sums.curve(self.objects, slice(len(BASE_SCORES)))
        row = len(BASE_SCORES) if way.fixed_rule is not None else row_asked_for(way, curve)
        if row is None:
            return DefendedOutcome(way, curve, None)
        there = sums.curve(self.objects, slice(row, row + 1))
        recall = float(there.clean_recall[0]), there.recall[0]
        point = OperatingPoint(rules[row], *recall, self.objects, *self._certified[number])
        if number == 0 and way.fixed_rule is not None and way.threat.count == 1:
            point = replace(point, remaining=self._remaining)
        return DefendedOutcome(way, curve, point, int(sums.alerts[row]))


def scenes(images: Iterable[ObservedImage], vocabulary: Vocabulary) -> Iterator[Scene]:
    """Some images after the other, no more at a time than memory is sure to hold."""
    some: list[ObservedImage] = []
    boxes = 0
    for image in images:
        some.append(image)
        boxes += len(image.observation.boxes)
        if len(some) == TOGETHER or boxes >= BOXES_TOGETHER:
            yield Scene.part(some, vocabulary)
            some, boxes = [], 0
    if some:
        yield Scene.part(some, vocabulary)
