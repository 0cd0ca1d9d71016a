"""Development check: real detectors on real images.

    python scripts/check_shared_detectors.py WEIGHTS_DIR IMAGE_DIR [--count N] [--lines K] [--draw DIR]

Runs the built-in detector and every ONNX file of WEIGHTS_DIR on a few images of IMAGE_DIR. Prints the confident boxes,
compares masks drawn on the network input with masks drawn on raw pixels, times a view, and checks that nothing
drawn under a mask changes a box. Where IMAGE_DIR is the JPEGImages of a VOCdevkit, counts the objects found as well.
"""

from __future__ import annotations

import argparse
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw

from objectseeker.core.boxes import Detections, iou
from objectseeker.core.masks import fill_rectangles
from objectseeker.core.recipes import Halves, Recipe
from objectseeker.detectors import load_detector
from objectseeker.detectors.network.class_names import COCO_80, VOC_20

CONFIDENT = 0.4
VOC_IN_COCO = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--lines", type=int, default=4)
    parser.add_argument("--draw", type=Path, help="write the images with their boxes to this folder")
    arguments = parser.parse_args()

    files = sorted(arguments.images.glob("*.jpg"))
    files = files[:: max(1, len(files) // arguments.count)][: arguments.count]
    images = {file: np.asarray(PIL.Image.open(file).convert("RGB")) for file in files}
    for spec in ["builtin", *(f"onnx:{file}" for file in sorted(arguments.weights.glob("*.onnx")))]:
        detector = load_detector(spec)
        print(f"\n{detector.fingerprint}")
        found = dict(zip(images, detector(list(images.values())), strict=True))
        report_boxes(detector.names, found)
        report_truth(detector.names, found)
        report_masks(detector, list(images.values())[:2], Halves(arguments.lines))
        if arguments.draw:
            arguments.draw.mkdir(parents=True, exist_ok=True)
            for file, image in images.items():
                name = f"{file.stem}-{spec.rpartition('/')[2]}.png"
                draw(image, found[file].at_least(CONFIDENT), detector.names).save(arguments.draw / name)


def report_boxes(names: tuple[str, ...], found: dict[Path, Detections]) -> None:
    for file, boxes in list(found.items())[:4]:
        confident = boxes.at_least(CONFIDENT)
        listed = ", ".join(
            f"{names[label]} {score:.2f} {xyxy.round().astype(int).tolist()}"
            for xyxy, score, label in zip(confident.xyxy, confident.score, confident.label, strict=True)
        )
        print(f"  {file.name}: {listed or 'nothing'}")


def report_truth(names: tuple[str, ...], found: dict[Path, Detections]) -> None:
    hits = objects = wrong = 0
    for file, boxes in found.items():
        annotation = file.parent.parent / "Annotations" / f"{file.stem}.xml"
        if not annotation.is_file():
            return
        boxes = boxes.at_least(CONFIDENT)
        truth = read_voc(annotation, names)
        same = truth.label[:, None] == boxes.label[None]
        match = same & (iou(truth.xyxy, boxes.xyxy) >= 0.5)
        easy = truth.score > 0
        hits, objects = hits + int(match.any(axis=1)[easy].sum()), objects + int(easy.sum())
        known = np.isin(boxes.label, [names.index(name) for name in (alias(voc, names) for voc in VOC_20)])
        wrong += int((~match.any(axis=0) & known).sum())
    print(f"  found {hits} of {objects} objects (not difficult) at score {CONFIDENT}; {wrong} boxes match no object")


def alias(name: str, names: tuple[str, ...]) -> str:
    return VOC_IN_COCO.get(name, name) if names == COCO_80 else name


def read_voc(annotation: Path, names: tuple[str, ...]) -> Detections:
    """The objects of one image; those marked difficult get score 0."""
    rows, score, label = [], [], []
    for entry in ElementTree.parse(annotation).getroot().iter("object"):
        rows.append([float(entry.findtext(f"bndbox/{key}", "")) for key in ("xmin", "ymin", "xmax", "ymax")])
        score.append(1.0 - float(entry.findtext("difficult", "0")))
        label.append(names.index(alias(entry.findtext("name", ""), names)))
    return Detections(np.array(rows).reshape(-1, 4), score, label)


def report_masks(detector: Any, images: list[np.ndarray], masks: Recipe) -> None:
    for image in images:
        height, width = image.shape[:2]
        removed = masks.masks(width, height).removed
        begin = time.perf_counter()
        network = detector.detect_views(image, removed, 114)
        seconds = (time.perf_counter() - begin) / len(removed)
        raw = detector([fill_rectangles(image, mask, 114) for mask in removed])
        both = [(a.at_least(CONFIDENT), b.at_least(CONFIDENT)) for a, b in zip(network, raw, strict=True)]
        matched = sum(int((iou(a.xyxy, b.xyxy) > 0.8).any(axis=1).sum()) for a, b in both if len(a) and len(b))
        print(
            f"  {width}x{height}, {len(removed)} masks: {sum(len(a) for a, _ in both)} confident boxes with network "
            f"masks, {sum(len(b) for _, b in both)} with raw masks, {matched} matched; {1000 * seconds:.0f} ms a view"
        )
        rng = np.random.default_rng(0)
        for number in range(0, len(removed), 5):
            x1, y1, x2, y2 = removed[number]
            attacked = image.copy()
            attacked[y1:y2, x1:x2] = rng.integers(0, 256, (y2 - y1, x2 - x1, 3))
            if detector.detect_views(attacked, removed, 114)[number] != network[number]:
                raise SystemExit(f"LEAK: mask {removed[number].tolist()} lets through what is drawn under it")
    print("  nothing drawn under a mask changed a box")


def draw(image: np.ndarray, boxes: Detections, names: tuple[str, ...]) -> PIL.Image.Image:
    picture = PIL.Image.fromarray(image)
    pen = PIL.ImageDraw.Draw(picture)
    for xyxy, score, label in zip(boxes.xyxy, boxes.score, boxes.label, strict=True):
        pen.rectangle(xyxy.tolist(), outline=(255, 40, 40), width=2)
        pen.text((xyxy[0] + 3, xyxy[1] + 2), f"{names[label]} {score:.2f}", fill=(255, 255, 0))
    return picture


if __name__ == "__main__":
    main()
