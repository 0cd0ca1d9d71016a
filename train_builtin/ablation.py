"""Run several trainings sequentially that differ in a few settings; observe each as soon as it is trained.

python -m train_builtin.ablation PLAN.json --pack ... --steps 3000 --observe voc:VOCdevkit:val --out runs/ablation

PLAN.json lists the runs, each with a name and what differs from the command line, such as

    [{"name": "masks-off", "mask_probability": 0}, {"name": "masks-on"}, {"name": "later", "start": "masks-on"}]

`start` and `teacher` may name an earlier run of the plan. A run that has been trained is not trained again. Compiling
is done once, and the masked views of a finished run are observed by another process while the next one trains.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from train_builtin.train import Log, checked, detector_parser, load_data, make_trainer, measure, settings_of, train


def main() -> None:
    parser = detector_parser(__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--observe", help="a DATASET whose masked views are observed with every trained detector")
    parser.add_argument("--follow", action="store_true", help="wait for more runs in the plan, until OUT/stop exists")
    parser.add_argument(
        "--observe-options", default="", help="for python -m train_builtin.observe, such as '--limit 100'"
    )
    options = checked(parser, parser.parse_args())
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out)
    data = load_data(options, log)
    trainer = None
    watchers: list[subprocess.Popen[bytes]] = []
    for change in unfinished(options):
        name, folder = change["name"], options.out / change["name"]
        arguments = changed(options, change)
        settings = settings_of(arguments, data)
        if trainer is None:
            trainer = make_trainer(settings, data, log, compiled=not options.no_compile)
        else:
            trainer.begin(settings)
        folder.mkdir(exist_ok=True)
        log(f"{name}: {settings}")
        train(trainer, log, folder, arguments, partial(measure, trainer, data.held_out, log))
        (folder / "finished").touch()
        if options.observe:
            watchers.append(start_observing(folder, options, mask_mode=settings.masking.mask_mode))
    for watcher in watchers:
        watcher.wait()
    log("end of the plan")


def unfinished(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the plan's runs that have not been trained, in order; reread the plan after each."""
    while True:
        todo = [run for run in json.loads(options.plan.read_text()) if not finished(options, run)]
        if todo:
            yield todo[0]
        elif not options.follow or (options.out / "stop").exists():
            return
        else:
            time.sleep(1)


def finished(options: argparse.Namespace, run: dict[str, Any]) -> bool:
    return bool((options.out / run["name"] / "finished").exists())


def changed(options: argparse.Namespace, change: dict[str, Any]) -> argparse.Namespace:
    """Return the command line with one entry of the plan applied."""
    values = vars(options).copy()
    for key, value in change.items():
        if key == "name":
            continue
        if key not in values:
            raise SystemExit(f"the plan sets {key!r}, which is not a setting of training")
        values[key] = value
    for key in ("start", "teacher"):
        if values[key] is not None and not Path(values[key]).is_file():
            values[key] = str(options.out / values[key] / "weights.pt")
    return argparse.Namespace(**values)


def start_observing(folder: Path, options: argparse.Namespace, *, mask_mode: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "train_builtin.observe", str(folder / "weights.pt"), options.observe]
    command += ["--out", str(folder / "observed"), "--mask-mode", mask_mode, *options.observe_options.split()]
    with (folder / "observe.txt").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    main()
