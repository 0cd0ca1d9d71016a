"""Print the paper's table of two patches of 0.5 % each, exactly and not sampled, from a run of mask pairs.

    python scripts/two_patch_table.py RUN --alpha 0.35 --beta 0.3 --clean-recall 0.8 [--evidence-alpha A
    --evidence-beta B]

RUN is what `objectseeker observe DATASET --masks pairs:10 --out RUN` wrote. Besides AP and certified recall it
measures, at the operating point of the table:

- certification: `certify` on every image against far, close and over, from stored boxes to verdicts, in milliseconds;
- the sampled method: every 50th position per patch, so (1/50)^2 of the pairs, each pair looked up in which safe views
  remove either position. A few thousand pairs of a few objects are timed and the time per pair is multiplied by the
  number of sampled pairs of all objects: an estimate, and a low one, since what it looks up is not timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker import Detections, ObjectSeekerError, Observation, Pairs, Patch, Rule
from objectseeker.core.observation import ObservedImage
from objectseeker.core.positions import PositionClasses
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import PatchLocation, PatchPositions, patch_sizes
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings, ThreatModel, evaluate_images
from objectseeker.runs.run import open_run

SHOWN: tuple[PatchLocation, ...] = ("far", "close", "over")
PAPER = {"images": 200, "ap50": 94.4, "far": 51.7, "close": 24.6, "over": 5.1}  # YOLOR on VOC, sampled
EVERY = 50  # of the positions, for each patch
TIMED_OBJECTS, TIMED_PAIRS = 10, 20_000


def main() -> int:
    options = arguments()
    run = open_run(options.run)
    masks = run.manifest.observation_settings.masks
    if not isinstance(masks, Pairs):
        raise ObjectSeekerError(f"{options.run} has the masks {masks}: observe with --masks pairs:10")
    settings = EvaluationSettings.from_schedule(
        ThresholdSchedule(
            alpha=options.alpha,
            beta=options.beta,
            evidence_alpha=options.evidence_alpha,
            evidence_beta=options.evidence_beta,
        ),
        Rule(edge_factor=options.edge_factor, cluster_distance=options.cluster_distance),
        threat=ThreatModel(area=options.patch, count=2),
        clean_recall=options.clean_recall,
    )
    images = run.images()
    evaluated = evaluate_images(images, run.label_map, settings)
    ours = evaluated.defended
    if ours.rule is None:
        raise ObjectSeekerError(str(ours.caveat()))
    rule = ours.rule
    targets = [run.label_map.map_to_detector(image.ground_truth[~image.ignore])[0] for image in images]
    seconds = time_certification(images, targets, rule, settings.threat.patches()[: len(SHOWN)])
    per_pair, pairs_timed, all_pairs = time_sampled(images, targets, rule, options.patch)
    result: dict[str, Any] = {
        "images": evaluated.images,
        "objects": evaluated.objects,
        "lines": masks.lines,
        "views_per_image": 1 + max(len(image.observation.masks) for image in images),
        "undefended_ap50": evaluated.undefended.ap50,
        "ap50": ours.ap50,
        "clean_recall": ours.clean_recall,
        "base_threshold": rule.base_threshold,
        "mask_threshold": rule.mask_threshold,
        "evidence_threshold": rule.evidence_threshold,
        **{str(where): ours.certified_recall()[where] for where in SHOWN},
        "vacuous_far": ours.vacuous_far,
        "certification_ms_per_image": 1000 * seconds / len(images),
        "certification_ms_per_object": 1000 * seconds / evaluated.objects,
        "sampled_seconds_per_image": per_pair * all_pairs / len(images),
        "sampled_pairs": all_pairs,
        "sampled_pairs_timed": pairs_timed,
        "paper": PAPER,
    }
    print(json.dumps(result, indent=2) if options.json else as_text(result))
    return 0


def time_certification(
    images: Sequence[ObservedImage], targets: Sequence[Detections], rule: PruningRule, patches: Sequence[Patch]
) -> float:
    """Seconds that all certificates take; `targets` are the counted objects of each image in the detector's labels."""
    seconds = 0.0
    for image, truth in zip(images, targets, strict=True):
        begin = time.perf_counter()
        rule.certify(image.observation, truth, patches)
        seconds += time.perf_counter() - begin
    return seconds


def time_sampled(
    images: Sequence[ObservedImage], targets: Sequence[Detections], rule: PruningRule, area: float
) -> tuple[float, int, int]:
    """Seconds per sampled pair of positions, how many were timed, and how many all objects have together.

    Without evidence: a pair is defeated if one safe view removes both. Objects are taken from all over the run.
    """
    objects = [
        (image.observation, truth[[n]]) for image, truth in zip(images, targets, strict=True) for n in range(len(truth))
    ]
    all_pairs = 0
    for observation, truth in objects:
        for where in SHOWN:
            count = len(sampled_positions(observation, truth.xyxy[0], Patch(area, 1.0, where)))
            all_pairs += count * (count + 1) // 2
    seconds, timed = 0.0, 0
    rng = np.random.default_rng(0)
    for observation, truth in objects[:: max(len(objects) // TIMED_OBJECTS, 1)][:TIMED_OBJECTS]:
        patch = Patch(area, 1.0, "close")
        safe = np.flatnonzero(rule.certify(observation, truth, patch).safe[0])
        positions = sampled_positions(observation, truth.xyxy[0], patch)
        if not len(positions) or not len(safe):
            continue
        removes = list(removing(observation, positions, patch.size(observation.width, observation.height))[:, safe])
        chosen = rng.integers(len(removes), size=(TIMED_PAIRS // TIMED_OBJECTS, 2)).tolist()
        begin = time.perf_counter()
        for i, j in chosen:
            (removes[i] & removes[j]).any()
        seconds += time.perf_counter() - begin
        timed += len(chosen)
    return seconds / max(timed, 1), timed, all_pairs


def sampled_positions(observation: Observation, box: np.ndarray, patch: Patch) -> np.ndarray:
    """Every 50th allowed position x, y, row by row."""
    width, height = observation.width, observation.height
    size = patch_sizes(patch, width, height, 1)
    w, h = size[0]
    ok = np.zeros((height + h - 1, width + w - 1), dtype=bool)
    for x1, y1, x2, y2 in PatchPositions.of(box[None], width, height).allowed(patch.location, size)[0]:
        if x1 <= x2 and y1 <= y2:
            ok[y1 + h - 1 : y2 + h, x1 + w - 1 : x2 + w] = True
    y, x = np.nonzero(ok)
    return np.stack([x - w + 1, y - h + 1], axis=1)[::EVERY]


def removing(observation: Observation, positions: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Which views remove a patch at each position: (positions, views)."""
    classes = PositionClasses.of(observation.masks, size)
    x, y = (np.searchsorted(starts, positions[:, axis], side="right") - 1 for axis, starts in enumerate(classes.starts))
    return classes.removes[0][x] | classes.removes[1][y]


def as_text(result: dict[str, Any]) -> str:
    rows = [
        "| | images | AP50 | far | close | over | certification per image |",
        "|---|---|---|---|---|---|---|",
        "| paper, sampled | {images} | {ap50} | {far} | {close} | {over} | - |".format(**PAPER),
        f"| this run, every pair of positions | {result['images']} | {result['ap50']:.1f} | {result['far']:.1f} "
        f"| {result['close']:.1f} | {result['over']:.1f} | {result['certification_ms_per_image']:.1f} ms |",
        "",
        f"{result['objects']} objects, {result['vacuous_far']} vacuously far; {result['lines']} lines, "
        f"{result['views_per_image']} views per image; undefended AP50 {result['undefended_ap50']:.1f}; clean recall "
        f"{result['clean_recall']:.1f} at base_threshold {result['base_threshold']:.2f}, "
        f"mask_threshold {result['mask_threshold']:.3f}"
        + ("" if result["evidence_threshold"] is None else f", evidence_threshold {result['evidence_threshold']:.3f}")
        + ".",
        f"The sampled method has {result['sampled_pairs']:,} pairs of positions to look up: "
        f"{result['sampled_seconds_per_image']:.1f} s per image here, estimated from {result['sampled_pairs_timed']:,} "
        "pairs.",
    ]
    return "\n".join(rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--alpha", type=float, default=0.35)
    parser.add_argument("--beta", type=float, default=0.3)
    parser.add_argument("--evidence-alpha", type=float)
    parser.add_argument("--evidence-beta", type=float)
    parser.add_argument("--edge-factor", type=float, default=1.0)
    parser.add_argument("--cluster-distance", type=float, default=0.1)
    parser.add_argument("--patch", type=float, default=0.005)
    parser.add_argument("--clean-recall", type=float, default=0.8)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ObjectSeekerError as error:
        sys.exit(f"error: {error}")
