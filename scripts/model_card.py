"""The figures of a model card: AP50 without and with a defence, and what it certifies, with 95 % intervals, by class.

    python scripts/model_card.py runs/all                            # undefended only: any masks will do
    python scripts/model_card.py runs/sum --defence embedded-fast    # its masks must be among those of the run

AP50 is the paper's, for detector and defence alike, beside COCO's own for the detector. Certified recall is that of the
deployed rule, at its own base_score. Intervals are over images, by bootstrap.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from objectseeker import Defence
from objectseeker.core.boxes import Bools, Floats
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import EvaluationSettings, ImageSet
from objectseeker.metrics.average_precision import coco_ap50
from objectseeker.metrics.comparison_metrics import BootstrapEstimate
from objectseeker.metrics.curves import NO_BOXES
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import under
from objectseeker.metrics.resampling import Tally, resamples
from objectseeker.metrics.settings import BASE_SCORES
from objectseeker.runs.run import open_run

SAMPLES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--defence", type=Defence.load, help="a file, embedded or embedded-fast")
    options = parser.parse_args()
    run, defence = open_run(options.run), options.defence
    images = run.images() if defence is None else under(run.images(), defence.masks)
    scene = ImageSet.of(images, run.vocabulary)
    weights = resamples(len(images), SAMPLES, 0)
    per_class = coco_ap50(scene)
    undefended = Tally.of(scene, [NO_BOXES] * len(BASE_SCORES)).ap50(weights)
    print(f"{len(images)} images, {len(scene.counted)} objects")
    print(f"AP50 undefended: {scene.macro(per_class):.1f} by COCO's measure, {shown(undefended)} by the paper's")
    columns = {"objects": scene.objects_per_class.tolist(), "AP50": [f"{ap:.1f}" for ap in per_class]}
    if defence is not None:
        columns |= defended(scene, defence, weights, undefended)
    print(f"\n| class | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for c in scene.objects_per_class.nonzero()[0].tolist():
        print(f"| {scene.names[c]} | {' | '.join(str(column[c]) for column in columns.values())} |")


def defended(scene: ImageSet, defence: Defence, weights: Floats, undefended: Floats) -> dict[str, list[str]]:
    """Print what the defence gives on all images; what it certifies of every class."""
    settings = EvaluationSettings.along(defence.curve, defence.rule)
    replayed = DefendedImageSet.of(scene, settings)
    added = list(replayed.additions([settings.on_curve(score) for score in BASE_SCORES.tolist()]))
    ap50 = Tally.of(scene, added).ap50(weights)
    print(f"AP50 defended: {shown(ap50)}, lost {shown(undefended - ap50)}")
    deployed = Tally.of(scene, list(replayed.additions([defence.rule])), np.array([defence.rule.base_score]))
    wrong = (weights @ deployed.wrong.sum(axis=(1, 2))) / weights.sum(axis=1)
    print(f"at base_score {defence.rule.base_score:g}: clean recall {shown(deployed.clean_recall(weights)[0])}")
    print(f"wrong boxes an image: {shown(wrong, 2)}")
    certified, _ = replayed.certified(defence.rule, settings.threat)
    image, label = scene.truth.image[scene.counted], scene.truth.detections.label[scene.counted]
    objects = weights @ np.bincount(image, minlength=len(scene.images))
    columns: dict[str, list[str]] = {}
    for where, proven in zip(PATCH_LOCATIONS, certified, strict=True):
        counts = np.bincount(image, weights=proven, minlength=len(scene.images))
        print(f"certified {where}: {shown(100 * (weights @ counts) / objects)}")
        columns[where] = [percent(proven[label == c]) for c in range(len(scene.names))]
    left = np.array([one.count for one in replayed.remaining(defence.rule, settings.threat)])
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
