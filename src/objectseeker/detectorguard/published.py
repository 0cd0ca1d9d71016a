"""Where a patch may lie as DetectorGuard was published, for reference.

There a patch is a square of p x p grid positions, p = ceil((side + 33 - 1) / 8) for a side in network pixels, and where
it lies is told on the grid, too: relative to the positions whose view meets the object it is over if its middle is
among them, close if it is not but comes within 8 positions, far otherwise. Ours (`threats`) is about raw pixels
instead. The verdict itself is the same in both: the positions an object owns, and what is left of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints
from objectseeker.core.certification import visible_area
from objectseeker.core.threats import Patch, PatchLocation
from objectseeker.detectorguard.objectness import STRIDE, VIEW, Features, Grid, owned
from objectseeker.detectorguard.proof import ImageVotes, Rectangles

CLOSE = 8  # positions


def certify_published(
    grid: Grid, features: Features, truth: Detections, patches: Sequence[Patch], *, threshold: int
) -> Bools:
    """`certify_guarded` with the published model of where: (P, N). Vacuously true where a patch may lie nowhere."""
    width, height = grid.placement.x.resampling.raw, grid.placement.y.resampling.raw
    image = ImageVotes.of(features, threshold)
    around = in_view(grid, truth.xyxy)
    visible = visible_area(truth.xyxy, width, height) > 0
    certified = np.zeros((len(patches), len(truth)), np.bool_)
    for n, own in enumerate(owned(grid, truth.xyxy)):
        threats = [allowed_squares(patch.where, around[n], patch_side(grid, patch), grid.shape) for patch in patches]
        if visible[n]:
            certified[:, n] = image.keep_cluster(own, threats) | np.array([not squares for squares in threats])
    return certified


def patch_side(grid: Grid, patch: Patch) -> int:
    """The side p of the square of positions that stands for the patch."""
    axes = (grid.placement.x, grid.placement.y)
    raw = patch.size(axes[0].resampling.raw, axes[1].resampling.raw)
    side = max(length * axis.resampling.resized / axis.resampling.raw for length, axis in zip(raw, axes, strict=True))
    return math.ceil((math.ceil(side) + VIEW - 1) / STRIDE)


def in_view(grid: Grid, truth: Floats) -> Ints:
    """The positions whose view meets each object: (N, 4), first column, first row, end column, end row."""
    ends = []
    for axis, along in enumerate((grid.placement.x, grid.placement.y)):
        scale = along.resampling.resized / along.resampling.raw
        start, stop = (truth[:, axis + k] * scale + along.offset for k in (0, 2))
        count = grid.shape[1 - axis]
        first = np.clip(np.floor((start - VIEW) / STRIDE) + 1, 0, count)
        ends.append((first, np.clip(np.ceil(stop / STRIDE), first, count)))
    (left, right), (top, bottom) = ends
    return np.stack([left, top, right, bottom], axis=-1).astype(np.int64)


def allowed_squares(where: PatchLocation, around: Ints, side: int, shape: tuple[int, int]) -> list[Rectangles]:
    """The squares of `side` positions that `where` allows, for an object seen by the positions `around`."""
    rows, columns = shape
    everywhere = (0, 0, max(columns - side, 0), max(rows - side, 0))  # inclusive: of the first column and row
    left, top, right, bottom = around.tolist()
    half = side // 2
    over = (left - half, top - half, right - half, bottom - half)
    near = (left - side - CLOSE, top - side - CLOSE, right + CLOSE, bottom + CLOSE)
    if where == "anywhere":
        allowed = [everywhere]
    elif where == "over":
        allowed = [over]
    else:
        allowed = _without(everywhere, near) if where == "far" else _without(near, over)
    return [
        (_squares(x1, x2, side, columns), _squares(y1, y2, side, rows))
        for x1, y1, x2, y2 in (_meet(corners, everywhere) for corners in allowed)
        if x1 <= x2 and y1 <= y2
    ]


Starts = tuple[int, int, int, int]  # first column and row, last column and row that a square may begin at


def _without(outer: Starts, inner: Starts) -> list[Starts]:
    """`outer` but for `inner`, as four rectangles that overlap at the corners."""
    x1, y1, x2, y2 = outer
    return [
        (x1, y1, min(x2, inner[0] - 1), y2),
        (max(x1, inner[2] + 1), y1, x2, y2),
        (x1, y1, x2, min(y2, inner[1] - 1)),
        (x1, max(y1, inner[3] + 1), x2, y2),
    ]


def _meet(a: Starts, b: Starts) -> Starts:
    return max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])


def _squares(first: int, last: int, side: int, count: int) -> Ints:
    start = np.arange(first, last + 1)
    return np.stack([start, np.minimum(start + side, count)], axis=-1)
