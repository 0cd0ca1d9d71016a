"""Raw boxes of a network on their way to `Detections`: validation and non-maximum suppression (NMS).

Every step is a function of one view's own boxes. Invalid boxes are dropped; the other boxes of the view stay. So an
attacker can spoil only the views that show the patch: a view that removes it returns what it returned when the object
was certified.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints

SCORE_FLOOR = 0.01  # boxes scored below it are never returned
MAX_BOXES = 300  # per image
MAX_LABEL = 2**31  # no label above it is a class
MAX_CANDIDATES = 1000  # only this many best-scored boxes enter NMS: a bound on time and memory
BLOCK = 256  # boxes compared with the kept ones at a time: of a thousand similar boxes, most are never compared
SLACK = 1e-9  # relative to a coordinate; far above any rounding error

log = logging.getLogger("objectseeker")


def nms(xyxy: Floats, score: Floats, label: Ints, *, threshold: float) -> Ints:
    """Return the indices of the boxes that survive non-maximum suppression, best score first.

    Boxes of different labels never suppress each other: labels are compared, boxes are not shifted apart (a shift
    rounds small boxes and fails on boxes wider than it). Equal scores keep their order, so the result is a function of
    the arguments alone, and dropping the boxes below some score before or after has the same result.
    """
    order = by_score(score)[:MAX_CANDIDATES]
    kept = order[:0]
    for start in range(0, len(order), BLOCK):
        every = np.concatenate([kept, order[start : start + BLOCK]])
        better, worse = _rivals(xyxy[every], label[every], threshold)
        stays = bytearray(b"\1") * len(every)
        for first, second in zip(
            better.tolist(), worse.tolist(), strict=True
        ):  # whether `first` stays is settled by now
            if stays[first]:
                stays[second] = 0
        kept = every[np.frombuffer(stays, bool)]
    return kept


def _rivals(boxes: Floats, labels: Ints, threshold: float) -> tuple[Ints, Ints]:
    """Find all pairs of boxes of the same label with an IoU above `threshold`.

    Returns the lower index of each pair, rising, and the higher one. Only some pairs are compared. Of two boxes, let
    the one further left end at x2 and be w wide. If their IoU is above the threshold t, so is the share of w they have
    in common: the other one begins left of x2 - t * w.
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
    """Return the indices that sort by falling score; equal scores keep their order."""
    return np.argsort(-score, kind="stable")


class RawBoxes(NamedTuple):
    """Boxes of one image: until `drop_invalid`, scores and coordinates may be anything, even NaN."""

    xyxy: npt.NDArray[Any]
    score: npt.NDArray[Any]
    label: npt.NDArray[Any]

    def take(self, index: Bools | Ints) -> RawBoxes:
        return RawBoxes(self.xyxy[index], self.score[index], self.label[index])


def drop_invalid(raw: RawBoxes, *, floor: float) -> RawBoxes:
    """Drop invalid boxes: below the score floor, not finite, without area, or without a label."""
    xyxy, score, label = (as_array(part).astype(np.float64) for part in raw)
    boxes = RawBoxes(xyxy.reshape(-1, 4), score.reshape(-1), label.reshape(-1))
    boxes = boxes.take(np.isfinite(boxes.xyxy).all(axis=1) & np.isfinite(boxes.score))
    boxes = RawBoxes(boxes.xyxy, np.minimum(boxes.score, 1.0), np.rint(boxes.label))
    has_label = (boxes.label >= 0) & (boxes.label < MAX_LABEL)
    boxes = boxes.take((boxes.score >= max(floor, 0.0)) & has_label & has_area(boxes.xyxy))
    return boxes._replace(label=boxes.label.astype(np.int64))


def count_invalid(raw: RawBoxes, *, floor: float) -> int:
    """Count the boxes that indicate a broken detector: not finite, or inverted."""
    xyxy, score = as_array(raw.xyxy).reshape(-1, 4), as_array(raw.score).reshape(-1)
    invalid = ~np.isfinite(xyxy).all(axis=1) | (xyxy[:, 2:] < xyxy[:, :2]).any(axis=1)
    return int((~np.isfinite(score) | (invalid & (score >= floor))).sum())


def log_invalid(count: int) -> None:
    """Log the number of invalid boxes that were dropped from all views of an image."""
    if count:
        log.warning("dropped invalid boxes (not finite or inverted) that the detector returned for an image: %d", count)


def keep_best(boxes: RawBoxes) -> Detections:
    """Keep the best valid boxes with area, best score first; they must be clipped already."""
    boxes = boxes.take(has_area(boxes.xyxy))
    return Detections(*boxes.take(by_score(boxes.score)[:MAX_BOXES]))


def to_image_detections(raw: RawBoxes, image: npt.NDArray[np.uint8], *, floor: float) -> Detections:
    """Validate boxes in raw pixels of `image`, clip them and keep the best."""
    boxes = drop_invalid(raw, floor=floor)
    height, width = image.shape[:2]
    return keep_best(boxes._replace(xyxy=np.clip(boxes.xyxy, 0, [width, height, width, height])))


def as_array(values: Any) -> npt.NDArray[Any]:
    """Convert an array, or a tensor on any device and of any precision, to a NumPy array."""
    return np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values)


def has_area(xyxy: Floats) -> Bools:
    return np.asarray((xyxy[:, 0] < xyxy[:, 2]) & (xyxy[:, 1] < xyxy[:, 3]))
