"""Kill an observe job at random times and compare the finished run with an undisturbed one.

    python scripts/kill_test.py [--kills N] [--seed S]

Half of the kills hit a job that mostly computes, half one that mostly writes. Every kill is kill -9, and after each
the same job is started again on the same folder; files must end up equal to the last byte.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from observe_job import content_of, kill_until_done, make_dataset, run_here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    rng = np.random.default_rng(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = make_dataset(folder / "images", 12)
        run_here(spec, folder / "undisturbed")
        expected = content_of(folder / "undisturbed")
        half = arguments.kills // 2
        for what, kills, seconds in (("computing", arguments.kills - half, 0.02), ("writing", half, 0.0)):
            seen = kill_until_done(spec, folder / what, expected, kills=kills, seconds=seconds, rng=rng)
            print(f"{kills} kills while mostly {what}, images finished at each: {seen}")
    print(f"all {len(expected)} files equal to the last byte")


if __name__ == "__main__":
    main()
