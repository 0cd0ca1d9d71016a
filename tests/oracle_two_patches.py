"""Two patches, slowly and literally: every pair of pixel positions, bitmaps of what each view removes, fractions.

Written from the definitions, like tests/oracle.py, whose bounds and location models it uses. Nothing here knows of
classes of positions, or of the rectangle that a mask keeps.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import oracle

from objectseeker import Observation, Patch

allowed = lru_cache(64)(oracle.allowed)  # one patch and two are asked about in turn


def removed(observation: Observation, patch: tuple[int, int]) -> np.ndarray:
    """Bitmap (view, y, x): does the view show no pixel of the patch at that position?"""
    shown = oracle.kept_pixels(observation)
    count = np.zeros((len(shown), observation.height + 1, observation.width + 1), dtype=int)
    count[:, 1:, 1:] = shown.cumsum(axis=1).cumsum(axis=2)  # pixels shown above and left of each corner
    xs, ys = (np.array(one) for one in oracle.positions(observation.width, observation.height, patch))
    left, right = np.maximum(xs, 0), np.minimum(xs + patch[0], observation.width)
    top, bottom = np.maximum(ys, 0), np.minimum(ys + patch[1], observation.height)

    def at(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return count[:, y[:, None], x]

    return np.asarray(at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left) == 0)


def certify(observation: Observation, g: oracle.Box, patch: Patch, safe: list[int], gone: np.ndarray) -> tuple:
    """(certified, vacuous): is there, wherever the patches are, a safe view that shows none? `gone`: as `removed`."""
    if oracle.size(g) == 0 or not oracle.seen(g, observation.width, observation.height):
        return False, False
    pixels = patch.size(observation.width, observation.height)
    ok = allowed(patch.location, g, observation.width, observation.height, pixels)
    hides = gone[safe][:, ok]  # (safe view, allowed position)
    if patch.count == 1:
        return bool(hides.any(axis=0).all()), not ok.any()
    pairs_of_first = ((hides[:, [first]] & hides[:, first:]).any(axis=0) for first in range(hides.shape[1]))
    return all(pairs.all() for pairs in pairs_of_first), not ok.any()


def evidence_proofs(
    observation,
    truth,
    n,
    *,
    mask_threshold,
    evidence_threshold,
    evidence_power=1.0,
    filter_ioa=0.6,
    certification_threshold=0.0,
    bound="exact",
    classwise=True,
    cluster_distance=0.1,
) -> tuple[list, list]:
    """The boxes (view, box, evidence) that prove object n, and which of them are linked."""
    proofs = [
        (mask, box, oracle.evidence_of(score, mask_threshold, evidence_threshold, evidence_power))
        for mask, _, box, score in oracle.proving(
            observation, truth, n, filter_ioa, certification_threshold, bound, classwise
        )
    ]
    proofs = [proof for proof in proofs if proof[2] > 0]
    close = 1 - Fraction(str(cluster_distance))
    boxes = [box for _, box, _ in proofs]
    near = {(a, b): max(oracle.ioa(a, b), oracle.ioa(b, a)) > close for a in set(boxes) for b in set(boxes)}
    linked = [[i == j or near[a, b] for j, b in enumerate(boxes)] for i, a in enumerate(boxes)]
    return proofs, linked


def certify_by_evidence(
    observation: Observation, g: oracle.Box, patch: Patch, proofs: list, linked: list, gone: np.ndarray
) -> bool:
    """Under the evidence rule: wherever the patches are, is the evidence left to some star enough?"""
    if oracle.size(g) == 0 or not oracle.seen(g, observation.width, observation.height):
        return False
    pixels = patch.size(observation.width, observation.height)
    ok = allowed(patch.location, g, observation.width, observation.height, pixels)
    untouched = gone[[mask for mask, _, _ in proofs]][:, ok]  # (proof, allowed position)
    as_number = {sum(1 << i for i in np.flatnonzero(column).tolist()) for column in untouched.T}
    left = {a & b for a, b in product(as_number, repeat=2)} if patch.count == 2 else as_number
    return all(
        any(
            oracle.enough([proofs[i] for i in group])
            for group in oracle.groups(tuple(i for i in range(len(proofs)) if number >> i & 1), linked, "star")
        )
        for number in left
    )
