"""Attack the certificates for a long time.

python tests/soak.py --trials 1000000 [--rule evidence] [--patches 2] [--masks bands]

Exits 1 if a certified object was ever hidden.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import adversary
import adversary_two_patches
from adversary import STRATEGIES, with_class_maximum, with_extra_nms
from cases import banded

CHUNK = 2000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rule", choices=("any", "paper", "evidence"), default="any")
    parser.add_argument("--patches", type=int, choices=(1, 2), default=1)
    parser.add_argument("--masks", choices=("halves", "bands"), default="halves", help="bands: also with halves")
    options = parser.parse_args()
    campaign = (adversary if options.patches == 1 else adversary_two_patches).campaign
    if options.masks == "bands":
        if options.patches == 2:
            parser.error("two patches are attacked under pairs of half masks")
        campaign = partial(campaign, make=banded)
    evidence = {"any": None, "paper": False, "evidence": True}[options.rule]
    started = time.time()
    total = {name: dict.fromkeys(("certified", "certified hidden", "open", "open hidden"), 0) for name in STRATEGIES}
    with ProcessPoolExecutor(options.workers) as pool:
        seeds = range(options.seed * 10**6, options.seed * 10**6 + -(-options.trials // CHUNK))
        for done, score in enumerate(pool.map(partial(campaign, trials=CHUNK, evidence=evidence), seeds), start=1):
            for name, row in score.items():
                for key, value in row.items():
                    total[name][key] += value
            if sys.stderr.isatty():
                print(f"\r{done * CHUNK:,} trials, {time.time() - started:.0f} s", end="", file=sys.stderr)
        broken = {
            variant.__name__: sum(row["certified hidden"] for row in campaign(1, 20_000, variant).values())
            for variant in (with_extra_nms, with_class_maximum)
        }
    print(f"{'strategy':20} {'certified':>10} {'hidden':>7} {'uncertified':>12} {'hidden':>8}")
    for name, row in total.items():
        print(
            f"{name:20} {row['certified']:10,} {row['certified hidden']:7,} {row['open']:12,} "
            f"{row['open hidden'] / max(row['open'], 1):8.1%}"
        )
    hidden = sum(row["certified hidden"] for row in total.values())
    certified = sum(row["certified"] for row in total.values())
    played = sum(row["certified"] + row["open"] for row in total.values())
    print(f"{played:,} trials in {time.time() - started:.0f} s; of {certified:,} certified objects hidden: {hidden}")
    print("certified objects hidden when the defense is made unsound, of 20,000 trials:", broken)
    return 1 if hidden else 0


if __name__ == "__main__":
    sys.exit(main())
