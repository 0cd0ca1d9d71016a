"""Certificates that differ between the boxes scripts/gpu_bench.py saved, counted and explained.

    python scripts/compare_gpu_boxes.py OUT voc:VOCdevkit:val

For every pair of ways: objects certified by both, by one, by the other, against a square patch of 1 % of the image. A
difference is explained if both agree once the other way's scores are raised or lowered by up to `--slack`: some box
scored almost exactly at the threshold.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from objectseeker import Detections, Observation, Patch, Rule, halves
from objectseeker.certification import certify_with
from objectseeker.datasets import open_dataset
from objectseeker.detectors.embedded import RECOMMENDED

WHERES = ("far", "close", "over")
PAIRS = (
    ("float32-loop", "float32-fill"),
    ("float16-loop", "float16-fill"),
    ("float32-fill", "float16-fill"),
    ("float32-fill", "bfloat16-fill"),
    ("float32-crop", "float16-crop"),
    ("float32-fill", "float32-crop"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--slack", type=float, default=0.02)
    options = parser.parse_args()
    entries = {entry.path.stem: entry for entry in open_dataset(options.dataset).entries}
    seen = {
        path.stem: observations(path, entries, options.lines) for path in sorted(options.folder.glob("*float*.npz"))
    }
    for first, second in PAIRS:
        if first not in seen or second not in seen:
            continue
        images = [name for name in seen[first] if name in seen[second]]
        a, b, nearly = [], [], []
        for name in images:
            truth, counted = entries[name].truth, ~entries[name].ignore
            here, there = seen[first][name], seen[second][name]
            a.append(certified(RECOMMENDED, here, truth)[:, counted])
            b.append(certified(RECOMMENDED, there, truth)[:, counted])
            looser, tighter = (certified(scaled(1 + s), there, truth) for s in (-options.slack, options.slack))
            nearly.append((looser != tighter)[:, counted])
        one, other, close = (np.concatenate(parts, axis=1) for parts in (a, b, nearly))
        differ = one != other
        print(f"{first} and {second}: {len(images)} images, {one.shape[1]} objects")
        for where, x, y, d, n in zip(WHERES, one, other, differ, close, strict=True):
            print(
                f"  {where:6s} certified {x.sum():4d} and {y.sum():4d} ({x.mean():.1%} and {y.mean():.1%}); "
                f"{d.sum()} differ, {int((d & n).sum())} of them at a score within {options.slack:.0%} of a threshold"
            )


def scaled(factor: float) -> Rule:
    assert RECOMMENDED.low_score is not None
    return replace(RECOMMENDED, mask_score=RECOMMENDED.mask_score * factor, low_score=RECOMMENDED.low_score * factor)


def certified(rule: Rule, observation: Observation, truth: Detections) -> np.ndarray:
    return certify_with(rule, observation, truth, [Patch(0.01, 1.0, where) for where in WHERES]).certified


def observations(path: Path, entries: dict, lines: int) -> dict[str, Observation]:
    stored = dict(np.load(path))
    found = {}
    for number, name in enumerate(stored["names"].tolist()):
        if name not in entries:
            continue
        width, height = entries[name].size
        masks = halves(width, height, lines)
        mine = stored["image"] == number
        boxes = Detections(*(stored[key][mine] for key in ("xyxy", "score", "label")))
        view_of = stored["view"][mine]
        views = [boxes[view_of == view] for view in range(1 + len(masks))]
        found[name] = Observation(width, height, masks, views[0], views[1:])
    return found


if __name__ == "__main__":
    main()
