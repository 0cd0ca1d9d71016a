"""Label a pack's images with a trained network (pseudo-labels), to train on unlabeled images.

python -m train_builtin.label runs/builtin/weights.pt --pack photos.npz photos.bin --out labeled.npz --device cuda

The network sees every image and its mirror image; boxes of either are suppressed together. Those that score at least
`--sure` become objects; those between `--doubtful` and that are kept as doubtful, which training takes neither for an
object nor for background. What is written is an index for the same parts; boxes that the pack had are not in it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from objectseeker.detectors.gpu import BoxesAndScores, DeviceViews, finish_suppression, unpack
from objectseeker.detectors.network.layouts import parse_layout
from objectseeker.detectors.network.raw_boxes import has_area
from train_builtin.augmentation import HALF_SIZE_BELOW, TILES, Bank, sample_pixels
from train_builtin.packs import DOUBTFUL, NORMAL, decode, halve, read_pack, write_relabeled
from train_builtin.trainer import load_trained

NMS = 0.5  # lower than of one answer: two answers to one object differ more
LAYOUT = f"decoded,every_class=yes,nms={NMS}"  # who wavers between two classes doubts both

Rows = npt.NDArray[np.float32]
Predict = Callable[[Tensor], tuple[Tensor, Tensor]]  # images N,3,H,W -> boxes N,A,4 and scores N,A,classes


def main() -> None:
    options = parse()
    if not 0 < options.doubtful <= options.sure <= 1:
        raise SystemExit(f"scores must be 0 < --doubtful <= --sure <= 1: got {options.doubtful} and {options.sure}")
    begin = time.monotonic()
    index, *parts = options.pack
    pack = read_pack(index, parts)
    predictor, names = load_trained(options.teacher)
    full = decode(pack, processes=options.processes)
    bank = Bank(pack, full, halve(full, processes=options.processes), torch.device(options.device))
    print(f"{len(pack)} images decoded after {time.monotonic() - begin:.0f} s", flush=True)
    predictor.to(bank.device, memory_format=torch.channels_last)
    every = answers(predictor, bank, size=options.size, batch=options.batch, floor=options.doubtful)
    boxes = [rows_of(*answer, size, sure=options.sure) for answer, size in zip(every, pack.sizes, strict=True)]
    write_relabeled(index, boxes, options.out)
    flags = np.concatenate(boxes)[:, 5]
    print(
        f"{options.out}: {(flags == NORMAL).sum()} objects of {len(names)} classes and {(flags == DOUBTFUL).sum()} "
        f"doubtful boxes in {len(pack)} images, after {time.monotonic() - begin:.0f} s"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="weights.pt of a training run")
    parser.add_argument("--pack", type=Path, nargs="+", required=True, help="index, then its parts in order")
    parser.add_argument("--out", type=Path, required=True, help="the index (.npz) to write")
    parser.add_argument(
        "--sure", type=float, default=0.5, metavar="SCORE", help="minimum score of an object (default: 0.5)"
    )
    parser.add_argument(
        "--doubtful", type=float, default=0.1, metavar="SCORE", help="minimum score of a doubtful box (default: 0.1)"
    )
    parser.add_argument("--size", type=int, default=416, help="side of the network's input")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes for decoding")
    return parser.parse_args()


def answers(predict: Predict, bank: Bank, *, size: int, batch: int, floor: float) -> Iterator[tuple[Rows, float]]:
    """Return each image's remaining boxes (x1, y1, x2, y2, score, label), and the scale of the image."""
    device, layout = bank.device, parse_layout(LAYOUT)
    network = BoxesAndScores(partial(both_ways, predict), None)
    views = DeviceViews(
        network=network, layout=layout, device=device, dtype=torch.float32, batch_size=batch, floor=floor
    )
    for first in range(0, len(bank.epoch), batch):
        with torch.inference_mode():
            images, scale = letterboxed(bank, bank.epoch[first : first + batch], size)
            whole = torch.ones(len(images), dtype=torch.long, device=device)
            rows, valid = views.decode_top_k((size, size), *network.final_stage(images), whole)
            packed = views.suppress_and_pack(rows, valid, torch.arange(len(images), device=device)).cpu().numpy()
        for kept, factor in zip(finish_suppression(*unpack(packed, len(images)), NMS), scale.tolist(), strict=True):
            yield kept[kept[:, 4] >= floor], factor


def both_ways(predict: Predict, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs for images and for their mirror images, concatenated."""
    boxes, scores = predict(images)
    mirrored, other_scores = predict(images.flip(3))
    x1, y1, x2, y2 = mirrored.unbind(-1)
    width = images.shape[3]
    back = torch.stack([width - x2, y1, width - x1, y2], -1)
    return torch.cat([boxes, back], 1), torch.cat([scores, other_scores], 1)


def letterboxed(bank: Bank, chosen: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return a bank's images, top left on gray squares as network input, and their scales."""
    width, height = bank.widths[0][chosen], bank.heights[0][chosen]
    scale = size / torch.maximum(width, height).float()
    level = (scale < HALF_SIZE_BELOW).long()
    source = torch.stack([bank.starts[level, chosen], bank.widths[level, chosen], bank.heights[level, chosen]], -1)
    zero = torch.zeros_like(scale)
    lookup = torch.stack([source[:, 1] / width / scale, zero, source[:, 2] / height / scale, zero], -1)
    as_it_is = torch.eye(3, 4, device=bank.device).expand(len(chosen), 3, 4)
    lookup, source = (part[:, None].repeat(1, TILES, 1) for part in (lookup, source))  # the last tile is all there is
    pixels = sample_pixels(bank.pixels, lookup, source, torch.stack([zero, zero], -1), as_it_is, size)
    return pixels.contiguous(memory_format=torch.channels_last) * 255, scale


def rows_of(output: Rows, scale: float, size: npt.NDArray[np.int64], *, sure: float) -> Rows:
    """Convert an output to rows of a pack."""
    xyxy = np.clip(output[:, :4] / scale, 0, np.tile(size, 2))
    rows = np.column_stack([output[:, 5], xyxy, np.where(output[:, 4] >= sure, NORMAL, DOUBTFUL)])
    return rows[has_area(xyxy)].astype(np.float32)


if __name__ == "__main__":
    main()
