"""Certified recall against false alarms: runs of several detectors at the same settings, base_score by base_score.

    python scripts/false_alarms.py runs/letterbox runs/spend

At a given clean recall the better of two detectors has the higher thresholds, and certifies less for it. Here
thresholds are the same for all, and every row says how many boxes of an image are wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from objectseeker import Rule
from objectseeker.core.follow import Follow
from objectseeker.evaluation import Scene, Settings
from objectseeker.evaluation.replayed import Replayed
from objectseeker.runs.run import open_run

BASE_SCORES = np.array([0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--alpha", type=float, default=0.22)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--low-alpha", type=float, default=0.15)
    parser.add_argument("--low-beta", type=float, default=0.08)
    parser.add_argument("--edge-factor", type=float, default=0.85)
    options = vars(parser.parse_args())
    runs = options.pop("runs")
    like = Rule(edge_factor=options.pop("edge_factor"))
    settings = Settings.along(Follow(**options), like)
    print("| run | base_score | false alarms an image | objects found | far | close | over |")
    print("|---|---|---|---|---|---|---|")
    for folder in runs:
        run = open_run(folder)
        scene = Scene.of(run.images(), run.vocabulary)
        replayed = Replayed.of(scene, settings)
        curve = replayed.curve(settings, BASE_SCORES)
        for row, base_score in enumerate(BASE_SCORES.tolist()):
            certified = replayed.at(settings, settings.on_curve(base_score)).certified_recall()
            right, wrong = curve.right[row].sum() / len(scene.counted), curve.wrong[row].sum() / len(scene.images)
            shares = [100 * right, certified["far"], certified["close"], certified["over"]]
            cells = " | ".join(f"{share:.1f}" for share in shares)
            print(f"| {folder.name} | {base_score:g} | {wrong:.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
