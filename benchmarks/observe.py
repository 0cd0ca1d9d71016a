"""Observe a dataset from files to a finished run, against its views alone.

    python -m benchmarks.observe voc:VOCdevkit:val --device cuda --precision float16

Detection alone keeps the images in memory and discards the boxes: the ratio of the two rates is what reading and
storing leave. Both process the same images sequentially, with the same detector, which has seen each of their sizes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import add_defense_arguments, argument_parser, defense_of
from objectseeker import ObjectSeekerError
from objectseeker.core.masks import Image, Masks
from objectseeker.core.seeker import detect_all_views
from objectseeker.datasets import Dataset, open_dataset
from objectseeker.defense import BATCH
from objectseeker.detectors import LoadedDetector, load_detector
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.observe import observe


def run(
    dataset: Dataset, detector: LoadedDetector, settings: ObservationSettings, *, images: int = 200
) -> dict[str, Any]:
    """Return milliseconds per image of both, and the time that new image sizes took."""
    loaded = [image.load() for image in islice(dataset.images, images)]
    if not loaded:
        raise ObjectSeekerError(f"no images to measure: got {dataset.spec}. Name a dataset with images.")
    first = _seconds(detector, loaded, settings)
    warm = _seconds(detector, loaded, settings)
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        observe(
            dataset,
            detector,
            out=Path(folder) / "run",
            masks=settings.masks,
            fill=settings.fill,
            batch_size=settings.batch_size,
            limit=len(loaded),
        )
        observed = time.perf_counter() - begin
    count, detected = len(loaded), sum(warm)
    return {
        "images": count,
        "sizes": len({image.shape for image in loaded}),
        "views": len(settings.masks.masks(*loaded[0].shape[1::-1])) + 1,
        "detector": detector.fingerprint,
        "first_image_seconds": first[0],
        "longest_stall_seconds": max(first),
        "seconds_for_new_sizes": sum(first) - detected,
        "detect_ms": 1000 * detected / count,
        "observe_ms": 1000 * observed / count,
        "rate_ratio": detected / observed,
    }


def _seconds(detector: LoadedDetector, images: Sequence[Image], settings: ObservationSettings) -> list[float]:
    """Return the time from each image's boxes to those of the next."""

    def with_masks() -> Iterator[tuple[Image, Masks]]:
        for image in images:
            yield image, settings.masks.masks(image.shape[1], image.shape[0])

    seconds, begin = [], time.perf_counter()
    for _ in detect_all_views(detector, with_masks(), value=settings.fill, batch_size=settings.batch_size or BATCH):
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return seconds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("dataset", metavar="DATASET", help="images to observe, as `objectseeker observe` takes them")
    add_defense_arguments(parser)
    parser.add_argument("--images", type=int, default=200, help="maximum number of images, default: 200")
    arguments = parser.parse_args(argv)
    defense = defense_of(arguments)
    detector = load_detector(defense.detector, device=arguments.device, **defense.options)
    settings = ObservationSettings.from_defense(defense)
    result = run(open_dataset(arguments.dataset), detector, settings, images=arguments.images)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['images']} images of {result['sizes']} sizes, {result['views']} views each")
    print(
        f"first image after {result['first_image_seconds']:.1f} s, at most {result['longest_stall_seconds']:.1f} s per "
        f"image; all new sizes together {result['seconds_for_new_sizes']:.1f} s"
    )
    print(
        f"views alone {result['detect_ms']:.1f} ms per image, observed {result['observe_ms']:.1f} ms: "
        f"{result['rate_ratio']:.2f} of the rate"
    )


if __name__ == "__main__":
    main()
