"""`--baseline`: other certified defenses beside ours, in observe and evaluate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._console import escape, print_json, printed, progress, terminal_table

if TYPE_CHECKING:
    from objectseeker.detectorguard.features import ObjectnessFeatures
    from objectseeker.metrics import EvaluationSettings
    from objectseeker.runs.run import Run

BASELINES = ("detectorguard",)

Baseline = Annotated[str | None, typer.Option(help="Another defense to compare with: detectorguard.")]
BaselineNetwork = Annotated[
    Path | None, typer.Option(help="ONNX file of the baseline's network. Default: the one of the package.")
]
BaselineSize = Annotated[str, typer.Option(help="WIDTHxHEIGHT of that network's input; KITTI: 744x224.")]
DEFAULT_SIZE = "416x416"


def require_baseline(name: str) -> None:
    if name not in BASELINES:
        raise ObjectSeekerError(f"baseline must be one of {', '.join(BASELINES)}, got {name!r}")


def open_network(name: str, file: Path | None, size: str) -> ObjectnessFeatures:
    """The baseline's network, before anything long begins."""
    from objectseeker.detectorguard.features import NETWORK, ObjectnessFeatures

    require_baseline(name)
    sides = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
    if sides is None:
        raise ObjectSeekerError(f"baseline-size must be WIDTHxHEIGHT, such as {DEFAULT_SIZE}, got {size!r}")
    return ObjectnessFeatures(file or NETWORK, input_size=(int(sides[1]), int(sides[2])))


def observe_baseline(run: Run, network: ObjectnessFeatures) -> int:
    """Add what the baseline needs to a run; returns for how many images it was not there yet."""
    from objectseeker.detectorguard.features import add_features

    with progress("observing for the baseline", 0) as bar:
        return add_features(run, network, on_progress=bar.update)


def evaluate_baseline(name: str, run: Run, settings: EvaluationSettings, *, out: Path | None, as_json: bool) -> None:
    """Print the baseline's table, and save it."""
    from objectseeker.detectorguard.overview import side_by_side
    from objectseeker.files.atomic import save_json, save_text
    from objectseeker.files.tables import to_csv, to_markdown

    require_baseline(name)
    beside = side_by_side(run, settings)
    rows, remarks = beside.table_rows(), beside.remarks()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save_json(out / f"{name}.json", beside.to_dict())
        save_text(out / f"{name}.csv", to_csv(rows))
        text = [to_markdown(rows), "\n".join(f"- {line}" for line in remarks)]
        save_text(out / f"{name}.md", "\n\n".join(text) + "\n")
    if as_json:
        print_json(beside.to_dict())
        return
    title = "AP50, clean recall, false alerts and certified recall, in percent"
    printed.print(terminal_table(title, beside.terminal_rows()))
    for line in remarks:
        printed.print(escape(line))
