"""Where to put the patch: read the certificate, and go where it is weakest.

A position is proven if the views whose masks remove the patch (both patches, if there are two) prove the object; hiding
the object there refutes the proof. Positions that are not proven come first, then the proven ones that the fewest
views prove: there a wrong comparison, a leak by one pixel or a lost box shows first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectseeker.attack.pipeline import Corners, Pipeline, Target
from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.certification import ObjectProof, any_box_per_mask, proving_pairs
from objectseeker.core.evidence import build_stars
from objectseeker.core.iou_rule import IouRule, iou_proving_pairs
from objectseeker.core.masks import Masks
from objectseeker.core.threats import Patch, PatchPositions

SAMPLES = 400  # positions looked at per object
NEARLY = 200  # what a detector fills may reach beyond a mask's line, by 1/NEARLY of the image's longer side
PARTNERS = 512  # corners for each of two patches, the weakest of one, no two of them removed by the same masks


@dataclass(frozen=True, slots=True)
class Position:
    """Top left corner of each patch, whether the object is proven there, and by how much evidence in sum."""

    corners: Corners
    proven: bool
    support: float


@dataclass(frozen=True, slots=True, eq=False)
class PositionProofs:
    """What proves one object, as each of its labels: the certificate, to be asked position by position."""

    masks: Masks
    evidence: Floats  # (M,) the best evidence of a proving box under each mask
    proofs: tuple[ObjectProof, ...]

    @classmethod
    def of(cls, pipeline: Pipeline, target: Target) -> PositionProofs:
        rule, observation, truth = pipeline.rule, target.observation, target.truth
        if isinstance(rule, IouRule):
            proves = iou_proving_pairs(rule, observation, truth, pipeline.threshold, "exact")
            evidence = np.ones(len(proves))
        else:
            proves = proving_pairs(rule, observation, truth, pipeline.threshold, "exact")
            evidence = rule.evidence(rule.scores(observation))
        safe = any_box_per_mask(proves & (evidence >= 1)[:, None], observation.mask_of, len(observation.masks))
        proofs = []
        for of_label, alone in zip(proves.T, safe, strict=True):
            stars = None
            if not isinstance(rule, IouRule) and rule.evidence_threshold is not None:
                members = np.flatnonzero(of_label & (evidence > 0))
                stars = build_stars(observation, members, evidence[members], rule.cluster_distance)
            proofs.append(ObjectProof(observation.masks, alone, stars))
        best = np.zeros(len(observation.masks))
        np.maximum.at(best, observation.mask_of, np.where(proves.any(axis=1), evidence, 0.0))
        return cls(observation.masks, best, tuple(proofs))

    def at(self, corners: Ints, size: tuple[int, int]) -> Position:
        """The proof of the object against patches of `size` at `corners` (K, 2)."""
        support = removing(self.masks, corners, size).all(axis=0) @ self.evidence
        return Position(tuple((int(x), int(y)) for x, y in corners), self.proven(corners, size), float(support))

    def proven(self, corners: Ints, size: tuple[int, int]) -> bool:
        there = np.concatenate([corners, corners], axis=1)  # a rectangle of one position for each patch
        return any(proof.certifies(there, size, len(corners)) for proof in self.proofs)


def removing(masks: Masks, corners: Ints, size: tuple[int, int]) -> Bools:
    """Which masks remove a patch of `size` = width, height at each corner x, y: (corners, masks)."""
    return masks.removes(0, corners[:, 0], size[0]) | masks.removes(1, corners[:, 1], size[1])


def weakest_positions(
    pipeline: Pipeline, target: Target, patch: Patch, count: int, rng: np.random.Generator, *, proven: bool = False
) -> list[Position]:
    """`count` allowed positions in the order in which to attack the defense; none if none is allowed.

    Candidates are random positions, those that touch a line of a mask, and those nearest the object. The weakest proof
    comes first; among equals, the one that is flush with most of the lines that make it, then the one that fewest
    further masks come close to making, then the nearest. With `proven` only positions where the object is proven are
    taken.
    """
    size = patch.size(*target.size)
    corners = _candidates(target, patch, size, rng)
    if not len(corners):
        return []
    proofs = PositionProofs.of(pipeline, target)
    distance = _distance(target, corners, size)
    margin = -(-max(target.size) // NEARLY)
    removed, with_room, nearly = (_removing(proofs.masks, corners, size, grown) for grown in (0, 1, -margin))
    order = np.lexsort((distance, *(by @ proofs.evidence for by in (nearly, with_room, removed))))
    chosen = order[:, None]
    if patch.count == 2:
        kinds = np.concatenate([removed, with_room, nearly], axis=1)[order]
        each = order[np.sort(np.unique(kinds, axis=0, return_index=True)[1])[:PARTNERS]]
        support = [(by[each] * proofs.evidence) @ by[each].T for by in (nearly, with_room, removed)]
        apart = distance[each][:, None] + distance[each]
        weakest = np.lexsort([key.ravel() for key in (apart, *support)])
        chosen = each[np.stack(np.unravel_index(weakest, apart.shape), axis=1)]
    if proven:
        chosen = _proven(proofs, chosen, corners, removed, size, 8 * count)
    return [proofs.at(place, size) for place in _spread(corners[chosen[: 8 * count]], count, size)]


def nearest_positions(
    pipeline: Pipeline, target: Target, patch: Patch, count: int, rng: np.random.Generator
) -> list[Position]:
    """`count` allowed positions in the order in which to attack the detector alone: the nearest first, then others."""
    size = patch.size(*target.size)
    corners = _candidates(target, patch, size, rng)
    proofs = PositionProofs.of(pipeline, target)
    order = np.argsort(_distance(target, corners, size), kind="stable")
    nearest = corners[order][:, None]
    spread = _spread(nearest[: 8 * count * patch.count], count * patch.count, size)
    return [proofs.at(np.concatenate(spread[n::count]), size) for n in range(count)] if spread else []


def _removing(masks: Masks, corners: Ints, size: tuple[int, int], grown: int) -> Bools:
    """`removing`, for a patch that is `grown` pixels larger at every side."""
    wide, tall = (max(side + 2 * grown, 1) for side in size)
    return removing(masks, corners - grown, (wide, tall))


def _proven(
    proofs: PositionProofs, chosen: Ints, corners: Ints, removed: Bools, size: tuple[int, int], most: int
) -> Ints:
    """The first `most` of `chosen` (positions, K) where the object is proven.

    Positions that the same masks remove are proven alike, so each set of masks is asked about once, SAMPLES at most.
    """
    verdicts: dict[bytes, bool] = {}
    kept: list[Ints] = []
    for place in chosen:
        masks = removed[place].all(axis=0).tobytes()
        if masks not in verdicts:
            if len(verdicts) == SAMPLES:
                break
            verdicts[masks] = proofs.proven(corners[place], size)
        if verdicts[masks]:
            kept.append(place)
        if len(kept) == most:
            break
    return np.array(kept, np.int64).reshape(-1, chosen.shape[1])


def _spread(positions: Ints, count: int, size: tuple[int, int]) -> list[Ints]:
    """Of positions (P, K, 2) the first, and those a quarter of a patch away from all chosen before.

    They are repeated if there are too few.
    """
    chosen: list[Ints] = []
    for position in positions:
        if len(chosen) < count and all((np.abs(position - other) >= np.array(size) / 4).any() for other in chosen):
            chosen.append(position)
    return [chosen[n % len(chosen)] for n in range(count)] if chosen else []


def _candidates(target: Target, patch: Patch, size: tuple[int, int], rng: np.random.Generator) -> Ints:
    """Allowed corners x, y, each once, in a fixed order."""
    allowed = PatchPositions.of(target.box[None], *target.size).allowed(patch.where, np.array([size]))[0]
    allowed = allowed[(allowed[:, :2] <= allowed[:, 2:]).all(axis=1)]
    if not len(allowed):
        return np.empty((0, 2), np.int64)
    ideal = np.rint(_center(target) - np.array(size) / 2).astype(np.int64)
    corners = [np.clip(ideal, allowed[:, :2], allowed[:, 2:])]
    tight = [_tight(target.observation.masks, axis, size[axis]) for axis in (0, 1)]
    for rectangle in allowed:
        corners.append(rng.integers(rectangle[:2], rectangle[2:] + 1, (SAMPLES // len(allowed), 2)))
        # Just removed by a strip, along each axis, beside positions of the other axis that are likely to hurt.
        xs, ys = (t[(t >= rectangle[a]) & (t <= rectangle[a + 2])] for a, t in enumerate(tight))
        x, y = np.clip(ideal, rectangle[:2], rectangle[2:])
        corners.append(np.stack(np.meshgrid(np.append(xs, x), np.append(ys, y)), axis=-1).reshape(-1, 2))
    return np.unique(np.concatenate(corners), axis=0)


def _tight(masks: Masks, axis: int, length: int) -> Ints:
    """The positions along an axis at which a patch just touches a line of a strip, from inside."""
    strips = masks.strips
    inside, lines = (of_strip[strips.axis == axis] for of_strip in strips.lines)
    return np.unique(np.concatenate([lines[inside[:, 0], 0], lines[inside[:, 1], 1] - length]))


def _center(target: Target) -> Floats:
    limit = np.array(target.size * 2)
    visible = np.clip(target.box, 0, limit)
    return np.asarray((visible[:2] + visible[2:]) / 2)


def _distance(target: Target, corners: Ints, size: tuple[int, int]) -> Floats:
    """From the middle of the patch to the middle of the object, in object sizes."""
    extent = np.maximum(target.box[2:] - target.box[:2], 1)
    return np.asarray(np.linalg.norm((corners + np.array(size) / 2 - _center(target)) / extent, axis=1))
