"""Non-maximum suppression: of boxes of one label that overlap too much, the best-scored one stays."""

from __future__ import annotations

import numpy as np

from objectseeker.boxes import Bools, Floats, Ints, iou

MOST_CANDIDATES = 1000  # only that many boxes, the best-scored ones, take part: bounds time and memory


def nms(xyxy: Floats, score: Floats, label: Ints, *, threshold: float) -> Ints:
    """Indices of the boxes that stay, best score first.

    Boxes of different labels never suppress each other: labels are compared, boxes are not shifted apart (a shift
    rounds small boxes and fails on boxes wider than it). Equal scores keep their order, so the result is a function
    of the arguments alone, and dropping the boxes below some score before or after gives the same answer.
    """
    order = by_score(score)[:MOST_CANDIDATES]
    boxes, labels = xyxy[order], label[order]
    rivals = (labels[:, None] == labels[None]) & (iou(boxes, boxes) > threshold)
    stays: Bools = np.ones(len(order), np.bool_)
    for row in np.flatnonzero(np.triu(rivals, 1).any(axis=1)):
        if stays[row]:
            stays[row + 1 :] &= ~rivals[row, row + 1 :]
    return order[stays]


def by_score(score: Floats) -> Ints:
    """Indices that sort by falling score, equal scores in their given order."""
    return np.argsort(-score, kind="stable")
