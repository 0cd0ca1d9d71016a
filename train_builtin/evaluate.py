"""Measure the AP50 of a detector on held-out images, with the package's network code and matching.

python -m train_builtin.evaluate onnx:seeker.onnx --pack held.npz held.bin
python -m train_builtin.evaluate builtin --data yolo:val2017 --layout decoded,fit=max-area,every_class=yes,nms=0.55
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Detections, Floats
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import keep
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.detectors import LoadedDetector, load_detector
from objectseeker.metrics.average_precision import coco_ap50
from objectseeker.metrics.image_set import ImageSet
from train_builtin.folders import read_folder
from train_builtin.packs import CROWD, NORMAL, Pack, Pixels, decode, read_pack

LARGEST = 640  # pixels of an image's longer side: larger ones are shrunk to it as they are read
LAYOUT = "decoded,every_class=yes"  # each class of a box that reaches the floor counts, as usual for AP


def main() -> None:
    arguments = parse()
    detector = load_detector(
        arguments.detector, layout=arguments.layout, input_size=arguments.size, device=arguments.device
    )
    processes = os.cpu_count() or 1
    if arguments.pack:
        pack = read_pack(arguments.pack[0], arguments.pack[1:], limit=arguments.limit)
    else:
        pack, _ = read_folder(
            arguments.data, longest_side=LARGEST, processes=processes, classes=detector.names, limit=arguments.limit
        )
    pixels = decode(pack, processes=processes)
    precisions = average_precisions(detector, pack, pixels)
    for name, value in zip(detector.names, precisions, strict=True):
        print(f"{name:12} {value:5.1f}")
    print(f"AP50 {np.nanmean(precisions):.2f} on {len(pack)} images")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detector", nargs="?", default="builtin", help="a SPEC: builtin, or onnx:FILE of an export")
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--pack", type=Path, nargs="+", help="index, then its parts in order")
    images.add_argument("--data", metavar="DATASET", help="a dataset in folders, as voc:VOCDIR:SPLIT")
    parser.add_argument("--layout", default=LAYOUT, help=f"how images are prepared for the network (default: {LAYOUT})")
    parser.add_argument("--size", type=int, default=416, help="side of the network's input")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="maximum number of images")
    return parser.parse_args()


def average_precisions(detector: LoadedDetector, pack: Pack, pixels: Pixels) -> Floats:
    """Return COCO's AP50 of each class in percent; NaN for a class without objects."""
    boxes = detector([pixels.image(number) for number in range(len(pack))])
    images = [observed(*entry) for entry in zip(pack.names, boxes, pixels.sizes, pack.boxes, strict=True)]
    return coco_ap50(ImageSet.from_images(images, LabelMap.from_names(detector.names)))


def observed(name: str, boxes: Detections, size: npt.NDArray[np.int64], rows: npt.NDArray[np.float32]) -> ObservedImage:
    """Return a pack's image with its unmasked detections."""
    width, height = size.tolist()
    ground_truth = Detections(rows[:, 1:5], np.ones(len(rows)), rows[:, 0])
    observation = Observation(width, height, keep(width, height, []), boxes, ())
    return ObservedImage(name, Path(name), observation, ground_truth, rows[:, 5] != NORMAL, rows[:, 5] == CROWD)


if __name__ == "__main__":
    main()
