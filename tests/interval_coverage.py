"""How often the intervals of `gate` hold the truth, in simulated runs: python tests/interval_coverage.py [RUNS].

Objects of an image share a chance of being found that is drawn for the image, so they depend on each other. 95 %
intervals should cover 93 to 97 % of the time; near 0 and 100 % with few images they cover more.
"""

from __future__ import annotations

import sys

import numpy as np

from objectseeker.metrics.confidence_intervals import bootstrap_interval

# Images, share found, correlation within an image, objects an image.
CASES = [
    (50, 0.7, 0.2, 2.5),
    (30, 0.5, 0.2, 2.5),
    (50, 0.9, 0.2, 2.5),
    (200, 0.7, 0.2, 2.5),
    (200, 0.4, 0.4, 6.0),
    (200, 0.95, 0.2, 2.5),
]
# Images, share found before, of those lost, of the others gained.
PAIRS = [(100, 0.7, 0.1, 0.05), (200, 0.7, 0.15, 0.1)]

Rng = np.random.Generator
Draw = tuple[int, float, float, float]


def covered(case: Draw, *, runs: int, samples: int = 1000, seed: int = 0) -> float:
    """The share of runs whose interval holds the share that objects were drawn with."""
    images, share, correlation, objects = case
    rng = np.random.default_rng(seed)
    hits = 0
    for run in range(runs):
        there = 1.0 + rng.poisson(objects - 1, images)
        found = rng.binomial(there.astype(int), _chances(rng, share, correlation, images)).astype(float)

        def values(weights: np.ndarray, found: np.ndarray = found, there: np.ndarray = there) -> np.ndarray:
            return np.asarray(100 * (weights @ found) / (weights @ there))

        interval = bootstrap_interval(values, images, confidence=0.95, samples=samples, seed=run, bounds=(0.0, 100.0))
        hits += interval.low <= 100 * share <= interval.high
    return hits / runs


def covered_pairs(case: Draw, *, runs: int, samples: int = 1000, seed: int = 0) -> float:
    """The same of the difference to a baseline on the same images."""
    images, share, lost, gained = case
    rng = np.random.default_rng(seed)
    truth = 100 * (gained * (1 - share) - lost * share)
    hits = 0
    for run in range(runs):
        there = 1 + rng.poisson(1.5, images)
        before = rng.binomial(there, _chances(rng, share, 0.2, images))
        after = before - rng.binomial(before, lost) + rng.binomial(there - before, gained)
        change, objects = (after - before).astype(float), there.astype(float)

        def values(weights: np.ndarray, change: np.ndarray = change, objects: np.ndarray = objects) -> np.ndarray:
            return np.asarray(100 * (weights @ change) / (weights @ objects))

        interval = bootstrap_interval(
            values, images, confidence=0.95, samples=samples, seed=run, bounds=(-100.0, 100.0)
        )
        hits += interval.low <= truth <= interval.high
    return hits / runs


def _chances(rng: Rng, share: float, correlation: float, images: int) -> np.ndarray:
    scale = (1 - correlation) / correlation
    return rng.beta(share * scale, (1 - share) * scale, images)


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for case in CASES:
        print(f"share {case}: {100 * covered(case, runs=runs):.1f} %", flush=True)
    for case in PAIRS:
        print(f"difference {case}: {100 * covered_pairs(case, runs=runs):.1f} %", flush=True)
