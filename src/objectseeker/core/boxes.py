"""Boxes and what is measured on them.

A box is x1, y1, x2, y2 in raw image pixels, half-open: it covers [x1, x2) x [y1, y2). Every function here works on
arrays of boxes and is exact up to a relative rounding error of a few units in the last place (coordinates are
subtracted only once, so nothing cancels); `certification` keeps a margin far larger than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.core.notebook import detections_html
from objectseeker.errors import ObjectSeekerError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_CELLS = 2**20  # pairs of boxes that are compared at once: some ten arrays of 8 MB
LARGEST_COORDINATE = 1e8  # keeps every area, and every integer position derived from a box, exact in its type


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Boxes of one image with their scores and labels, as three read-only arrays of equal length.

    For ground truth the score is not used: pass ones.

    Example:
        >>> boxes = Detections([[10, 20, 50, 80]], score=[0.9], label=[2])
        >>> len(boxes), boxes.score.tolist()
        (1, [0.9])
    """

    xyxy: Floats
    score: Floats
    label: Ints

    def __init__(self, xyxy: npt.ArrayLike, score: npt.ArrayLike, label: npt.ArrayLike) -> None:
        boxes = _as_float_array(xyxy, "xyxy")
        if boxes.size == 0:
            boxes = boxes.reshape(0, 4)
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ObjectSeekerError(f"xyxy must have shape (N, 4): got {boxes.shape}")
        scores = _as_float_array(score, "score")
        labels = _as_label_array(label)
        for name, array in (("score", scores), ("label", labels)):
            if array.shape != (len(boxes),):
                raise ObjectSeekerError(f"{name} must have shape ({len(boxes)},) to match xyxy: got {array.shape}")
        _reject_rows(boxes, ~np.isfinite(boxes).all(axis=1), "box coordinates must be finite")
        _reject_rows(boxes, np.abs(boxes).max(axis=1, initial=0) > LARGEST_COORDINATE, "box coordinates are too large")
        _reject_rows(
            boxes,
            (boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1]),
            "a box needs x1 <= x2 and y1 <= y2",
        )
        _reject_rows(scores, ~((scores >= 0) & (scores <= 1)), "a score must lie within [0, 1]")
        for name, array in (("xyxy", boxes), ("score", scores), ("label", labels)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def empty(cls) -> Detections:
        return cls(np.empty((0, 4)), np.empty(0), np.empty(0, np.int64))

    @classmethod
    def concatenate(cls, parts: Iterable[Detections]) -> Detections:
        parts = list(parts) or [cls.empty()]
        return cls._checked(
            np.concatenate([part.xyxy for part in parts]),
            np.concatenate([part.score for part in parts]),
            np.concatenate([part.label for part in parts]),
        )

    @classmethod
    def _checked(cls, xyxy: Floats, score: Floats, label: Ints) -> Detections:
        """Boxes that come from other `Detections`: nothing to validate again."""
        made = object.__new__(cls)
        for name, array in (("xyxy", xyxy), ("score", score), ("label", label)):
            array.setflags(write=False)
            object.__setattr__(made, name, array)
        return made

    def __len__(self) -> int:
        return len(self.score)

    def __getitem__(self, index: Any) -> Detections:
        """The selected boxes: an integer gives one box, still as `Detections`; slices and arrays as in NumPy."""
        if isinstance(index, int | np.integer):
            index = [index]
        return Detections._checked(self.xyxy[index], self.score[index], self.label[index])

    def __eq__(self, other: object) -> bool:
        """Bit-for-bit equality, order included."""
        return (
            isinstance(other, Detections)
            and np.array_equal(self.xyxy, other.xyxy)
            and np.array_equal(self.score, other.score)
            and np.array_equal(self.label, other.label)
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        return detections_html(self)

    def with_min_score(self, score: float) -> Detections:
        """The boxes whose score is at least `score`."""
        return self[self.score >= score]


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield blocks of the rows of a table: at most MAX_CELLS cells, and at least one row each.

    An attacker chooses how many boxes there are, so nothing may need memory for every pair of them.
    """
    step = max(1, MAX_CELLS // max(columns, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


def area(boxes: Floats) -> Floats:
    """Area of each box."""
    return np.asarray((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))


def intersection(a: Floats, b: Floats) -> Floats:
    """Area shared by each box of `a` and each of `b`: shape (len(a), len(b))."""
    a, b = a[:, None], b[None]
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0])
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1])
    return np.asarray(np.maximum(width, 0) * np.maximum(height, 0))


def ioa(a: Floats, b: Floats) -> Floats:
    """Share of each box of `a` that lies inside each of `b`; 0 for a box of `a` without area."""
    return _ratio(intersection(a, b), area(a)[:, None])


def iou(a: Floats, b: Floats) -> Floats:
    """Intersection over union of each box of `a` with each of `b`; 0 where both have no area."""
    shared = intersection(a, b)
    return _ratio(shared, area(a)[:, None] + area(b)[None] - shared)


def _ratio(part: Floats, whole: Floats) -> Floats:
    whole = np.broadcast_to(whole, part.shape)
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _as_float_array(values: npt.ArrayLike, name: str) -> Floats:
    try:
        return np.array(values, dtype=np.float64)  # always a copy: the caller's array may change later
    except (TypeError, ValueError):
        raise ObjectSeekerError(f"{name} must be an array of numbers: got {values!r}") from None


def _as_label_array(values: npt.ArrayLike) -> Ints:
    numbers = _as_float_array(values, "label")
    labels = np.where(np.isfinite(numbers), numbers, 0.5).astype(np.int64)
    _reject_rows(numbers.ravel(), (labels != numbers).ravel(), "a label must be a whole number")
    return labels


def _reject_rows(values: Floats, bad: Any, rule: str) -> None:
    """Raise with the first offending row, if there is one."""
    if bad.any():
        row = int(np.argmax(bad))
        raise ObjectSeekerError(f"{rule}: got {values[row].tolist()} in row {row}")
