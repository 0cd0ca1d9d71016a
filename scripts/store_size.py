"""Measure the bytes per image in a run's store, in parts of one image and of 256.

    python scripts/store_size.py runs/voc
    python scripts/store_size.py runs/sum --masks halves:30 --mask-floor 0.1

A run that was stored with a lower floor or with more masks is counted as if it had been stored with these.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from objectseeker.core.recipes import parse_recipe
from objectseeker.metrics.image_set import restrict_images
from objectseeker.runs.engines import ObservationJob, boxes_to_store
from objectseeker.runs.observe import PART_SIZE
from objectseeker.runs.run import open_run
from objectseeker.runs.tables import StoredBoxes, encode_boxes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--masks", default="halves:30")
    parser.add_argument("--mask-floor", type=float, default=0.1)
    options = parser.parse_args()
    run = open_run(options.run)
    settings = run.manifest.observation_settings
    if options.mask_floor < settings.mask_floor:
        parser.error(f"{options.run} holds masked boxes from {settings.mask_floor} on only")
    job = ObservationJob(replace(settings, mask_floor=options.mask_floor), run.manifest.detector_names)
    hashes = {index: file for number in run.files for index, file in run.hashes(number).items()}
    found = []
    for index, image in zip(sorted(hashes), restrict_images(run.images(), parse_recipe(options.masks)), strict=True):
        seen = image.observation
        found.append(boxes_to_store(job, index, [seen.base, *seen.masked], seen.masks, hashes[index]))
    for size in (1, PART_SIZE):
        parts = [StoredBoxes.join(found[start : start + size]) for start in range(0, len(found), size)]
        stored = sum(len(encode_boxes(part)) for part in parts)
        print(
            f"in parts of {size}: {stored / len(found):,.0f} bytes per image ({len(found)} images, {len(parts)} parts)"
        )


if __name__ == "__main__":
    main()
