"""`objectseeker bench core`: certifying and pruning, against bitmaps and loops."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from objectseeker.bench import naive
from objectseeker.core.boxes import Bools, Detections
from objectseeker.core.certification import ObjectProof, decide, find_safe_lines
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import halves
from objectseeker.core.rule import Rule
from objectseeker.core.threats import Patch

WIDTH, HEIGHT, LINES = 640, 480, 30


def run(objects: int = 10_000, boxes: int = 4_000, seed: int = 0) -> list[dict[str, Any]]:
    """One row per job: what was done, our seconds, the naive seconds (on a sample, scaled up) and their ratio."""
    return [_certify(objects, np.random.default_rng(seed)), _prune(boxes, np.random.default_rng(seed))]


def threats() -> list[Patch]:
    """60 threats: 5 areas x 4 aspects x 3 wheres."""
    return [
        Patch(area, aspect, where)
        for area in (0.001, 0.005, 0.01, 0.05, 0.2)
        for aspect in (0.25, 1.0, 2.0, 4.0)
        for where in ("far", "close", "over")
    ]


def _certify(objects: int, rng: np.random.Generator) -> dict[str, Any]:
    masks = halves(WIDTH, HEIGHT, LINES)
    corner = rng.uniform(0, 0.8, (objects, 2)) * (WIDTH, HEIGHT)
    truth = np.concatenate([corner, corner + rng.uniform(0.02, 0.2, (objects, 2)) * (WIDTH, HEIGHT)], axis=1)
    safe = rng.random((objects, len(masks))) < rng.random((objects, 1)) ** 2  # from hardly seen to always seen
    patches = threats()

    def proof_of(n: int) -> ObjectProof:
        return ObjectProof(masks, safe[n])

    def certify() -> Bools:
        lines = find_safe_lines(safe, masks)
        return decide(lines, truth, WIDTH, HEIGHT, patches, proof_of, beyond_lines=not masks.only_halves)[0]

    seconds, certified = _time(certify)
    sample = rng.choice(objects, min(10, objects), replace=False)
    naive_seconds, slow = _time(
        lambda: [[naive.certified(safe[n], masks, truth[n], patch) for n in sample] for patch in patches], repeats=1
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
    seconds, output = _time(lambda: rule.prune(observation))
    naive_seconds, slow = _time(
        lambda: naive.prune(observation, rule.base_threshold, rule.mask_threshold, rule.filter_ioa), repeats=1
    )
    ours = sorted([*box, label] for box, label in zip(output.xyxy.tolist(), output.label.tolist(), strict=True))
    return {
        "job": f"prune {len(observation.masked) + 1} views, {len(observation.boxes) + len(observation.base):,} boxes",
        "seconds": seconds,
        "naive_seconds": naive_seconds,
        "naive_sample": "all of it",
        "equal": ours == sorted(slow),
    }


def crowded_observation(boxes: int, rng: np.random.Generator) -> Observation:
    """An image of about 30 objects seen under every mask with some jitter; the base boxes have only half of them."""
    masks = halves(WIDTH, HEIGHT, LINES)
    count = max(boxes // (len(masks) + 1), 2)
    per_mask = np.diff(np.linspace(0, boxes - count // 2, len(masks) + 1).astype(int))
    count = max(count, int(per_mask.max()))
    corner = rng.uniform(0, 0.8, (count, 2)) * (WIDTH, HEIGHT)
    objects = np.concatenate([corner, corner + rng.uniform(0.05, 0.2, (count, 2)) * (WIDTH, HEIGHT)], axis=1)
    labels = rng.integers(0, 20, count)

    def view(size: int) -> Detections:
        seen = rng.choice(count, size, replace=False)
        jitter = rng.normal(0, 1.5, (size, 4))
        box = objects[seen] + jitter
        ordered = np.concatenate([np.minimum(box[:, :2], box[:, 2:]), np.maximum(box[:, :2], box[:, 2:])], axis=1)
        return Detections(ordered, rng.uniform(0.3, 1, size), labels[seen])

    masked = [view(int(size)) for size in per_mask]
    return Observation(WIDTH, HEIGHT, masks, view(boxes - int(per_mask.sum())), masked)


def _time(job: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Best of several runs after one to warm up, and the result."""
    result = job() if repeats > 1 else None
    best = np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        result = job()
        best = min(best, time.perf_counter() - started)
    return float(best), result
