"""Patch positions, grouped by the views that remove the patch.

For a patch of one size a position matters only through which masks remove it, by x or by y (`masks.Masks.removes`).
Along an axis that set changes only where a line is passed, at most twice per line, so positions fall into a grid of
classes: 21 x 21 for half masks of 10 lines per axis, whatever the size of the image.

Let U(c) be the views that remove a patch of class c, among those that can prove an object. Against one patch an object
is proven iff every allowed class has views enough in U(c); against two patches iff every pair c, d of allowed classes,
c = d included, has views enough in U(c) and U(d) both. "Enough" is one view that is sufficient on its own, or views
with enough evidence: more views are never worse. So if U(c) is contained in U(e), class e need not be considered: for
any d, what U(c) and U(d) share, U(e) and U(d) share; and what U(c) holds, U(e) and U(e) share. Only the hardest classes
count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.masks import Masks

KEPT = 256  # patch sizes and masks whose classes are kept at a time


@dataclass(frozen=True, slots=True, eq=False)
class PositionClasses:
    """The classes of one patch size, axis by axis.

    Along axis a, class i are the positions from `starts[a][i]` to the next start, and `removes[a][i]` are the views
    that remove a patch there, at any position on the other axis.
    """

    starts: tuple[Ints, Ints]
    removes: tuple[Bools, Bools]

    @classmethod
    def of(cls, masks: Masks, patch: tuple[int, int]) -> PositionClasses:
        """The classes of a patch of `patch` = width, height; those of equal masks and sizes are made once."""
        return _classes_of(masks, patch)

    def reached(self, rectangle: Ints) -> tuple[Ints, Ints]:
        """Return the classes along each axis in an (inclusive) rectangle of positions; none if it is empty."""
        if (rectangle[:2] > rectangle[2:]).any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        ends = (np.searchsorted(self.starts[axis], rectangle[axis::2], side="right") for axis in (0, 1))
        x, y = (np.arange(first - 1, last) for first, last in ends)
        return x, y

    def hardest(self, grids: Iterable[tuple[Ints, Ints]], views: Ints) -> Bools:
        """Return the `views` that remove a patch of each class of the `grids`: (classes, len(views)).

        A grid are classes x and classes y, every x with every y (`reached`). Of each grid only the classes are listed
        that are hardest along both axes: U(x, y) is what x removes and what y removes together, so if x removes no more
        than x', then (x, y) removes no more than (x', y).
        """
        across, down = (removes[:, views] for removes in self.removes)
        contains = contained_sets(across), contained_sets(down)
        listed: Bools = np.zeros((len(across), len(down)), dtype=np.bool_)
        for grid in grids:
            x, y = (
                chosen[minimal_sets(contained[np.ix_(chosen, chosen)])]
                for chosen, contained in zip(grid, contains, strict=True)
            )
            listed[np.ix_(x, y)] = True
        x, y = np.nonzero(listed)
        return np.asarray(across[x] | down[y])


@lru_cache(maxsize=KEPT)
def _classes_of(masks: Masks, patch: tuple[int, int]) -> PositionClasses:
    starts = masks.breakpoints(0, patch[0]), masks.breakpoints(1, patch[1])
    removes = masks.removes(0, starts[0], patch[0]), masks.removes(1, starts[1], patch[1])
    for array in (*starts, *removes):
        array.setflags(write=False)  # every call with equal arguments gets these very arrays
    return PositionClasses(starts, removes)


def contained_sets(sets: Bools) -> Bools:
    """Return [i, j]: whether set i contains set j."""
    # counts of what j has and i has not; whole numbers below 2**24, exact in float32
    return np.asarray((~sets).astype(np.float32) @ sets.T.astype(np.float32) == 0)


def minimal_sets(contains: Bools) -> Bools:
    """Return the sets that contain no other one; of equal sets the first."""
    earlier = np.tri(len(contains), k=-1, dtype=np.bool_)
    return np.asarray(~(contains & (~contains.T | earlier)).any(axis=1))


def jointly_removed(removes: Bools) -> Bools:
    """Return [c, d]: whether one view removes patches of classes c and d; `removes` is (classes, views)."""
    each = removes.astype(np.float32)
    return np.asarray(each @ each.T > 0)
