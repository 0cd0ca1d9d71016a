"""One run, one defense, one table.

Images are looked at a few hundred at a time, in one process or in several: for the curves and, where the rule is known
beforehand, for its certificates. Where a clean recall or a number of wrong boxes is asked for, only the curves say
which rule that is, and the images are looked at once more. Everything but COCO's AP is a sum of whole numbers over
images; see `Judged` for that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.iou_rule import AnyRule, IouRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.accumulators import Proven, Totals, jointly
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import NO_IMAGES, ImageSet, nothing_counts
from objectseeker.metrics.outcomes import DefendedOutcome, Undefended, UndefendedPoint
from objectseeker.metrics.parallel import OnImage, working
from objectseeker.metrics.settings import OPERATING_POINT_KEYS, EvaluationSettings, threshold_of

Later = tuple[int, EvaluationSettings, AnyRule]  # a way that is certified the second time, its number and its rule


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The figures of a run. APs, recalls and rates are percentages, scores are not.

    `ours` is the deployed rule, `class_agnostic` the same without regard to labels, `iou` and `iou_class_agnostic` its
    IoU
    variant (the same as `ours` and `class_agnostic` where that is what is deployed). Each is another detector: at a
    clean
    recall each has a base_threshold of its own.
    """

    names: tuple[str, ...]  # the classes of the dataset
    images: int
    ignored_objects: int
    objects_per_class: Ints
    settings: EvaluationSettings
    undefended: Undefended
    ours: DefendedOutcome
    class_agnostic: DefendedOutcome
    iou: DefendedOutcome
    iou_class_agnostic: DefendedOutcome
    defense: Defense | None = None

    @property
    def deployed(self) -> Defense | None:
        """The defense that these figures are about: with the rule of the operating point, its own or another one."""
        point = self.ours.point
        if self.defense is None or point is None or point.rule == self.defense.rule:
            return self.defense
        return replace(self.defense, rule=point.rule, follow=self.settings.follow)

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
        return next((one.vacuous_far for one in (self.ours, self.class_agnostic) if one.point is not None), None)

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

    def to_dict(self) -> dict[str, Any]:
        undefended, settings = self.undefended, self.settings
        unreached = dict.fromkeys(field.name for field in fields(UndefendedPoint))
        return {
            "images": self.images,
            "objects": self.objects,
            "ignored_objects": self.ignored_objects,
            "classes": len(self.classes),
            "defense": None if self.deployed is None else self.deployed.described(),
            "settings": settings.to_dict(),
            "operating_point": {
                "asked": settings.asked,
                **{name: getattr(settings, name) for name in OPERATING_POINT_KEYS},
                "remarks": self.remarks,
            },
            "undefended": {
                "ap50": undefended.ap50,
                "ap50_coco": undefended.ap50_coco,
                **(unreached if undefended.point is None else asdict(undefended.point)),
            },
            "objectseeker": self._block(self.ours, self.class_agnostic),
            "iou_variant": {
                "filter_iou": self.iou_rule.filter_iou,
                "threshold": self.iou_threshold,
                **self._block(self.iou, self.iou_class_agnostic),
            },
            "per_class": [self._class_row(c) for c in self.classes],
        }

    def _block(self, ours: DefendedOutcome, free: DefendedOutcome) -> dict[str, Any]:
        """One way to prune: label by label, and without labels."""
        return {
            "ap50": ours.ap50,
            "ap50_class_agnostic": free.ap50,
            **ours.operating_row(),
            "certified_recall": ours.certified_recall(),
            "joint_certified_recall": ours.joint_certified_recall,
            "false_alerts": {"images": ours.alerts, "rate": self.alert_rate(ours)},
            "class_agnostic": free.operating_row(),
            "certified_recall_class_agnostic": free.certified_recall(),
            "false_alerts_class_agnostic": {"images": free.alerts, "rate": self.alert_rate(free)},
            "vacuous_far": next((one.vacuous_far for one in (ours, free) if one.point is not None), None),
        }

    def _class_row(self, c: int) -> dict[str, Any]:
        ours, free, iou, iou_free = self.ours, self.class_agnostic, self.iou, self.iou_class_agnostic
        return {
            "class": self.names[c],
            "objects": int(self.objects_per_class[c]),
            "undefended_ap50": float(self.undefended.curve.ap50[c]),
            "undefended_ap50_coco": float(self.undefended.coco[c]),
            "ap50": float(ours.curve.ap50[c]),
            "ap50_class_agnostic": float(free.curve.ap50[c]),
            "clean_recall": ours.recall(c),
            "clean_recall_class_agnostic": free.recall(c),
            "certified_recall": ours.certified_recall(c),
            "vacuous_far": None if ours.point is None else ours.point.vacuous_far(c),
            "certified_recall_class_agnostic": free.certified_recall(c),
            "iou_variant": {
                "ap50": float(iou.curve.ap50[c]),
                "ap50_class_agnostic": float(iou_free.curve.ap50[c]),
                "certified_recall": iou.certified_recall(c),
                "certified_recall_class_agnostic": iou_free.certified_recall(c),
            },
        }


def evaluate(
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    settings: EvaluationSettings,
    *,
    defense: Defense | None = None,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> Evaluation:
    """The figures of a run; `defense`, if given, is what the settings' rule is deployed as, and is named by the result.

    - ap50: the paper's protocol, mean over the classes that have objects; the undefended detector gets the same
      protocol, and beside it its ordinary COCO AP50.
    - base_threshold, mask_threshold, evidence_threshold, clean_recall, fppi: the operating point that `settings` ask
      for. The
      clean recall is the mean over classes; wrong boxes are those that find no object, an image. The undefended
      detector is measured where it reaches the same clean recall or number of wrong boxes itself.
    - certified_recall: the certified share of all objects there. `vacuous_far` of them count as certified against far
      patches because no position is far from them.
    - joint_certified_recall: the share of all objects that surely remain, image by image and all in one output, under
      any single
      patch of that size, wherever it lies; of `ours` alone. Never below the certified recall for anywhere.
    - alerts: how many of these clean images are flagged there, because masks add a box to the base boxes; as when it
      is deployed, of whatever class.

    If no base_threshold reaches what was asked for, all that depends on it is None; see `remark`.

    The images are gone through (twice where only the curve says where the operating point is) and not kept: a stored
    run may be more than memory holds. Several `processes` share them, with the same result; `on_image` is called for
    every image gone through.
    """
    if not vocabulary.dataset_names:  # nobody said what there is to see
        raise ObjectSeekerError(nothing_counts(len(images)) if len(images) else NO_IMAGES)
    ways = [settings, settings.class_agnostic()]
    if not isinstance(settings.rule, IouRule):
        ways += [way.by_iou() for way in ways]
    totals = Totals(vocabulary, ways)
    with working(images, vocabulary, processes=processes, on_image=on_image) as crew:
        for some in crew.each(_first_time, (vocabulary, ways)):
            totals.join(some)
        if not totals.objects.any():
            raise ObjectSeekerError(nothing_counts(totals.images) if totals.images else NO_IMAGES)
        outcomes = [totals.outcome(number) for number in range(len(ways))]
        later: list[Later] = [
            (number, one.settings, one.point.rule)
            for number, one in enumerate(outcomes)
            if one.point is not None and one.settings.fixed_rule is None
        ]
        classes = len(vocabulary.dataset_names)
        proven = _second_time((), (classes, later))
        for part in crew.each(_second_time, (classes, later)) if later else ():
            for all_of_it, more in zip(proven, part, strict=True):
                all_of_it.join(more)
    for (number, _, _), found in zip(later, proven, strict=True):
        outcomes[number] = found.of(outcomes[number])
    ours, class_agnostic, *by_iou = outcomes
    iou, iou_class_agnostic = by_iou or (ours, class_agnostic)
    return Evaluation(
        names=vocabulary.dataset_names,
        images=totals.images,
        ignored_objects=totals.ignored,
        objects_per_class=totals.objects,
        settings=settings,
        undefended=totals.undefended(),
        ours=ours,
        class_agnostic=class_agnostic,
        iou=iou,
        iou_class_agnostic=iou_class_agnostic,
        defense=defense,
    )


def _first_time(scenes: Iterable[ImageSet], asked: tuple[LabelMap, Sequence[EvaluationSettings]]) -> Totals:
    totals = Totals(*asked)
    for scene in scenes:
        totals.add(scene)
    return totals


def _second_time(scenes: Iterable[ImageSet], asked: tuple[int, Sequence[Later]]) -> list[Proven]:
    """What is proven of rules that were not known the first time."""
    classes, rules = asked
    found = [Proven(classes, jointly=jointly(way, number)) for number, way, _ in rules]
    for scene in scenes:
        for proven, (_, way, rule) in zip(found, rules, strict=True):
            proven.add(DefendedImageSet.of(scene, way), rule)
    return found
