"""Measure the memory of `evaluate` by the number of images.

    python scripts/scale_evaluate.py RUN [--times 1 4 16]

The images of a run are repeated, as if the dataset were that much larger. Each size is evaluated
in a process of its own, which prints its peak memory; the slope is what evaluation keeps of an image.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import overload

from objectseeker.core.observation import ObservedImage
from objectseeker.defense import DEFAULT_RULE, DEFAULT_SCHEDULE
from objectseeker.metrics import EvaluationSettings, evaluate_images
from objectseeker.runs.run import open_run


class Repeated(Sequence[ObservedImage]):
    """The images, over and over."""

    def __init__(self, images: Sequence[ObservedImage], times: int) -> None:
        self._images, self._times = images, times

    def __len__(self) -> int:
        return self._times * len(self._images)

    def __iter__(self) -> Iterator[ObservedImage]:
        for _ in range(self._times):
            yield from self._images

    @overload
    def __getitem__(self, index: int) -> ObservedImage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ObservedImage]: ...
    def __getitem__(self, index: int | slice) -> ObservedImage | Sequence[ObservedImage]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._images[index % len(self._images)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        measure(options.run, options.times[0])
        return
    points = []
    for times in options.times:
        command = [sys.executable, __file__, options.run, "--alone", "--times", str(times)]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        print(line, flush=True)
        points.append([float(word) for word in line.split()[::2]])
    (images, _, least), (more, _, most) = points[0], points[-1]
    print(f"{1e6 * (most - least) / (more - images):.0f} bytes more per image, from {images:.0f} to {more:.0f} images")


def measure(folder: str, times: int) -> None:
    run = open_run(folder)
    images = Repeated(run.images(), times)
    begin = time.perf_counter()
    evaluate_images(
        images,
        run.label_map,
        EvaluationSettings(rule=DEFAULT_RULE, threshold_schedule=DEFAULT_SCHEDULE, clean_recall=0.6),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{len(images)} images {time.perf_counter() - begin:.1f} seconds {peak:.1f} MB")


if __name__ == "__main__":
    main()
