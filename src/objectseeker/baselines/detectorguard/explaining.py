"""Explaining objectness by boxes, and raising an alert where some is left unexplained.

A box of the base detector explains the positions the middle of whose view lies inside it. Objectness that no box
explains is an alert if it is dense: if some position that says object has at least `CLUSTER` of them, itself included,
within a distance of `NEIGHBOURHOOD`. That is when DBSCAN with these parameters finds a cluster: a cluster begins with
such a position, and noise is all there is without one.

Guarantee: more unexplained positions never take an alert back (each position keeps the neighbours it had), and a box
that explains one of the positions that an object owns overlaps the object with positive area. Proof of the latter: an
object owns a position if its box contains the middle m: x1 <= m <= x2. A base box u explains the position if
u1 < m < u2. Hence u1 < x2 and u2 > x1; likewise in y. The object has positive area, so both share some. All comparisons
are with the same stored m: no rounding. QED.
"""

from __future__ import annotations

import numpy as np

from objectseeker.baselines.detectorguard.objectness import Grid
from objectseeker.core.boxes import Bools, Detections, Floats, Ints

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

    Boxes explain whatever their label is, also those of classes that a data set does not have.
    """
    return bool(clustered(says_object & (explaining_score(grid, base) < 0)))
