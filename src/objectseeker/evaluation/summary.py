"""One run, one setting, one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from objectseeker.boxes import Floats
from objectseeker.evaluation.average_precision import coco_ap50
from objectseeker.evaluation.curves import Curve, vanilla_curve
from objectseeker.evaluation.defence import Defence, OperatingPoint
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import WHERES, Settings
from objectseeker.observation import ObservedImage

Row = dict[str, Any]


def evaluate(images: Sequence[ObservedImage], names: Sequence[str], settings: Settings) -> Row:
    """The figures of a run: plain values, ready for JSON. APs and recalls are percentages, scores are not.

    - ap50: the paper's protocol, mean over the classes that have objects; `vanilla` is the undefended detector under
      the same protocol. ap50_coco: its ordinary COCO AP50.
    - base_score, mask_score, low_score: the highest base_score at which the clean recall (mean over classes) of the
      defended detector reaches `settings.clean_recall`, and the scores that follow from it. Labels ignored in pruning
      (label_free), the detector is another one, with a base_score of its own.
    - certified_recall: the certified share of all objects there. `vacuous_far` of them count as certified against far
      patches because no position is far from them.

    If no base_score reaches the clean recall, all that depends on it is None; see highest_clean_recall.
    """
    scene = Scene.of(images, names)
    vanilla = vanilla_curve(scene)
    coco = coco_ap50(scene)
    sides = []
    for classwise in (True, False):
        defence = Defence.prepare(scene, settings, classwise=classwise)
        curve = defence.curve(settings)
        sides.append((curve, defence.at_recall(settings, curve)))
    (curve, point), (free_curve, free_point) = sides
    vacuous = next((found.vacuous_far() for found in (point, free_point) if found is not None), None)
    return {
        "images": len(scene.images),
        "objects": len(scene.counted),
        "ignored_objects": int(scene.ignore.sum()),
        "classes": int((scene.objects_per_class > 0).sum()),
        "settings": asdict(settings),
        "vanilla": {"ap50": vanilla.mean_ap50, "ap50_coco": float(scene.macro(coco))},
        "objectseeker": {
            "ap50": curve.mean_ap50,
            "ap50_label_free": free_curve.mean_ap50,
            **operating_row(curve, point),
            "certified_recall": certified_row(point),
            "label_free": operating_row(free_curve, free_point),
            "certified_recall_label_free": certified_row(free_point),
            "vacuous_far": vacuous,
        },
        "per_class": _per_class(scene, vanilla, coco, sides),
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


def _per_class(
    scene: Scene, vanilla: Curve, coco: Floats, sides: list[tuple[Curve, OperatingPoint | None]]
) -> list[Row]:
    (curve, point), (free_curve, free_point) = sides
    label = scene.truth.detections.label[scene.counted]
    rows = []
    for c in np.flatnonzero(scene.objects_per_class):
        mine = label == c
        rows.append(
            {
                "class": scene.names[c],
                "objects": int(mine.sum()),
                "vanilla_ap50": float(vanilla.ap50[c]),
                "vanilla_ap50_coco": float(coco[c]),
                "ap50": float(curve.ap50[c]),
                "ap50_label_free": float(free_curve.ap50[c]),
                "clean_recall": None if point is None else float(point.recall_per_class[c]),
                "certified_recall": certified_row(None) if point is None else point.certified_recall(mine),
                "vacuous_far": None if point is None else point.vacuous_far(mine),
                "certified_recall_label_free": (
                    certified_row(None) if free_point is None else free_point.certified_recall(mine)
                ),
            }
        )
    return rows
