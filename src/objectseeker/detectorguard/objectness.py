"""The robust objectness map of DetectorGuard: local features, windows, votes, and alerts.

A network with a receptive field of 33 x 33 pixels returns, for every position of a grid, how much it looks like each
class: the features, integers of at least 0 (`FEATURE_STEP` of a logit each). A window is a square of 8 x 8 positions;
the sum of its features is its vote for every position it covers. So the votes for class c at position p are

    votes[p, c] = sum over positions q of  kernel[p, q] * features[q, c]

where kernel[p, q] is the number of windows that cover both p and q: no vote depends on another class, and no weight is
negative. A position says object if, for some class, its votes exceed a threshold. Everything is an integer (a vote
is at most 65535 * 64 * 64), so nothing is rounded and a tie is a tie.

Guarantee: let S be the positions whose view meets a pixel that the patch reaches. For any pixels of the patch, the
votes are at least those without the features of S (`ImageVotes.has_remaining_cluster` computes them). Proof: features
outside S are functions of pixels the patch does not reach, so they are unchanged; features in S are at least 0; and
votes only grow with any feature. An attacker who sets all features of S to 0 reaches the bound for all classes at
once. QED.

Boxes of the base detector explain objectness. A box explains the positions the center of whose view is inside it.
Objectness that no box explains is an alert if it is dense: if some position that says object has at least
`MIN_CLUSTER_SIZE` of them, itself included, within a distance of `NEIGHBORHOOD`. That is when DBSCAN with these
parameters finds a cluster: a cluster begins with such a position, and without one there is only noise.

Guarantee: more unexplained positions never remove an alert (each position keeps the neighbors it had), and a box that
explains one of the positions of an object overlaps the object with positive area. Proof of the latter: an object has a
position if its box contains the center m: x1 <= m <= x2. A base box u explains the position if u1 < m < u2. Hence
u1 < x2 and u2 > x1; likewise in y. The object has positive area, so both share some. All comparisons are with the same
stored m: no rounding. QED.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Detections, Floats, Ints
from objectseeker.detectors.network.preprocess import Axis, InputPlacement, Size, place
from objectseeker.errors import ObjectSeekerError

VIEW, STRIDE = 33, 8  # pixels of a position's view, and pixels between two positions
WINDOW = 8  # positions per side
FEATURE_STEP = 1 / 64  # of a logit: features are stored and used as multiples of it
MIN_INPUT_SIZE = VIEW + (WINDOW - 1) * STRIDE  # pixels per side that contain one window

Features = npt.NDArray[np.uint16]  # rows, columns, classes

NEIGHBORHOOD, MIN_CLUSTER_SIZE = 3, 24  # distance and number of positions, as published

# The positions within the distance, row by row: how far a row reaches to each side.
_HALF_WIDTHS = {dy: int(np.sqrt(NEIGHBORHOOD**2 - dy**2)) for dy in range(-NEIGHBORHOOD, NEIGHBORHOOD + 1)}


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid positions of the network on one image, and which of them a patch reaches.

    `centers` are the centers of their views along x and y, in raw pixels. They alone decide whether a position belongs
    to a box.
    """

    placement: InputPlacement
    centers: tuple[Floats, Floats]

    @classmethod
    def for_image(cls, image: Size, network: Size) -> Grid:
        """Return the grid of an image of a size, letterboxed in the center of the network's input."""
        if min(network) < MIN_INPUT_SIZE:
            raise ObjectSeekerError(
                f"the network's input must be at least {MIN_INPUT_SIZE} pixels per side: got {network}"
            )
        placement = place(image, network, "center")
        return cls(placement, (_centers(placement.x), _centers(placement.y)))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.centers[1]), len(self.centers[0])

    def reached_positions(self, axis: int, start: Ints, stop: Ints) -> Ints:
        """Return the positions [first, end) of an axis (0: x) that raw pixels [start, stop) reach: (..., 2).

        A position is reached if its view meets a network pixel into which one of these raw pixels was blended. Pixels
        outside the image do not exist; where nothing is reached, first equals end.
        """
        along = (self.placement.x, self.placement.y)[axis]
        raw = along.resampling.raw
        start, stop = np.clip(start, 0, raw), np.clip(stop, 0, raw)
        pixel, pixel_end = along.leaking_extent(start, stop)
        count = len(self.centers[axis])
        first = np.clip((pixel - VIEW) // STRIDE + 1, 0, count)  # the view [8i, 8i + 33) ends after `pixel`
        end = np.clip(-(-pixel_end // STRIDE), first, count)  # and begins before `pixel_end`
        is_reached = (start < stop) & (pixel < pixel_end)
        return np.stack([np.where(is_reached, first, 0), np.where(is_reached, end, 0)], axis=-1)


def position_count(length: int) -> int:
    """Return the number of positions in `length` network pixels."""
    return (length - VIEW) // STRIDE + 1


def _centers(axis: Axis) -> Floats:
    middle: Floats = np.arange(position_count(axis.length), dtype=np.float64) * STRIDE + VIEW / 2
    return (middle - axis.offset) * (axis.resampling.raw / axis.resampling.resized)


def window_votes(features: Features) -> Ints:
    """Return votes for every class at every position: (classes, rows, columns)."""
    votes: Ints = np.moveaxis(features, -1, 0).astype(np.int64)
    for axis in (1, 2):
        sums = running_sums(votes, WINDOW, axis)  # of every window
        around = [(0, 0), (0, 0), (0, 0)]
        around[axis] = (WINDOW - 1, WINDOW - 1)
        votes = running_sums(np.pad(sums, around), WINDOW, axis)  # of all windows that cover a position
    return votes


def running_sums(values: Ints, length: int, axis: int) -> Ints:
    """Return sums of `length` neighbors along an axis, one for every offset where they fit."""
    totals = np.cumsum(np.moveaxis(values, axis, -1), axis=-1)
    sums = totals[..., length - 1 :].copy()
    sums[..., 1:] -= totals[..., :-length]
    return np.moveaxis(sums, -1, axis)


@lru_cache(maxsize=64)
def shared_windows(count: int) -> Ints:
    """Return how many windows of one axis cover positions i and i + o - 7: [i, o], o from 0 to 14."""
    i = np.arange(count)[:, None]
    j = i + np.arange(2 * WINDOW - 1) - (WINDOW - 1)
    first = np.maximum(np.maximum(i, j) - WINDOW + 1, 0)
    last = np.minimum(np.minimum(i, j), count - WINDOW)
    shared: Ints = np.maximum(last - first + 1, 0)
    shared.setflags(write=False)
    return shared


def required_votes(threshold: int) -> int:
    """Return the votes a position must exceed to say object; `threshold` is in units of FEATURE_STEP.

    A position away from the border is covered by 8 x 8 windows, and the mean of their means must exceed the threshold.
    Near the border there are fewer windows, which is not compensated.
    """
    return threshold * WINDOW**4


def objectness_map(features: Features, threshold: int) -> Bools:
    """Return which positions say object: (rows, columns)."""
    return np.asarray(max_votes(features) > required_votes(threshold))


def max_votes(features: Features) -> Ints:
    """Return the votes of the class with most votes: (rows, columns)."""
    return np.asarray(window_votes(features).max(axis=0, initial=0))


def explaining_score(grid: Grid, base: Detections) -> Floats:
    """Return the highest score of a box that explains each position, -1 where none does: (rows, columns)."""
    best = np.full(grid.shape, -1.0)
    for box, score in zip(base.xyxy.tolist(), base.score.tolist(), strict=True):
        (first, end), (top, bottom) = (_explained(grid, axis, box[axis], box[axis + 2]) for axis in (0, 1))
        part = best[top:bottom, first:end]
        np.maximum(part, score, out=part)
    return best


def _explained(grid: Grid, axis: int, start: float, stop: float) -> tuple[int, int]:
    """Return the positions [first, end) with start < center < stop."""
    first = int(np.searchsorted(grid.centers[axis], start, side="right"))
    end = int(np.searchsorted(grid.centers[axis], stop, side="left"))
    return first, max(first, end)


def object_positions(grid: Grid, boxes: Floats) -> Ints:
    """Return the positions of each object: (N, 4), first column, first row, end column, end row."""
    by_axis = []
    for axis in (0, 1):
        first = np.searchsorted(grid.centers[axis], boxes[:, axis], side="left")
        end = np.searchsorted(grid.centers[axis], boxes[:, axis + 2], side="right")
        by_axis.append((first, np.maximum(first, end)))
    (left, right), (top, bottom) = by_axis
    return np.stack([left, top, right, bottom], axis=-1).astype(np.int64)


def has_cluster(points: Bools) -> Bools:
    """Return whether there is a cluster in each of many maps of points (..., rows, columns)."""
    margin = NEIGHBORHOOD
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
    return np.asarray((points & (near >= MIN_CLUSTER_SIZE)).any(axis=(-2, -1)))


def has_alert(grid: Grid, says_object: Bools, base: Detections) -> bool:
    """Return whether positions that say object (rows, columns) and that no box explains are dense.

    Boxes of every label explain, including those of classes that a dataset does not have.
    """
    return bool(has_cluster(says_object & (explaining_score(grid, base) < 0)))
