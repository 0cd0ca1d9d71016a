"""Compare the COCO AP50 of a run's undefended detector with pycocotools.

    python scripts/compare_with_pycocotools.py RUN ANNOTATIONS.json

RUN must have been observed on the COCO annotations given. Exits 1 if any class differs by more than 1e-6.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from objectseeker.metrics import ImageSet
from objectseeker.metrics.average_precision import coco_ap50
from objectseeker.runs.run import open_run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("annotations", type=Path)
    options = parser.parse_args()
    run = open_run(options.run)
    scene = ImageSet.from_images(run.images(), run.label_map)
    ours, boxes = coco_ap50(scene), scene.base.detections  # in the dataset's labels
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(options.annotations))
        category = {entry["name"]: entry["id"] for entry in truth.dataset["categories"]}
        results = [
            {
                "image_id": int(scene.images[image].id),
                "category_id": category[scene.names[label]],
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "score": score,
            }
            for image, box, score, label in zip(
                scene.base.image.tolist(), boxes.xyxy.tolist(), boxes.score.tolist(), boxes.label.tolist(), strict=True
            )
        ]
        judge = COCOeval(truth, truth.loadRes(results), "bbox")
        judge.params.imgIds = [int(image.id) for image in scene.images]
        judge.params.catIds = [category[name] for name in scene.names]
        judge.params.iouThrs = np.array([0.5])
        judge.evaluate()
        judge.accumulate()
    precision = judge.eval["precision"][0, :, :, 0, -1]  # recall, class, all sizes, 100 boxes
    theirs = np.where(precision.max(axis=0) < 0, np.nan, 100 * precision.mean(axis=0))
    counted = scene.objects_per_class > 0
    worst = float(np.abs(ours - theirs)[counted].max())
    print(f"{len(scene.images)} images, {int(counted.sum())} classes with objects")
    print(f"AP50 ours {ours[counted].mean():.9f}, pycocotools {theirs[counted].mean():.9f}")
    print(f"largest difference in a class {worst:.2e}")
    return 1 if worst > 1e-6 else 0


if __name__ == "__main__":
    sys.exit(main())
