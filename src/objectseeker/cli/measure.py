"""Commands that measure a run: evaluate, figures, tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objectseeker.cli.app import app
from objectseeker.cli.baseline import Baseline, evaluate_baseline
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
    PatchCount,
    Power,
    RunFolder,
    Threshold,
    WhichBound,
    note_masks,
    open_run,
    settings_of,
)


@app.command()
def evaluate(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json, .csv and .md.")] = None,
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
    patches: PatchCount = None,
    clean_recall: CleanRecall = None,
    lines: Annotated[int | None, typer.Option(help="Use only so many of the stored lines.")] = None,
    attacks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="attack.json of this run: adds recall under attack.")
    ] = None,
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Clean AP and certified recall of a run, by the paper's protocol.

    Without scores the evidence rule is used, at recommended values; --alpha and --beta alone are the paper's rule.

    Example:  objectseeker evaluate runs/voc --clean-recall 0.8
    Example:  objectseeker evaluate runs/voc --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker evaluate runs/voc --alpha 0.35 --beta 0.25 --low-alpha 0.2 --low-beta 0.15 --json
    Example:  objectseeker evaluate runs/voc --baseline detectorguard --clean-recall 0.8
    """
    from objectseeker import evaluation
    from objectseeker.results import tables

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
        patch_count=patches,
        clean_recall=clean_recall,
    )
    stored = open_run(run, settings.floor)
    note_masks(stored, settings.patch_count)
    if baseline is not None:
        evaluate_baseline(baseline, stored, settings, out=out, as_json=as_json)
        return
    found = evaluation.evaluate(stored.images(lines=lines), stored.manifest.names, settings)
    if attacks is not None:
        from objectseeker.attack.statistics import read_recall

        found["under_attack"] = read_recall(attacks)
    if out is not None:
        tables.save(out, found)
    if as_json:
        print_json(found)
        return
    for table in tables.for_terminal(found):
        printed.print(table)


@app.command()
def figures(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder for the tables and plots.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Only this figure; may be repeated. An unknown name lists all.")
    ] = None,
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
    patches: PatchCount = None,
    clean_recall: CleanRecall = None,
    as_json: Json = False,
) -> None:
    """Every analysis of the paper from one run, as CSV, SVG and PNG; no detector runs.

    Example:  objectseeker figures runs/voc --out figures --alpha 0.8 --beta 0.5
    Example:  objectseeker figures runs/voc --out figures --only patch-area --only lines
    """
    from objectseeker.evaluation import Scene
    from objectseeker.results import figures as job
    from objectseeker.results import plots

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
        patch_count=patches,
        clean_recall=clean_recall,
    )
    stored = open_run(run, settings.floor)
    note_masks(stored, settings.patch_count)
    manifest = stored.manifest
    with progress("drawing figures", 0) as bar:
        files = job.write_figures(
            Scene.of(stored.images(), manifest.names),
            settings,
            out,
            lines=manifest.lines,
            mask_floor=manifest.mask_floor,
            only=only,
            on_progress=bar.update,
        )
    note = plots.missing()
    if note is not None:
        warn(note)
    if as_json:
        print_json({"out": str(out), "files": [str(file) for file in files]})
    else:
        printed.print(f"{len(files)} files in {out}")


@app.command()
def tune(
    run: RunFolder,
    loss: Annotated[float, typer.Option(help="Points of clean AP that may be lost.")] = 1.0,
    clean_recall: CleanRecall = None,
    recall_of: Annotated[
        str, typer.Option(help="Which detector's clean recall counts: defended, or vanilla, the undefended one.")
    ] = "defended",
    where: Annotated[list[str] | None, typer.Option(help="What to maximise; default: far, close and over.")] = None,
    filter_ioa: Annotated[list[float] | None, typer.Option(help="Only these values; may be repeated.")] = None,
    edge_factor: Annotated[list[float] | None, typer.Option(help="Only these values; may be repeated.")] = None,
    cluster_distance: Annotated[list[float] | None, typer.Option(help="Only these values; may be repeated.")] = None,
    lines: Annotated[int | None, typer.Option(help="Use only so many of the stored lines.")] = None,
    patch: PatchArea = None,
    seed: Annotated[int, typer.Option(help="Of the split into two halves.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tuning.json, tuning.md, frontier.csv and the plot.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search the settings that certify most within a clean AP loss, on one half of the images; report the other half.

    The paper's rule and the evidence rule are searched side by side, and for several losses: the frontier.

    Example:  objectseeker tune runs/voc --loss 1 --clean-recall 0.8 --out tuned
    Example:  objectseeker tune runs/voc --lines 10 --edge-factor 1
    """
    from objectseeker import evaluation
    from objectseeker.evaluation import Choices
    from objectseeker.results import plots
    from objectseeker.results import tuned as frontier

    settings = settings_of(patch_area=patch, clean_recall=clean_recall)
    stored = open_run(run)
    images = stored.images(lines=lines)
    given = {"filter_ioa": filter_ioa, "edge_factor": edge_factor, "cluster_distance": cluster_distance}
    choices = Choices(**{name: tuple(values) for name, values in given.items() if values})
    with progress("settings tried", 0) as bar:
        tried = 0

        def count(_: object) -> None:
            nonlocal tried
            tried += 1
            bar.update(tried, 0)

        found = evaluation.tune(
            images,
            stored.manifest.names,
            settings,
            mask_floor=stored.manifest.mask_floor,
            wheres=where or ("far", "close", "over"),  # type: ignore[arg-type]
            most_loss=loss,
            recall_of=recall_of,  # type: ignore[arg-type]
            seed=seed,
            on_attempt=count,
            choices=choices,
        )
    if out is not None:
        frontier.save(out, found, settings.clean_recall)
        note = plots.missing()
        if note is not None:
            warn(note)
    if as_json:
        print_json(found.to_json())
        return
    for table in frontier.for_terminal(found):
        printed.print(table)
