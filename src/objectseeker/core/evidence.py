"""Certificates under the evidence rule: views that agree prove an object together.

Fix an object g and a patch position p. Let B be the masked boxes that prove g (`certification.provable`), carry
evidence, and whose masks remove p: the attacker cannot change them. If a base box filters one of them, that base box
itself covers more than T of g. Otherwise all of B reaches clustering. The star of r in B is r and its neighbors in
B: they are connected through r, so they lie in one cluster; whatever the attacker adds can only merge clusters and
add evidence. So if some star has evidence of at least 1, a cluster that contains it is output, and its hull covers
what each of its boxes covers of g.

Stars are at least as good as cliques: the boxes of a clique that are left at p all lie in the star of any one of them.
And there is one star per box, where there can be exponentially many cliques. (The best possible notion would be
connected components of B, position by position.)

Position by position: a mask with lines across one axis removes p depending on x alone, or on y alone, so a star's
evidence at (x, y) is cx(x) + cy(y), a step function along each axis that changes only where a line is passed
(`positions`).

With two patches B are the boxes whose masks remove both; nothing else changes. What masks with lines across both axes
remove does not separate by axis, and neither does what two patches leave: there all classes of `positions` are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from objectseeker.core.bounds import MARGIN
from objectseeker.core.boxes import Bools, Floats, Ints, row_blocks
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.positions import PositionClasses, jointly_removed
from objectseeker.core.pruning import are_neighbors

# A box of full evidence is sufficient on its own, exactly; sums of partial evidence are rounded at inference, so here
# they must clear 1 by MARGIN. Counting a full box as 2 lets one comparison serve both. Partial evidence is rounded down
# to whole units: every sum is then exact, and the same in whatever order, language or device it is added up.
FULL = 2.0
UNIT = 2.0**-40

# Sets of views and stars that are compared at a time: the first stars settle most sets, and memory stays small.
SETS_AT_ONCE, STARS_AT_ONCE = 1024, 16


@dataclass(frozen=True, slots=True)
class Stars:
    """The stars of one object.

    `evidence[r, m]` is the best evidence under mask m of star r, centered on a box of mask `center[r]`. Every mask with
    evidence is the center of a star.
    """

    masks: Masks
    evidence: Floats
    center: Ints

    def prove(self, x: Ints, y: Ints, classes: PositionClasses) -> bool:
        """Return whether every position with a class of `x` and one of `y` is proven; True if there is none."""
        if not len(x) or not len(y):
            return True
        if not self.masks.has_one_axis:
            views = self._views()
            removes = classes.hardest([(x, y)], views)
            each = np.arange(len(removes))
            return self._prove_sets(removes, each, each, views)
        # The position that all views combined cover least is the likeliest to fail, and no later position then matters.
        most = self.evidence.max(axis=0, initial=0.0)
        across, down = (classes.removes[axis][of_axis] for axis, of_axis in ((0, x), (1, y)))
        if not self._enough(across[(across @ most).argmin()] | down[(down @ most).argmin()]).any():
            return False
        return not self.unproven(x, y, classes).any()

    def unproven(self, x: Ints, y: Ints, classes: PositionClasses) -> Bools:
        """Return the positions that are not proven: (len(x), len(y)), by their classes along the axes."""
        left = np.ones((len(x), len(y)), dtype=np.bool_)
        if not self.masks.has_one_axis:
            for i, across in enumerate(classes.removes[0][x]):
                removes = across | classes.removes[1][y]
                enough = removes.astype(np.float64) @ self.evidence.T >= 1 + MARGIN
                left[i] = ~(enough & removes[:, self.center]).any(axis=1)
            return left
        across, down = self._along(0, classes.removes[0][x]), self._along(1, classes.removes[1][y])
        strongest = np.argsort(-self.evidence.sum(axis=1), kind="stable")  # the first stars prove most positions
        for start in range(0, len(strongest), STARS_AT_ONCE):
            some = strongest[start : start + STARS_AT_ONCE]
            left &= (across[some][:, :, None] + down[some][:, None, :] < 1 + MARGIN).all(axis=0)
            if not left.any():
                break
        return left

    def prove_pairs(self, grids: Iterable[tuple[Ints, Ints]], classes: PositionClasses, safe: Bools) -> bool:
        """Return whether any two positions of the classes in `grids`, equal or not, are proven together.

        `classes` are those of the patch; `safe` (M,) are the masks that are sufficient. Pairs of classes that one of
        these removes need no stars.
        """
        views = self._views()
        removes = classes.hardest(grids, views)
        c, d = np.nonzero(np.triu(~jointly_removed(removes[:, safe[views]])))
        return self._prove_sets(removes, c, d, views)

    def restricted_to(self, views: Bools) -> Stars:
        """Return the stars as far as they are made of some views (M,)."""
        rows = views[self.center]
        return Stars(self.masks, np.where(views, self.evidence[rows], 0.0), self.center[rows])

    def weakest_proof(self, views: Bools) -> Ints | None:
        """Return few of the views (M,) that prove the object together; None if all of them do not."""
        enough = self._enough(views)
        if not enough.any():
            return None
        star = int(np.argmax(np.where(enough, (self.evidence * views).max(axis=1), -1.0)))
        evidence = np.where(views, self.evidence[star], 0.0)
        strongest = np.argsort(-evidence, kind="stable")
        strongest = np.concatenate([self.center[[star]], strongest[strongest != self.center[star]]])
        needed = int(np.argmax(evidence[strongest].cumsum() >= 1 + MARGIN)) + 1
        return strongest[:needed]

    def _enough(self, views: Bools) -> Bools:
        """Return the stars that some views (M,) are sufficient for."""
        return np.asarray((self.evidence @ views >= 1 + MARGIN) & views[self.center])

    def _along(self, axis: int, removes: Bools) -> Floats:
        """Return the evidence of each star at some classes of one axis; `removes` (classes, M) are the masks.

        A star whose center is not among them does not count: -inf. Only masks of this axis remove anything by it.
        """
        views = self.masks.along[:, axis]
        evidence = self.evidence[:, views] @ removes[:, views].T.astype(np.float64)
        return np.where(views[self.center][:, None] & ~removes[:, self.center].T, -np.inf, evidence)

    def _views(self) -> Ints:
        """Return the masks that are used."""
        return np.unique(self.center)

    def _prove_sets(self, removes: Bools, c: Ints, d: Ints, views: Ints) -> bool:
        """Return whether for every i the views that remove classes c[i] and d[i] suffice for some star."""
        if not len(c) or not len(self.center):
            return not len(c)
        evidence, center = self.evidence[:, views], np.searchsorted(views, self.center)
        strongest = np.argsort(-evidence.sum(axis=1), kind="stable")
        evidence, center = evidence[strongest], center[strongest]
        # What a set would carry if every view gave its best to one star: too little settles it, and else the sets
        # that have least come first, where a set that fails is most likely found.
        most = (removes * evidence.max(axis=0)) @ removes.T.astype(np.float64)
        weakest = np.argsort(most[c, d], kind="stable")
        if most[c[weakest[0]], d[weakest[0]]] < 1 + MARGIN:
            return False
        for start in range(0, len(c), SETS_AT_ONCE):
            some = weakest[start : start + SETS_AT_ONCE]
            left = removes[c[some]] & removes[d[some]]
            for star in range(0, len(center), STARS_AT_ONCE):
                stars = slice(star, star + STARS_AT_ONCE)
                enough = left.astype(np.float64) @ evidence[stars].T >= 1 + MARGIN
                left = left[~(enough & left[:, center[stars]]).any(axis=1)]
                if not len(left):
                    break
            else:
                return False
        return True


def certified_weights(evidence: Floats) -> Floats:
    """Return what each box counts in a certificate: its evidence in whole units, rounded down."""
    return np.where(evidence >= 1, FULL, np.floor(evidence / UNIT) * UNIT)


def certain_neighbors(some: Floats, boxes: Floats, distance: float, start: int) -> Bools:
    """Return the `boxes` that clustering is guaranteed to join directly to each of `some`.

    `some` are those from `start` on. It holds however inference rounds; and every box joins itself, also one without
    area.
    """
    near = are_neighbors(some, boxes, distance - MARGIN)
    rows = np.arange(len(some))
    near[rows, start + rows] = True
    return near


def build_stars(observation: Observation, members: Ints, evidence: Floats, distance: float) -> Stars:
    """Build the stars of the masked boxes `members`, which prove one object, with `evidence` above 0.

    `distance` is the rule's cluster_distance.
    """
    boxes, mask_of = observation.all_masked.xyxy[members], observation.mask_index[members]
    weight = certified_weights(evidence)
    masks, first = np.unique(mask_of, return_index=True)  # members come mask by mask
    distinct: dict[tuple[int, bytes], None] = {}  # equal stars count once
    for some in row_blocks(len(members), len(members)):
        near = certain_neighbors(boxes[some], boxes, distance, some.start)
        best = np.zeros((len(near), len(observation.masks)))
        best[:, masks] = np.maximum.reduceat(np.where(near, weight, 0.0), first, axis=1)
        distinct |= dict.fromkeys((m, row.tobytes()) for m, row in zip(mask_of[some].tolist(), best, strict=True))
    rows = np.frombuffer(b"".join(row for _, row in distinct), dtype=np.float64)
    center = np.array([m for m, _ in distinct], dtype=np.int64)
    return Stars(observation.masks, rows.reshape(len(distinct), len(observation.masks)), center)
