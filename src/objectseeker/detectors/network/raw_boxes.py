"""Non-maximum suppression: of boxes of one label that overlap too much, the best-scored one stays."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints

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


# What a network found, on its way to `Detections`: every step is a function of that one view's own boxes.
#
# What is no box is dropped and the others of the view stay. An attacker can therefore spoil the views that show the
# patch, and no other: a view that removes it gives what it gave when the object was certified.


SCORE_FLOOR = 0.01  # boxes below are never returned
MOST_BOXES = 300  # per image
LARGEST_LABEL = 2**31  # anything above is not a class

log = logging.getLogger("objectseeker")


class RawBoxes(NamedTuple):
    """Boxes of one image before they are cleaned: scores and coordinates may be anything, even not a number."""

    xyxy: npt.NDArray[Any]
    score: npt.NDArray[Any]
    label: npt.NDArray[Any]


class ValidBoxes(NamedTuple):
    """Boxes with finite coordinates, x1 < x2 and y1 < y2, scores within [floor, 1] and labels of 0 and above."""

    xyxy: Floats
    score: Floats
    label: Ints

    def take(self, index: Bools | Ints) -> ValidBoxes:
        return ValidBoxes(self.xyxy[index], self.score[index], self.label[index])


def drop_invalid(found: RawBoxes, *, floor: float) -> ValidBoxes:
    """Drop what is no box at all: below the floor, not finite, without area, or without a label."""
    xyxy = as_array(found.xyxy).astype(np.float64).reshape(-1, 4)
    score = as_array(found.score).astype(np.float64).reshape(-1)
    label = as_array(found.label).astype(np.float64).reshape(-1)
    good = np.isfinite(xyxy).all(axis=1) & np.isfinite(score)
    xyxy, score, label = xyxy[good], np.minimum(score[good], 1.0), np.rint(label[good])
    good = (score >= max(floor, 0.0)) & (label >= 0) & (label < LARGEST_LABEL) & has_area(xyxy)
    return ValidBoxes(xyxy[good], score[good], label[good].astype(np.int64))


def count_invalid(found: RawBoxes, *, floor: float) -> int:
    """How many of the boxes that `clean` drops are a sign of trouble: not finite, or turned inside out."""
    xyxy, score = as_array(found.xyxy).reshape(-1, 4), as_array(found.score).reshape(-1)
    broken = ~np.isfinite(xyxy).all(axis=1) | (xyxy[:, 2:] < xyxy[:, :2]).any(axis=1)
    return int((~np.isfinite(score) | (broken & (score >= floor))).sum())


def log_invalid(count: int) -> None:
    """One line for all views of an image: what was dropped never goes unsaid."""
    if count:
        log.warning("dropped from what the detector returned, not finite or inverted: %d boxes", count)


def keep_best(boxes: ValidBoxes, *, most: int) -> Detections:
    """The best `most` boxes with area, best score first. `boxes` must be clipped to the raw image already."""
    boxes = boxes.take(has_area(boxes.xyxy))
    return Detections(*boxes.take(by_score(boxes.score)[:most]))


def to_image_detections(
    found: RawBoxes, image: npt.NDArray[np.uint8], *, floor: float, most: int = MOST_BOXES
) -> Detections:
    """Boxes in raw pixels of `image`, from a detector that does its own resizing and suppression."""
    boxes = drop_invalid(found, floor=floor)
    height, width = image.shape[:2]
    clipped = np.clip(boxes.xyxy, 0, [width, height, width, height])
    return keep_best(boxes._replace(xyxy=clipped), most=most)


def as_array(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of an array, or of a tensor on any device and of any precision."""
    return np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values)


def has_area(xyxy: Floats) -> Bools:
    return np.asarray((xyxy[:, 0] < xyxy[:, 2]) & (xyxy[:, 1] < xyxy[:, 3]))
