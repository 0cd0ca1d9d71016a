"""Compare certificates against the outside and several patches with the literal oracle, and attack them, for long.

python tests/soak_outside.py --cases 20000 --trials 100000

Exits 1 if a verdict differs from the oracle's or a certified object was ever hidden.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "core"))
from adversary_outside import campaign
from test_outside import agrees_with_the_oracle  # type: ignore[import-not-found]

CHUNK = 50


def compare(first: int) -> tuple[int, int]:
    """How many verdicts equal the oracle's for these seeds, and how many of them certify."""
    verdicts = [agrees_with_the_oracle(seed, *(() if seed % 2 else (0.1, 0.3))) for seed in range(first, first + CHUNK)]
    return sum(found.size for found in verdicts), sum(int(found.sum()) for found in verdicts)


def attack(seed: int) -> tuple[int, int, int, int]:
    rows = campaign(seed, 20 * CHUNK).values()
    certified, hidden = sum(row["certified"] for row in rows), sum(row["certified hidden"] for row in rows)
    return certified, hidden, sum(row["open"] for row in rows), sum(row["open hidden"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.time()
    with ProcessPoolExecutor(options.workers) as pool:
        first = options.seed * 10**6
        compared = list(pool.map(compare, range(first, first + options.cases, CHUNK)))
        verdicts, certify = (sum(column) for column in zip(*compared, strict=True))
        print(f"{options.cases:,} cases: {verdicts:,} verdicts equal the oracle's, {certify:,} of them certify")
        games = list(pool.map(attack, range(first, first + -(-options.trials // (20 * CHUNK)))))
        certified, hidden, uncertified, lost = (sum(column) for column in zip(*games, strict=True))
    print(f"{certified:,} attacks on certified objects: {hidden} hidden; {uncertified:,} on others: {lost:,} hidden")
    print(f"{time.time() - started:.0f} s")
    return 1 if hidden else 0


if __name__ == "__main__":
    sys.exit(main())
