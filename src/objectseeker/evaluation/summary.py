"""One run, one setting, one table.

Images are looked at a few hundred at a time, twice: first for the curves, which say where the clean recall asked for is
reached, then for the certificates there. Everything but COCO's AP is a sum over images; see `Judged` for that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.iou_variant import IOU_THRESHOLD, TAU_IOU
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rule import Rule
from objectseeker.core.threats import WHERES
from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.average_precision import Judged
from objectseeker.evaluation.certified import certified_objects, find_proofs
from objectseeker.evaluation.curves import Curve, curve_of, vanilla_curve
from objectseeker.evaluation.defence import OperatingPoint
from objectseeker.evaluation.iou import IouDefence, iou_certified
from objectseeker.evaluation.replay import find_candidates, replay
from objectseeker.evaluation.scene import NO_IMAGES, Boxes, Census, Scene, nothing_counts
from objectseeker.evaluation.settings import BASE_SCORES, Settings

Row = dict[str, Any]

TOGETHER = 256  # images that are in memory at a time


@dataclass(frozen=True, slots=True)
class Way:
    """One way to prune: the method or its IoU variant, label by label or without labels."""

    settings: Settings
    classwise: bool
    by_iou: bool

    def rule(self, base_score: float) -> Rule:
        return self.settings.rule(base_score, classwise=self.classwise)

    def additions(self, scene: Scene) -> Iterator[Boxes]:
        """What is added to the base boxes at each of BASE_SCORES."""
        scores = BASE_SCORES.tolist()
        if self.by_iou:
            return IouDefence.prepare(scene, self.settings, classwise=self.classwise).additions(self.settings, scores)
        candidates = find_candidates(scene, self.rule(0.0), self.settings.floor)
        return replay(candidates, (self.rule(score) for score in scores))

    def certified(self, scene: Scene, rule: Rule) -> tuple[Bools, Bools]:
        """Verdicts at one base_score: `certified` and `vacuous` (WHERES, counted objects)."""
        settings = self.settings
        if self.by_iou:
            return iou_certified(scene, rule, settings)
        proofs = find_proofs(scene, self.rule(0.0), settings.bound)
        return certified_objects(proofs, rule, settings.patches(), threshold=settings.threshold)


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """Where the clean recall asked for is reached. Counts are (WHERES, classes), recalls are percentages."""

    rule: Rule
    clean_recall: float
    recall_per_class: Floats
    alerts: int  # images there to whose base boxes something is added
    objects: Ints  # per class
    certified: Ints
    vacuous: Ints

    def certified_recall(self, c: int | None = None) -> Row:
        """The certified share of all objects, or of those of class `c`, where by where; None if there are none."""
        chosen = slice(None) if c is None else slice(c, c + 1)
        objects, certified = int(self.objects[chosen].sum()), self.certified[:, chosen].sum(axis=1).tolist()
        return {
            where: 100 * (count / objects) if objects else None for where, count in zip(WHERES, certified, strict=True)
        }

    def vacuous_far(self, c: int | None = None) -> int:
        """Objects (all, or of class `c`) that count as certified against far because no position is far from them."""
        vacuous = self.vacuous[WHERES.index("far")]
        return int(vacuous.sum() if c is None else vacuous[c])


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One way to prune, and its operating point at the clean recall asked for (None if that is not reached)."""

    curve: Curve
    point: Point | None

    def certified_recall(self, c: int | None = None) -> Row:
        return certified_row(None) if self.point is None else self.point.certified_recall(c)


class Curves:
    """The first time through: right and wrong boxes at every base_score, undefended and for each of `ways`."""

    def __init__(self, names: Sequence[str], ways: Sequence[Way]) -> None:
        shape = (1 + len(ways), len(BASE_SCORES), len(names))
        self.images = self.ignored = 0
        self.objects = np.zeros(len(names), np.int64)
        self._ways = ways
        self._right, self._wrong = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._alerts = np.zeros(shape[:2], np.int64)
        self._judged: list[Judged] = []

    def add(self, scene: Scene) -> None:
        self.images += len(scene.images)
        self.ignored += int(scene.ignore.sum())
        self.objects += scene.objects_per_class
        self._judged.append(Judged.of(scene))
        self._count(0, vanilla_curve(scene))
        for number, way in enumerate(self._ways, start=1):
            added = self._counted(number, way.additions(scene))
            self._count(number, curve_of(scene, BASE_SCORES, added))

    def _count(self, number: int, curve: Curve) -> None:
        self._right[number] += curve.right
        self._wrong[number] += curve.wrong

    def _counted(self, number: int, additions: Iterable[Boxes]) -> Iterator[Boxes]:
        for row, added in enumerate(additions):
            self._alerts[number, row] += len(np.unique(added.image))
            yield added

    def curve(self, number: int) -> Curve:
        return Curve(Census(self.objects), BASE_SCORES, self._right[number], self._wrong[number])

    def coco_ap50(self) -> Floats:
        return Judged.join(self._judged).ap50(self.objects)

    def point(self, number: int, clean_recall: float) -> Point | None:
        """Where the way `number` reaches the clean recall; nothing is certified yet."""
        curve = self.curve(number)
        row = curve.row_at_recall(clean_recall)
        if row is None:
            return None
        counts = np.zeros((2, len(WHERES), len(self.objects)), np.int64)
        return Point(
            rule=self._ways[number - 1].rule(float(BASE_SCORES[row])),
            clean_recall=float(curve.clean_recall[row]),
            recall_per_class=curve.recall[row],
            alerts=int(self._alerts[number, row]),
            objects=self.objects,
            certified=counts[0],
            vacuous=counts[1],
        )


def evaluate(images: Sequence[ObservedImage], names: Sequence[str], settings: Settings) -> Row:
    """The figures of a run: plain values, ready for JSON. APs, recalls and rates are percentages, scores are not.

    - ap50: the paper's protocol, mean over the classes that have objects; `vanilla` is the undefended detector under
      the same protocol. ap50_coco: its ordinary COCO AP50.
    - base_score, mask_score, low_score: the highest base_score at which the clean recall (mean over classes) of the
      defended detector reaches `settings.clean_recall`, and the scores that follow from it. Labels ignored in pruning
      (label_free), the detector is another one, with a base_score of its own.
    - certified_recall: the certified share of all objects there. `vacuous_far` of them count as certified against far
      patches because no position is far from them.
    - false_alerts: how many of these clean images are flagged there, because masks add something to the base boxes.
    - iou_variant: the same for `objectseeker.core.iou_variant`, certified for an IoU above its `threshold`.

    If no base_score reaches the clean recall, all that depends on it is None; see highest_clean_recall.

    The images are gone through twice and not kept, so those of a stored run may be more than memory holds.
    """
    ways = [Way(settings, classwise, by_iou) for by_iou in (False, True) for classwise in (True, False)]
    curves = Curves(names, ways)
    for scene in _scenes(images, names):
        curves.add(scene)
    if not curves.objects.any():
        raise ObjectSeekerError(nothing_counts(curves.images) if curves.images else NO_IMAGES)
    sides = [
        Side(curves.curve(number), curves.point(number, settings.clean_recall)) for number in range(1, 1 + len(ways))
    ]
    for scene in _scenes(images, names):
        label = scene.truth.detections.label[scene.counted]
        for way, side in zip(ways, sides, strict=True):
            if side.point is not None:
                certified, vacuous = way.certified(scene, side.point.rule)
                for where in range(len(WHERES)):
                    np.add.at(side.point.certified[where], label[certified[where]], 1)
                    np.add.at(side.point.vacuous[where], label[vacuous[where]], 1)
    vanilla, coco = curves.curve(0), curves.coco_ap50()
    ours, by_iou = sides[:2], sides[2:]
    return {
        "images": curves.images,
        "objects": int(curves.objects.sum()),
        "ignored_objects": curves.ignored,
        "classes": int((curves.objects > 0).sum()),
        "settings": asdict(settings),
        "vanilla": {"ap50": vanilla.mean_ap50, "ap50_coco": float(vanilla.scene.macro(coco))},
        "objectseeker": _detector_row(curves.images, *ours),
        "iou_variant": {"tau_iou": TAU_IOU, "threshold": IOU_THRESHOLD, **_detector_row(curves.images, *by_iou)},
        "per_class": _per_class(names, vanilla, coco, ours, by_iou),
    }


def operating_row(curve: Curve, point: OperatingPoint | Point | None) -> Row:
    """Where on its curve a detector was certified."""
    return {
        "base_score": None if point is None else point.rule.base_score,
        "mask_score": None if point is None else point.rule.mask_score,
        "low_score": None if point is None else point.rule.low_score,
        "clean_recall": None if point is None else point.clean_recall,
        "highest_clean_recall": float(curve.clean_recall.max()),
    }


def certified_row(point: OperatingPoint | Point | None) -> Row:
    return dict.fromkeys(WHERES) if point is None else dict(point.certified_recall())


def alerts_row(images: int, side: Side) -> Row:
    alerts = None if side.point is None else side.point.alerts
    return {"images": alerts, "rate": None if alerts is None else 100 * alerts / images}


def _scenes(images: Iterable[ObservedImage], names: Sequence[str]) -> Iterator[Scene]:
    remaining = iter(images)
    while some := list(islice(remaining, TOGETHER)):
        yield Scene.part(some, names)


def _detector_row(images: int, side: Side, free: Side) -> Row:
    """One way to prune: label by label, and without labels."""
    return {
        "ap50": side.curve.mean_ap50,
        "ap50_label_free": free.curve.mean_ap50,
        **operating_row(side.curve, side.point),
        "certified_recall": side.certified_recall(),
        "false_alerts": alerts_row(images, side),
        "label_free": operating_row(free.curve, free.point),
        "certified_recall_label_free": free.certified_recall(),
        "false_alerts_label_free": alerts_row(images, free),
        "vacuous_far": next((one.point.vacuous_far() for one in (side, free) if one.point is not None), None),
    }


def _per_class(names: Sequence[str], vanilla: Curve, coco: Floats, ours: list[Side], by_iou: list[Side]) -> list[Row]:
    side, free = ours
    objects = vanilla.scene.objects_per_class
    return [
        {
            "class": names[c],
            "objects": int(objects[c]),
            "vanilla_ap50": float(vanilla.ap50[c]),
            "vanilla_ap50_coco": float(coco[c]),
            "ap50": float(side.curve.ap50[c]),
            "ap50_label_free": float(free.curve.ap50[c]),
            "clean_recall": _recall(side, c),
            "clean_recall_label_free": _recall(free, c),
            "certified_recall": side.certified_recall(c),
            "vacuous_far": None if side.point is None else side.point.vacuous_far(c),
            "certified_recall_label_free": free.certified_recall(c),
            "iou_variant": {
                "ap50": float(by_iou[0].curve.ap50[c]),
                "ap50_label_free": float(by_iou[1].curve.ap50[c]),
                "certified_recall": by_iou[0].certified_recall(c),
                "certified_recall_label_free": by_iou[1].certified_recall(c),
            },
        }
        for c in np.flatnonzero(objects).tolist()
    ]


def _recall(side: Side, c: int) -> float | None:
    return None if side.point is None else float(side.point.recall_per_class[c])
