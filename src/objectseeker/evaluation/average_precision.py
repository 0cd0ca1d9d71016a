"""Average precision at IoU 0.5, by COCO's rules and by the paper's. All values are percentages."""

from __future__ import annotations

import numpy as np

from objectseeker.boxes import Floats
from objectseeker.evaluation.matching import match, overlapping
from objectseeker.evaluation.scene import Boxes, Scene

MOST_BOXES = 100  # of one image and class that COCO looks at
RECALLS = np.linspace(0, 1, 101)


def coco_ap50(scene: Scene) -> Floats:
    """COCO's AP50 of the undefended detector for every class (NaN for a class without objects).

    The same as pycocotools with area "all" and 100 detections; VOC's difficult objects are ignored.
    """
    boxes = _best_of_each_class(scene.base, len(scene.names))
    score, label = boxes.detections.score, boxes.detections.label
    taken = match(score, overlapping(boxes, scene), scene)
    ignored = (taken >= 0) & scene.ignore[taken]
    objects = scene.objects_per_class
    result = np.full(len(scene.names), np.nan)
    for c in np.flatnonzero(objects):
        rows = np.flatnonzero((label == c) & ~ignored)
        rows = rows[np.argsort(-score[rows], kind="stable")]
        right = np.cumsum(taken[rows] >= 0)
        recall = right / objects[c]
        precision = right / (np.arange(1, len(rows) + 1) + np.spacing(1))
        envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        result[c] = 100 * envelope[np.searchsorted(recall, RECALLS)].mean()
    return result


def envelope_area(recall: Floats, precision: Floats) -> Floats:
    """The area under the precision envelope of a set of points, column by column; both are (points, classes).

    The envelope at recall r is the best precision of any point with a recall of at least r, and 0 beyond the highest
    recall: a staircase from recall 0, so it promises nothing between two points that one of them does not give.
    """
    order = np.argsort(recall, axis=0, kind="stable")
    recall, precision = (np.take_along_axis(values, order, axis=0) for values in (recall, precision))
    envelope = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    return np.asarray((np.diff(recall, axis=0, prepend=0.0) * envelope).sum(axis=0))


def _best_of_each_class(boxes: Boxes, classes: int) -> Boxes:
    """The MOST_BOXES best boxes of every image and class, in descending order of score within each image."""
    found = boxes.detections
    order = np.lexsort((-found.score, found.label, boxes.image))
    group = (boxes.image * classes + found.label)[order]
    start = np.flatnonzero(np.diff(group, prepend=-1))
    rank = np.arange(len(group)) - np.repeat(start, np.diff(start, append=len(group)))
    return boxes.select(order[rank < MOST_BOXES])
