"""objectseeker figures"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import (
    CleanRecall,
    Json,
    RuleOptions,
    RunFolder,
    ThreatOptions,
    WrongBoxes,
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
    fppi: WrongBoxes = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this figure; may be repeated. An unknown name lists all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Every analysis of the paper from one run, as CSV, SVG and PNG; no detector runs.

    Example:  objectseeker figures runs/voc --out figures --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker figures runs/voc --out figures --defense tuned/defense.json --fppi 1
    Example:  objectseeker figures runs/voc --out figures --only patch-area --only lines
    """
    from objectseeker.metrics import ImageSet
    from objectseeker.report import figures as job
    from objectseeker.report import plots

    stored = open_run(run)
    defense, settings = defense_and_settings(stored, rule, threat, clean_recall, fppi)
    with progress("drawing figures", 0) as bar:
        files = job.write_figures(
            ImageSet.of(stored.images(), stored.vocabulary),
            settings,
            out,
            masks=defense.masks,
            mask_floor=stored.manifest.observing.mask_floor,
            only=only,
            on_progress=bar.update,
            on_note=warn,
        )
    fixed = settings.fixed_rule
    named = defense if fixed is None else replace(defense, rule=fixed)
    # At a clean recall or a number of wrong boxes every figure finds a rule of its own: the curve they lie on is named.
    named.save(out / ("on-the-curve-of.defense.json" if fixed is None else "defense.json"))
    note = plots.missing()
    if note is not None:
        warn(note)
    if as_json:
        print_json({"out": str(out), "files": [str(file) for file in files], "defense": named.sha256})
    else:
        printed.print(f"{len(files)} files in {escape(str(out))}")
