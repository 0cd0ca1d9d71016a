"""objectseeker figures"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import (
    CleanRecall,
    FalsePositives,
    Json,
    RuleOptions,
    RunFolder,
    ThreatOptions,
    defense_and_settings,
    grouped,
    open_run,
)


@app.command()
@grouped
def figures(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder for the tables and plots.")],
    rule: RuleOptions,
    threat: ThreatOptions,
    clean_recall: CleanRecall = None,
    fppi: FalsePositives = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this figure; may be repeated. An unknown name lists all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write every analysis of the paper from one run, as CSV, SVG and PNG; no detector runs.

    Example:  objectseeker figures runs/voc --out figures --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker figures runs/voc --out figures --defense tuned/defense.json --fppi 1
    Example:  objectseeker figures runs/voc --out figures --only patch-area --only lines
    """
    from objectseeker.report.figures import write_figures

    stored = open_run(run)
    defense, settings = defense_and_settings(stored, rule, threat, clean_recall, fppi)
    with progress("drawing figures", 0) as bar:
        written = write_figures(
            stored, defense, out, settings=settings, only=only, on_progress=bar.update, on_warning=warn
        )
    if as_json:
        print_json(written.to_dict())
    else:
        printed.print(f"{len(written.files)} files in {escape(str(out))}")
