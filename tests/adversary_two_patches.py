"""The attacker of tests/adversary.py with two patches: she writes every view that shows a pixel of either.

She picks the two allowed positions that leave least of what proves the object, two at random, or one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import oracle
import oracle_two_patches
from adversary import Target, empty_score, honest, play_all
from cases import Case, generate, halves, pairs

from objectseeker import Detections, Observation, Patch, Rule
from objectseeker.core.bounds import Bound
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation

Defense = Callable[[dict], Callable[[Observation], Detections]]


def targets(
    case: Case, rng: np.random.Generator, rule: Rule, certification_threshold: float, patch: Patch, bound: Bound
) -> Iterator[tuple[bool, Target]]:
    """(certified?, Target) for every visible object the patches may be placed for."""
    observation, truth = case.observation, case.ground_truth
    width, height = observation.width, observation.height
    certificates = rule.certify(
        observation, truth, [patch], certification_threshold=certification_threshold, bound=bound
    )
    proves = rule.proving_pairs(observation, truth, certification_threshold, bound)
    evidence = rule.evidence(rule.discounted_scores(observation))
    size = patch.size(width, height)
    gone = oracle_two_patches.removed(observation, size)
    for n, g in enumerate(oracle.boxes_of(truth)):
        ok = oracle.allowed(patch.location, g, width, height, size)
        if not ok.any() or oracle.size(g) == 0 or not oracle.seen(g, width, height):
            continue
        removes = gone[:, ok].T  # (position, view)
        strength = np.zeros(len(observation.masks))
        np.maximum.at(strength, observation.mask_index, proves[:, n] * evidence)
        first, second = _positions(rng, removes, strength)
        fixed = removes[first] & removes[second]
        yield (
            bool(certificates.certified[0, n]),
            Target(
                observation,
                truth.xyxy[n],
                int(truth.label[n]),
                np.flatnonzero(fixed).tolist(),
                np.flatnonzero(~fixed).tolist(),
                rule.filter_ioa,
                certification_threshold,
                rule.classwise,
            ),
        )


def _positions(rng: np.random.Generator, removes: np.ndarray, strength: np.ndarray) -> tuple[int, int]:
    choice = rng.random()
    if choice < 0.7:
        left = (removes * strength) @ removes.T.astype(float)
        weakest = np.argwhere(left == left.min())
        return tuple(weakest[rng.integers(len(weakest))])
    first, second = rng.integers(len(removes), size=2)
    return (first, first) if choice < 0.8 else (first, second)


def campaign(
    seed: int, trials: int, defense: Defense | None = None, *, evidence: bool | None = None
) -> dict[str, dict[str, int]]:
    """Play `trials` games; per strategy how many, and how many objects were hidden, certified and not."""
    rng = np.random.default_rng(seed)
    score = empty_score()
    played = 0
    while played < trials:
        small = rng.random() < 0.3
        case = generate(
            int(rng.integers(2**32)),
            smallest=5,
            largest=8 if small else 14,
            lines=int(rng.choice([1, 1, 2, 2, 3])),
            make=halves if rng.random() < 0.2 else pairs,
            generous=0.3,
            sure=float(rng.choice([0.5, 0.9, 0.97, 1.0])),
            torn=float(rng.choice([0.0, 0.0, 1.0])),
        )
        settings: dict[str, Any] = {
            "base_threshold": 0.5,
            "mask_threshold": float(rng.choice([0.25, 0.5])),
            "filter_ioa": float(rng.choice([0.6, 0.5, 0.75])),
            "classwise": bool(rng.random() < 0.7),
            "edge_factor": float(rng.choice([1.0, 0.8])),
        }
        if rng.random() < 0.5 if evidence is None else evidence:
            settings |= {
                "mask_threshold": 0.75,
                "evidence_threshold": 0.1,
                "evidence_power": float(rng.choice([1.0, 2.0])),
            }
            settings["cluster_distance"] = float(rng.choice([0.1, 0.1, 0.3]))
        patch = Patch(
            float(rng.choice([0.004, 0.03, 0.1])),
            float(rng.choice([0.3, 1.0, 1.0, 3.0])),
            cast(PatchLocation, str(rng.choice(PATCH_LOCATIONS))),
            count=2,
        )
        defend = (defense or honest)(settings)
        certification_threshold, bound = (
            float(rng.choice([0.0, 0.0, 0.25])),
            cast(Bound, str(rng.choice(["exact", "paper"]))),
        )
        for certified, target in targets(case, rng, Rule(**settings), certification_threshold, patch, bound):
            played += play_all(target, defend, score, rng, certified=certified, small=small)
    return score
