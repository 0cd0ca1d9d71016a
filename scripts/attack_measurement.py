"""Attack the embedded detector on many objects: over and far, patches of 1 % and 4 %, with and without the defence.

    python scripts/attack_measurement.py --images FOLDER --annotations objects.json --seconds 75 --device cuda --out OUT

`objects.json` holds {"names": [...], "images": [{"file", "set", "objects": [{"number", "box", "label"}]}]}, labels
counting within `names`. Certificates and verdicts come from one and the same detector object on `--device`. Results are
written after every condition, so that a run cut short leaves the conditions it finished. Exit code 3: a guarantee was
broken, and the reproduction lies under OUT/broken.
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

from objectseeker import Defence, Patch
from objectseeker.attack import Budget, Outcome, Pipeline, Target, artifacts, falsify, robust_recall
from objectseeker.attack.falsify import Attacker
from objectseeker.attack.job import Attacked, load_attacked
from objectseeker.attack.plan import Goal, PatchTask, Solution
from objectseeker.attack.reproduction import save_reproduction
from objectseeker.attack.statistics import row_of, summary
from objectseeker.core.recipes import parse
from objectseeker.core.threats import Where
from objectseeker.files.images import load_image
from objectseeker.files.saving import save_json, save_text

CONDITIONS: tuple[tuple[Where, float], ...] = (("over", 0.01), ("over", 0.04), ("far", 0.01), ("far", 0.04))
SCORE_FLOOR = 0.1  # nothing below plays a part under the rule of the embedded detector


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    defence = Defence.default(
        "embedded",
        masks=parse(options.masks),
        batch=options.batch,
        input_size=options.input_size,
        layout=options.layout,
        score_floor=SCORE_FLOOR,
    )
    autocast = options.device.startswith("cuda") and not options.full_precision
    attacked = load_attacked(defence, mode="white", device=options.device, autocast=autocast)
    targets, sets = load_targets(options, attacked)
    files = artifacts.file_names(target.name for target in targets)
    say(f"{len(targets)} objects in {len(files)} images observed", begin)
    measured: list[dict[str, Any]] = []
    for where, area in CONDITIONS:
        if options.only and f"{where}-{area:g}" not in options.only:
            continue
        patch = Patch(area, 1.0, where)
        outcomes = attack_once(options, attacked, targets, patch, begin)
        measured.append(condition(patch, outcomes, sets))
        say(in_words(measured[-1]), begin)
        save_condition(options, attacked, outcomes, patch, files)
        save_all(options, attacked.defence, measured, time.monotonic() - begin)
    print(table(measured))
    broken = sum(entry["summary"]["broken_guarantees"] for entry in measured)
    if broken:
        print(f"A GUARANTEE WAS BROKEN: by {broken} patches, see {options.out / 'broken'}")
    return 3 if broken else 0


def attack_once(
    options: argparse.Namespace, attacked: Attacked, targets: list[Target], patch: Patch, begin: float
) -> list[Outcome]:
    """All targets under one condition, in the time it has."""
    share, seconds = options.undefended_share, options.seconds
    common = {"steps": options.steps, "views": options.views, "at_once": options.at_once, "distrust": options.distrust}
    return falsify(
        timed(attacked.attacker, begin),
        attacked.pipeline,
        targets,
        patch,
        Budget(restarts=options.restarts, seconds=share * seconds, **common),
        defence_budget=Budget(restarts=options.defence_restarts, seconds=(1 - share) * seconds, **common),
        seed=options.seed,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--annotations", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="optimisation time per condition")
    parser.add_argument("--undefended-share", type=float, default=0.25, help="of that, against the detector alone")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--input-size", type=int, default=416)
    parser.add_argument("--layout", default=None)
    parser.add_argument("--batch", type=int, default=128, help="views per forward pass of the judged detector")
    parser.add_argument("--at-once", type=int, default=256, help="views per forward and backward pass of the attack")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=3, help="against the undefended detector")
    parser.add_argument("--defence-restarts", type=int, default=2)
    parser.add_argument("--views", type=int, default=5, help="masked views per step against the defence")
    parser.add_argument("--masks", default="halves:30")
    parser.add_argument("--distrust", type=float, default=0.0, help="share of the restarts that believe no margin")
    parser.add_argument("--objects", type=int, default=None, help="only the first so many")
    parser.add_argument("--pictures", type=int, default=4, help="before and after, per condition")
    parser.add_argument("--only", nargs="*", default=None, help="conditions such as over-0.01")
    parser.add_argument("--full-precision", action="store_true", help="gradients in float32 on a GPU, too")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def timed(attacker: Attacker, begin: float) -> Attacker:
    """The attacker, with a word on how far it came."""

    def attack(
        pipeline: Pipeline, tasks: Sequence[PatchTask], goal: Goal, budget: Budget, **rest: Any
    ) -> list[Solution]:
        solutions = attacker(pipeline, tasks, goal, budget, **rest)
        steps = max(len(solution.curve) for solution in solutions)
        believed = len({id(solution.task.target) for solution in solutions if solution.hidden})
        say(f"  attack on the {goal}: {len(tasks)} patches, up to {steps} steps, {believed} objects seem hidden", begin)
        return solutions

    return attack


def load_targets(options: argparse.Namespace, attacked: Attacked) -> tuple[list[Target], dict[str, str]]:
    """The objects with the clean observation of their image, and the dataset of each image."""
    content = json.loads(options.annotations.read_text())
    targets: list[Target] = []
    sets: dict[str, str] = {}
    for entry in content["images"]:
        if options.objects is not None and len(targets) >= options.objects:
            break
        image = load_image(options.images / entry["file"])
        observation = attacked.pipeline.observe(image)
        sets[entry["file"]] = entry["set"]
        for item in entry["objects"]:
            name = content["names"][item["label"]]
            box, labels = np.array(item["box"], float), (attacked.names.index(name),)
            targets.append(Target(entry["file"], item["number"], image, observation, box, labels, name))
    return targets[: options.objects], sets


def condition(patch: Patch, outcomes: list[Outcome], sets: dict[str, str]) -> dict[str, Any]:
    """Everything measured under one condition."""
    rows = [{"set": sets[o.target.name], **row_of(o)} for o in outcomes]
    by_set = {name: summary([row for row in rows if row["set"] == name]) for name in sorted(set(sets.values()))}
    return {
        "where": patch.where,
        "area": patch.area,
        "summary": summary(rows),
        "by_set": by_set,
        "recall": robust_recall(rows),
        "median_curves": artifacts.median_curves(outcomes),
        "rows": rows,
    }


def save_condition(
    options: argparse.Namespace, attacked: Attacked, outcomes: list[Outcome], patch: Patch, files: dict[str, str]
) -> None:
    """Loss curves, pictures of objects the defence kept or lost where the undefended detector lost them, and proof of
    every broken guarantee."""
    name = f"{patch.where}-{patch.area:g}"
    folder = options.out / name
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.save_curves(folder, outcomes)
    telling = [o for o in outcomes if o.undefended_survived is False]
    kept = [o for o in telling if o.defence_survived][: options.pictures // 2]
    lost = [o for o in telling if o.defence_survived is False][: options.pictures - len(kept)]
    for outcome in kept + lost:
        stem = artifacts.stem(outcome, files)
        picture = artifacts.before_and_after(attacked.pipeline, outcome, attacked.names)
        artifacts.save_picture(folder / f"{stem}.jpg", picture)
        artifacts.save_images(folder, outcome, stem)
    for outcome in outcomes:
        if outcome.broken:
            proof = options.out / "broken" / f"{name}-{artifacts.stem(outcome, files)}"
            save_reproduction(proof, attacked.pipeline, outcome, patch, attacked.defence, device=attacked.device)


def save_all(options: argparse.Namespace, defence: Defence, measured: list[dict[str, Any]], seconds: float) -> None:
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    content = {
        "defence": defence.to_json() | {"sha256": defence.sha256},
        "settings": settings,
        "seconds": seconds,
        "conditions": measured,
    }
    save_json(options.out / "attack.json", content)
    save_text(options.out / "attack.md", table(measured) + "\n")


COLUMNS = {
    "undefended: hidden": "hidden_from_detector",
    "IoU 0.5": "hidden_from_detector_iou50",
    "defended: certified hidden": "hidden_certified",
    "not certified, hidden": "hidden_uncertified",
    "all hidden": "hidden_from_defence",
}


def table(measured: list[dict[str, Any]]) -> str:
    """Shares with 95 % intervals, as Markdown."""
    lines = ["| patch | objects | " + " | ".join(COLUMNS) + " |", "|---" * (2 + len(COLUMNS)) + "|"]
    for entry in measured:
        cells = [cell(entry["summary"][key]) for key in COLUMNS.values()]
        name = f"{entry['where']}, {entry['area']:.0%}"
        lines.append(f"| {name} | {entry['summary']['attacked']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(rate: dict[str, Any]) -> str:
    if not rate["of"]:
        return "-"
    return f"{rate['count']} of {rate['of']}: {rate['share']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"


def in_words(entry: dict[str, Any]) -> str:
    cells = ", ".join(f"{name} {cell(entry['summary'][key])}" for name, key in COLUMNS.items())
    return f"{entry['where']} {entry['area']:.0%}: {cells}"


def say(sentence: str, begin: float) -> None:
    print(f"[{time.monotonic() - begin:6.1f} s] {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
