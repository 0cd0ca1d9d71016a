"""Where to put the patch: read the certificate, and go where it is weakest.

A position is proven if the views whose masks remove the patch prove the object; hiding the object there refutes the
proof. Positions that are not proven come first, then the proven ones that the fewest views prove: there a wrong
comparison, a leak by one pixel or a lost box shows first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.certification import provable
from objectseeker.core.evidence import Stars, stars_of
from objectseeker.core.masks import Masks
from objectseeker.core.threats import Patch, Surroundings

SAMPLES = 400  # positions looked at per object


@dataclass(frozen=True, slots=True)
class Position:
    """Top left corner of the patch, whether the object is proven there, and by how much evidence in sum."""

    x: int
    y: int
    proven: bool
    support: float


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """What proves one object, view by view: the certificate taken apart into positions."""

    masks: Masks
    evidence: Floats  # (M,) the best evidence of a proving box under each mask
    stars: Stars

    @classmethod
    def of(cls, pipeline: Pipeline, target: Target) -> Proof:
        rule, observation = pipeline.rule, target.observation
        proves = provable(observation, target.truth, rule, threshold=pipeline.threshold)[:, 0]
        evidence = np.where(proves, rule.evidence(rule.scores(observation)), 0.0)
        best = np.zeros(len(observation.masks))
        np.maximum.at(best, observation.mask_of, evidence)
        members = np.flatnonzero(evidence > 0)
        stars = stars_of(observation, members, evidence[members], rule.cluster_distance)
        return cls(observation.masks, best, stars)

    def at(self, x: int, y: int, size: tuple[int, int]) -> Position:
        """The proof of the object against a patch of `size` at (x, y).

        One view of full evidence decides alone; otherwise views must agree (`evidence.Stars`).
        """
        gone = removing(self.masks, np.array([[x, y]]), size)[0]
        alone = bool((self.evidence[gone] >= 1).any())
        proven = alone or self.stars.prove(np.array([x, y, x, y]), size)
        return Position(x, y, proven, float(self.evidence[gone].sum()))


def removing(masks: Masks, corners: Ints, size: tuple[int, int]) -> Bools:
    """Which masks remove a patch of `size` = width, height at each corner x, y: (corners, masks)."""
    halves = masks.halves
    axis = halves.side % 2
    start = corners[:, axis]
    end = start + np.array(size)[axis]
    by_half = np.where(halves.side < 2, end <= halves.line, start >= halves.line)
    return np.asarray(by_half[:, masks.members].any(axis=2))


def weakest_positions(
    pipeline: Pipeline, target: Target, patch: Patch, count: int, rng: np.random.Generator
) -> list[Position]:
    """`count` allowed positions in the order in which to attack the defence; none if none is allowed.

    Candidates are random positions, those that touch a line of a mask, and those nearest the object; the weakest proof
    comes first, among equals the nearest.
    """
    size = patch.size(*target.size)
    corners = _candidates(target, patch, size, rng)
    if not len(corners):
        return []
    proof = Proof.of(pipeline, target)
    support = removing(proof.masks, corners, size) @ proof.evidence
    order = np.lexsort((_distance(target, corners, size), support))
    return _spread([proof.at(int(x), int(y), size) for x, y in corners[order][: 8 * count]], count, size)


def nearest_positions(
    pipeline: Pipeline, target: Target, patch: Patch, count: int, rng: np.random.Generator
) -> list[Position]:
    """`count` allowed positions in the order in which to attack the detector alone: the nearest first, then others."""
    size = patch.size(*target.size)
    corners = _candidates(target, patch, size, rng)
    if not len(corners):
        return []
    proof = Proof.of(pipeline, target)
    order = np.argsort(_distance(target, corners, size), kind="stable")
    return _spread([proof.at(int(x), int(y), size) for x, y in corners[order][: 8 * count]], count, size)


def _spread(found: list[Position], count: int, size: tuple[int, int]) -> list[Position]:
    """The first, and of the rest those a quarter of a patch away from all chosen before; repeated if too few."""
    chosen: list[Position] = []
    for position in found:
        apart = (max(abs(position.x - p.x) / size[0], abs(position.y - p.y) / size[1]) >= 0.25 for p in chosen)
        if len(chosen) < count and all(apart):
            chosen.append(position)
    return [chosen[n % len(chosen)] for n in range(count)]


def _candidates(target: Target, patch: Patch, size: tuple[int, int], rng: np.random.Generator) -> Ints:
    """Allowed corners x, y, each once, in a fixed order."""
    allowed = Surroundings.of(target.box[None], *target.size).allowed(patch.where, np.array([size]))[0]
    allowed = allowed[(allowed[:, :2] <= allowed[:, 2:]).all(axis=1)]
    if not len(allowed):
        return np.empty((0, 2), np.int64)
    masks = target.observation.masks.halves
    ideal = np.rint(_centre(target) - np.array(size) / 2).astype(np.int64)
    found = [np.clip(ideal, allowed[:, :2], allowed[:, 2:])]
    for rectangle in allowed:
        found.append(rng.integers(rectangle[:2], rectangle[2:] + 1, (SAMPLES // len(allowed), 2)))
        # Just removed by a line, along each axis, beside positions of the other axis that are likely to hurt.
        tight = [
            np.unique(np.concatenate([masks.line[masks.side == axis] - size[axis], masks.line[masks.side == axis + 2]]))
            for axis in (0, 1)
        ]
        xs, ys = (t[(t >= rectangle[a]) & (t <= rectangle[a + 2])] for a, t in enumerate(tight))
        x, y = np.clip(ideal, rectangle[:2], rectangle[2:])
        found.append(np.stack(np.meshgrid(np.append(xs, x), np.append(ys, y)), axis=-1).reshape(-1, 2))
    return np.unique(np.concatenate(found), axis=0)


def _centre(target: Target) -> Floats:
    limit = np.array(target.size * 2)
    visible = np.clip(target.box, 0, limit)
    return np.asarray((visible[:2] + visible[2:]) / 2)


def _distance(target: Target, corners: Ints, size: tuple[int, int]) -> Floats:
    """From the middle of the patch to the middle of the object, in object sizes."""
    extent = np.maximum(target.box[2:] - target.box[:2], 1)
    return np.asarray(np.linalg.norm((corners + np.array(size) / 2 - _centre(target)) / extent, axis=1))
