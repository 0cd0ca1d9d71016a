"""Patch positions, grouped by the views that remove the patch.

For a patch of one size a position matters only through which half masks remove it: left and right ones by x, top and
bottom ones by y. Along an axis that set changes only where a line is passed, at most twice per line, so positions fall
into a grid of classes: 21 x 21 for 10 lines per axis, whatever the size of the image. A view made of several half
masks removes a patch iff one of them does (`masks.MaskPairs`).

Let U(c) be the views that remove a patch of class c, among those that can prove an object. Against one patch an object
is proven iff every allowed class has views enough in U(c); against two patches iff every pair c, d of allowed classes,
c = d included, has views enough in U(c) and U(d) both. "Enough" is one view that decides alone, or views with enough
evidence: more views are never worse. So if U(c) is contained in U(e), class e need not be looked at: for any d, what
U(c) and U(d) share, U(e) and U(d) share; and what U(c) holds, U(e) and U(e) share. Only the hardest classes count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.masks import Masks


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """The classes of one patch size, axis by axis.

    Along axis a, class i are the positions from `starts[a][i]` to the next start, and `removes[a][i]` are the views
    that remove a patch there, wherever it lies on the other axis.
    """

    starts: tuple[Ints, Ints]
    removes: tuple[Bools, Bools]

    @classmethod
    def of(cls, masks: Masks, patch: tuple[int, int]) -> Classes:
        halves = masks.halves
        starts, removes = [], []
        for axis, length in enumerate(patch):
            before, after = halves.side == axis, halves.side == axis + 2
            limit = (masks.width, masks.height)[axis]
            changes = np.concatenate([[1 - length], halves.line[before] - length + 1, halves.line[after]])
            start = np.unique(changes[(changes > -length) & (changes < limit)])
            by_half: Bools = np.zeros((len(start), len(halves)), dtype=np.bool_)
            by_half[:, before] = start[:, None] + length <= halves.line[before]
            by_half[:, after] = start[:, None] >= halves.line[after]
            starts.append(start)
            removes.append(np.asarray(by_half[:, masks.members].any(axis=2)))
        return cls((starts[0], starts[1]), (removes[0], removes[1]))

    def hardest(self, allowed: Ints, views: Ints) -> Bools:
        """Which of `views` remove a patch of each class that has a position in `allowed`: (classes, len(views)).

        `allowed` (R, 4) are rectangles as `threats.Surroundings` has them. Of each rectangle only the classes are
        listed that are hardest along both axes: U(x, y) is what x removes and what y removes together, so if x
        removes no more than x', then (x, y) removes no more than (x', y).
        """
        across, down = (removes[:, views] for removes in self.removes)
        needless = _contains(across), _contains(down)
        listed: Bools = np.zeros((len(across), len(down)), dtype=np.bool_)
        for rectangle in allowed:
            if (rectangle[:2] <= rectangle[2:]).all():
                x, y = (self._hardest_along(axis, rectangle, needless[axis]) for axis in (0, 1))
                listed[np.ix_(x, y)] = True
        x, y = np.nonzero(listed)
        return np.asarray(across[x] | down[y])

    def _hardest_along(self, axis: int, rectangle: Ints, contains: Bools) -> Ints:
        """The hardest classes among those a rectangle reaches along one axis."""
        ends = rectangle[[axis, axis + 2]]
        first, last = np.searchsorted(self.starts[axis], ends, side="right") - 1
        among = contains[first : last + 1, first : last + 1]
        return np.asarray(first + np.flatnonzero(smallest(among)))


def _contains(sets: Bools) -> Bools:
    """[i, j]: does set i contain set j?"""
    # counts of what j has and i has not; whole numbers below 2**24, exact in float32
    return np.asarray((~sets).astype(np.float32) @ sets.T.astype(np.float32) == 0)


def smallest(contains: Bools) -> Bools:
    """Which sets contain no other one, given what contains what; of equal sets the first."""
    earlier = np.tri(len(contains), k=-1, dtype=np.bool_)
    return np.asarray(~(contains & (~contains.T | earlier)).any(axis=1))


def removed_together(removes: Bools) -> Bools:
    """[c, d]: does one view remove both a patch of class c and one of class d? `removes` is (classes, views)."""
    each = removes.astype(np.float32)
    return np.asarray(each @ each.T > 0)
