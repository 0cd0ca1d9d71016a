"""Certify and prune, against bitmaps and loops.

python -m benchmarks.certify
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import naive
from benchmarks.common import argument_parser, best_time, print_jobs
from objectseeker.core.boxes import Bools, Detections
from objectseeker.core.certification import ObjectProof, decide, find_safe_lines
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Halves
from objectseeker.core.rules import Rule
from objectseeker.core.threats import PATCH_LOCATIONS, Patch

WIDTH, HEIGHT, LINES = 640, 480, 30


def run(objects: int = 10_000, boxes: int = 4_000, seed: int = 0) -> list[dict[str, Any]]:
    """Return one row per job: our seconds, and the naive seconds (measured on a sample, scaled up)."""
    rngs = [np.random.default_rng(seed) for _ in range(3)]
    return [_certify(objects, rngs[0]), _prune(boxes, rngs[1]), _two_sides(boxes, rngs[2])]


def patch_threats() -> list[Patch]:
    """Return 60 patches: 5 areas x 4 aspect ratios x 3 locations."""
    return [
        Patch(area, aspect, location)
        for area in (0.001, 0.005, 0.01, 0.05, 0.2)
        for aspect in (0.25, 1.0, 2.0, 4.0)
        for location in ("far", "close", "over")
    ]


def _certify(objects: int, rng: np.random.Generator) -> dict[str, Any]:
    masks = Halves(LINES).masks(WIDTH, HEIGHT)
    corner = rng.uniform(0, 0.8, (objects, 2)) * (WIDTH, HEIGHT)
    boxes = np.concatenate([corner, corner + rng.uniform(0.02, 0.2, (objects, 2)) * (WIDTH, HEIGHT)], axis=1)
    safe = rng.random((objects, len(masks))) < rng.random((objects, 1)) ** 2  # from hardly ever to always detected
    patches = patch_threats()

    def proof_of(n: int) -> ObjectProof:
        return ObjectProof(masks, safe[n])

    def certify() -> Bools:
        lines = find_safe_lines(safe, masks)
        return decide(lines, boxes, WIDTH, HEIGHT, patches, proof_of, beyond_lines=masks.has_bands)[0]

    seconds, certified = best_time(certify)
    sample = rng.choice(objects, min(10, objects), replace=False)
    naive_seconds, slow = best_time(
        lambda: [[naive.certified(safe[n], masks, boxes[n], patch) for n in sample] for patch in patches], repeats=1
    )
    return {
        "job": f"certify {objects:,} objects x {len(patches)} threats from safe flags",
        "seconds": seconds,
        "naive_seconds": naive_seconds * objects / len(sample),
        "naive_sample": f"{len(sample)} objects",
        "equal": bool(np.array_equal(certified[:, sample], slow)),
    }


def _prune(boxes: int, rng: np.random.Generator) -> dict[str, Any]:
    observation = crowded_observation(boxes, rng)
    rule = Rule()
    seconds, output = best_time(lambda: rule.prune(observation))
    naive_seconds, slow = best_time(
        lambda: naive.prune(observation, rule.base_threshold, rule.mask_threshold, rule.filter_ioa), repeats=1
    )
    ours = sorted([*box, label] for box, label in zip(output.xyxy.tolist(), output.label.tolist(), strict=True))
    return {
        "job": f"prune {len(observation.masked) + 1} views, "
        f"{len(observation.all_masked) + len(observation.base):,} boxes",
        "seconds": seconds,
        "naive_seconds": naive_seconds,
        "naive_sample": "the whole job",
        "equal": ours == sorted(slow),
    }


def _two_sides(boxes: int, rng: np.random.Generator) -> dict[str, Any]:
    """Certify the output boxes of one image not fabricated, at four locations, with their certified scores."""
    observation, rule = crowded_observation(boxes, rng), Rule()
    output = rule.prune(observation)
    patches = [Patch(0.01, location=location) for location in PATCH_LOCATIONS]

    def certify() -> Bools:
        rule.certified_scores(observation, output, patches[-1])
        return rule.certify_not_fabricated(observation, output, patches).certified

    seconds, certified = best_time(certify)
    sample = rng.choice(len(output), min(5, len(output)), replace=False)
    naive_seconds, slow = best_time(
        lambda: [_naive_support(observation, output, n, patches) for n in sample], repeats=1
    )
    return {
        "job": f"certify {len(output)} boxes of {len(observation.masked) + 1} views not fabricated",
        "seconds": seconds,
        "naive_seconds": naive_seconds * len(output) / len(sample),
        "naive_sample": f"{len(sample)} boxes",
        "equal": bool(np.array_equal(certified[:, sample].T, slow)),
    }


def _naive_support(observation: Observation, output: Detections, n: int, patches: Sequence[Patch]) -> list[bool]:
    """Return the verdicts of one box: the IoU with every masked box, then a bitmap of positions."""
    criteria = Rule().support_criteria
    x1, y1, x2, y2 = output.xyxy[n].tolist()
    safe = np.zeros(len(observation.masks), np.bool_)
    for mask, boxes in enumerate(observation.masked):
        for (a1, b1, a2, b2), score, label in zip(boxes.xyxy.tolist(), boxes.score, boxes.label, strict=True):
            shared = max(min(x2, a2) - max(x1, a1), 0) * max(min(y2, b2) - max(y1, b1), 0)
            union = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - shared
            safe[mask] |= label == output.label[n] and score >= criteria.threshold and shared > criteria.overlap * union
    return [naive.certified(safe, observation.masks, output.xyxy[n], patch) for patch in patches]


def crowded_observation(boxes: int, rng: np.random.Generator) -> Observation:
    """Return about 30 objects, detected with jitter under every mask; the base boxes contain only half of them."""
    masks = Halves(LINES).masks(WIDTH, HEIGHT)
    count = max(boxes // (len(masks) + 1), 2)
    per_mask = np.diff(np.linspace(0, boxes - count // 2, len(masks) + 1).astype(int))
    count = max(count, int(per_mask.max()))
    corner = rng.uniform(0, 0.8, (count, 2)) * (WIDTH, HEIGHT)
    objects = np.concatenate([corner, corner + rng.uniform(0.05, 0.2, (count, 2)) * (WIDTH, HEIGHT)], axis=1)
    labels = rng.integers(0, 20, count)

    def view(size: int) -> Detections:
        chosen = rng.choice(count, size, replace=False)
        jitter = rng.normal(0, 1.5, (size, 4))
        corners = np.sort((objects[chosen] + jitter).reshape(size, 2, 2), axis=1)
        return Detections(corners.reshape(size, 4), rng.uniform(0.3, 1, size), labels[chosen])

    masked = [view(int(size)) for size in per_mask]
    return Observation(WIDTH, HEIGHT, masks, view(boxes - int(per_mask.sum())), masked)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--objects", type=int, default=10_000, help="objects to certify, default: 10,000")
    parser.add_argument("--boxes", type=int, default=4_000, help="boxes to prune, default: 4,000")
    arguments = parser.parse_args(argv)
    print_jobs(run(arguments.objects, arguments.boxes), arguments.json)


if __name__ == "__main__":
    main()
