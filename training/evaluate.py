"""AP50 of an exported detector on a held-out pack.

python -m training.evaluate seeker.onnx --pack held.npz held.bin
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from objectseeker.detectors.embedded import ONNX_FILE
from objectseeker.detectors.embedded.model import CLASSES, Predictor
from objectseeker.detectors.embedded.weights import load_torch
from training.packs import NORMAL, Pack, Pixels, decode, read_pack

Rows = npt.NDArray[np.float32]  # detections: x1, y1, x2, y2, score, label
GREY = 114
SCORE_FLOOR = 0.01
NMS_IOU = 0.65


def main() -> None:
    arguments = parse()
    pack = read_pack(arguments.pack[0], arguments.pack[1:], limit=arguments.limit)
    pixels = decode(pack, processes=os.cpu_count() or 1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    predictor = load_torch(arguments.detector).to(device)
    precisions = average_precisions(predictor, pack, pixels, size=arguments.size, device=device)
    for name, value in zip(CLASSES, precisions, strict=False):
        print(f"{name:12} {100 * value:5.1f}")
    print(f"AP50 {100 * np.nanmean(precisions):.2f} on {len(pack)} images")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detector", type=Path, nargs="?", default=ONNX_FILE, help="an ONNX file of training.export")
    parser.add_argument("--pack", type=Path, nargs="+", required=True, help="index, then its parts in order")
    parser.add_argument("--size", type=int, default=416, help="side of the network's input")
    parser.add_argument("--limit", type=int, help="only this many images")
    return parser.parse_args()


def average_precisions(
    predictor: Predictor, pack: Pack, pixels: Pixels, *, size: int, device: torch.device
) -> npt.NDArray[np.float64]:
    """AP50 of each class; NaN for a class of which no object is there."""
    classes = predictor.detector.class_heads[0][-1].out_channels
    detections = list(detect(predictor, pixels, size=size, device=device))
    return np.array([class_precision(detections, pack.boxes, label) for label in range(classes)])


@torch.inference_mode()
def detect(predictor: Predictor, pixels: Pixels, *, size: int, device: torch.device, batch: int = 32) -> Iterator[Rows]:
    """The detections on each image, after non-maximum suppression."""
    count = len(pixels.sizes)
    for start in range(0, count, batch):
        images = [letterbox(pixels.image(k), size) for k in range(start, min(count, start + batch))]
        inputs = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2).float()
        boxes, scores = predictor(inputs)
        for own, of_class in zip(boxes, scores, strict=True):
            anchor, label = (of_class > SCORE_FLOOR).nonzero(as_tuple=True)
            score = of_class[anchor, label]
            yield suppress(torch.cat([own[anchor], score[:, None], label[:, None].float()], 1).cpu().numpy())


def letterbox(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The image in the top left corner of a grey square."""
    canvas = np.full((size, size, 3), GREY, np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    return canvas


def suppress(rows: Rows) -> Rows:
    """Class by class, the boxes that no better box overlaps too much, best first."""
    rows = rows[np.argsort(-rows[:, 4], kind="stable")]
    alive = np.ones(len(rows), bool)
    for k in range(len(rows)):
        if alive[k]:
            rest = rows[k + 1 :]
            alive[k + 1 :] &= (rest[:, 5] != rows[k, 5]) | (overlap(rows[k], rest) <= NMS_IOU)
    return rows[alive]


def overlap(box: npt.NDArray[np.float32], boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """IoU of one box with each of several."""
    sides = np.minimum(box[2:4], boxes[:, 2:4]) - np.maximum(box[:2], boxes[:, :2])
    shared = sides.clip(0).prod(1)
    union = (box[2:4] - box[:2]).prod() + (boxes[:, 2:4] - boxes[:, :2]).prod(1) - shared
    return np.asarray(shared / (union + 1e-9))


def class_precision(detections: Sequence[Rows], truths: Sequence[npt.NDArray[np.float32]], label: int) -> float:
    """Area under the precision envelope. Difficult and crowd objects are neither wanted nor wrong."""
    wanted = sum(int(((truth[:, 0] == label) & (truth[:, 5] == NORMAL)).sum()) for truth in truths)
    if wanted == 0:
        return float("nan")
    outcomes = [
        outcome
        for rows, truth in zip(detections, truths, strict=True)
        for outcome in match(rows[rows[:, 5] == label], truth[truth[:, 0] == label])
    ]
    if not outcomes:
        return 0.0
    scores, correct = np.array(outcomes).T
    found = np.cumsum(correct[np.argsort(-scores, kind="stable")])
    precision = found / np.arange(1, len(found) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(found / wanted, prepend=0) * envelope).sum())


def match(rows: Rows, truth: npt.NDArray[np.float32]) -> Iterator[tuple[float, bool]]:
    """Score and correctness of one image's detections of one class, best first."""
    used = np.zeros(len(truth), bool)
    for row in rows:
        iou = overlap(row, truth[:, 1:5])
        best = int(iou.argmax()) if len(truth) else -1
        if best < 0 or iou[best] < 0.5:
            yield float(row[4]), False
        elif truth[best, 5] == NORMAL:
            yield float(row[4]), not used[best]
            used[best] = True


if __name__ == "__main__":
    main()
