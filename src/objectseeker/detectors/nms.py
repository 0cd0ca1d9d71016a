"""Non-maximum suppression: of boxes of one label that overlap too much, the best-scored one stays."""

from __future__ import annotations

import numpy as np

from objectseeker.boxes import Bools, Floats, Ints

MOST_CANDIDATES = 1000  # only that many boxes, the best-scored ones, take part: bounds time and memory
BLOCK = 64  # boxes looked at together: against those that stay already, few, and against each other


def nms(xyxy: Floats, score: Floats, label: Ints, *, threshold: float) -> Ints:
    """Indices of the boxes that stay, best score first.

    Boxes of different labels never suppress each other: labels are compared, boxes are not shifted apart (a shift
    rounds small boxes and fails on boxes wider than it). Equal scores keep their order, so the result is a function
    of the arguments alone, and dropping the boxes below some score before or after gives the same answer.
    """
    order = by_score(score)[:MOST_CANDIDATES]
    boxes, labels = xyxy[order], label[order]
    kept = np.empty(0, np.int64)
    for start in range(0, len(order), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(order)))
        rivals = _rivals(boxes, labels, np.concatenate([kept, block]), block, threshold)
        stays: Bools = np.logical_not(rivals[: len(kept)].any(axis=0))
        among = np.triu(rivals[len(kept) :], 1)
        for row in np.flatnonzero(among.any(axis=1)):
            if stays[row]:
                stays &= ~among[row]
        kept = np.concatenate([kept, block[stays]])
    return order[kept]


def _rivals(boxes: Floats, labels: Ints, first: Ints, second: Ints, threshold: float) -> Bools:
    """Which boxes of `first` and `second` have the same label and an IoU above `threshold`.

    The same operations as `boxes.iou`, in place: this is where all the time of suppression goes.
    """
    x1, y1, x2, y2 = boxes[first].T[:, :, None]
    u1, v1, u2, v2 = boxes[second].T[:, None]
    shared = np.minimum(x2, u2) - np.maximum(x1, u1)
    height = np.minimum(y2, v2) - np.maximum(y1, v1)
    np.maximum(shared, 0, out=shared)
    shared *= np.maximum(height, 0, out=height)
    union = np.add((x2 - x1) * (y2 - y1), (u2 - u1) * (v2 - v1), out=height)
    union -= shared
    with np.errstate(invalid="ignore"):  # two boxes without area: 0 / 0 is not above anything
        shared /= union
    return np.asarray((shared > threshold) & (labels[first][:, None] == labels[second][None]))


def by_score(score: Floats) -> Ints:
    """Indices that sort by falling score, equal scores in their given order."""
    return np.argsort(-score, kind="stable")
