"""Commands that make a run, and certify its objects: observe, certify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker import Rule, detectors
from objectseeker.cli.app import app
from objectseeker.cli.baseline import (
    DEFAULT_SIZE,
    Baseline,
    BaselineNetwork,
    BaselineSize,
    observe_baseline,
    open_network,
)
from objectseeker.cli.console import notes, print_json, printed, progress, warn
from objectseeker.cli.options import (
    DATASETS,
    Batch,
    ClusterDistance,
    EdgeFactor,
    FilterIoa,
    InputSize,
    Json,
    Layout,
    MaskBy,
    Power,
    Precision,
    RunFolder,
    Spec,
    TauIou,
    note_masks,
    open_run,
    with_iou,
)


@app.command()
def observe(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help=DATASETS)],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is continued.")],
    detector: Spec = "embedded",
    lines: Annotated[int | None, typer.Option(help="Mask lines per axis. Default: 30; with pairs 10.")] = None,
    masks: Annotated[str, typer.Option(help="halves, or pairs of them against two patches at once.")] = "halves",
    limit: Annotated[int | None, typer.Option(help="Only the first so many images.")] = None,
    base_floor: Annotated[float, typer.Option(help="Smallest score of a base box that is stored.")] = 0.01,
    mask_floor: Annotated[float, typer.Option(help="Smallest score of a masked box that is stored.")] = 0.1,
    fill: Annotated[int, typer.Option(help="Grey value of removed pixels.")] = 114,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda (every GPU of this machine), or named: cuda:0,cuda:1.")
    ] = None,
    mask_by: MaskBy = None,
    precision: Precision = None,
    engine: Annotated[str, typer.Option(help="local: this machine. ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster: auto or HOST:PORT. Default: start one on this machine.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Ray: how many workers. Default: as many as fit.")] = None,
    cpus_per_worker: Annotated[float | None, typer.Option(help="Ray: cores of a worker. Default: 1.")] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="Ray: GPUs of a worker. Default: 1 with --device cuda, else 0.")
    ] = None,
    baseline: Baseline = None,
    baseline_network: BaselineNetwork = None,
    baseline_size: BaselineSize = DEFAULT_SIZE,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say how long it would take, and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Show a detector every masked view of every image and store what it finds, for evaluate, tune and figures.

    It may be killed at any moment: the same command goes on where it stopped.

    Example:  objectseeker observe voc:VOCdevkit:val --out runs/voc --estimate
    Example:  objectseeker observe coco:instances_val2017.json:val2017 --detector onnx:yolox_nano.onnx --out runs/coco
    Example:  objectseeker observe voc:VOCdevkit:val --masks pairs --lines 10 --limit 200 --out runs/voc-pairs
    Example:  objectseeker observe s3://fleet/2026 --device cuda --engine ray --address auto --out runs/fleet
    Example:  objectseeker observe voc:VOCdevkit:val --baseline detectorguard --out runs/voc
    """
    from objectseeker.core.masks import require_choice
    from objectseeker.datasets import open_dataset
    from objectseeker.runs import observe as job
    from objectseeker.runs.engines.choice import open_engine

    data = open_dataset(dataset)
    if lines is None:
        lines = 10 if masks == "pairs" else 30
    chosen = require_choice(masks)  # type: ignore[arg-type]
    size = job.plan(data, lines=lines, masks=chosen, limit=limit)
    cost = f"{size.images:,} images x {size.views_per_image:,} views = {size.passes:,} forward passes"
    options: dict[str, Any] = {
        "layout": layout,
        "input_size": input_size,
        "batch": batch,
        "device": device,
        "mask_by": mask_by,
        "precision": precision,
    }
    if estimate:
        one = detectors.load(detector, **options | {"device": device and device.split(",")[0]})
        found = job.estimate(data, one, lines=lines, masks=chosen, fill=fill, batch=batch or 8, limit=limit)
        if as_json:
            print_json({"images": size.images, "passes": size.passes, "hours": found.hours})
        else:
            printed.print(f"{size.why}.")
            printed.print(f"{cost}, {found.seconds_per_view * 1000:.1f} ms each here: {found.hours:.2f} hours")
        return
    guard = None if baseline is None else open_network(baseline, baseline_network, baseline_size)
    notes.print(f"{size.why}: {cost}")
    for warning in data.warnings:
        warn(warning)
    asked = {"address": address, "workers": workers, "cpus": cpus_per_worker, "gpus": gpus_per_worker}
    with open_engine(engine, detector, options, asked, warn) as working, progress("observing", 0) as bar:
        run = job.observe(
            data,
            working,
            out,
            lines=lines,
            masks=chosen,
            fill=fill,
            base_floor=base_floor,
            mask_floor=mask_floor,
            batch=batch or 8,
            limit=limit,
            on_progress=bar.update,
            on_warning=warn,
        )
    if guard is not None:
        observe_baseline(run, guard)
    broken = {str(image.path): image.reason for image in run.broken}
    if as_json:
        print_json({"run": str(out), "images": len(run.parts), "broken": broken, "complete": run.complete})
    else:
        printed.print(f"{len(run.parts)} images observed in {out}" + (f", {len(broken)} left out" if broken else ""))


@app.command()
def certify(
    run: RunFolder,
    mask_score: Annotated[float, typer.Option(help="Score at which one masked box decides alone.")],
    low_score: Annotated[float | None, typer.Option(help="Evidence rule: score from which views add up.")] = None,
    power: Power = None,
    filter_ioa: FilterIoa = None,
    edge_factor: EdgeFactor = None,
    cluster_distance: ClusterDistance = None,
    classwise: Annotated[bool, typer.Option(help="Certify label by label.")] = True,
    tau_iou: TauIou = None,
    threshold: Annotated[float | None, typer.Option(help="T. Default: 0, or with --tau-iou 0.5.")] = None,
    bound: Annotated[str, typer.Option(help="exact or paper.")] = "exact",
    patch: Annotated[float, typer.Option(help="Patch area, a share of the image.")] = 0.01,
    aspect: Annotated[float, typer.Option(help="Patch width divided by its height.")] = 1.0,
    patches: Annotated[int, typer.Option(help="How many patches at once, 1 or 2.")] = 1,
    out: Annotated[Path | None, typer.Option(help="A .csv file for all objects.")] = None,
    as_json: Json = False,
) -> None:
    """The certificate of every object of a run, at fixed scores.

    Example:  objectseeker certify runs/voc --mask-score 0.7 --patch 0.01 --out certificates.csv
    """
    from objectseeker import Patch, jobs
    from objectseeker.core.threats import WHERES
    from objectseeker.results import tables

    stored = open_run(run, mask_score if low_score is None else low_score)
    given = {
        "power": power,
        "filter_ioa": filter_ioa,
        "edge_factor": edge_factor,
        "cluster_distance": cluster_distance,
    }
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    rule = Rule(mask_score=mask_score, low_score=low_score, classwise=classwise, **chosen)
    threats = [Patch(patch, aspect, where, patches) for where in WHERES]
    note_masks(stored, patches)
    rows: list[dict[str, Any]] = []
    with progress("certifying", len(stored.parts)) as bar:
        for found in jobs.certify_images(
            stored.images(),
            stored.manifest.names,
            with_iou(rule, tau_iou),
            threats,
            threshold=threshold,
            bound=bound,  # type: ignore[arg-type]  # certify refuses what it does not know
        ):
            rows += found
            bar.advance()
    if out is not None:
        jobs.save_text(out, tables.as_csv([{key: str(value) for key, value in row.items()} for row in rows]))
    if as_json:
        print_json(rows)
        return
    counted = [row for row in rows if not row["ignored"]]
    for where in WHERES:
        number = sum(row[where] for row in counted)
        printed.print(f"certified {where}: {number} of {len(counted)} objects")
    printed.print(
        f"{sum(row['vacuous_far'] for row in counted)} objects have no far position and count as certified there"
    )
    if out is not None:
        printed.print(f"Every object: {out}")
