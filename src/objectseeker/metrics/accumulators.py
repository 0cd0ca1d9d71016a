"""What is counted while images pass by: whole numbers, so that sums of parts are those of all images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from objectseeker.core.boxes import Floats
from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics.average_precision import Judged
from objectseeker.metrics.curves import NO_BOXES, Curve, defended_curve
from objectseeker.metrics.defended_images import DefendedImageSet, OperatingPoint, counted, operating_row_of
from objectseeker.metrics.image_set import BoxTable, ImageSet, ObjectCensus
from objectseeker.metrics.outcomes import DefendedOutcome, Undefended, UndefendedPoint
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings


class Sums:
    """One detector while images pass by: right and wrong boxes and flagged images, one row per base_threshold."""

    def __init__(self, base_thresholds: Floats, classes: int) -> None:
        self._base_thresholds = base_thresholds
        self._right, self._wrong = np.zeros((2, len(base_thresholds), classes), np.int64)
        self.alerts = np.zeros(len(base_thresholds), np.int64)

    def add(self, scene: ImageSet, added: Iterable[BoxTable]) -> None:
        """`added` to the base boxes at each base_threshold, in the detector's labels."""
        curve = defended_curve(scene, self._base_thresholds, self._flagging(scene, added))
        self._right += curve.right
        self._wrong += curve.wrong

    def join(self, other: Sums) -> None:
        self._right += other._right
        self._wrong += other._wrong
        self.alerts += other.alerts

    def _flagging(self, scene: ImageSet, added: Iterable[BoxTable]) -> Iterator[BoxTable]:
        for row, boxes in enumerate(added):
            self.alerts[row] += len(np.unique(boxes.image))
            yield boxes.in_dataset(scene.vocabulary)

    def curve(self, census: ObjectCensus, rows: slice) -> Curve:
        return Curve(census, self._base_thresholds[rows], self._right[rows], self._wrong[rows])


class Proven:
    """One rule while images pass by: objects that are certified, (WHERES, classes), and those that surely remain."""

    def __init__(self, classes: int, *, jointly: bool) -> None:
        self.certified, self.vacuous = np.zeros((2, len(PATCH_LOCATIONS), classes), np.int64)
        self.remaining = 0 if jointly else None  # of all objects of each image, under one patch anywhere

    def add(self, replayed: DefendedImageSet, rule: AnyRule) -> None:
        threat = replayed.settings.threat
        certified, vacuous = replayed.certified(rule, threat)
        self.certified += counted(replayed.scene, certified)
        self.vacuous += counted(replayed.scene, vacuous)
        if self.remaining is not None:
            self.remaining += sum(one.count for one in replayed.remaining(rule, threat))

    def join(self, other: Proven) -> None:
        self.certified += other.certified
        self.vacuous += other.vacuous
        if self.remaining is not None and other.remaining is not None:
            self.remaining += other.remaining

    def of(self, outcome: DefendedOutcome) -> DefendedOutcome:
        """The same outcome with what was proven at its point."""
        assert outcome.point is not None
        point = replace(outcome.point, certified=self.certified, vacuous=self.vacuous, remaining=self.remaining)
        return replace(outcome, point=point)


class Totals:
    """The first time through: what all detectors do at every base_threshold, and what is certified of known rules."""

    def __init__(self, vocabulary: LabelMap, ways: Sequence[EvaluationSettings]) -> None:
        classes = len(vocabulary.dataset_names)
        self.images = self.ignored = 0
        self.objects = np.zeros(classes, np.int64)
        self._judged: list[Judged] = []
        self._ways = ways
        # A rule that is no point of the curve comes after it: it has no part in the AP.
        self._rules = [[way.on_curve(score) for score in BASE_THRESHOLDS.tolist()] for way in ways]
        for way, rules in zip(ways, self._rules, strict=True):
            rules += [] if way.fixed_rule is None else [way.fixed_rule]
        self._sums = [Sums(np.array([rule.base_threshold for rule in rules]), classes) for rules in self._rules]
        self._undefended = Sums(np.array([rule.base_threshold for rule in self._rules[0]]), classes)
        self._proven = [Proven(classes, jointly=jointly(way, n)) for n, way in enumerate(ways)]

    def add(self, scene: ImageSet) -> None:
        self.images += len(scene.images)
        self.ignored += int(scene.ignore.sum())
        self.objects += scene.objects_per_class
        self._judged.append(Judged.of(scene))
        self._undefended.add(scene, [NO_BOXES] * len(self._rules[0]))
        for way, rules, sums, proven in zip(self._ways, self._rules, self._sums, self._proven, strict=True):
            replayed = DefendedImageSet.of(scene, way)
            sums.add(scene, replayed.added(rules))
            if way.fixed_rule is not None:
                proven.add(replayed, way.fixed_rule)

    def join(self, other: Totals) -> None:
        """Those of the images that come next."""
        self.images += other.images
        self.ignored += other.ignored
        self.objects += other.objects
        self._judged += other._judged
        self._undefended.join(other._undefended)
        for mine, theirs in zip(self._sums, other._sums, strict=True):
            mine.join(theirs)
        for found, more in zip(self._proven, other._proven, strict=True):
            found.join(more)

    @property
    def census(self) -> ObjectCensus:
        return ObjectCensus(self.objects, self.images)

    def undefended(self) -> Undefended:
        curve = self._undefended.curve(self.census, slice(len(BASE_THRESHOLDS)))
        row = self._row(self._ways[0], curve)
        there = None if row is None else self._undefended.curve(self.census, slice(row, row + 1))
        coco = Judged.join(self._judged).ap50(self.objects)
        return Undefended(curve, coco, None if there is None else UndefendedPoint.on(there, 0))

    def outcome(self, number: int) -> DefendedOutcome:
        """One of the ways, at the point that it asks for; nothing is certified yet where only the curve says it."""
        way, sums = self._ways[number], self._sums[number]
        curve = sums.curve(self.census, slice(len(BASE_THRESHOLDS)))
        row = self._row(way, curve)
        if row is None:
            return DefendedOutcome(way, curve, None)
        there, proven = sums.curve(self.census, slice(row, row + 1)), self._proven[number]
        point = OperatingPoint(
            rule=self._rules[number][row],
            clean_recall=float(there.clean_recall[0]),
            recall_per_class=there.recall[0],
            objects=self.objects,
            certified=proven.certified,
            vacuous=proven.vacuous,
            fppi=float(there.fppi[0]),
            remaining=None if way.fixed_rule is None else proven.remaining,
        )
        return DefendedOutcome(way, curve, point, int(sums.alerts[row]))

    @staticmethod
    def _row(way: EvaluationSettings, curve: Curve) -> int | None:
        return len(BASE_THRESHOLDS) if way.fixed_rule is not None else operating_row_of(way, curve)


def jointly(way: EvaluationSettings, number: int) -> bool:
    """Whether a way has a joint certificate: the first one, and for two patches none yet."""
    return number == 0 and way.threat.count == 1
