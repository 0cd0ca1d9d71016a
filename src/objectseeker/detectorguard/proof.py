"""Which objects no patch can hide without an alert.

For one object and one patch position: take the features of every position the patch reaches out of the votes; if the
objectness that is left among the positions the object owns still holds a cluster, then under that attack either some
base box overlaps the object, or none of these positions is explained, the cluster is there, and an alert is raised.
Every patch position is decided: a position matters only through the rectangle of grid positions it reaches, and of two
rectangles the one inside the other is the easier one, so only the largest are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.certification import visible_area
from objectseeker.core.threats import Patch, PatchPositions, patch_sizes
from objectseeker.detectorguard.objectness import (
    WINDOW,
    Features,
    Grid,
    clustered,
    kernel,
    owned,
    votes_needed,
    votes_of,
)
from objectseeker.errors import ObjectSeekerError

WINDOW_REACH = WINDOW - 1  # positions further off than this share no window

# The rectangles of grid positions that a patch may reach: every pair of one interval of columns and one of rows, each
# (n, 2) first and end.
Rectangles = tuple[Ints, Ints]


@dataclass(frozen=True, slots=True, eq=False)
class GuardCertificates:
    """Verdicts for the objects of one image, threat by threat: (P, N) each.

    An object without an allowed position is certified, and `vacuous`.
    """

    certified: Bools
    vacuous: Bools


def certify_guarded(
    grid: Grid, features: Features, truth: Detections, patches: Patch | Sequence[Patch], *, threshold: int
) -> GuardCertificates:
    """Decide for every object and every threat whether an allowed patch could hide the object without an alert.

    Guarantee: if object g is certified against patch p, then for every allowed position of p, whatever the attacker
    draws there and whatever boxes the base detector then outputs, one of these boxes overlaps g with positive area, or
    `explaining.alert` raises an alert. There is no promise about labels. It holds for a network whose features at a
    position depend on the pixels of its view alone, at this threshold; a tie is not certified.
    An object with no visible area is never certified.

    Proof: say no base box overlaps g. Then no base box explains a position that g owns (`explaining`). The objectness
    at these positions is at least what `remaining` leaves (`objectness`), and that holds a cluster: a position with
    enough others around it. All of these say object and are unexplained, so the position is the core of a cluster of
    the attacked map too, and there is an alert. QED.
    """
    patches = [patches] if isinstance(patches, Patch) else list(patches)
    width, height = grid.placement.x.resampling.raw, grid.placement.y.resampling.raw
    surroundings = PatchPositions.of(truth.xyxy, width, height)
    certified = np.zeros((len(patches), len(truth)), np.bool_)
    vacuous = np.zeros_like(certified)
    reached: list[list[list[Rectangles]]] = [[] for _ in range(len(truth))]  # object, threat, rectangles
    for p, patch in enumerate(patches):
        if not isinstance(patch, Patch) or patch.count != 1:
            raise ObjectSeekerError(f"DetectorGuard is certified against one patch at a time, got {patch!r}")
        allowed = surroundings.allowed(patch.where, patch_sizes(patch, width, height, len(truth)))
        vacuous[p] = ~(allowed[..., :2] <= allowed[..., 2:]).all(axis=-1).any(axis=-1)
        for n in range(len(truth)):
            reached[n].append(reached_rectangles(grid, patch.size(width, height), allowed[n]))
    visible = visible_area(truth.xyxy, width, height) > 0
    image = ImageVotes.of(features, threshold)
    for n, own in enumerate(owned(grid, truth.xyxy)):
        if visible[n]:
            certified[:, n] = image.keep_cluster(own, reached[n])
    return GuardCertificates((certified | vacuous) & visible, vacuous & visible)


def reached_rectangles(grid: Grid, patch: tuple[int, int], allowed: Ints) -> list[Rectangles]:
    """What a patch of `patch` = width, height reaches from the positions `allowed` (R, 4, see `threats`)."""
    rectangles = []
    for x_first, y_first, x_last, y_last in allowed.tolist():
        if x_first <= x_last and y_first <= y_last:
            x, y = np.arange(x_first, x_last + 1), np.arange(y_first, y_last + 1)
            rectangles.append((largest(grid.reached(0, x, x + patch[0])), largest(grid.reached(1, y, y + patch[1]))))
    return rectangles


def largest(intervals: Ints) -> Ints:
    """The intervals (n, 2) that no other one contains, each once; an empty one only if all are."""
    # By first ascending and end descending: an interval is contained in an earlier one iff its end exceeds none.
    ordered = intervals[np.lexsort((-intervals[:, 1], intervals[:, 0]))]
    ordered = np.where((ordered[:, 0] < ordered[:, 1])[:, None], ordered, 0)
    before = np.maximum.accumulate(np.concatenate([[0], ordered[:-1, 1]]))
    kept = ordered[ordered[:, 1] > before]
    return kept if len(kept) else ordered[:1]


@dataclass(frozen=True, slots=True, eq=False)
class ImageVotes:
    """Everything about one image at one threshold that the proofs of its objects share."""

    features: Ints  # classes, rows, columns; WINDOW_REACH zeros around
    votes: Ints  # classes, rows, columns
    needed: int  # votes to exceed

    @classmethod
    def of(cls, features: Features, threshold: int) -> ImageVotes:
        by_class = np.moveaxis(features, -1, 0).astype(np.int64)
        around = ((0, 0), (WINDOW_REACH, WINDOW_REACH), (WINDOW_REACH, WINDOW_REACH))
        return cls(np.pad(by_class, around), votes_of(features), votes_needed(threshold))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.votes.shape[1:]
        return rows, columns

    def keep_cluster(self, own: Ints, threats: Sequence[Sequence[Rectangles]]) -> Bools:
        """Whether, for each threat, a cluster is left among the positions `own` whatever it reaches."""
        left, top, right, bottom = own.tolist()
        rows, columns = slice(top, bottom), slice(left, right)
        enough = self.votes[:, rows, columns] > self.needed
        if not clustered(np.asarray(enough.any(axis=0))):
            return np.zeros(len(threats), np.bool_)
        # What a patch takes away is never given to another class: a class that says object nowhere without a patch
        # says so nowhere with one.
        classes = np.flatnonzero(enough.any(axis=(1, 2)))
        near = [_within(rectangles, own, self.shape) for rectangles in threats]
        down = _distinct([rectangle[1] for rectangles in near for rectangle in rectangles])
        across = _distinct([rectangle[0] for rectangles in near for rectangle in rectangles])
        kept = self.remaining(classes, own, across, down)
        verdicts = []
        for rectangles in near:
            indices = [(_index(down, y), _index(across, x)) for x, y in rectangles]
            verdicts.append(all(bool(kept[np.ix_(*pair)].all()) for pair in indices))
        return np.array(verdicts, np.bool_)

    def remaining(self, classes: Ints, own: Ints, across: Ints, down: Ints) -> Bools:
        """Whether a cluster is left in `own` without the features of columns across[i] and rows down[j]: [j, i]."""
        left, top, right, bottom = own.tolist()
        votes = self.votes[classes, top:bottom, left:right]
        # With the margin, position p looks at places p to p + 14. First along rows: [class, column, own row, places]
        near = self.features[classes, top : bottom + 2 * WINDOW_REACH, left : right + 2 * WINDOW_REACH]
        by_row = weighed(np.moveaxis(near, 1, 2), kernel(self.shape[0])[top:bottom])
        column_weights = kernel(self.shape[1])[left:right]
        rows, columns = np.arange(top, bottom), np.arange(left, right)
        kept = np.empty((len(down), len(across)), np.bool_)
        for j, interval in enumerate(down[:, None]):
            part = between(by_row, interval, rows)[..., 0, :]  # class, column, own row
            by_column = weighed(np.moveaxis(part, 1, 2), column_weights)
            removed = between(by_column, across, columns)  # class, own row, interval, own column
            says_object = np.asarray((votes[:, :, None] - removed > self.needed).any(axis=0))
            kept[j] = clustered(np.moveaxis(says_object, 1, 0))
        return kept


def weighed(values: Ints, weights: Ints) -> Ints:
    """Sums of values times weights over the first 0, 1, ..., 15 places around each of n positions: (..., n, 16).

    `values` is (..., n + 14), `weights` (n, 15): position p looks at places p to p + 14.
    """
    products = sliding_window_view(values, weights.shape[1], axis=-1) * weights
    sums = np.zeros((*products.shape[:-1], weights.shape[1] + 1), np.int64)
    np.cumsum(products, axis=-1, out=sums[..., 1:])
    return sums


def between(sums: Ints, intervals: Ints, positions: Ints) -> Ints:
    """What `weighed` sums over the places in each interval alone: (..., intervals, n).

    The place number k around position p is grid position p + k - 7.
    """
    last = sums.shape[-1] - 1
    first, end = (np.clip(intervals[:, [k]] - positions + WINDOW_REACH, 0, last) for k in (0, 1))
    each = np.arange(len(positions))
    return np.asarray(sums[..., each, np.maximum(first, end)] - sums[..., each, first])


def _within(rectangles: Sequence[Rectangles], own: Ints, shape: tuple[int, int]) -> list[Rectangles]:
    """The rectangles cut to what can change a vote in `own`: a window further off covers none of it."""
    left, top, right, bottom = own.tolist()
    rows, columns = shape
    return [
        (
            largest(np.clip(across, max(left - WINDOW_REACH, 0), min(right + WINDOW_REACH, columns))),
            largest(np.clip(down, max(top - WINDOW_REACH, 0), min(bottom + WINDOW_REACH, rows))),
        )
        for across, down in rectangles
    ]


def _distinct(intervals: Sequence[Ints]) -> Ints:
    return np.unique(np.concatenate([np.zeros((1, 2), np.int64), *intervals]), axis=0)


def _index(among: Ints, intervals: Ints) -> Ints:
    """Where each of `intervals` stands in `among`, which holds them all."""
    base = 1 + int(among.max())
    return np.searchsorted(among @ [base, 1], intervals @ [base, 1])
