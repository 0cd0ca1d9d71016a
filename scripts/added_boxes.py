"""Count how many boxes a defense adds to clean images, and how many of them are right.

    python scripts/added_boxes.py runs/sum --defense builtin

The masks of the defense must be among those of the run, and the detector's classes those of the dataset.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from objectseeker import Defense
from objectseeker.core.boxes import Detections, ioa, iou
from objectseeker.metrics.image_set import restrict_images
from objectseeker.runs.run import open_run

FITS = 0.5  # IoU of a true positive, and share of a box that overlaps an object


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--defense", type=Defense.load, default="builtin", help="a file, builtin or builtin-fast")
    options = parser.parse_args()
    rule, run = options.defense.rule, open_run(options.run)
    kinds: Counter[str] = Counter()
    for image in restrict_images(run.images(), options.defense.masks):
        base = image.observation.base
        own = int((base.score >= rule.base_threshold).sum())
        output = rule.prune(image.observation)
        added = output[np.arange(own, len(output))]  # the detector's own come first
        kinds.update(kind(added[[number]], image.ground_truth) for number in range(len(added)))
    total = sum(kinds.values())
    print(f"{total} boxes added to {len(run.images())} images")
    for name, count in kinds.most_common():
        print(f"{100 * count / total:5.1f} % {name}")


def kind(box: Detections, truth: Detections) -> str:
    overlap, within = iou(box.xyxy, truth.xyxy)[0], ioa(box.xyxy, truth.xyxy)[0]
    own_class = truth.label == box.label[0]
    if (own_class & (overlap >= FITS)).any():
        return "an object"
    if (own_class & (within >= FITS)).any():
        return "part of an object"
    if (within >= FITS).any():
        return "on an object of another class"
    return "elsewhere"


if __name__ == "__main__":
    main()
