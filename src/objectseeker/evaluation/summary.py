"""One run, one setting, one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from objectseeker.boxes import Bools, Floats
from objectseeker.evaluation.average_precision import coco_ap50
from objectseeker.evaluation.curves import Curve, vanilla_curve
from objectseeker.evaluation.defence import Defence, OperatingPoint
from objectseeker.evaluation.iou import IouDefence
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import WHERES, Settings
from objectseeker.iou_variant import IOU_THRESHOLD, TAU_IOU
from objectseeker.observation import ObservedImage

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One way to prune, and its operating point at the clean recall asked for (None if that is not reached)."""

    curve: Curve
    point: OperatingPoint | None
    alerts: int | None  # images there to whose base boxes it adds something

    @classmethod
    def measure(cls, defence: Defence | IouDefence, settings: Settings) -> Side:
        curve = defence.curve(settings)
        point = defence.at_recall(settings, curve)
        if point is None:
            return cls(curve, None, None)
        (added,) = defence.additions(settings, [point.rule.base_score])
        return cls(curve, point, len(np.unique(added.image)))

    def certified_recall(self, objects: Bools | None = None) -> Row:
        return certified_row(None) if self.point is None else dict(self.point.certified_recall(objects))


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
    - iou_variant: the same for `objectseeker.iou_variant`, certified for an IoU above its `threshold`.

    If no base_score reaches the clean recall, all that depends on it is None; see highest_clean_recall.
    """
    scene = Scene.of(images, names)
    vanilla = vanilla_curve(scene)
    coco = coco_ap50(scene)
    ours = [Side.measure(Defence.prepare(scene, settings, classwise=c), settings) for c in (True, False)]
    by_iou = [Side.measure(IouDefence.prepare(scene, settings, classwise=c), settings) for c in (True, False)]
    return {
        "images": len(scene.images),
        "objects": len(scene.counted),
        "ignored_objects": int(scene.ignore.sum()),
        "classes": int((scene.objects_per_class > 0).sum()),
        "settings": asdict(settings),
        "vanilla": {"ap50": vanilla.mean_ap50, "ap50_coco": float(scene.macro(coco))},
        "objectseeker": _detector_row(scene, *ours),
        "iou_variant": {"tau_iou": TAU_IOU, "threshold": IOU_THRESHOLD, **_detector_row(scene, *by_iou)},
        "per_class": _per_class(scene, vanilla, coco, ours, by_iou),
    }


def operating_row(curve: Curve, point: OperatingPoint | None) -> Row:
    """Where on its curve a detector was certified."""
    return {
        "base_score": None if point is None else point.rule.base_score,
        "mask_score": None if point is None else point.rule.mask_score,
        "low_score": None if point is None else point.rule.low_score,
        "clean_recall": None if point is None else point.clean_recall,
        "highest_clean_recall": float(curve.clean_recall.max()),
    }


def certified_row(point: OperatingPoint | None) -> Row:
    return dict.fromkeys(WHERES) if point is None else dict(point.certified_recall())


def alerts_row(scene: Scene, side: Side) -> Row:
    rate = None if side.alerts is None else 100 * side.alerts / len(scene.images)
    return {"images": side.alerts, "rate": rate}


def _detector_row(scene: Scene, side: Side, free: Side) -> Row:
    """One way to prune: label by label, and without labels."""
    return {
        "ap50": side.curve.mean_ap50,
        "ap50_label_free": free.curve.mean_ap50,
        **operating_row(side.curve, side.point),
        "certified_recall": side.certified_recall(),
        "false_alerts": alerts_row(scene, side),
        "label_free": operating_row(free.curve, free.point),
        "certified_recall_label_free": free.certified_recall(),
        "false_alerts_label_free": alerts_row(scene, free),
        "vacuous_far": next((one.point.vacuous_far() for one in (side, free) if one.point is not None), None),
    }


def _per_class(scene: Scene, vanilla: Curve, coco: Floats, ours: list[Side], by_iou: list[Side]) -> list[Row]:
    side, free = ours
    label = scene.truth.detections.label[scene.counted]
    rows = []
    for c in np.flatnonzero(scene.objects_per_class).tolist():
        mine = label == c
        rows.append(
            {
                "class": scene.names[c],
                "objects": int(mine.sum()),
                "vanilla_ap50": float(vanilla.ap50[c]),
                "vanilla_ap50_coco": float(coco[c]),
                "ap50": float(side.curve.ap50[c]),
                "ap50_label_free": float(free.curve.ap50[c]),
                "clean_recall": _recall(side, c),
                "clean_recall_label_free": _recall(free, c),
                "certified_recall": side.certified_recall(mine),
                "vacuous_far": None if side.point is None else side.point.vacuous_far(mine),
                "certified_recall_label_free": free.certified_recall(mine),
                "iou_variant": {
                    "ap50": float(by_iou[0].curve.ap50[c]),
                    "ap50_label_free": float(by_iou[1].curve.ap50[c]),
                    "certified_recall": by_iou[0].certified_recall(mine),
                    "certified_recall_label_free": by_iou[1].certified_recall(mine),
                },
            }
        )
    return rows


def _recall(side: Side, c: int) -> float | None:
    return None if side.point is None else float(side.point.recall_per_class[c])
