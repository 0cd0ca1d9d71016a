"""Patch positions, chosen where the certificate is weakest: the threat model, position by position.

A position is proven if the views whose masks remove the patch (both patches, if there are two) prove the object; hiding
the object there refutes the proof. Positions that are not proven come first, then the proven ones that the fewest
views prove: a wrong comparison, a leak by one pixel or a lost box shows there first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Position, Target
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.certification import ObjectProof
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.threats import Patch, PatchPositions
from objectseeker.errors import ObjectSeekerError

MAX_SAMPLES = 400  # positions per object
LEAK_MARGIN_DIVISOR = 200  # a detector may fill beyond a mask's line by 1/200 of the image's longer side
MAX_PAIR_CORNERS = 512  # corners for each of two patches, the weakest of one, no two of them removed by the same masks


@dataclass(frozen=True, slots=True, eq=False)
class PositionCertificates:
    """The certificate of one object against patches of one size, position by position."""

    target: Target
    size: tuple[int, int]  # width and height of each patch
    evidence: Floats  # (M,) the best evidence of a proving box under each mask
    proofs: tuple[ObjectProof, ...]

    @classmethod
    def from_target(cls, pipeline: Pipeline, target: Target, size: tuple[int, int]) -> PositionCertificates:
        rule, observation, objects = pipeline.rule, target.observation, target.ground_truth
        proofs = rule.object_proofs(observation, objects, pipeline.certification_threshold)
        proves = rule.proving_pairs(observation, objects, pipeline.certification_threshold, "exact")
        evidence = np.where(proves.any(axis=1), rule.evidence(rule.discounted_scores(observation)), 0.0)
        best = np.zeros(len(observation.masks))
        np.maximum.at(best, observation.mask_index, evidence)
        return cls(target, size, best, tuple(proof for alternatives in proofs for proof in alternatives))

    def position_at(self, corners: Ints) -> Position:
        """Evaluate the certificate against patches at `corners` (K, 2)."""
        return Position(tuple((int(x), int(y)) for x, y in corners), self.is_proven(corners))

    def is_proven(self, corners: Ints) -> bool:
        single_positions = np.concatenate([corners, corners], axis=1)  # one rectangle per patch, of one position
        return any(proof.certifies(single_positions, self.size, len(corners)) for proof in self.proofs)

    def weakest(
        self, patch: Patch, count: int, rng: np.random.Generator, *, proven_only: bool = False
    ) -> list[Position]:
        """Choose `count` allowed positions in the order in which to attack; none if none is allowed.

        Candidates are random positions, those that touch a line of a mask, and those nearest the object. The weakest
        proof comes first; among equals, the one that is flush with most of the lines that make it, then the one that
        fewest further masks come close to making, then the nearest. With `proven_only` the object is proven at each of
        them. More than two patches are placed in turn, each where least is left of what proves the object.
        """
        if patch.location == "outside":
            position = self.position_at(outside_corners(self.target))
            return [position] * count if position.proven or not proven_only else []
        corners = _candidate_corners(self.target, patch, self.size, rng)
        if not len(corners):
            return []
        distance = _distance(self.target, corners, self.size)
        margin = -(-max(self.target.image_size) // LEAK_MARGIN_DIVISOR)
        masks = self.target.observation.masks
        removed, with_room, nearly = (
            removing_masks(masks, corners, self.size, growth=growth) for growth in (0, 1, -margin)
        )
        order = np.lexsort((distance, *(removing @ self.evidence for removing in (nearly, with_room, removed))))
        chosen = order[:, None]
        if patch.count == 2:
            kinds = np.concatenate([removed, with_room, nearly], axis=1)[order]
            weakest = order[np.sort(np.unique(kinds, axis=0, return_index=True)[1])[:MAX_PAIR_CORNERS]]
            support = [
                (removing[weakest] * self.evidence) @ removing[weakest].T for removing in (nearly, with_room, removed)
            ]
            apart = distance[weakest][:, None] + distance[weakest]
            pairs = np.lexsort([key.ravel() for key in (apart, *support)])
            chosen = weakest[np.stack(np.unravel_index(pairs, apart.shape), axis=1)]
        if patch.count > 2:
            chosen = np.array([self._greedy_row(first, removed, patch.count) for first in order[:MAX_SAMPLES]])
        if proven_only:
            chosen = self._proven_rows(chosen, corners, removed, 8 * count)
        return list(map(self.position_at, _diverse(corners[chosen[: 8 * count]], count, self.size)))

    def nearest(self, patch: Patch, count: int, rng: np.random.Generator) -> list[Position]:
        """Choose `count` allowed positions to attack the undefended detector: the nearest first."""
        if patch.location == "outside":
            return [self.position_at(outside_corners(self.target))] * count
        corners = _candidate_corners(self.target, patch, self.size, rng)
        order = np.argsort(_distance(self.target, corners, self.size), kind="stable")
        nearest = corners[order][: 8 * count * patch.count, None]
        diverse = _diverse(nearest, count * patch.count, self.size)
        return [self.position_at(np.concatenate(diverse[n::count])) for n in range(count)] if diverse else []

    def _greedy_row(self, first: int, removed: Bools, count: int) -> list[int]:
        """Return `count` positions, `first` and then each the one that leaves least evidence of what is left."""
        row, left = [first], removed[first]
        while len(row) < count:
            row.append(int(np.argmin((removed & left) @ self.evidence)))
            left = left & removed[row[-1]]
        return row

    def _proven_rows(self, rows: Ints, corners: Ints, removed: Bools, max_count: int) -> Ints:
        """Return the first `max_count` of `rows` (positions, K) where the object is proven.

        Positions that the same masks remove have the same verdict, so each set of masks is decided once, at most
        MAX_SAMPLES of them.
        """
        verdicts: dict[bytes, bool] = {}
        kept: list[Ints] = []
        for row in rows:
            masks = removed[row].all(axis=0).tobytes()
            if masks not in verdicts:
                if len(verdicts) == MAX_SAMPLES:
                    break
                verdicts[masks] = self.is_proven(corners[row])
            if verdicts[masks]:
                kept.append(row)
            if len(kept) == max_count:
                break
        return np.array(kept, np.int64).reshape(-1, rows.shape[1])


def drawn_size(target: Target, patch: Patch) -> tuple[int, int]:
    """Return width and height of each patch that is drawn; for "outside" those of the image."""
    if patch.with_outside:
        raise ObjectSeekerError(f"an attack draws patches or the outside, not both: got {patch!r}. Attack twice.")
    return target.image_size if patch.location == "outside" else patch.size(*target.image_size)


def outside_corners(target: Target) -> Ints:
    """Return the corners (4, 2) of patches as large as the image that draw the whole outside.

    They are left, above, right and below of the pixels wholly inside the object's grown box, and touch none of these.
    If there are none, every patch shows the whole image.
    """
    width, height = target.image_size
    ((x1, y1, x2, y2),) = PatchPositions.of(target.box[None], width, height).grown().tolist()
    if x1 >= x2 or y1 >= y2:
        return np.zeros((4, 2), np.int64)
    return np.array([[x1 - width, 0], [0, y1 - height], [x2, 0], [0, y2]])


def removing_masks(masks: Masks, corners: Ints, size: tuple[int, int], *, growth: int = 0) -> Bools:
    """Return which masks remove a patch of `size` = width, height at each corner x, y: (corners, masks).

    With `growth`, a patch that is larger by `growth` pixels at every side.
    """
    wide, tall = (max(side + 2 * growth, 1) for side in size)
    return masks.removes(0, corners[:, 0] - growth, wide) | masks.removes(1, corners[:, 1] - growth, tall)


def find_leaking_views(target: Target, attacked: Observation, position: Position, size: tuple[int, int]) -> list[int]:
    """Return the masks that remove all patches but whose view changed nevertheless."""
    clean = target.observation
    removed = removing_masks(clean.masks, np.array(position.corners), size).all(axis=0)
    return [m for m in np.flatnonzero(removed).tolist() if clean.masked[m] != attacked.masked[m]]


def _diverse(positions: Ints, count: int, size: tuple[int, int]) -> list[Ints]:
    """Select the first of positions (P, K, 2), and those a quarter of a patch away from all selected.

    They are repeated if there are too few.
    """
    chosen: list[Ints] = []
    for position in positions:
        if len(chosen) < count and all((np.abs(position - kept) >= np.array(size) / 4).any() for kept in chosen):
            chosen.append(position)
    return [chosen[n % len(chosen)] for n in range(count)] if chosen else []


def _candidate_corners(target: Target, patch: Patch, size: tuple[int, int], rng: np.random.Generator) -> Ints:
    """Return allowed corners x, y, each once, in a fixed order."""
    positions = PatchPositions.of(target.box[None], *target.image_size)
    allowed = positions.allowed(patch.location, np.array([size]))[0]
    allowed = allowed[(allowed[:, :2] <= allowed[:, 2:]).all(axis=1)]
    if not len(allowed):
        return np.empty((0, 2), np.int64)
    centered = np.rint(_visible_center(target) - np.array(size) / 2).astype(np.int64)
    corners = [np.clip(centered, allowed[:, :2], allowed[:, 2:])]
    masks = target.observation.masks
    touching = [np.unique(np.concatenate(masks.touching_positions(axis, size[axis]))) for axis in (0, 1)]
    for rectangle in allowed:
        corners.append(rng.integers(rectangle[:2], rectangle[2:] + 1, (MAX_SAMPLES // len(allowed), 2)))
        # Just removed by a mask, along each axis, at positions of the other axis that are likely to hurt.
        xs, ys = (t[(t >= rectangle[a]) & (t <= rectangle[a + 2])] for a, t in enumerate(touching))
        x, y = np.clip(centered, rectangle[:2], rectangle[2:])
        corners.append(np.stack(np.meshgrid(np.append(xs, x), np.append(ys, y)), axis=-1).reshape(-1, 2))
    return np.unique(np.concatenate(corners), axis=0)


def _visible_center(target: Target) -> Floats:
    visible = np.clip(target.box, 0, np.array(target.image_size * 2))
    return np.asarray((visible[:2] + visible[2:]) / 2)


def _distance(target: Target, corners: Ints, size: tuple[int, int]) -> Floats:
    """From the center of the patch to the center of the object, in object sizes."""
    extent = np.maximum(target.box[2:] - target.box[:2], 1)
    return np.asarray(np.linalg.norm((corners + np.array(size) / 2 - _visible_center(target)) / extent, axis=1))
