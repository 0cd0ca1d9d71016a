"""Evaluate stored boxes, against pruning them again at every threshold.

python -m benchmarks.evaluate --images 700
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import argument_parser, peak_memory_gb, print_jobs
from objectseeker.core.boxes import Detections, Floats, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import Halves
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import BASE_THRESHOLDS, EvaluationSettings, evaluate_images

NAMES = tuple(f"class {number}" for number in range(20))
WIDTH, HEIGHT = 500, 375

RULES = {
    "paper rule": EvaluationSettings.from_schedule(ThresholdSchedule(alpha=0.7, beta=0.5), clean_recall=0.6),
    "evidence rule": EvaluationSettings.from_schedule(
        ThresholdSchedule(alpha=0.5, beta=0.25, evidence_alpha=0.25, evidence_beta=0.1), clean_recall=0.6
    ),
}


def run(images: int = 700, lines: int = 30, seed: int = 0) -> list[dict[str, Any]]:
    """Return one row per rule: seconds for the evaluation, per class and class-agnostic, with all certificates.

    The naive seconds cover pruning alone, at each of the 100 thresholds, per class and class-agnostic, measured on
    three images and scaled up.
    """
    image_set = [synthetic_image(number, lines, seed) for number in range(images)]
    boxes = sum(len(image.observation.all_masked) + len(image.observation.base) for image in image_set)
    rows = []
    for name, settings in RULES.items():
        started = time.perf_counter()
        evaluate_images(image_set, LabelMap.from_names(NAMES), settings)
        seconds = time.perf_counter() - started
        rows.append(
            {
                "job": f"evaluate {images} images x {4 * lines + 1} views, {boxes:,} boxes, {name}",
                "seconds": seconds,
                "naive_seconds": _prune_naively(image_set[:3], settings) * images / len(image_set[:3]),
                "naive_sample": "3 images, pruning only",
                "peak_memory_gb": peak_memory_gb(),
            }
        )
    return rows


def synthetic_image(number: int, lines: int, seed: int) -> ObservedImage:
    """Return an image with a few objects, each detected under most masks with jitter and its own score, and clutter."""
    rng = np.random.default_rng([seed, number])
    masks = Halves(lines).masks(WIDTH, HEIGHT)
    count = int(rng.integers(1, 6))
    corner = rng.uniform(0, 0.6, (count, 2)) * (WIDTH, HEIGHT)
    objects = np.concatenate([corner, corner + rng.uniform(0.1, 0.4, (count, 2)) * (WIDTH, HEIGHT)], axis=1)
    label, strength = rng.integers(0, len(NAMES), count), rng.uniform(0.2, 0.95, count)

    def view(clutter: int, floor: float) -> Detections:
        detected = np.flatnonzero(rng.random(count) < 0.85)
        true = _ordered(objects[detected] + rng.normal(0, 4, (len(detected), 4)))
        false = _ordered(rng.uniform(0, 1, (clutter, 4)) * (WIDTH, HEIGHT, WIDTH, HEIGHT))
        score = np.clip(strength[detected] + rng.normal(0, 0.1, len(detected)), floor, 1)
        boxes = np.concatenate([true, false])
        scores = np.concatenate([score, rng.uniform(floor, 0.3, clutter)])
        labels: Ints = np.concatenate([label[detected], rng.integers(0, len(NAMES), clutter)])
        return Detections(boxes, scores, labels)

    base = view(clutter=30, floor=0.01)
    masked = [view(clutter=2, floor=0.1) for _ in range(len(masks))]
    none = np.zeros(count, dtype=np.bool_)
    return ObservedImage(
        id=str(number),
        path=Path(f"{number}.jpg"),
        observation=Observation(WIDTH, HEIGHT, masks, base, masked),
        ground_truth=Detections(objects, np.ones(count), label),
        ignore=none,
        crowd=none,
    )


def _prune_naively(images: list[ObservedImage], settings: EvaluationSettings) -> float:
    started = time.perf_counter()
    for image in images:
        for variant in (settings, settings.class_agnostic()):
            for base_threshold in BASE_THRESHOLDS.tolist():
                variant.on_curve(base_threshold).prune(image.observation)
    return time.perf_counter() - started


def _ordered(boxes: Floats) -> Floats:
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--images", type=int, default=700, help="synthetic images to evaluate, default: 700")
    parser.add_argument("--lines", type=int, default=30, help="lines per axis, default: 30")
    arguments = parser.parse_args(argv)
    print_jobs(run(arguments.images, arguments.lines), arguments.json)


if __name__ == "__main__":
    main()
