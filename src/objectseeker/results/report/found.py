"""Which objects are found on the images as they are: by the undefended detector or the defended one, and how surely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats
from objectseeker.core.iou_variant import AnyRule
from objectseeker.evaluation.matching import match, overlapping
from objectseeker.evaluation.scene import Boxes, Scene
from objectseeker.results.report.certificates import Column

UNDEFENDED, DEFENDED = 1, 2  # bits of the column `found`


def found_columns(scene: Scene, outputs: Sequence[Detections], rule: AnyRule, *, labelled: bool) -> dict[str, Column]:
    """`found` (bits) and `score` of every object, by the matching of clean recall; `outputs` are those of the images.

    Without labels the objects are the outputs themselves: all are found, the base boxes also without a defence.
    """
    base = [image.observation.base.at_least(rule.base_score) for image in scene.images]
    if labelled:
        undefended, weaker = _found(scene, base)
        defended, score = _found(scene, outputs)
        score = np.where(defended, score, weaker)
    else:
        undefended = np.concatenate(
            [np.arange(len(all_of_it)) < len(few) for all_of_it, few in zip(outputs, base, strict=True)]
        )
        defended, score = np.ones_like(undefended), scene.truth.detections.score
    return {
        "found": (UNDEFENDED * undefended + DEFENDED * defended).astype(np.uint8),
        "score": score.astype(np.float32),
    }


def _found(scene: Scene, boxes: Sequence[Detections]) -> tuple[Bools, Floats]:
    """Which objects some box takes, and the highest score of such a box; 0 for the others."""
    gathered = Boxes.gather(boxes).in_dataset(scene.vocabulary)
    taken = match(gathered.detections.score, overlapping(gathered, scene), scene)
    score = np.full(len(scene.truth), -1.0)
    np.maximum.at(score, taken[taken >= 0], gathered.detections.score[taken >= 0])
    return score >= 0, np.maximum(score, 0.0)
