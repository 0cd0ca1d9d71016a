"""Compare runs of several detectors under one defense: certified recall against false alerts.

    python scripts/false_alarms.py runs/before runs/after --defense builtin-fast

At a given clean recall the better of two detectors has the higher thresholds, and certifies less for it. Here
thresholds are the same for all, and every row says how many boxes of an image are wrong. The masks of the defense must
be among those of each run. Before the rows stand AP50 without and with the defense, by the paper's protocol.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from objectseeker import Defense
from objectseeker.metrics import EvaluationSettings, ImageSet
from objectseeker.metrics.ap_search import SearchSpec, SettingsScorer
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.image_set import restrict_images
from objectseeker.runs.run import open_run

BASE_THRESHOLDS = np.array([0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--defense", type=Defense.load, default="builtin", help="a file, builtin or builtin-fast")
    options = parser.parse_args()
    defense = options.defense
    settings = EvaluationSettings.from_schedule(defense.resolved_schedule, defense.rule)
    for folder in options.runs:
        run = open_run(folder)
        scene = ImageSet.from_images(restrict_images(run.images(), defense.masks), run.label_map)
        search = SearchSpec(mask_floor=run.manifest.observation_settings.mask_floor, losses=())
        clean = SettingsScorer(scene, search).full(settings).to_dict()
        print(f"\n{folder.name}: AP50 {clean['ap50']:.1f} defended, {clean['ap50_loss']:.1f} lost\n")
        print("| base_threshold | false alarms per image | objects found | far | close | over |")
        print("|---|---|---|---|---|---|")
        replayed = DefendedImageSet.from_settings(scene, settings)
        curve = replayed.curve(settings, BASE_THRESHOLDS)
        for row, base_threshold in enumerate(BASE_THRESHOLDS.tolist()):
            certified = replayed.at(settings, settings.on_curve(base_threshold)).certified_recall()
            right, wrong = curve.true_positives[row].sum() / len(scene.counted), curve.fppi[row]
            shares = [100 * right, certified["far"], certified["close"], certified["over"]]
            cells = " | ".join(f"{share:.1f}" for share in shares)
            print(f"| {base_threshold:g} | {wrong:.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
