"""Match output boxes to ground-truth objects.

Within one image and class, boxes are taken in descending order of score (earlier boxes first among equals); each takes
the object it overlaps best among those not taken yet, if the IoU is at least 0.5. Ignored objects are taken only by
boxes that no counted object is left for, and such a box is neither right nor wrong. A crowd is measured by the share
of the box inside it and can be taken any number of times. All of this is what pycocotools does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints, area, row_blocks
from objectseeker.metrics.image_set import BoxTable, ImageSet

MIN_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """Boxes and objects of one image and class that overlap enough, one row per pair."""

    box: Ints
    object: Ints
    overlap: Floats


def candidate_pairs(boxes: BoxTable, scene: ImageSet) -> Overlaps:
    """All pairs of a box and an object that could be matched."""
    classes = len(scene.names)
    truth = scene.truth
    of_box, of_object = (
        each.image * classes + each.detections.label for each in (boxes, truth)
    )  # boxes find objects of their image and class only
    most = int(np.unique(of_object, return_counts=True)[1].max(initial=0))  # objects that a box is held against
    several = list(row_blocks(len(boxes), most)) or [slice(0, 0)]
    parts = [_overlapping(boxes, scene, some.start, *equal_keys(of_box[some], of_object)) for some in several]
    box, n, overlap = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Overlaps(box, n, overlap)


def _overlapping(boxes: BoxTable, scene: ImageSet, start: int, box: Ints, n: Ints) -> tuple[Ints, Ints, Floats]:
    """The pairs of box start + box[i] and object n[i] that overlap enough, and by how much."""
    box = start + box
    a, b = boxes.detections.xyxy[box], scene.truth.detections.xyxy[n]
    width = np.minimum(a[:, 2], b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    height = np.minimum(a[:, 3], b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    whole = np.where(scene.crowd[n], area(a), area(a) + area(b) - shared)
    overlap = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    enough = overlap >= MIN_IOU
    return box[enough], n[enough], overlap[enough]


def greedy_match(score: Floats, pairs: Overlaps, scene: ImageSet) -> Ints:
    """Return the object each box takes, or -1: greedily, best box first, its best object first.

    Among objects that overlap a box equally the last one is taken, as in pycocotools.
    """
    order = np.lexsort((-pairs.object, -pairs.overlap, scene.ignore[pairs.object], pairs.box, -score[pairs.box]))
    taken_by: list[int] = [-1] * len(score)
    free = [True] * len(scene.truth)
    crowd = scene.crowd.tolist()
    for box, n in zip(pairs.box[order].tolist(), pairs.object[order].tolist(), strict=True):
        if taken_by[box] < 0 and free[n]:
            taken_by[box] = n
            free[n] = crowd[n]
    return np.array(taken_by, dtype=np.int64)


def false_positives(taken: Ints) -> Bools:
    """Return the false positives: boxes that took nothing. One that took an ignored object is neither."""
    return np.asarray(taken < 0)


def count_matches(label: Ints, taken: Ints, scene: ImageSet) -> tuple[Ints, Ints]:
    """Per class: objects found, and boxes that found nothing."""
    classes = len(scene.names)
    found = taken[taken >= 0]
    found = found[~scene.ignore[found]]
    right = np.bincount(scene.truth.detections.label[found], minlength=classes)
    return right, np.bincount(label[false_positives(taken)], minlength=classes)


def equal_keys(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """All index pairs i, j with left[i] == right[j], in ascending order of i."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left, "left")
    many = np.searchsorted(ordered, left, "right") - first
    i = np.repeat(np.arange(len(left)), many)
    within = np.arange(len(i)) - np.repeat(np.cumsum(many) - many, many)
    return i, order[np.repeat(first, many) + within]
