"""Compare certificates of a run with the tests' literal oracle, on a random sample of its objects.

Both are in the detector's labels: an object is certified if it is certified as one of the labels that map to its class.

    python scripts/compare_with_oracle.py RUN [--objects 200] [--mask-threshold 0.5] [--patch 0.01] [--seed 0]

Prints how many verdicts were compared, how many differ (exit code 1 if any), and the certified share of both.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from objectseeker import Detections, Patch, Rule
from objectseeker.core.observation import ObservedImage
from objectseeker.runs.run import open_run

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import oracle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--objects", type=int, default=200)
    parser.add_argument("--mask-threshold", type=float, default=0.5)
    parser.add_argument("--patch", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run, rule = open_run(options.run), Rule(mask_threshold=options.mask_threshold)
    images = run.images()
    everything = [(i, n) for i, image in enumerate(images) for n in np.flatnonzero(~image.ignore)]
    rng = np.random.default_rng(options.seed)
    chosen = rng.permutation(len(everything))[: options.objects]
    threats = [Patch(options.patch, 1.0, where) for where in ("far", "close", "over")]
    ours = np.zeros((len(chosen), len(threats)), dtype=bool)
    literal = np.zeros_like(ours)
    seconds = [0.0, 0.0]
    for row, number in enumerate(chosen):
        index, n = everything[number]
        image = images[index]
        started = time.perf_counter()
        targets, _ = run.label_map.map_to_detector(image.ground_truth[int(n)])
        ours[row] = rule.certify(image.observation, targets, threats).certified.any(axis=1)
        seconds[0] += time.perf_counter() - started
        started = time.perf_counter()
        literal[row] = by_oracle(image, targets, threats, options.mask_threshold)
        seconds[1] += time.perf_counter() - started
    different = int((ours != literal).sum())
    print(f"{len(chosen)} objects x {len(threats)} threats: {different} verdicts differ")
    for p, patch in enumerate(threats):
        print(f"  certified {patch.location}: {ours[:, p].mean():.1%}, oracle {literal[:, p].mean():.1%}")
    print(f"  {seconds[0]:.1f} s, oracle {seconds[1]:.1f} s")
    return 1 if different else 0


def by_oracle(image: ObservedImage, targets: Detections, threats: list[Patch], mask_threshold: float) -> list[bool]:
    """The verdict on each threat: of one object, as any of its targets."""
    verdicts = [False] * len(threats)
    for t, g in enumerate(oracle.boxes_of(targets)):
        safe = oracle.safe_masks(image.observation, targets, t, mask_threshold=mask_threshold)
        for p, patch in enumerate(threats):
            verdicts[p] |= oracle.certify(image.observation, g, patch, safe)[0]
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
