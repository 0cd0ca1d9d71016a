"""How often the intervals of `gate` hold the truth, in simulated runs: python tests/interval_coverage.py [RUNS].

Objects of an image share a chance of being found that is drawn for the image, so they depend on each other. 95 %
intervals should cover 93 to 97 % of the time; near 0 and 100 % with few images they cover more.

Then how often the gate passes a release that is exactly not good enough, where a few images, often none of those in the
sample, hold most of what is counted: at most 5 % of the time.
"""

from __future__ import annotations

import sys

import numpy as np

from objectseeker import Defense, Halves, Rule
from objectseeker.core.threats import ThreatModel
from objectseeker.gate.judge import Release, apply_policy
from objectseeker.gate.policy import parse_policy
from objectseeker.metrics.confidence_intervals import bootstrap_interval
from objectseeker.metrics.tally import ImageRows, ObjectRows, Tally

# Images, share found, correlation within an image, objects per image.
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

# Images; share of crowded ones, objects in each of them and share certified; the same of the others.
CROWDS = [(160, 0.01, 60, 0.1, 2, 0.9), (40, 0.05, 20, 0.3, 2, 0.9), (160, 0.02, 40, 0.2, 2, 0.9)]
CROWDS += [(500, 0.02, 40, 0.2, 2, 0.9)]
# Images; share of those with many false positives, how many; false positives of the others on average.
FLOODS = [(50, 0.02, 30, 0.8), (160, 0.02, 30, 0.8), (160, 0.01, 100, 0.8)]

Rng = np.random.Generator
Draw = tuple[int, float, float, float]
Crowd = tuple[int, float, int, float, int, float]
Flood = tuple[int, float, int, float]


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


def wrong_passes_of_crowds(family: Crowd, *, runs: int, seed: int = 0) -> float:
    """The share of runs in which certified recall passes at its own truth."""
    images, rare, many, low, few, high = family
    truth = 100 * (rare * many * low + (1 - rare) * few * high) / (rare * many + (1 - rare) * few)
    rng, passed = np.random.default_rng(seed), 0
    for _ in range(runs):
        crowded = rng.random(images) < rare
        objects = np.where(crowded, many, few)
        certified = rng.random(objects.sum()) < np.repeat(np.where(crowded, low, high), objects)
        passed += _passes(CERTIFIED.format(truth), _tally(objects, certified, np.zeros(images, np.int64)))
    return passed / runs


def wrong_passes_of_floods(family: Flood, *, runs: int, seed: int = 0) -> float:
    """The share of runs in which FPPI passes at its own truth."""
    images, rare, many, mean = family
    rng, passed = np.random.default_rng(seed), 0
    for _ in range(runs):
        flooded = rng.random(images) < rare
        count = np.where(flooded, many, rng.poisson(mean, images))
        tally = _tally(np.ones(images, np.int64), np.ones(images, np.bool_), count)
        passed += _passes(FPPI.format(rare * many + (1 - rare) * mean), tally)
    return passed / runs


CERTIFIED = 'metric = "certified_recall"\nlocation = "anywhere"\ncertification_threshold = 0.0\nat_least = "{} %"'
FPPI = 'metric = "fppi"\nat_most = {}'
DEFENSE = Defense(detector="builtin", rule=Rule(), masks=Halves(6), fingerprint="toy")


def _passes(requirement: str, tally: Tally) -> bool:
    policy = parse_policy(f"format = 1\nbootstrap_samples = 500\n[[require]]\n{requirement}")
    return apply_policy(policy, Release(defense=DEFENSE, measurements=tally), {}).verdict == "pass"


def _tally(objects: np.ndarray, certified: np.ndarray, false_positives: np.ndarray) -> Tally:
    images, total = len(objects), int(objects.sum())
    threat = ThreatModel(certification_threshold=0.0)
    none, all_of = np.zeros(images, np.int64), np.ones(total, np.int64)
    return Tally(
        names=("thing",),
        ids=tuple(map(str, range(images))),
        images=ImageRows(
            image=np.arange(images),
            count=none + 1,
            ignored=none,
            flagged=none,
            false_positives=false_positives,
            spurious=none,
            guaranteed={threat: none},
            guaranteed_boxes={threat: none},
        ),
        objects=ObjectRows(
            image=np.repeat(np.arange(images), objects),
            count=all_of,
            number=np.arange(total),
            label=0 * all_of,
            box=np.zeros((total, 4)),
            size=np.full(total, 0.1),
            found=np.ones(total, np.bool_),
            certified={threat: np.tile(certified[:, None], 4)},
            vacuous={threat: np.zeros((total, 4), np.bool_)},
        ),
    )


def _chances(rng: Rng, share: float, correlation: float, images: int) -> np.ndarray:
    scale = (1 - correlation) / correlation
    return rng.beta(share * scale, (1 - share) * scale, images)


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for case in CASES:
        print(f"share {case}: {100 * covered(case, runs=runs):.1f} %", flush=True)
    for case in PAIRS:
        print(f"difference {case}: {100 * covered_pairs(case, runs=runs):.1f} %", flush=True)
    for crowd in CROWDS:
        print(f"wrong passes, crowds {crowd}: {100 * wrong_passes_of_crowds(crowd, runs=runs):.1f} %", flush=True)
    for flood in FLOODS:
        print(
            f"wrong passes, false positives {flood}: {100 * wrong_passes_of_floods(flood, runs=runs):.1f} %", flush=True
        )
