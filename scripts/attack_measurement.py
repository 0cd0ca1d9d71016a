"""Attack a run's defense on a sample of its objects, one per image: hide over and far, the outside, fabricate, flip.

    python scripts/attack_measurement.py runs/voc --objects 40 --out OUT
    python scripts/attack_measurement.py runs/voc --objects 40 --only outside fabricate-0.01 flip-0.04 --out OUT

What `objectseeker attack` does, several times over, on one observation of the objects and with gradients in bfloat16,
which halves the time wherever the processor multiplies in it; verdicts come from the defended detector as ever. By
default patches of 1 % and 4 % hide objects, over and far. `outside` replaces every pixel outside of the grown box;
with --steps 1 these are random. fabricate-AREA and flip-AREA are patches anywhere that want boxes or labels. Each
condition has its folder, so a run cut short leaves those it finished; commands with different `--only` may share
OUT. Exit code 3: a guarantee was broken, and the reproduction is in the `broken` folder of its condition.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from data_files import add_data_option, save_data

from objectseeker import Defense, Patch
from objectseeker.attack import AttackBudget, Target
from objectseeker.attack.job import run_attack
from objectseeker.attack.metrics import format_rate, recall_rows
from objectseeker.attack.setup import load_attack, targets_of_run
from objectseeker.core.threats import PatchLocation
from objectseeker.files.atomic import save_text
from objectseeker.runs.run import open_run
from objectseeker.text import to_markdown

AREAS = (0.01, 0.04)
WHERE: tuple[PatchLocation, ...] = ("over", "far")
HIDDEN: dict[str, Patch] = {f"{where}-{area:g}": Patch(area, location=where) for where in WHERE for area in AREAS}
FABRICATED = {f"{goal}-{area:g}": Patch(area, location="anywhere") for goal in ("fabricate", "flip") for area in AREAS}
CONDITIONS = HIDDEN | {"outside": Patch(location="outside")} | FABRICATED
RATES = {
    "undefended: hidden": "hidden_undefended",
    "IoU 0.5": "hidden_undefended_iou50",
    "defended: certified hidden": "hidden_certified",
    "not certified, hidden": "hidden_uncertified",
    "all hidden": "hidden_defended",
}
MADE_RATES = {"undefended: made": "undefended", "defended: made": "defended", "certified, made": "certified"}


def main() -> int:
    options = arguments()
    begin = time.monotonic()
    run = open_run(options.run)
    defense = run.bind_defense(Defense.load(options.defense)) if options.defense else run.defense()
    attacked = load_attack(defense, mode=options.mode, device=options.device, autocast=not options.full_precision)
    budget = AttackBudget(
        steps=options.steps,
        restarts=options.restarts,
        views_per_step=options.views_per_step,
        immune_view_fraction=options.immune_view_fraction,
    )
    targets = one_an_image(targets_of_run(attacked.pipeline, run, options.seed), options)
    say(f"{len(targets)} objects observed, each in an image of its own", begin)
    broken = 0
    for name in options.only or HIDDEN:
        goal = name.partition("-")[0] if name in FABRICATED else "hide"
        setup = replace(attacked, patch=CONDITIONS[name], budget=budget, seed=options.seed)
        results = run_attack(setup, targets, options.out / name, goal=goal)
        broken += results.broken_guarantees
        shares = (f"{title} {format_rate(results.summary[key])}" for title, key in rates_of(name).items())
        say(f"{name}: {', '.join(shares)}", begin)
    finished = {
        name: json.loads(path.read_text())
        for name in CONDITIONS
        if (path := options.out / name / "attack.json").exists()
    }
    hidden = {name: entry for name, entry in finished.items() if name not in FABRICATED}
    tables = [rates(part) for part in (hidden, {name: finished[name] for name in finished if name not in hidden})]
    save_data(options.data, next(filter(None, tables), []))
    text = "\n\n".join([*map(to_markdown, filter(None, tables)), *([recalls(hidden)] if hidden else [])]) + "\n"
    save_text(options.out / "attack.md", text)
    print(text)
    if broken:
        print(f"A GUARANTEE WAS BROKEN: by {broken} patches, see the folders {options.out}/*/broken")
    return 3 if broken else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder that observe wrote, of an annotated dataset")
    parser.add_argument("--defense", type=Path, help="a defense for the run; its detector's own by default")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--objects", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--views-per-step", type=int, default=4, help="masked views per step against the defense")
    parser.add_argument(
        "--immune-view-fraction", type=float, default=0.34, help="share of the restarts that trust no margin"
    )
    parser.add_argument("--only", nargs="*", choices=CONDITIONS, help="conditions such as over-0.01")
    parser.add_argument("--mode", choices=("white-box", "black-box"), default="white-box")
    parser.add_argument("--full-precision", action="store_true", help="gradients in float32")
    parser.add_argument("--device", help="cuda, say")
    parser.add_argument("--seed", type=int, default=0)
    add_data_option(parser)
    return parser.parse_args()


def one_an_image(targets: Iterator[Target], options: argparse.Namespace) -> list[Target]:
    """One object, drawn at random, of each image until there are enough: those of one image fall and stand together."""
    rng = np.random.default_rng(options.seed)
    of_images = (list(of_image) for _, of_image in groupby(targets, key=lambda target: target.image_id))
    return [of_image[rng.integers(len(of_image))] for of_image in islice(of_images, options.objects)]


def rates_of(name: str) -> dict[str, str]:
    return MADE_RATES if name in FABRICATED else RATES


def rates(conditions: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Shares hidden, or made, with 95 % intervals."""
    rows = []
    for name, entry in conditions.items():
        shares = {title: format_rate(entry["summary"][key]) for title, key in rates_of(name).items()}
        rows.append({"patch": name, "objects": str(entry["summary"]["attacked"]), **shares})
    return rows


def recalls(conditions: dict[str, dict[str, Any]]) -> str:
    """Recall of both detectors in percent, between its bounds."""
    return to_markdown(
        [{"patch": name, **row} for name, entry in conditions.items() for row in recall_rows(entry["recall"])]
    )


def say(sentence: str, begin: float) -> None:
    print(f"[{time.monotonic() - begin:6.1f} s] {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
