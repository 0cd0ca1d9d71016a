"""The command that shows a run: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli.app import app
from objectseeker.cli.console import print_json, printed, progress, warn
from objectseeker.cli.options import (
    Alpha,
    Beta,
    CleanRecall,
    ClusterDistance,
    EdgeFactor,
    FilterIoa,
    Json,
    LowAlpha,
    LowBeta,
    PatchArea,
    PatchAspect,
    Power,
    RunFolder,
    Threshold,
    WhichBound,
    open_run,
    settings_of,
)


@app.command()
def report(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    photos: Annotated[str, typer.Option(help="embed them in the file, or leave them beside it in a folder.")] = "embed",
    alpha: Alpha = None,
    beta: Beta = None,
    low_alpha: LowAlpha = None,
    low_beta: LowBeta = None,
    power: Power = None,
    filter_ioa: FilterIoa = None,
    edge_factor: EdgeFactor = None,
    cluster_distance: ClusterDistance = None,
    threshold: Threshold = None,
    bound: WhichBound = None,
    patch: PatchArea = None,
    aspect: PatchAspect = None,
    clean_recall: CleanRecall = None,
    lines: Annotated[int | None, typer.Option(help="Use only so many of the stored lines.")] = None,
    as_json: Json = False,
) -> None:
    """One HTML file to look at a run: what is certified, and where a patch would still win. It needs no network.

    Patch size, shape, place and T given here are where the page's sliders stand at first.

    Example:  objectseeker report runs/voc --alpha 0.8 --beta 0.5 --out report.html
    Example:  objectseeker report runs/voc --clean-recall 0.7 --photos beside
    """
    from objectseeker.results.report import provenance_of, write_report

    settings = settings_of(
        alpha=alpha,
        beta=beta,
        low_alpha=low_alpha,
        low_beta=low_beta,
        power=power,
        filter_ioa=filter_ioa,
        edge_factor=edge_factor,
        cluster_distance=cluster_distance,
        threshold=threshold,
        bound=bound,
        patch_area=patch,
        patch_aspect=aspect,
        clean_recall=clean_recall,
    )
    stored = open_run(run, settings.floor)
    with progress("writing images", len(stored.parts)) as bar:
        missing = write_report(
            out,
            stored.images(lines=lines),
            stored.manifest.names,
            settings,
            title=f"objectseeker report: {stored.folder.resolve().name}",
            provenance=provenance_of(stored),
            photos=photos,  # type: ignore[arg-type]  # write_report refuses what it does not know
            on_progress=bar.update,
        )
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        warn(f"shown without its photograph: {missing[0]}{more}")
    if as_json:
        print_json({"out": str(out), "images": len(stored.parts), "missing_photographs": missing})
    else:
        printed.print(f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB)")
