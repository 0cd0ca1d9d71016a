"""Several patches and the whole outside, slowly and literally: all sets of pixel positions, bitmaps, fractions.

Written from the definitions, like tests/oracle.py. Nothing here knows of classes of positions, of the rectangle that a
mask keeps, or of a search. Positions that the same views show nothing of count once, as no view tells them apart.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import oracle

from objectseeker import Detections, Observation, Patch


def grown_pixels(g: oracle.Box, width: int, height: int) -> np.ndarray:
    """Bitmap (row, column): does the pixel lie wholly in the object's box grown by 10 % of each axis?"""

    def inside(limit: int, first: Fraction, last: Fraction) -> np.ndarray:
        margin = Fraction(limit, 10)
        return np.array([first - margin <= i and i + 1 <= last + margin for i in range(limit)], dtype=bool)

    return np.asarray(inside(height, g[1], g[3])[:, None] & inside(width, g[0], g[2])[None])


def unchanged(observation: Observation, g: oracle.Box) -> np.ndarray:
    """Which views show no pixel of the outside?"""
    outside = ~grown_pixels(g, observation.width, observation.height)
    return np.asarray(~(oracle.kept_pixels(observation) & outside).any(axis=(1, 2)))


def remaining_views(observation: Observation, g: oracle.Box, patch: Patch) -> list[frozenset[int]]:
    """The sets of views that the attacker cannot change, over everything the threat lets them do."""
    views = np.arange(len(observation.masks))
    fixed = np.ones(len(views), bool)
    if patch.location == "outside" or patch.with_outside:
        fixed = unchanged(observation, g)
    if patch.location == "outside":
        return [frozenset(views[fixed].tolist())]
    pixels = patch.size(observation.width, observation.height)
    ok = oracle.allowed(patch.location, g, observation.width, observation.height, pixels)
    gone = np.unique(oracle.removed(observation, pixels)[:, ok], axis=1)
    if not gone.shape[1]:  # no patch fits: only the outside is left
        return [frozenset(views[fixed].tolist())] if patch.with_outside else []
    found = set()
    for chosen in combinations_with_replacement(range(gone.shape[1]), patch.count):
        found.add(frozenset(views[gone[:, chosen].all(axis=1) & fixed].tolist()))
    return list(found)


def certify(
    observation: Observation,
    objects: Detections,
    n: int,
    patch: Patch,
    *,
    mask_threshold: float,
    evidence_threshold: float | None = None,
    cluster_distance: float = 0.1,
) -> bool:
    g = oracle.boxes_of(objects)[n]
    if oracle.size(g) == 0 or not oracle.seen(g, observation.width, observation.height):
        return False
    proofs = [
        (mask, box, oracle.evidence_of(score, mask_threshold, evidence_threshold, 1.0))
        for mask, _, box, score in oracle.proving(observation, objects, n, 0.6, 0.0, "exact", True)
    ]
    proofs = [proof for proof in proofs if proof[2] > 0]
    close = 1 - Fraction(str(cluster_distance))
    linked = [[a is b or max(oracle.ioa(a[1], b[1]), oracle.ioa(b[1], a[1])) > close for b in proofs] for a in proofs]
    decided = {}
    for views in remaining_views(observation, g, patch):
        present = tuple(i for i, (mask, _, _) in enumerate(proofs) if mask in views)
        if present not in decided:
            decided[present] = any(
                oracle.enough([proofs[i] for i in group]) for group in oracle.groups(present, linked, "star")
            )
        if not decided[present]:
            return False
    return True
