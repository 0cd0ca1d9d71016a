"""objectseeker compare"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import Json, open_run
from objectseeker.core.recipes import parse_recipe
from objectseeker.core.threats import parse_area


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders that observe wrote, or .measured.json files.")
    ],
    loss: Annotated[list[float] | None, typer.Option(help="Points of clean AP that may be lost; default: 1.")] = None,
    recall: Annotated[list[float] | None, typer.Option(help="r of CertR@r; default: 0.7 and 0.8.")] = None,
    fppi: Annotated[
        list[float] | None,
        typer.Option(help="Instead, or with --recall as well: measure with at most so many wrong boxes an image."),
    ] = None,
    rule: Annotated[list[str] | None, typer.Option(help="paper or evidence; default: both.")] = None,
    recall_of: Annotated[
        str | None,
        typer.Option(help="Search where this detector reaches the recall: defended (default) or undefended."),
    ] = None,
    bootstrap: Annotated[
        int | None, typer.Option(help="Samples behind each interval, at most 10,000; default: 1000.")
    ] = None,
    patch: Annotated[str, typer.Option(metavar="SHARE", help="Patch area: 1% or 0.01 of the image.")] = "1%",
    both_halves: Annotated[
        bool, typer.Option("--both-halves", help="Search on each half in turn, measure on the other, give the mean.")
    ] = False,
    masks: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Only these masks, among those of every run: an estimate.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the split into halves and of the samples; default: 0.")] = None,
    processes: Annotated[int, typer.Option(help="How many searches run at once.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for measurements, tables and the plot.")] = None,
    as_json: Json = False,
) -> None:
    """What training changed: runs of several detectors on the same images, each against the first.

    AP lost to low mask scores, spurious boxes on clean images, and certified recall at an equal loss of AP: settings
    are searched on one half of the images and measured on the other. What one half allows the other may not, so
    --both-halves, which takes twice as long, tells detectors apart better. --loss, --recall, --fppi and --rule
    may be repeated. With --masks a run of a sum of recipes is taken for a run of one of them.

    Example:  objectseeker compare runs/plain runs/masked --loss 1 --recall 0.8 --processes 2
    Example:  objectseeker compare runs/plain runs/masked --fppi 1
    Example:  objectseeker compare runs/sum --masks halves:30 --recall 0.8 --both-halves
    Example:  objectseeker compare runs/masked --out measured
    Example:  objectseeker compare measured/plain.measured.json measured/masked.measured.json
    """
    from objectseeker.cli import _comparison_tables as comparison_tables
    from objectseeker.metrics import comparison as job
    from objectseeker.report import plots

    several = {"losses": loss, "recalls": recall, "fppi": fppi, "rules": rule}
    options: dict[str, Any] = {name: tuple(values) for name, values in several.items() if values}
    if fppi and not recall:
        options["recalls"] = ()
    single = {"recall_of": recall_of, "patch_area": parse_area(patch), "bootstrap": bootstrap, "seed": seed}
    options |= {name: value for name, value in single.items() if value is not None}
    options["both_halves"] = both_halves
    recipe = None if masks is None else parse_recipe(masks)
    measured = []
    for number, path in enumerate(runs, 1):
        if path.is_file():
            measured.append(comparison_tables.read_measured(path))
            continue
        stored = open_run(path)
        with progress(f"run {number} of {len(runs)}", 0) as bar:
            measured.append(job.measure(stored, masks=recipe, processes=processes, on_part=bar.update, **options))
    comparison = job.compare(measured)
    if out is not None:
        comparison_tables.save(out, measured)
        note = plots.unavailable_reason()
        if note is not None:
            warn(note)
    if as_json:
        print_json(comparison.to_dict())
        return
    for part in comparison_tables.for_terminal(comparison):
        printed.print(escape(part) if isinstance(part, str) else part)
