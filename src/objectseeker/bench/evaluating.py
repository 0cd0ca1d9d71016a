"""`objectseeker bench evaluate`: a whole evaluation from stored boxes, against pruning anew for every threshold."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Floats, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import halves
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import BASE_THRESHOLDS, EvaluationSettings, evaluate

NAMES = tuple(f"class {number}" for number in range(20))
WIDTH, HEIGHT = 500, 375

RULES = {
    "paper rule": EvaluationSettings.along(ThresholdSchedule(alpha=0.7, beta=0.5), clean_recall=0.6),
    "evidence rule": EvaluationSettings.along(
        ThresholdSchedule(alpha=0.5, beta=0.25, evidence_alpha=0.25, evidence_beta=0.1), clean_recall=0.6
    ),
}


def run(images: int = 700, lines: int = 30, seed: int = 0) -> list[dict[str, Any]]:
    """One row per rule: seconds for the whole evaluation, label-wise and class-agnostic, with all certificates.

    The naive seconds are for pruning alone, at each of the 100 thresholds and both ways of handling labels, measured
    on three images and scaled up.
    """
    scene = [synthetic_image(number, lines, seed) for number in range(images)]
    boxes = sum(len(image.observation.boxes) + len(image.observation.base) for image in scene)
    rows = []
    for name, settings in RULES.items():
        started = time.perf_counter()
        evaluate(scene, LabelMap.same(NAMES), settings)
        seconds = time.perf_counter() - started
        rows.append(
            {
                "job": f"evaluate {images} images x {4 * lines + 1} views, {boxes:,} boxes, {name}",
                "seconds": seconds,
                "naive_seconds": _prune_anew(scene[:3], settings) * images / len(scene[:3]),
                "naive_sample": "3 images, pruning only",
                "peak_memory_gb": _peak_memory(),
            }
        )
    return rows


def synthetic_image(number: int, lines: int, seed: int) -> ObservedImage:
    """A few objects, each seen under most masks with some jitter and a score of its own, and some clutter."""
    rng = np.random.default_rng([seed, number])
    masks = halves(WIDTH, HEIGHT, lines)
    count = int(rng.integers(1, 6))
    corner = rng.uniform(0, 0.6, (count, 2)) * (WIDTH, HEIGHT)
    objects = np.concatenate([corner, corner + rng.uniform(0.1, 0.4, (count, 2)) * (WIDTH, HEIGHT)], axis=1)
    label, strength = rng.integers(0, len(NAMES), count), rng.uniform(0.2, 0.95, count)

    def view(clutter: int, floor: float) -> Detections:
        seen = np.flatnonzero(rng.random(count) < 0.85)
        found = _ordered(objects[seen] + rng.normal(0, 4, (len(seen), 4)))
        junk = _ordered(rng.uniform(0, 1, (clutter, 4)) * (WIDTH, HEIGHT, WIDTH, HEIGHT))
        score = np.clip(strength[seen] + rng.normal(0, 0.1, len(seen)), floor, 1)
        boxes = np.concatenate([found, junk])
        scores = np.concatenate([score, rng.uniform(floor, 0.3, clutter)])
        labels: Ints = np.concatenate([label[seen], rng.integers(0, len(NAMES), clutter)])
        return Detections(boxes, scores, labels)

    base = view(clutter=30, floor=0.01)
    masked = [view(clutter=2, floor=0.1) for _ in range(len(masks))]
    nothing = np.zeros(count, dtype=np.bool_)
    return ObservedImage(
        id=str(number),
        path=Path(f"{number}.jpg"),
        observation=Observation(WIDTH, HEIGHT, masks, base, masked),
        truth=Detections(objects, np.ones(count), label),
        ignore=nothing,
        crowd=nothing,
    )


def _prune_anew(images: list[ObservedImage], settings: EvaluationSettings) -> float:
    started = time.perf_counter()
    for image in images:
        for way in (settings, settings.class_agnostic()):
            for base_threshold in BASE_THRESHOLDS.tolist():
                way.on_curve(base_threshold).prune(image.observation)
    return time.perf_counter() - started


def _ordered(boxes: Floats) -> Floats:
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


def _peak_memory() -> float:
    """Of the whole process, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)
