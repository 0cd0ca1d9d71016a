"""`objectseeker bench observe`: a dataset from files to a finished run, against its views alone.

Detecting alone has the images in memory and throws the boxes away: what is left of its rate is what reading and storing
leave. Both look at the same images, one after the other, with the same detector, which has seen each of their sizes.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from objectseeker.core.masks import Image, Masks
from objectseeker.core.seeker import detect_all_views
from objectseeker.datasets import Dataset
from objectseeker.defense import BATCH
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.observe import observe


def run(
    dataset: Dataset, detector: LoadedDetector, observing: ObservationSettings, *, images: int = 200
) -> dict[str, Any]:
    """Milliseconds an image of either way, and how long new sizes took when they were first seen."""
    pictures = [entry.load() for entry in islice(dataset.entries, images)]
    if not pictures:
        raise ObjectSeekerError(f"{dataset.spec} has no images: nothing to measure")
    first = _seconds(detector, pictures, observing)
    again = _seconds(detector, pictures, observing)
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        observe(dataset, detector, Path(folder) / "run", observing, limit=len(pictures))
        observed = time.perf_counter() - begin
    count, detected = len(pictures), sum(again)
    return {
        "images": count,
        "sizes": len({picture.shape for picture in pictures}),
        "views": len(observing.masks.masks(*pictures[0].shape[1::-1])) + 1,
        "detector": detector.fingerprint,
        "first_image_seconds": first[0],
        "longest_stall_seconds": max(first),
        "seconds_for_new_sizes": sum(first) - detected,
        "detect_ms": 1000 * detected / count,
        "observe_ms": 1000 * observed / count,
        "of_the_rate": detected / observed,
    }


def _seconds(detector: LoadedDetector, pictures: list[Image], observing: ObservationSettings) -> list[float]:
    """Of each image, in a row: from one image's boxes to those of the next."""

    def given() -> Any:
        for picture in pictures:
            masks: Masks = observing.masks.masks(picture.shape[1], picture.shape[0])
            yield picture, masks

    took, begin = [], time.perf_counter()
    for _ in detect_all_views(detector, given(), value=observing.fill, batch=observing.batch or BATCH):
        took.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return took
