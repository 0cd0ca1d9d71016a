"""Compare the boxes that gpu_bench.py saved: how far they move, and which certificates differ.

    python scripts/compare_gpu_boxes.py OUT voc:VOCdevkit:val

For every pair of ways: how far boxes from a score of 0.1 on lie from their partners, the boxes of the same view and
label with the best overlap of at least 0.5; and the objects certified by both, by one, by the other, against a square
patch of 1 % of the image. A difference is explained if both agree once the other way's scores are raised or lowered by
up to `--slack`: some box scored almost exactly at the threshold.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from objectseeker import Detections, Halves, Observation, Patch, Rule
from objectseeker.core.boxes import iou
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.datasets import open_dataset
from objectseeker.datasets.dataset import DatasetImage
from objectseeker.defense import BUILTIN_RULE

PATCHES = {where: Patch(0.01, 1.0, where) for where in PATCH_LOCATIONS if where != "anywhere"}
PAIRS = (
    ("float32-loop", "float32-fill"),
    ("float16-loop", "float16-fill"),
    ("float16-fill-alone", "float16-fill"),
    ("float32-fill", "float16-fill-alone"),
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
    entries = {Path(str(entry.path)).stem: entry for entry in open_dataset(options.dataset).images}
    seen = {
        path.stem: observations(path, entries, options.lines) for path in sorted(options.folder.glob("*float*.npz"))
    }
    for first, second in PAIRS:
        if first not in seen or second not in seen:
            continue
        images = [name for name in seen[first] if name in seen[second]]
        a, b, nearly = [], [], []
        for name in images:
            truth, counted = entries[name].ground_truth, ~entries[name].ignore
            here, there = seen[first][name], seen[second][name]
            a.append(certified(BUILTIN_RULE, here, truth)[:, counted])
            b.append(certified(BUILTIN_RULE, there, truth)[:, counted])
            looser, tighter = (certified(scaled(1 + s), there, truth) for s in (-options.slack, options.slack))
            nearly.append((looser != tighter)[:, counted])
        one, other, close = (np.concatenate(parts, axis=1) for parts in (a, b, nearly))
        differ = one != other
        print(f"{first} and {second}: {len(images)} images, {one.shape[1]} objects")
        print(movement([(seen[first][name], seen[second][name]) for name in images]))
        for where, x, y, d, n in zip(PATCHES, one, other, differ, close, strict=True):
            print(
                f"  {where:6s} certified {x.sum():4d} and {y.sum():4d} ({x.mean():.1%} and {y.mean():.1%}); "
                f"{d.sum()} differ, {int((d & n).sum())} of them at a score within {options.slack:.0%} of a threshold"
            )


def movement(pairs: list[tuple[Observation, Observation]], strong: float = 0.1) -> str:
    """How far the boxes of the second of each two are from those of the first, in one line."""
    pixels, scores, overlaps, alone = [], [], [], 0
    for here, there in pairs:
        for mine, other in zip([here.base, *here.masked], [there.base, *there.masked], strict=True):
            mine = mine[mine.score >= strong]
            overlap = np.where(mine.label[:, None] == other.label, iou(mine.xyxy, other.xyxy), 0.0)
            if not len(other):
                alone += len(mine)
                continue
            partner = overlap.argmax(axis=1)
            found = overlap.max(axis=1) >= 0.5
            alone += int((~found).sum())
            pixels.append(np.abs(mine.xyxy - other.xyxy[partner]).max(axis=1)[found])
            scores.append(np.abs(mine.score - other.score[partner])[found])
            overlaps.append(overlap.max(axis=1)[found])
    moved, changed, overlap = (np.concatenate(parts) for parts in (pixels, scores, overlaps))
    far = moved > 1
    middle, most, furthest = np.quantile(moved, [0.5, 0.99, 1])
    return (
        f"  {len(moved)} boxes move by {middle:.3f} / {most:.3f} / {furthest:.2f} pixels (median, 99 %, most), "
        f"scores by at most {changed.max():.4f}; {far.sum()} move by more than a pixel, of which "
        f"{(overlap[far] > 0.65).sum()} overlap by more than 0.65 still; {alone} have no partner"
    )


def scaled(factor: float) -> Rule:
    rule = BUILTIN_RULE
    assert rule.evidence_threshold is not None
    return replace(
        rule, mask_threshold=rule.mask_threshold * factor, evidence_threshold=rule.evidence_threshold * factor
    )


def certified(rule: Rule, observation: Observation, truth: Detections) -> np.ndarray:
    return rule.certify(observation, truth, list(PATCHES.values())).certified


def observations(path: Path, entries: dict[str, DatasetImage], lines: int) -> dict[str, Observation]:
    stored = dict(np.load(path))
    found = {}
    for number, name in enumerate(stored["names"].tolist()):
        if name not in entries:
            continue
        size = entries[name].size
        assert size is not None  # annotated datasets know it
        width, height = size
        masks = Halves(lines).masks(width, height)
        mine = stored["image"] == number
        boxes = Detections(*(stored[key][mine] for key in ("xyxy", "score", "label")))
        view_of = stored["view"][mine]
        views = [boxes[view_of == view] for view in range(1 + len(masks))]
        found[name] = Observation(width, height, masks, views[0], views[1:])
    return found


if __name__ == "__main__":
    main()
