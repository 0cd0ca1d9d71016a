"""Non-maximum suppression: of boxes of one label that overlap too much, the best-scored one stays."""

from __future__ import annotations

import numpy as np

from objectseeker.core.boxes import Floats, Ints

MOST_CANDIDATES = 1000  # only that many boxes, the best-scored ones, take part: bounds time and memory
BLOCK = 256  # boxes that join those that stay already at a time: of a thousand that are all alike, most never meet
SLACK = 1e-9  # of a coordinate; far more than rounding can do


def nms(xyxy: Floats, score: Floats, label: Ints, *, threshold: float) -> Ints:
    """Indices of the boxes that stay, best score first.

    Boxes of different labels never suppress each other: labels are compared, boxes are not shifted apart (a shift
    rounds small boxes and fails on boxes wider than it). Equal scores keep their order, so the result is a function
    of the arguments alone, and dropping the boxes below some score before or after gives the same answer.
    """
    order = by_score(score)[:MOST_CANDIDATES]
    kept = order[:0]
    for start in range(0, len(order), BLOCK):
        every = np.concatenate([kept, order[start : start + BLOCK]])
        better, worse = _rivals(xyxy[every], label[every], threshold)
        stays = bytearray(b"\1") * len(every)
        for one, other in zip(better.tolist(), worse.tolist(), strict=True):  # whether `one` stays is settled by now
            if stays[one]:
                stays[other] = 0
        kept = every[np.frombuffer(stays, bool)]
    return kept


def _rivals(boxes: Floats, labels: Ints, threshold: float) -> tuple[Ints, Ints]:
    """All pairs of boxes of the same label with an IoU above `threshold`: the lower number, rising, and the higher.

    Only some pairs are looked at. Of two boxes let the one further left end at x2 and be w wide. If their IoU is above
    the threshold t, so is the share of w they have in common: the other one begins left of x2 - t * w.
    """
    rank = np.argsort(boxes[:, 0], kind="stable")
    x1, y1, x2, y2 = boxes[rank].T
    labels = labels[rank]
    furthest = x2 - threshold * (x2 - x1) + SLACK * (np.abs(x1) + np.abs(x2))
    after = np.arange(1, len(rank) + 1)
    partners = np.maximum(np.searchsorted(x1, furthest, side="right") - after, 0)
    first = np.repeat(after - 1, partners)
    second = np.arange(len(first)) + np.repeat(after - (np.cumsum(partners) - partners), partners)
    same = labels[first] == labels[second]
    first, second = first[same], second[same]
    # The operations of `boxes.iou`: the same bits.
    width = np.minimum(x2[first], x2[second]) - np.maximum(x1[first], x1[second])
    height = np.minimum(y2[first], y2[second]) - np.maximum(y1[first], y1[second])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    area = (x2 - x1) * (y2 - y1)
    with np.errstate(invalid="ignore"):  # two boxes without area: 0 / 0 is not above anything
        close = shared / (area[first] + area[second] - shared) > threshold
    first, second = rank[first[close]], rank[second[close]]
    better, worse = np.minimum(first, second), np.maximum(first, second)
    rising = np.argsort(better, kind="stable")
    return better[rising], worse[rising]


def by_score(score: Floats) -> Ints:
    """Indices that sort by falling score, equal scores in their given order."""
    return np.argsort(-score, kind="stable")
