"""Certificates of DetectorGuard: objects that no patch can hide without an alert.

For one object and one patch position, remove the features of every grid position the patch reaches from the votes. If
the remaining objectness among the positions of the object still has a cluster, then under that attack either some base
box overlaps the object, or none of these positions is explained, the cluster remains, and an alert is raised. Every
patch position is decided: it matters only through the rectangle of grid positions it reaches, and of two rectangles
the one inside the other is the easier one, so only the maximal ones are evaluated.

The publication decides the same with another threat model. There a patch is a square of p x p grid positions,
p = ceil((side + 33 - 1) / 8) for a side in network pixels, and its location is defined on the grid, too: relative to
the positions whose view meets the object it is over if its center is among them, close if it is not but comes within 8
positions, far otherwise. Ours (`core.threats`) is about raw pixels. `certify_published` is for reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from objectseeker.core.boxes import Bools, Detections, Floats, Ints
from objectseeker.core.certification import visible_area
from objectseeker.core.threats import Patch, PatchLocation, PatchPositions, patch_sizes
from objectseeker.detectorguard.objectness import (
    STRIDE,
    VIEW,
    WINDOW,
    Features,
    Grid,
    has_cluster,
    object_positions,
    required_votes,
    shared_windows,
    window_votes,
)
from objectseeker.errors import ObjectSeekerError

WINDOW_REACH = WINDOW - 1  # positions further apart than this share no window
MAX_CLOSE_GAP = 8  # positions, in the published threat model

# The rectangles of grid positions that a patch may reach: every pair of one interval of columns and one of rows, each
# (n, 2) first and end.
Rectangles = tuple[Ints, Ints]


@dataclass(frozen=True, slots=True, eq=False)
class GuardCertificates:
    """Verdicts for the objects of one image, per patch threat: (P, N) each.

    An object without an allowed position is certified, and `vacuous`.
    """

    certified: Bools
    vacuous: Bools


def certify_guarded(
    grid: Grid, features: Features, objects: Detections, patches: Patch | Sequence[Patch], *, threshold: int
) -> GuardCertificates:
    """Certify every object against every patch threat: no allowed patch hides it without an alert.

    Guarantee: if object g is certified against patch p, then for every allowed position of p, any pixels drawn there
    and any boxes the base detector then outputs, one of these boxes overlaps g with positive area, or `has_alert`
    raises an alert. The guarantee does not cover labels. It holds for a network whose features at a position depend
    only on the pixels of its view, at this threshold; a tie is not certified. An object without visible area is never
    certified.

    Proof: assume no base box overlaps g. Then no base box explains a position of g (`objectness`). The objectness at
    these positions is at least what `has_remaining_cluster` computes (`objectness`), and that has a cluster: a position
    with enough others around it. All of these say object and are unexplained, so the position is the core of a cluster
    of the attacked map, too, and there is an alert. QED.
    """
    patches = [patches] if isinstance(patches, Patch) else list(patches)
    width, height = grid.placement.x.resampling.raw, grid.placement.y.resampling.raw
    surroundings = PatchPositions.of(objects.xyxy, width, height)
    certified = np.zeros((len(patches), len(objects)), np.bool_)
    vacuous = np.zeros_like(certified)
    reached: list[list[list[Rectangles]]] = [[] for _ in range(len(objects))]  # object, threat, rectangles
    for p, patch in enumerate(patches):
        if not isinstance(patch, Patch) or patch.count != 1:
            raise ObjectSeekerError(f"DetectorGuard takes one patch at a time: got {patch!r}. Use count=1.")
        allowed = surroundings.allowed(patch.location, patch_sizes(patch, width, height, len(objects)))
        vacuous[p] = ~(allowed[..., :2] <= allowed[..., 2:]).all(axis=-1).any(axis=-1)
        for n in range(len(objects)):
            reached[n].append(reached_rectangles(grid, patch.size(width, height), allowed[n]))
    visible = visible_area(objects.xyxy, width, height) > 0
    image = ImageVotes.from_features(features, threshold)
    for n, object_range in enumerate(object_positions(grid, objects.xyxy)):
        if visible[n]:
            certified[:, n] = image.keeps_cluster(object_range, reached[n])
    return GuardCertificates((certified | vacuous) & visible, vacuous & visible)


def reached_rectangles(grid: Grid, patch: tuple[int, int], allowed: Ints) -> list[Rectangles]:
    """Return what a patch of `patch` = width, height reaches from the positions `allowed` (R, 4)."""
    rectangles = []
    for x_first, y_first, x_last, y_last in allowed.tolist():
        if x_first <= x_last and y_first <= y_last:
            x, y = np.arange(x_first, x_last + 1), np.arange(y_first, y_last + 1)
            rectangles.append(
                (
                    maximal_intervals(grid.reached_positions(0, x, x + patch[0])),
                    maximal_intervals(grid.reached_positions(1, y, y + patch[1])),
                )
            )
    return rectangles


def maximal_intervals(intervals: Ints) -> Ints:
    """Return the intervals (n, 2) that no other one contains, each once; an empty one only if all are."""
    # By first ascending and end descending: an interval is contained in an earlier one iff its end exceeds none.
    ordered = intervals[np.lexsort((-intervals[:, 1], intervals[:, 0]))]
    ordered = np.where((ordered[:, 0] < ordered[:, 1])[:, None], ordered, 0)
    furthest = np.maximum.accumulate(np.concatenate([[0], ordered[:-1, 1]]))
    kept = ordered[ordered[:, 1] > furthest]
    return kept if len(kept) else ordered[:1]


@dataclass(frozen=True, slots=True, eq=False)
class ImageVotes:
    """The votes of an image at one threshold, shared by the proofs of all its objects."""

    features: Ints  # classes, rows, columns; WINDOW_REACH zeros around
    votes: Ints  # classes, rows, columns
    required: int  # votes to exceed

    @classmethod
    def from_features(cls, features: Features, threshold: int) -> ImageVotes:
        by_class = np.moveaxis(features, -1, 0).astype(np.int64)
        around = ((0, 0), (WINDOW_REACH, WINDOW_REACH), (WINDOW_REACH, WINDOW_REACH))
        return cls(np.pad(by_class, around), window_votes(features), required_votes(threshold))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.votes.shape[1:]
        return rows, columns

    def keeps_cluster(self, object_range: Ints, threats: Sequence[Sequence[Rectangles]]) -> Bools:
        """Return, per threat, whether a cluster remains at an object's positions whatever the patch reaches."""
        left, top, right, bottom = object_range.tolist()
        rows, columns = slice(top, bottom), slice(left, right)
        enough = self.votes[:, rows, columns] > self.required
        if not has_cluster(np.asarray(enough.any(axis=0))):
            return np.zeros(len(threats), np.bool_)
        # A patch can only remove votes here: a class without an object vote without a patch has none with one.
        classes = np.flatnonzero(enough.any(axis=(1, 2)))
        near = [_within(rectangles, object_range, self.shape) for rectangles in threats]
        down = _distinct([rectangle[1] for rectangles in near for rectangle in rectangles])
        across = _distinct([rectangle[0] for rectangles in near for rectangle in rectangles])
        kept = self.has_remaining_cluster(classes, object_range, across, down)
        verdicts = []
        for rectangles in near:
            indices = [(_index(down, y), _index(across, x)) for x, y in rectangles]
            verdicts.append(all(bool(kept[np.ix_(*pair)].all()) for pair in indices))
        return np.array(verdicts, np.bool_)

    def has_remaining_cluster(self, classes: Ints, object_range: Ints, across: Ints, down: Ints) -> Bools:
        """Return whether a cluster remains without the features of columns across[i] and rows down[j]: [j, i]."""
        left, top, right, bottom = object_range.tolist()
        votes = self.votes[classes, top:bottom, left:right]
        # With the margin, position p uses offsets p to p + 14. First along rows: [class, column, row, offsets]
        near = self.features[classes, top : bottom + 2 * WINDOW_REACH, left : right + 2 * WINDOW_REACH]
        by_row = weighted_window_sums(np.moveaxis(near, 1, 2), shared_windows(self.shape[0])[top:bottom])
        column_weights = shared_windows(self.shape[1])[left:right]
        rows, columns = np.arange(top, bottom), np.arange(left, right)
        kept = np.empty((len(down), len(across)), np.bool_)
        for j, interval in enumerate(down[:, None]):
            part = interval_sums(by_row, interval, rows)[..., 0, :]  # class, column, row
            by_column = weighted_window_sums(np.moveaxis(part, 1, 2), column_weights)
            removed = interval_sums(by_column, across, columns)  # class, row, interval, column
            says_object = np.asarray((votes[:, :, None] - removed > self.required).any(axis=0))
            kept[j] = has_cluster(np.moveaxis(says_object, 1, 0))
        return kept


def weighted_window_sums(values: Ints, weights: Ints) -> Ints:
    """Return sums of values times weights over the first 0 to 15 offsets around n positions: (..., n, 16).

    `values` is (..., n + 14), `weights` (n, 15): position p uses offsets p to p + 14.
    """
    products = sliding_window_view(values, weights.shape[1], axis=-1) * weights
    sums = np.zeros((*products.shape[:-1], weights.shape[1] + 1), np.int64)
    np.cumsum(products, axis=-1, out=sums[..., 1:])
    return sums


def interval_sums(sums: Ints, intervals: Ints, positions: Ints) -> Ints:
    """Sum as `weighted_window_sums` over only the offsets in each interval: (..., intervals, n).

    Offset number k around position p is grid position p + k - 7.
    """
    last = sums.shape[-1] - 1
    first, end = (np.clip(intervals[:, [k]] - positions + WINDOW_REACH, 0, last) for k in (0, 1))
    each = np.arange(len(positions))
    return np.asarray(sums[..., each, np.maximum(first, end)] - sums[..., each, first])


def _within(rectangles: Sequence[Rectangles], object_range: Ints, shape: tuple[int, int]) -> list[Rectangles]:
    """Clip the rectangles to what can change a vote of the object: windows further away cover none of it."""
    left, top, right, bottom = object_range.tolist()
    rows, columns = shape
    return [
        (
            maximal_intervals(np.clip(across, max(left - WINDOW_REACH, 0), min(right + WINDOW_REACH, columns))),
            maximal_intervals(np.clip(down, max(top - WINDOW_REACH, 0), min(bottom + WINDOW_REACH, rows))),
        )
        for across, down in rectangles
    ]


def _distinct(intervals: Sequence[Ints]) -> Ints:
    return np.unique(np.concatenate([np.zeros((1, 2), np.int64), *intervals]), axis=0)


def _index(candidates: Ints, intervals: Ints) -> Ints:
    """Return the index of each of `intervals` in `candidates`, which has them all."""
    base = 1 + int(candidates.max())
    return np.searchsorted(candidates @ [base, 1], intervals @ [base, 1])


def certify_published(
    grid: Grid, features: Features, objects: Detections, patches: Sequence[Patch], *, threshold: int
) -> Bools:
    """Certify as `certify_guarded`, in the published threat model: (P, N); vacuously without positions."""
    width, height = grid.placement.x.resampling.raw, grid.placement.y.resampling.raw
    image = ImageVotes.from_features(features, threshold)
    around = positions_in_view(grid, objects.xyxy)
    visible = visible_area(objects.xyxy, width, height) > 0
    certified = np.zeros((len(patches), len(objects)), np.bool_)
    for n, object_range in enumerate(object_positions(grid, objects.xyxy)):
        threats = [allowed_squares(patch.location, around[n], patch_side(grid, patch), grid.shape) for patch in patches]
        if visible[n]:
            certified[:, n] = image.keeps_cluster(object_range, threats) | np.array(
                [not squares for squares in threats]
            )
    return certified


def patch_side(grid: Grid, patch: Patch) -> int:
    """Return the side p of the square of positions that represents the patch."""
    axes = (grid.placement.x, grid.placement.y)
    raw = patch.size(axes[0].resampling.raw, axes[1].resampling.raw)
    side = max(length * axis.resampling.resized / axis.resampling.raw for length, axis in zip(raw, axes, strict=True))
    return math.ceil((math.ceil(side) + VIEW - 1) / STRIDE)


def positions_in_view(grid: Grid, objects: Floats) -> Ints:
    """Return the positions whose view meets each object (N, 4): first column and row, end column and row."""
    ends = []
    for axis, along in enumerate((grid.placement.x, grid.placement.y)):
        scale = along.resampling.resized / along.resampling.raw
        start, stop = (objects[:, axis + k] * scale + along.offset for k in (0, 2))
        count = grid.shape[1 - axis]
        first = np.clip(np.floor((start - VIEW) / STRIDE) + 1, 0, count)
        ends.append((first, np.clip(np.ceil(stop / STRIDE), first, count)))
    (left, right), (top, bottom) = ends
    return np.stack([left, top, right, bottom], axis=-1).astype(np.int64)


def allowed_squares(location: PatchLocation, around: Ints, side: int, shape: tuple[int, int]) -> list[Rectangles]:
    """Return the allowed squares of `side` positions, for an object seen by the positions `around`."""
    rows, columns = shape
    everywhere = (0, 0, max(columns - side, 0), max(rows - side, 0))  # inclusive: of the first column and row
    left, top, right, bottom = around.tolist()
    half = side // 2
    over = (left - half, top - half, right - half, bottom - half)
    near = (left - side - MAX_CLOSE_GAP, top - side - MAX_CLOSE_GAP, right + MAX_CLOSE_GAP, bottom + MAX_CLOSE_GAP)
    if location == "anywhere":
        allowed = [everywhere]
    elif location == "over":
        allowed = [over]
    else:
        allowed = _without(everywhere, near) if location == "far" else _without(near, over)
    return [
        (_squares(x1, x2, side, columns), _squares(y1, y2, side, rows))
        for x1, y1, x2, y2 in (_meet(corners, everywhere) for corners in allowed)
        if x1 <= x2 and y1 <= y2
    ]


Starts = tuple[int, int, int, int]  # first column and row, last column and row that a square may begin at


def _without(outer: Starts, inner: Starts) -> list[Starts]:
    """Return `outer` without `inner`, as four rectangles that overlap at the corners."""
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
