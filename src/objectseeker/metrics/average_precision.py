"""Average precision at IoU 0.5, by COCO's rules and by the paper's. All values are percentages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Floats, Ints
from objectseeker.metrics.image_set import BoxTable, ImageSet
from objectseeker.metrics.matching import candidate_pairs, greedy_match

COCO_MAX_DETS = 100  # of one image and class that COCO looks at
RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredBoxes:
    """The boxes of the undefended detector that count, image by image and best first within each.

    Six bytes a box where scores fit single precision, as those of most detectors do: this is all that evaluation keeps
    of every image, because AP sorts the boxes of all of them.
    """

    score: npt.NDArray[np.floating[Any]]  # negative for a box that found nothing
    label: npt.NDArray[np.int16]

    @classmethod
    def of(cls, scene: ImageSet) -> ScoredBoxes:
        boxes = _best_of_each_class(scene.base, len(scene.names))
        score = boxes.detections.score
        taken = greedy_match(score, candidate_pairs(boxes, scene), scene)
        counts = np.ones(len(taken), np.bool_)  # all but those that took an ignored object
        counts[taken >= 0] = ~scene.ignore[taken[taken >= 0]]
        signed = np.where(taken >= 0, score, -score)[counts]
        short = signed.astype(np.float32)
        return cls(short if np.array_equal(short, signed) else signed, boxes.detections.label[counts].astype(np.int16))

    @classmethod
    def join(cls, parts: Sequence[ScoredBoxes]) -> ScoredBoxes:
        """Those of several scenes, in the order of their images."""
        return cls(np.concatenate([part.score for part in parts]), np.concatenate([part.label for part in parts]))

    def ap50(self, objects: Ints) -> Floats:
        """COCO's AP50 for every class (NaN for a class without objects), of which there are `objects`."""
        result = np.full(len(objects), np.nan)
        for c in np.flatnonzero(objects):
            signed = self.score[self.label == c]
            found = ~np.signbit(signed[np.argsort(-np.abs(signed), kind="stable")])
            right = np.cumsum(found)
            recall = right / objects[c]
            precision = right / (np.arange(1, len(found) + 1) + np.spacing(1))
            envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
            result[c] = 100 * envelope[np.searchsorted(recall, RECALLS)].mean()
        return result


def coco_ap50(scene: ImageSet) -> Floats:
    """COCO's AP50 of the undefended detector for every class (NaN for a class without objects).

    The same as pycocotools with area "all" and 100 detections; VOC's difficult objects are ignored.
    """
    return ScoredBoxes.of(scene).ap50(scene.objects_per_class)


def envelope_area(recall: Floats, precision: Floats) -> Floats:
    """Return the area under the precision envelope of points, per column; both are (points, classes).

    The envelope at recall r is the best precision of any point with a recall of at least r, and 0 beyond the highest
    recall: a staircase from recall 0, so it promises nothing between two points that one of them does not give.
    """
    order = np.argsort(recall, axis=0, kind="stable")
    recall, precision = (np.take_along_axis(values, order, axis=0) for values in (recall, precision))
    envelope = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    return np.asarray((np.diff(recall, axis=0, prepend=0.0) * envelope).sum(axis=0))


def _best_of_each_class(boxes: BoxTable, classes: int) -> BoxTable:
    """Return the COCO_MAX_DETS best boxes of every image and class, by descending score in each image."""
    found = boxes.detections
    order = np.lexsort((-found.score, found.label, boxes.image))
    group = (boxes.image * classes + found.label)[order]
    start = np.flatnonzero(np.diff(group, prepend=-1))
    rank = np.arange(len(group)) - np.repeat(start, np.diff(start, append=len(group)))
    return boxes.select(order[rank < COCO_MAX_DETS])
