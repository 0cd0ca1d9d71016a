"""Print the model card's metrics: AP50 with and without a defense, certified recall, intervals, classes.

    python scripts/model_card.py runs/all                            # undefended only: any masks will do
    python scripts/model_card.py runs/sum --defense builtin-fast    # its masks must be among those of the run

AP50 is the paper's, for detector and defense alike, beside COCO's own for the detector. Certified recall is that of the
deployed rule, at its own base_threshold. Intervals are over images, by bootstrap.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from objectseeker import Defense
from objectseeker.core.boxes import Bools, Floats
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import EvaluationSettings, ImageSet
from objectseeker.metrics.average_precision import coco_ap50
from objectseeker.metrics.comparison_metrics import BootstrapEstimate
from objectseeker.metrics.curves import NO_BOXES
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import under
from objectseeker.metrics.resampling import Tally, resamples
from objectseeker.metrics.settings import BASE_THRESHOLDS
from objectseeker.runs.run import open_run

SAMPLES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--defense", type=Defense.load, help="a file, builtin or builtin-fast")
    options = parser.parse_args()
    run, defense = open_run(options.run), options.defense
    images = run.images() if defense is None else under(run.images(), defense.masks)
    scene = ImageSet.of(images, run.vocabulary)
    weights = resamples(len(images), SAMPLES, 0)
    per_class = coco_ap50(scene)
    undefended = Tally.of(scene, [NO_BOXES] * len(BASE_THRESHOLDS)).ap50(weights)
    print(f"{len(images)} images, {len(scene.counted)} objects")
    print(f"AP50 undefended: {scene.macro(per_class):.1f} by COCO's measure, {shown(undefended)} by the paper's")
    columns = {"objects": scene.objects_per_class.tolist(), "AP50": [f"{ap:.1f}" for ap in per_class]}
    if defense is not None:
        columns |= defended(scene, defense, weights, undefended)
    print(f"\n| class | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for c in scene.objects_per_class.nonzero()[0].tolist():
        print(f"| {scene.names[c]} | {' | '.join(str(column[c]) for column in columns.values())} |")


def defended(scene: ImageSet, defense: Defense, weights: Floats, undefended: Floats) -> dict[str, list[str]]:
    """Print what the defense gives on all images; what it certifies of every class."""
    settings = EvaluationSettings.along(defense.curve, defense.rule)
    replayed = DefendedImageSet.of(scene, settings)
    added = list(replayed.additions([settings.on_curve(score) for score in BASE_THRESHOLDS.tolist()]))
    ap50 = Tally.of(scene, added).ap50(weights)
    print(f"AP50 defended: {shown(ap50)}, lost {shown(undefended - ap50)}")
    deployed = Tally.of(scene, list(replayed.additions([defense.rule])), np.array([defense.rule.base_threshold]))
    wrong = (weights @ deployed.wrong.sum(axis=(1, 2))) / weights.sum(axis=1)
    print(f"at base_threshold {defense.rule.base_threshold:g}: clean recall {shown(deployed.clean_recall(weights)[0])}")
    print(f"wrong boxes an image: {shown(wrong, 2)}")
    certified, _ = replayed.certified(defense.rule, settings.threat)
    image, label = scene.truth.image[scene.counted], scene.truth.detections.label[scene.counted]
    objects = weights @ np.bincount(image, minlength=len(scene.images))
    columns: dict[str, list[str]] = {}
    for where, proven in zip(PATCH_LOCATIONS, certified, strict=True):
        counts = np.bincount(image, weights=proven, minlength=len(scene.images))
        print(f"certified {where}: {shown(100 * (weights @ counts) / objects)}")
        columns[where] = [percent(proven[label == c]) for c in range(len(scene.names))]
    left = np.array([one.count for one in replayed.remaining(defense.rule, settings.threat)])
    print(f"surely remain under any single patch: {shown(100 * (weights @ left) / objects)}")
    return columns


def percent(verdicts: Bools) -> str:
    return f"{100 * verdicts.mean():.1f}" if len(verdicts) else ""


def shown(samples: Floats, digits: int = 1) -> str:
    """The figure of the images as they are, and its interval."""
    one = BootstrapEstimate.of(samples)
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


if __name__ == "__main__":
    main()
