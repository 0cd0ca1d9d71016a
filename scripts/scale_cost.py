"""Compare the time that `observe --estimate` predicts with the time a run takes.

    python scripts/scale_cost.py [--detector builtin] [--images 6] [--masks halves:30] [--rounds 2]

The model is forward passes x seconds a pass, the latter from `observe --estimate`, which times a few dozen views. One
estimate is made before every run of the bundled images and one after; a machine that does other things in between
shows in how far the two are apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from scale_throughput import repeated_images

from objectseeker import detectors
from objectseeker.core.recipes import parse_recipe
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.observe import observe, plan_run, time_view


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", default="builtin")
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--masks", default="halves:30")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    detector, settings = detectors.load_detector(options.detector), ObservationSettings(parse_recipe(options.masks))
    with tempfile.TemporaryDirectory() as name:
        dataset = repeated_images(Path(name), options.images)

        def foretell() -> float:
            return plan_run(dataset, settings).forward_passes * time_view(dataset, detector, settings)

        for turn in range(options.rounds):
            before = foretell()
            begin = time.perf_counter()
            observe(dataset, detector, out=Path(name) / str(turn), masks=settings.masks)
            taken = time.perf_counter() - begin
            after = foretell()
            print(
                f"{options.images} images, {settings.masks}: foretold {before:.1f} and {after:.1f} s, taken "
                f"{taken:.1f} s: {taken / ((before + after) / 2):.2f} of it",
                flush=True,
            )


if __name__ == "__main__":
    main()
