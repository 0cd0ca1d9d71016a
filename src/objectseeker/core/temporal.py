"""Certificates over time: at least m reports of an object per window, however the patch moves.

Frame by frame a certificate asks whether some position of the patch hides the object. Let V_t be the positions at which
frame t, with the masks that it shows, does not prove the object, and let the patch move at most d pixels per frame,
along each axis. Let R_t(k) be the positions at which the patch can be in frame t after at most k reports since the
window began. Before the window it may be anywhere; and with A_t all positions that are allowed in frame t

    R_t(k) = (grow(R_t-1(k), d) and V_t) or (grow(R_t-1(k - 1), d) and A_t).

The object is guaranteed to be reported m times in the window iff R(m - 1) is empty after its last frame. Proof: what
frame t outputs depends on its own pixels alone. With the patch at p outside V_t the object is reported in it, whatever
is drawn and whatever happened before; with p in V_t perhaps not. So an attacker who follows the positions p_1, p_2, ...
has at least as many reports as there are t with p_t outside V_t, and R_t(k) are by induction the ends of those paths on
which that is at most k times. If R(m - 1) is empty every path has at least m reports. Conversely every position of
R(m - 1) ends a path that no frame's certificate excludes: the answer is exact, as far as single frames prove anything.
QED.

Where the patch may be anywhere, paths that leave the image need no thought. A patch beyond the border covers no pixel,
so every mask removes it: what is proven with the patch at the nearest position that touches the image is proven then,
too. Moving all that lies beyond to there takes no two positions further apart along an axis, so the path remains one,
with no more reports. Where positions are allowed relative to the object (far, close, over) the patch stays in view: one
that leaves on one side of the object and comes back on the other is not a path of these.

Positions are integers, and sets of them unions of rectangles: grown by d, a rectangle is a rectangle, so all of it is
exact. With d = FREE the patch may jump anywhere, and what is left is to count the frames that are certified alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.certification import ObjectProof
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.positions import PositionClasses
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import Patch, PatchPositions, patch_sizes
from objectseeker.errors import ObjectSeekerError, require_count

UNBOUNDED_MOTION = 2**40  # pixels per frame: from anywhere to anywhere
MAX_UNION_SIZE = 64  # rectangles of a union before it is cut anew

NOWHERE: Ints = np.empty((0, 4), np.int64)
NOWHERE.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class FramePositions:
    """One frame of a track: the allowed positions of the patch, and those where it may hide the object.

    Both are unions of rectangles (R, 4) of positions: x_first, y_first, x_last, y_last, all inclusive.
    """

    allowed: Ints
    uncertified: Ints

    @classmethod
    def unobserved(cls, width: int, height: int, patch: Patch) -> FramePositions:
        """Return a frame without a box of the object, or not observed: the patch moves, nothing is proven."""
        across, down = patch.size(width, height)
        everywhere = np.array([[1 - across, 1 - down, width - 1, height - 1]], dtype=np.int64)
        return cls(everywhere, everywhere)

    @property
    def certified(self) -> bool:
        """Return whether the frame is certified on its own."""
        return not len(self.uncertified)


def frame_positions(
    rule: PruningRule,
    observation: Observation,
    objects: Detections,
    patch: Patch,
    *,
    certification_threshold: float | None = None,
    bound: Bound = "exact",
) -> list[FramePositions]:
    """Return one frame's positions per object: certified on its own iff `rule.certify` certifies it.

    One in which the object has no visible area is blind.
    """
    proofs = rule.object_proofs(observation, objects, certification_threshold, bound)
    return _frame_positions(observation, objects, patch, proofs)


def frame_positions_not_fabricated(
    rule: PruningRule, observation: Observation, detections: Detections, patch: Patch
) -> list[FramePositions]:
    """Return one frame's positions per output box, about its fabrication.

    A frame is certified on its own iff `rule.certify_not_fabricated` certifies it. `uncertified` are the positions at
    which the box has no support. What `earliest_uncertified_start` says of a track of such frames is then about
    support, by the same proof: let V_t be the positions at which the box of frame t has no support.

    Guarantee: if the entry of frame t is larger than s, then wherever a patch of this size lay in the frames from s to
    t, at allowed positions that follow one another within `max_motion`, the box of the track has support in at least
    `min_detections` of them, on views that show none of the patch: the patch did not make the track. Frames in which
    the track has no box are `FramePositions.unobserved`.
    """
    return _frame_positions(observation, detections, patch, rule.support_proofs(observation, detections))


def _frame_positions(
    observation: Observation, objects: Detections, patch: Patch, proofs: Iterable[Sequence[ObjectProof]]
) -> list[FramePositions]:
    if not patch.has_one_position:
        raise ObjectSeekerError(f"certificates over time need one patch at one position: got {patch!r}")
    width, height = observation.width, observation.height
    size = patch.size(width, height)
    areas = PatchPositions.of(objects.xyxy, width, height).allowed(
        patch.location, patch_sizes(patch, width, height, len(objects))
    )
    return [
        FramePositions(allowed, _intersect(_hiding(observation.masks, proof[0], size), allowed))
        if proof
        else FramePositions.unobserved(width, height, patch)
        for proof, allowed in zip(proofs, map(_simplify, areas), strict=True)
    ]


def intersect_alternatives(ways: Sequence[FramePositions]) -> FramePositions:
    """The frame of an object that may be found as one of several things: hidden where each of them is."""
    return FramePositions(ways[0].allowed, reduce(_intersect, (way.uncertified for way in ways)))


def earliest_uncertified_start(
    track: Sequence[FramePositions], max_motion: int, min_detections: int = 1, *, numbers: Sequence[int] | None = None
) -> list[int]:
    """Return per frame the earliest one since which the object may be reported fewer than `times` times.

    The entry of frame t is t + 1 where even t alone is enough. `reach` are the pixels of the image that the patch moves
    along each axis from one frame to the next at most; so it covers a patch that moves that far in any direction.
    `numbers` say when frames are, where they do not follow one another: frames between them are blind.

    Guarantee: if the entry of frame t is larger than s, then whatever a patch of this size draws in the frames from s
    to t, at allowed positions that follow one another within `reach`, the object is reported in at least `times` of
    them, as a certificate of that frame promises it. Where no such positions exist this is true of nothing.

    All beginnings are followed at once. A later one leaves the patch no fewer positions, so those that leave it none
    are the earliest, and two that leave it the same always will: the earlier one represents both. Of k blind frames the
    patch makes one step of k + 1 times `reach`: all positions that touch the image are one rectangle, within which it
    goes straight ahead.
    """
    if isinstance(max_motion, bool) or not isinstance(max_motion, int) or max_motion < 0:
        raise ObjectSeekerError(f"max_motion must be a whole number of pixels of at least 0: got {max_motion!r}")
    layers = require_count(min_detections, "min_detections")
    following: list[tuple[int, list[Ints]]] = []  # a beginning, and what it leaves
    earliest: list[int] = []
    for end, (instant, frames) in enumerate(zip(track, _steps(numbers, len(track)), strict=True)):
        farthest = min(max_motion * frames, UNBOUNDED_MOTION)  # else 64 bits may not hold it
        following.append((end, [_ANYWHERE] * layers))
        stepped = ((begin, _step(reached, instant, farthest)) for begin, reached in following)
        following = _distinct((begin, reached) for begin, reached in stepped if len(reached[-1]))
        earliest.append(following[0][0] if following else end + 1)
    return earliest


def _steps(numbers: Sequence[int] | None, count: int) -> Iterable[int]:
    """Return the distance of each frame from the previous one."""
    if numbers is None:
        return [1] * count
    steps = [1, *(after - before for before, after in pairwise(numbers))]
    if len(numbers) != count or min(steps) < 1:
        raise ObjectSeekerError("the numbers of frames must be one for each, each larger than the one before it")
    return steps[:count]


def _distinct(following: Iterable[tuple[int, list[Ints]]]) -> list[tuple[int, list[Ints]]]:
    kept: list[tuple[int, list[Ints]]] = []
    for begin, reached in following:
        if not kept or not all(map(np.array_equal, kept[-1][1], reached)):
            kept.append((begin, reached))
    return kept


def _step(before: Sequence[Ints], instant: FramePositions, reach: int) -> list[Ints]:
    """`R_t` of `R_t-1`: one union for each number of reports, beginning with 0."""
    grown = [_dilate(positions, reach) for positions in before]
    after = [_intersect(grown[0], instant.uncertified)]
    for fewer, same in pairwise(grown):
        parts = [_intersect(same, instant.uncertified), _intersect(fewer, instant.allowed)]
        after.append(_simplify(np.concatenate(parts)))
    return after


def _hiding(masks: Masks, proof: ObjectProof, size: tuple[int, int]) -> Ints:
    """All positions at which the object is not proven."""
    starts = PositionClasses.of(masks, size).starts
    ends = [np.append(start[1:], limit) - 1 for start, limit in zip(starts, (masks.width, masks.height), strict=True)]
    return _cut(proof.escaping_classes(size), starts[0], starts[1], ends[0], ends[1])


_ANYWHERE: Ints = np.array([[-UNBOUNDED_MOTION, -UNBOUNDED_MOTION, UNBOUNDED_MOTION, UNBOUNDED_MOTION]], dtype=np.int64)


def _dilate(rectangles: Ints, reach: int) -> Ints:
    return np.asarray(rectangles + np.array([-reach, -reach, reach, reach]))


def _intersect(a: Ints, b: Ints) -> Ints:
    """The positions that two unions have in common."""
    first = np.maximum(a[:, None, :2], b[None, :, :2])
    last = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return _simplify(np.concatenate([first, last], axis=-1).reshape(-1, 4))


def _simplify(rectangles: Ints) -> Ints:
    """Return the same union without empty and contained rectangles; cut anew if there are still many."""
    kept = rectangles[(rectangles[:, :2] <= rectangles[:, 2:]).all(axis=1)]
    if len(kept) < 2:
        return kept
    kept = np.unique(kept, axis=0)
    within = (kept[:, None, :2] >= kept[None, :, :2]).all(axis=-1) & (kept[:, None, 2:] <= kept[None, :, 2:]).all(
        axis=-1
    )
    kept = kept[within.sum(axis=1) == 1]  # in itself alone
    return kept if len(kept) <= MAX_UNION_SIZE else _disjoint(kept)


def _disjoint(rectangles: Ints) -> Ints:
    """The union as rectangles that do not overlap, by the grid of all their borders."""
    x, y = (np.unique(np.concatenate([rectangles[:, axis], rectangles[:, axis + 2] + 1])) for axis in (0, 1))
    grid = np.zeros((len(x), len(y)), dtype=np.bool_)
    for x1, y1, x2, y2 in rectangles:
        grid[slice(*np.searchsorted(x, [x1, x2 + 1])), slice(*np.searchsorted(y, [y1, y2 + 1]))] = True
    return _cut(grid[:-1, :-1], x[:-1], y[:-1], x[1:] - 1, y[1:] - 1)


def _cut(grid: Bools, x_first: Ints, y_first: Ints, x_last: Ints, y_last: Ints) -> Ints:
    """Return the set cells of a grid as rectangles: runs of a column, joined with equal neighbors."""
    found: list[tuple[int, int, int, int]] = []
    going: dict[tuple[int, int], int] = {}  # the run, and the column it began in
    for column, cells in enumerate([*grid, np.zeros(grid.shape[1], dtype=np.bool_)]):
        turns = np.flatnonzero(np.diff(cells, prepend=False, append=False)).tolist()
        runs = set(zip(turns[::2], turns[1::2], strict=True))
        for run in going.keys() - runs:
            found.append((going.pop(run), run[0], column - 1, run[1] - 1))
        for run in runs - going.keys():
            going[run] = column
    if not found:
        return NOWHERE
    x1, y1, x2, y2 = np.array(sorted(found), dtype=np.int64).T
    return np.stack([x_first[x1], y_first[y1], x_last[x2], y_last[y2]], axis=1)
