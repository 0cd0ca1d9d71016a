"""Fabrication, slowly and literally: every pixel position of every patch, bitmaps of what each view shows, fractions.

Written from the definitions, like tests/oracle.py, whose location models it uses.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import oracle
import oracle_two_patches

from objectseeker import Detections, Observation, Patch


def fits(m: oracle.Box, b: oracle.Box, fit: str, overlap: float) -> bool:
    shared = oracle.shared(m, b)
    if shared == 0:
        return False
    if fit == "iou":
        return shared / (oracle.size(m) + oracle.size(b) - shared) > Fraction(str(overlap))
    return shared / oracle.size(m) > Fraction("0.7") and shared / oracle.size(b) > Fraction(str(overlap))


def support(
    observation: Observation, detections: Detections, n: int, *, fit: str, overlap: float, classwise: bool
) -> dict[int, float]:
    """The best score of a masked box that fits box n, by the mask that has one.

    Overlaps are decimals: a tie does not fit, whatever float is nearest to the decimal.
    """
    b, label = oracle.boxes_of(detections)[n], int(detections.label[n])
    scores: dict[int, float] = {}
    for mask, masked in enumerate(observation.masked):
        for m, score, of_label in oracle.rows(masked):
            if (of_label == label or not classwise) and fits(m, b, fit, overlap):
                scores[mask] = max(score, scores.get(mask, 0.0))
    return scores


def certified_score(
    observation: Observation, b: oracle.Box, patch: Patch, scores: dict[int, float], gone: np.ndarray
) -> float:
    """The least, over all allowed positions, of the best score left; 1 if none is allowed, 0 if nothing is visible."""
    if oracle.size(b) == 0 or not oracle.seen(b, observation.width, observation.height):
        return 0.0
    pixels = patch.size(observation.width, observation.height)
    ok = oracle_two_patches.allowed(patch.location, b, observation.width, observation.height, pixels)
    of_mask = np.array([scores.get(mask, 0.0) for mask in range(len(observation.masks))])
    left = gone[:, ok] * of_mask[:, None]  # (mask, allowed position)
    if not ok.any():
        return 1.0
    if not len(of_mask):
        return 0.0
    if patch.count == 1:
        return float(left.max(axis=0).min())
    return min(float(np.minimum(left[:, [first]], left[:, first:]).max(axis=0).min()) for first in range(left.shape[1]))


def verdicts(
    observation: Observation, detections: Detections, patch: Patch, **settings: Any
) -> list[tuple[bool, bool, float, list[int]]]:
    """(certified, vacuous, certified score, safe masks) of every box."""
    threshold = settings.pop("threshold")
    gone = oracle_two_patches.removed(observation, patch.size(observation.width, observation.height))
    answers = []
    for n, b in enumerate(oracle.boxes_of(detections)):
        scores = support(observation, detections, n, **settings)
        safe = sorted(mask for mask, score in scores.items() if score >= threshold)
        certified, vacuous = oracle_two_patches.certify(observation, b, patch, safe, gone)
        answers.append((certified, vacuous, certified_score(observation, b, patch, scores, gone), safe))
    return answers
