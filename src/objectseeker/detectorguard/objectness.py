"""The robust objectness map: local features, windows, votes, and what is left of them under a patch.

A network that sees 33 x 33 pixels at a time says, for every position of a grid, how much it looks like each class:
the features, whole numbers of at least 0 (`FEATURE_STEP` of a logit each). A window is a square of 8 x 8 positions; its
sum of features says how much it looks like each class, and it votes with that on every position it covers. So the votes
for class c at position p are

    votes[p, c] = sum over positions q of  kernel[p, q] * features[q, c]

where kernel[p, q] is the number of windows that cover both p and q: no vote depends on another class, and no weight is
negative. A position says object if, for some class, its votes exceed a threshold. Everything is whole numbers (a vote
is at most 65535 * 64 * 64), so nothing here is rounded and a tie is a tie.

Guarantee: let S be the positions whose view meets a pixel that the patch reaches. Whatever the patch shows, the votes
are at least what `remaining` computes, those without the features of S. Proof: features outside S are functions of
pixels the patch does not reach, so they are what they were; features in S are at least 0; and votes only grow with any
feature. An attacker who manages to set all features of S to 0 reaches the bound for all classes at once. QED.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints
from objectseeker.detectors.network.preprocess import Axis, InputPlacement, Size, place
from objectseeker.errors import ObjectSeekerError

# Explaining objectness by boxes, and raising an alert where some is left unexplained.
#
# A box of the base detector explains the positions the middle of whose view lies inside it. Objectness that no box
# explains is an alert if it is dense: if some position that says object has at least `CLUSTER` of them, itself
# included,
# within a distance of `NEIGHBOURHOOD`. That is when DBSCAN with these parameters finds a cluster: a cluster begins with
# such a position, and noise is all there is without one.
#
# Guarantee: more unexplained positions never take an alert back (each position keeps the neighbors it had), and a box
# that explains one of the positions that an object owns overlaps the object with positive area. Proof of the latter: an
# object owns a position if its box contains the middle m: x1 <= m <= x2. A base box u explains the position if
# u1 < m < u2. Hence u1 < x2 and u2 > x1; likewise in y. The object has positive area, so both share some. All
# comparisons
# are with the same stored m: no rounding. QED.


NEIGHBOURHOOD, CLUSTER = 3, 24  # distance and number of positions, as published

# The positions within the distance, row by row: how far a row reaches to each side.
_HALF_WIDTHS = {dy: int(np.sqrt(NEIGHBOURHOOD**2 - dy**2)) for dy in range(-NEIGHBOURHOOD, NEIGHBOURHOOD + 1)}


def explaining_score(grid: Grid, base: Detections) -> Floats:
    """The highest score of a box that explains each position, -1 where none does: (rows, columns)."""
    best = np.full(grid.shape, -1.0)
    for box, score in zip(base.xyxy.tolist(), base.score.tolist(), strict=True):
        (first, end), (top, bottom) = (_explained(grid, axis, box[axis], box[axis + 2]) for axis in (0, 1))
        part = best[top:bottom, first:end]
        np.maximum(part, score, out=part)
    return best


def _explained(grid: Grid, axis: int, start: float, stop: float) -> tuple[int, int]:
    """The positions [first, end) with start < middle < stop."""
    first = int(np.searchsorted(grid.middle[axis], start, side="right"))
    end = int(np.searchsorted(grid.middle[axis], stop, side="left"))
    return first, max(first, end)


def owned(grid: Grid, truth: Floats) -> Ints:
    """The positions each object owns: (N, 4), first column, first row, end column, end row; first = end if none."""
    owned_by_axis = []
    for axis in (0, 1):
        first = np.searchsorted(grid.middle[axis], truth[:, axis], side="left")
        end = np.searchsorted(grid.middle[axis], truth[:, axis + 2], side="right")
        owned_by_axis.append((first, np.maximum(first, end)))
    (left, right), (top, bottom) = owned_by_axis
    return np.stack([left, top, right, bottom], axis=-1).astype(np.int64)


def clustered(points: Bools) -> Bools:
    """Whether there is a cluster in each of many maps of points (..., rows, columns)."""
    margin = NEIGHBOURHOOD
    *many, rows, columns = points.shape
    padded = np.zeros((*many, rows + 2 * margin, columns + 2 * margin + 1), np.int16)
    padded[..., margin : margin + rows, margin + 1 : margin + 1 + columns] = points
    running = np.cumsum(padded, axis=-1, dtype=np.int16)
    near = np.zeros((*many, rows, columns), np.int16)
    for dy, half in _HALF_WIDTHS.items():
        row = running[..., margin + dy : margin + dy + rows, :]
        # running[j + margin + half + 1] - running[j + margin - half] adds up the columns j - half to j + half
        near += row[..., margin + half + 1 : margin + half + 1 + columns]
        near -= row[..., margin - half : margin - half + columns]
    return np.asarray((points & (near >= CLUSTER)).any(axis=(-2, -1)))


def alert(grid: Grid, says_object: Bools, base: Detections) -> bool:
    """Whether some of the positions that say object (rows, columns) are left unexplained by the boxes, and dense.

    Boxes explain whatever their label is, also those of classes that a dataset does not have.
    """
    return bool(clustered(says_object & (explaining_score(grid, base) < 0)))


VIEW, STRIDE = 33, 8  # pixels a position sees, and pixels between two positions
WINDOW = 8  # positions a side
FEATURE_STEP = 1 / 64  # of a logit: features are stored and used as multiples of it
SMALLEST_INPUT = VIEW + (WINDOW - 1) * STRIDE  # pixels a side that hold one window

Features = npt.NDArray[np.uint16]  # rows, columns, classes


@dataclass(frozen=True, slots=True)
class Grid:
    """The positions of the network on one image: where they lie in raw pixels, and which of them a patch reaches.

    `middle` are the middles of their views along x and y, in raw pixels. Whether a position belongs to a box is told by
    them and nothing else (`explaining`).
    """

    placement: InputPlacement
    middle: tuple[Floats, Floats]

    @classmethod
    def of(cls, image: Size, network: Size) -> Grid:
        """`image` and `network`: width, height. The image is letterboxed in the middle of the network's input."""
        if min(network) < SMALLEST_INPUT:
            raise ObjectSeekerError(
                f"the network's input must be at least {SMALLEST_INPUT} pixels a side, got {network}"
            )
        placement = place(image, network, "center")
        return cls(placement, (_middles(placement.x), _middles(placement.y)))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.middle[1]), len(self.middle[0])

    def reached(self, axis: int, start: Ints, stop: Ints) -> Ints:
        """The positions [first, end) along an axis (0: x, 1: y) that raw pixels [start, stop) influence: (..., 2).

        A position is influenced if its view meets a network pixel into which one of these raw pixels was blended.
        Pixels outside the image do not exist; where nothing is influenced, first equals end.
        """
        along = (self.placement.x, self.placement.y)[axis]
        raw = along.resampling.raw
        start, stop = np.clip(start, 0, raw), np.clip(stop, 0, raw)
        pixel, pixel_end = along.leaking_extent(start, stop)
        count = len(self.middle[axis])
        first = np.clip((pixel - VIEW) // STRIDE + 1, 0, count)  # the view [8i, 8i + 33) ends after `pixel`
        end = np.clip(-(-pixel_end // STRIDE), first, count)  # and begins before `pixel_end`
        some = (start < stop) & (pixel < pixel_end)
        return np.stack([np.where(some, first, 0), np.where(some, end, 0)], axis=-1)


def positions(length: int) -> int:
    """How many positions fit into `length` network pixels."""
    return (length - VIEW) // STRIDE + 1


def _middles(axis: Axis) -> Floats:
    middle: Floats = np.arange(positions(axis.length), dtype=np.float64) * STRIDE + VIEW / 2
    return (middle - axis.offset) * (axis.resampling.raw / axis.resampling.resized)


def votes_of(features: Features) -> Ints:
    """Votes for every class at every position: (classes, rows, columns)."""
    votes: Ints = np.moveaxis(features, -1, 0).astype(np.int64)
    for axis in (1, 2):
        sums = running_sums(votes, WINDOW, axis)  # of every window,
        around = [(0, 0), (0, 0), (0, 0)]
        around[axis] = (WINDOW - 1, WINDOW - 1)
        votes = running_sums(np.pad(sums, around), WINDOW, axis)  # and of all windows that cover a position
    return votes


def running_sums(values: Ints, length: int, axis: int) -> Ints:
    """Sums of `length` neighbors along an axis, one for every place where they fit."""
    totals = np.cumsum(np.moveaxis(values, axis, -1), axis=-1)
    sums = totals[..., length - 1 :].copy()
    sums[..., 1:] -= totals[..., :-length]
    return np.moveaxis(sums, -1, axis)


@lru_cache(maxsize=64)
def kernel(count: int) -> Ints:
    """How many windows of one axis cover both position i and position i + o - 7: [i, o], o from 0 to 14."""
    i = np.arange(count)[:, None]
    j = i + np.arange(2 * WINDOW - 1) - (WINDOW - 1)
    first = np.maximum(np.maximum(i, j) - WINDOW + 1, 0)
    last = np.minimum(np.minimum(i, j), count - WINDOW)
    shared: Ints = np.maximum(last - first + 1, 0)
    shared.setflags(write=False)
    return shared


def votes_needed(threshold: int) -> int:
    """The votes a position must exceed to say object, `threshold` a multiple of FEATURE_STEP.

    A position away from the border is covered by 8 x 8 windows, and the mean of their means is what must exceed the
    threshold. Near the border there are fewer windows, and nothing makes up for it.
    """
    return threshold * WINDOW**4


def objectness(features: Features, threshold: int) -> Bools:
    """Which positions say object: (rows, columns)."""
    return np.asarray(most_votes(features) > votes_needed(threshold))


def most_votes(features: Features) -> Ints:
    """The votes of the class that has most of them: (rows, columns)."""
    return np.asarray(votes_of(features).max(axis=0, initial=0))
