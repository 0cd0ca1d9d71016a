"""The attacker of tests/adversary.py with several patches, or with every pixel outside the object's grown box, or both.

She writes every view that shows a pixel of hers. She picks positions in turn, each the one that leaves
least of what proves the object, or at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import oracle
import oracle_outside
from adversary import Target, empty_score, honest, play_all
from cases import Case, generate, halves, pairs, windowed

from objectseeker import Detections, Observation, Patch, Rule
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation

Defense = Callable[[dict[str, Any]], Callable[[Observation], Detections]]


def targets(case: Case, rng: np.random.Generator, rule: Rule, patch: Patch) -> Iterator[tuple[bool, Target]]:
    """(certified?, Target) for every visible object that the threat concerns."""
    observation, objects = case.observation, case.ground_truth
    width, height = observation.width, observation.height
    certified = rule.certify(observation, objects, patch).certified[0]
    proves = rule.proving_pairs(observation, objects, 0.0, "exact")
    evidence = rule.evidence(rule.discounted_scores(observation))
    size = patch.size(width, height)
    gone = oracle.removed(observation, size)
    for n, g in enumerate(oracle.boxes_of(objects)):
        if oracle.size(g) == 0 or not oracle.seen(g, width, height):
            continue
        fixed = np.ones(len(observation.masks), bool)
        if patch.owns_outside:
            fixed = oracle_outside.unchanged(observation, g)
        ok = oracle.allowed(patch.location, g, width, height, size) if patch.location != "outside" else None
        if ok is not None and ok.any():
            strength = np.zeros(len(observation.masks))
            np.maximum.at(strength, observation.mask_index, proves[:, n] * evidence)
            fixed = _place(rng, gone[:, ok].T, strength, fixed, patch.count)
        elif ok is not None and not patch.owns_outside:
            continue
        yield (
            bool(certified[n]),
            Target(
                observation,
                objects.xyxy[n],
                int(objects.label[n]),
                np.flatnonzero(fixed).tolist(),
                np.flatnonzero(~fixed).tolist(),
                rule.filter_ioa,
                0.0,
                rule.classwise,
            ),
        )


def _place(
    rng: np.random.Generator, removes: np.ndarray, strength: np.ndarray, fixed: np.ndarray, count: int
) -> np.ndarray:
    greedy = rng.random() < 0.8
    for _ in range(count):
        left = (removes & fixed) @ strength
        best = np.flatnonzero(left == left.min()) if greedy else np.arange(len(removes))
        fixed = fixed & removes[rng.choice(best)]
    return fixed


def campaign(seed: int, trials: int, defense: Defense | None = None) -> dict[str, dict[str, int]]:
    """Play `trials` games; per strategy how many, and how many objects were hidden, certified and not."""
    rng = np.random.default_rng(seed)
    score = empty_score()
    played = 0
    while played < trials:
        small = rng.random() < 0.2
        case_seed = int(rng.integers(2**32))
        with_windows = windowed(case_seed)  # type: ignore[no-untyped-call]
        make = (with_windows, with_windows, halves, pairs)[int(rng.integers(4))]
        case = generate(
            case_seed,
            smallest=5,
            largest=8 if small else 20,
            lines=int(rng.choice([1, 2, 3])),
            make=make,
            generous=0.3,
            sure=float(rng.choice([0.5, 0.9, 1.0])),
            torn=float(rng.choice([0.0, 0.0, 1.0])),
        )
        settings: dict[str, Any] = {"base_threshold": 0.5, "mask_threshold": 0.5, "classwise": bool(rng.random() < 0.7)}
        if rng.random() < 0.5:
            settings |= {"mask_threshold": 0.75, "evidence_threshold": 0.1, "cluster_distance": 0.3}
        location = str(rng.choice([*PATCH_LOCATIONS, "outside", "outside"]))
        patch = Patch(
            float(rng.choice([0.004, 0.03, 0.1])),
            location=cast(PatchLocation, location),
            count=int(rng.choice([1, 2, 3, 4])),
            with_outside=bool(rng.random() < 0.3),
        )
        defend = (defense or honest)(settings)
        for certified, target in targets(case, rng, Rule(**settings), patch):
            played += play_all(target, defend, score, rng, certified=certified, small=small)
    return score
