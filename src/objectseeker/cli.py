"""The command line: reads options, calls the package, prints. Nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

import objectseeker
from objectseeker import ObjectSeeker, ObjectSeekerError, Rule, detectors
from objectseeker.iou_variant import AnyRule, IouRule

if TYPE_CHECKING:
    from objectseeker.evaluation import Settings
    from objectseeker.store import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Object detection that provably survives adversarial patches.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure speed against the naive way, in the same run.")
app.add_typer(bench, name="bench")

printed = Console(soft_wrap=True, highlight=False)
notes = Console(stderr=True, soft_wrap=True, highlight=False)

DATASETS = "coco:ANNOTATIONS.json:IMAGES, voc:VOCDIR:SPLIT, kitti:DIR, yolo:DIR, or a folder of images."

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that observe wrote.")]
Alpha = Annotated[float | None, typer.Option(help="Lowest mask_score, whatever the base_score.")]
Beta = Annotated[float | None, typer.Option(help="mask_score = max(alpha, base_score + (1 - base_score) * beta).")]
LowAlpha = Annotated[float | None, typer.Option(help="Evidence rule: alpha of low_score.")]
LowBeta = Annotated[float | None, typer.Option(help="Evidence rule: beta of low_score.")]
Power = Annotated[float | None, typer.Option(help="Evidence rule: exponent. Default: 1.")]
FilterIoa = Annotated[float | None, typer.Option(help="Share of a masked box a base box must explain. Default: 0.6.")]
EdgeFactor = Annotated[float | None, typer.Option(help="Factor on scores of boxes cut by their line. Default: 1.")]
ClusterDistance = Annotated[
    float | None, typer.Option(help="Boxes whose IoA is at least 1 minus this are one cluster. Default: 0.1.")
]
TauIou = Annotated[float | None, typer.Option(help="Use the IoU variant, with this IoU (the paper's: 0.8).")]
Threshold = Annotated[float | None, typer.Option(help="T: share of an object that must stay covered. Default: 0.")]
WhichBound = Annotated[str | None, typer.Option("--bound", help="exact (default) or paper.")]
PatchArea = Annotated[float | None, typer.Option("--patch", help="Patch area, a share of the image. Default: 0.01.")]
PatchAspect = Annotated[float | None, typer.Option("--aspect", help="Patch width divided by height. Default: 1.")]
PatchCount = Annotated[int | None, typer.Option("--patches", help="How many patches at once, 1 or 2. Default: 1.")]
CleanRecall = Annotated[float | None, typer.Option(help="r of CertR@r, a fraction. Default: 0.8.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines instead of tables.")]
Spec = Annotated[str, typer.Option("--detector", "-d", help=f"One of {', '.join(detectors.SPECS)}.")]
Lines = Annotated[int, typer.Option(help="Mask lines per axis; 4 masks each.")]
Layout = Annotated[str | None, typer.Option(help="Family of an ONNX graph, where it cannot be told from the graph.")]
InputSize = Annotated[int | None, typer.Option(help="Side of the network input in pixels, where it is free.")]
Batch = Annotated[int | None, typer.Option(help="Views per forward pass.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
MaskBy = Annotated[
    str | None,
    typer.Option(help="fill: paint removed pixels over. crop: cut them away, where the network takes any size."),
]
Precision = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16, on a GPU.")]


def main() -> None:
    """Run the command line; what the user can mend becomes one sentence and exit code 2."""
    try:
        app()
    except ObjectSeekerError as error:
        _fail(str(error))
    except OSError as error:  # a folder that is a file, a full disk, no permission
        _fail(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error))


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        printed.print(f"objectseeker {objectseeker.__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the annotated photographs.")] = Path("demo"),
    lines: Lines = 30,
    patch: Annotated[float, typer.Option(help="Patch area as a share of the image.")] = 0.01,
    as_json: Json = False,
) -> None:
    """Defend and certify the embedded detector on a few bundled photographs.

    Example:  objectseeker demo --out demo
    """
    from objectseeker import demo as job
    from objectseeker.samples import samples

    count = len(samples())
    out.mkdir(parents=True, exist_ok=True)
    results = []
    with _progress("certifying photographs", count) as bar:
        for verdicts in job.run(lines=lines, patch_area=patch):
            job.save(out, verdicts)
            results.append(verdicts)
            bar.advance()
    rows = [row for verdicts in results for row in verdicts.rows()]
    summary = {where: sum(row["certified"][where] for row in rows) for where in job.LOCATIONS}
    columns = ["object", "found", *job.LOCATIONS, "largest patch"]
    job.save_report(out / "report.html", results, lines=lines, patch_area=patch)
    if as_json:
        _print_json({"out": str(out), "patch_area": patch, "lines": lines, "objects": rows})
        return
    table = Table(title=f"Objects of at least 1 % of their photograph, square patch of {patch:.2%}")
    for column in ("photo", *columns):
        table.add_column(column)
    for row in rows:
        if row["share_of_image"] >= 0.01:
            table.add_row(row["photo"], *(_mark(cell) for cell in _demo_cells(row, columns).values()))
    printed.print(table)
    small = sum(row["share_of_image"] < 0.01 for row in rows)
    printed.print(f"{len(rows)} objects in {count} photographs; {small} smaller than 1 % are in the report only.")
    printed.print(", ".join(f"certified {where}: {number}" for where, number in summary.items()))
    printed.print(f"Report: {out / 'report.html'}")


@app.command()
def detect(
    inputs: Annotated[list[Path], typer.Argument(metavar="IMAGE|FOLDER...", help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option(help="Folder for detections.json and the annotated images.")],
    detector: Spec = "embedded",
    lines: Lines = 30,
    base_score: Annotated[float | None, typer.Option(help="Smallest score of a base box.")] = None,
    mask_score: Annotated[float | None, typer.Option(help="Score at which one masked box decides alone.")] = None,
    low_score: Annotated[
        float | None, typer.Option(help="Evidence rule: score from which masked boxes add up.")
    ] = None,
    power: Power = None,
    filter_ioa: FilterIoa = None,
    edge_factor: EdgeFactor = None,
    cluster_distance: ClusterDistance = None,
    classwise: Annotated[bool, typer.Option(help="Prune label by label.")] = True,
    tau_iou: TauIou = None,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    mask_by: MaskBy = None,
    precision: Precision = None,
    annotate: Annotated[bool, typer.Option(help="Write annotated images.")] = True,
    alert: Annotated[
        bool, typer.Option("--alert", help="Flag images that may be under attack, in alerts.json.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Robust detections of images, as COCO results and annotated images.

    Base boxes are drawn solid; boxes that only masking found are dashed and marked "found_by": "masks". If no score
    is given, the embedded detector uses its recommended settings (evidence rule), all others the paper's rule with
    base_score 0.5 and mask_score 0.7.

    With --alert an image is flagged when masking finds what the base boxes do not explain. If an attacker hides a
    certified object from the detector itself, the image is flagged; clean images may be, too (see evaluate).

    Example:  objectseeker detect photos/ --out found
    Example:  objectseeker detect photos/ --out found --alert
    Example:  objectseeker detect a.jpg b.png --detector onnx:yolox_nano.onnx --out found
    """
    from objectseeker import jobs
    from objectseeker.images import find_images

    paths = find_images(inputs)
    names = jobs.output_names(paths)
    loaded = detectors.load(
        detector,
        layout=layout,
        input_size=input_size,
        batch=batch,
        device=device,
        mask_by=mask_by,
        precision=precision,
    )
    given = {
        "base_score": base_score,
        "mask_score": mask_score,
        "low_score": low_score,
        "power": power,
        "filter_ioa": filter_ioa,
        "edge_factor": edge_factor,
        "cluster_distance": cluster_distance,
        "classwise": classwise,
    }
    seeker = ObjectSeeker.with_rule(loaded, _with_iou(_rule(detector, given), tau_iou), lines=lines, batch=batch or 8)
    out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with _progress("detecting", len(paths)) as bar:
        for name, (path, found) in zip(names, jobs.defend_files(seeker, paths), strict=True):
            if isinstance(found, jobs.Unreadable):
                failed[str(path)] = found.reason
            else:
                results += jobs.coco_results(name, found, loaded.names)
                alerts.append(jobs.alert_row(name, found))
                if annotate:
                    jobs.save_annotated(out / "annotated" / f"{name}.jpg", found, loaded.names)
            bar.advance()
    jobs.save_json(out / "detections.json", results)
    if alert:
        jobs.save_json(out / "alerts.json", alerts)
    recovered = sum(row["found_by"] == "masks" for row in results)
    flagged = [row["image_id"] for row in alerts if row["alert"]]
    if as_json:
        _print_json(
            {
                "images": len(paths) - len(failed),
                "detections": len(results),
                "found_by_masks_only": recovered,
                **({"alerts": flagged} if alert else {}),
                "unreadable": failed,
                "out": str(out),
            }
        )
    else:
        printed.print(
            f"{len(results)} boxes in {len(paths) - len(failed)} images, {recovered} of them found by masking only"
        )
        printed.print(f"Written to {out / 'detections.json'}" + (f" and {out / 'annotated'}" if annotate else ""))
        if alert:
            printed.print(f"{len(flagged)} of {len(alerts)} images flagged, see {out / 'alerts.json'}")
            for name in flagged[:20]:
                printed.print(f"[bold red]alert:[/] {_escape(name)}")
    for reason in failed.values():
        notes.print(f"[bold yellow]skipped:[/] {_escape(reason)}")
    if failed:
        raise typer.Exit(1 if len(failed) < len(paths) else 2)


@app.command(name="check-detector")
def check_detector(
    detector: Annotated[str, typer.Argument(metavar="SPEC", help=f"One of {', '.join(detectors.SPECS)}.")],
    image: Annotated[Path | None, typer.Argument(help="An image with clear objects; default: a bundled one.")] = None,
    lines: Annotated[int, typer.Option(help="Lines per axis to check masks at.")] = 4,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    mask_by: MaskBy = None,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Verify what the certificates rest on: a detector that is a pure function of the pixels it may see.

    Exit code 1 if a check fails.

    Example:  objectseeker check-detector embedded
    Example:  objectseeker check-detector onnx:model.onnx street.jpg
    """
    from objectseeker.check import check_detector as run
    from objectseeker.images import load_image
    from objectseeker.samples import samples

    loaded = detectors.load(
        detector,
        layout=layout,
        input_size=input_size,
        batch=batch,
        device=device,
        mask_by=mask_by,
        precision=precision,
    )
    picture = load_image(image if image is not None else samples()[0].path)
    findings = []
    if not as_json:
        printed.print(f"[bold]{_escape(loaded.identity)}[/]")
    for finding in run(loaded, picture, lines=lines, batch=getattr(loaded, "batch", batch or 8)):
        findings.append(finding)
        if not as_json:
            mark = {True: "[green]pass[/]", False: "[bold red]FAIL[/]", None: "[dim]info[/]"}[finding.passed]
            printed.print(f"{mark}  {finding.name}: {_escape(finding.detail)}")
    failed = [finding for finding in findings if finding.passed is False]
    if as_json:
        rows = [{"name": f.name, "passed": f.passed, "detail": f.detail} for f in findings]
        _print_json({"detector": loaded.identity, "passed": not failed, "findings": rows})
    elif failed:
        printed.print(f"{len(failed)} checks failed: certificates for this detector would not hold.")
    else:
        printed.print("All checks passed.")
    if failed:
        raise typer.Exit(1)


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
        str | None, typer.Option(help="cpu or cuda; cuda:0,cuda:1 shares the images out among GPUs.")
    ] = None,
    mask_by: MaskBy = None,
    precision: Precision = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say how long it would take, and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Show a detector every masked view of every image and store what it finds, for evaluate, tune and figures.

    It may be killed at any moment: the same command goes on where it stopped.

    Example:  objectseeker observe voc:VOCdevkit:val --out runs/voc --estimate
    Example:  objectseeker observe coco:instances_val2017.json:val2017 --detector onnx:yolox_nano.onnx --out runs/coco
    Example:  objectseeker observe voc:VOCdevkit:val --masks pairs --lines 10 --limit 200 --out runs/voc-pairs
    """
    from objectseeker import observe as job
    from objectseeker.datasets import open_dataset
    from objectseeker.masks import require_choice

    data = open_dataset(dataset)
    if lines is None:
        lines = 10 if masks == "pairs" else 30
    chosen = require_choice(masks)  # type: ignore[arg-type]
    size = job.plan(data, lines=lines, masks=chosen, limit=limit)
    cost = f"{size.images:,} images x {size.views_per_image:,} views = {size.passes:,} forward passes"
    loaded, *others = [
        detectors.load(
            detector,
            layout=layout,
            input_size=input_size,
            batch=batch,
            device=each,
            mask_by=mask_by,
            precision=precision,
        )
        for each in (device.split(",") if device else [None])
    ]
    if estimate:
        found = job.estimate(data, loaded, lines=lines, masks=chosen, fill=fill, batch=batch or 8, limit=limit)
        if as_json:
            _print_json({"images": size.images, "passes": size.passes, "hours": found.hours})
        else:
            printed.print(f"{size.why}.")
            printed.print(f"{cost}, {found.seconds_per_view * 1000:.1f} ms each here: {found.hours:.2f} hours")
        return
    notes.print(f"{size.why}: {cost}")
    for warning in data.warnings:
        _warn(warning)
    with _progress("observing", 0) as bar:
        run = job.observe(
            data,
            loaded,
            out,
            others=others,
            lines=lines,
            masks=chosen,
            fill=fill,
            base_floor=base_floor,
            mask_floor=mask_floor,
            batch=batch or 8,
            limit=limit,
            on_progress=bar.update,
            on_warning=_warn,
        )
    broken = {str(image.path): image.reason for image in run.broken}
    if as_json:
        _print_json({"run": str(out), "images": len(run.parts), "broken": broken, "complete": run.complete})
    else:
        printed.print(f"{len(run.parts)} images observed in {out}" + (f", {len(broken)} left out" if broken else ""))


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
    as_json: Json = False,
) -> None:
    """Clean AP and certified recall of a run, by the paper's protocol.

    Example:  objectseeker evaluate runs/voc --alpha 0.8 --beta 0.5 --clean-recall 0.8
    Example:  objectseeker evaluate runs/voc --alpha 0.35 --beta 0.25 --low-alpha 0.2 --low-beta 0.15 --json
    """
    from objectseeker import evaluation, tables

    settings = _settings(
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
    stored = _open_run(run, settings.floor)
    _note_masks(stored, settings.patch_count)
    found = evaluation.evaluate(stored.images(lines=lines), stored.manifest.names, settings)
    if attacks is not None:
        from objectseeker.attack.statistics import read_recall

        found["under_attack"] = read_recall(attacks)
    if out is not None:
        tables.save(out, found)
    if as_json:
        _print_json(found)
        return
    for table in tables.for_terminal(found):
        printed.print(table)


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
    from objectseeker import Patch, jobs, tables
    from objectseeker.evaluation import WHERES

    stored = _open_run(run, mask_score if low_score is None else low_score)
    given = {
        "power": power,
        "filter_ioa": filter_ioa,
        "edge_factor": edge_factor,
        "cluster_distance": cluster_distance,
    }
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    rule = Rule(mask_score=mask_score, low_score=low_score, classwise=classwise, **chosen)
    threats = [Patch(patch, aspect, where, patches) for where in WHERES]
    _note_masks(stored, patches)
    rows: list[dict[str, Any]] = []
    with _progress("certifying", len(stored.parts)) as bar:
        for found in jobs.certify_images(
            stored.images(),
            stored.manifest.names,
            _with_iou(rule, tau_iou),
            threats,
            threshold=threshold,
            bound=bound,  # type: ignore[arg-type]  # certify refuses what it does not know
        ):
            rows += found
            bar.advance()
    if out is not None:
        jobs.save_text(out, tables.as_csv([{key: str(value) for key, value in row.items()} for row in rows]))
    if as_json:
        _print_json(rows)
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
    from objectseeker import figures as job
    from objectseeker import plots
    from objectseeker.evaluation import Scene

    settings = _settings(
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
    stored = _open_run(run, settings.floor)
    _note_masks(stored, settings.patch_count)
    manifest = stored.manifest
    with _progress("drawing figures", 0) as bar:
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
        _warn(note)
    if as_json:
        _print_json({"out": str(out), "files": [str(file) for file in files]})
    else:
        printed.print(f"{len(files)} files in {out}")


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
    from objectseeker.report import provenance_of, write_report

    settings = _settings(
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
    stored = _open_run(run, settings.floor)
    with _progress("writing images", len(stored.parts)) as bar:
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
        _warn(f"shown without its photograph: {missing[0]}{more}")
    if as_json:
        _print_json({"out": str(out), "images": len(stored.parts), "missing_photographs": missing})
    else:
        printed.print(f"Report: {out} ({out.stat().st_size / 1e6:.1f} MB)")


@app.command()
def tune(
    run: RunFolder,
    loss: Annotated[float, typer.Option(help="Points of clean AP that may be lost.")] = 1.0,
    clean_recall: CleanRecall = None,
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
    from objectseeker import evaluation, frontier, plots
    from objectseeker.evaluation import Choices

    settings = _settings(patch_area=patch, clean_recall=clean_recall)
    stored = _open_run(run)
    images = stored.images(lines=lines)
    given = {"filter_ioa": filter_ioa, "edge_factor": edge_factor, "cluster_distance": cluster_distance}
    choices = Choices(**{name: tuple(values) for name, values in given.items() if values})
    with _progress("settings tried", 0) as bar:
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
            seed=seed,
            on_attempt=count,
            choices=choices,
        )
    if out is not None:
        frontier.save(out, found, settings.clean_recall)
        note = plots.missing()
        if note is not None:
            _warn(note)
    if as_json:
        _print_json(found.to_json())
        return
    for table in frontier.for_terminal(found):
        printed.print(table)


@app.command()
def attack(
    source: Annotated[Path, typer.Argument(metavar="RUN|IMAGE", help="Folder that observe wrote, or an image.")],
    out: Annotated[Path, typer.Option(help="Folder for attack.json, images and loss curves.")] = Path("attack"),
    detector: Spec = "embedded",
    patch: Annotated[str, typer.Option(help="Patch area, 1% or 0.01 of the image.")] = "1%",
    aspect: Annotated[float, typer.Option(help="Patch width divided by its height.")] = 1.0,
    where: Annotated[str, typer.Option(help="far, close, over or anywhere.")] = "over",
    mode: Annotated[str | None, typer.Option(help="white: by gradients. black: by boxes alone.")] = None,
    objects: Annotated[int, typer.Option(help="At most so many objects.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps per patch.")] = 100,
    restarts: Annotated[int, typer.Option(help="Patches per object.")] = 2,
    views: Annotated[int, typer.Option(help="Masked views looked at per step, against the defence.")] = 4,
    jitter: Annotated[int, typer.Option(help="Move the patch by up to so many pixels while optimising it.")] = 0,
    threshold: Annotated[float, typer.Option(help="T: share of an object that must stay covered.")] = 0.0,
    lines: Annotated[int | None, typer.Option(help="Mask lines per axis. Default: the run's, or 30.")] = None,
    base_score: Annotated[float | None, typer.Option(help="Smallest score of a base box.")] = None,
    mask_score: Annotated[float | None, typer.Option(help="Score at which one masked box decides alone.")] = None,
    low_score: Annotated[float | None, typer.Option(help="Evidence rule: score from which views add up.")] = None,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of objects, positions and first pixels.")] = 0,
    as_json: Json = False,
) -> None:
    """Try to hide objects with a patch, from the detector and from the defence, and to refute their certificates.

    The certificate is asked where the defence is weakest, and the patch goes there. Exit code 3 if a certified object
    was hidden: then a guarantee is broken, and a reproduction is saved. RUN lends its images and annotations; without
    annotations the confident boxes of IMAGE are the objects.

    Example:  objectseeker attack street.jpg --patch 1% --where over --out attacked
    Example:  objectseeker attack runs/voc --detector onnx:model.onnx --mode black --objects 20 --out attacked
    """
    from objectseeker import Patch
    from objectseeker.attack import Budget, Pipeline, job

    stored = _open_run(source) if source.is_dir() else None
    threat = Patch(job.parse_area(patch), aspect, where)  # type: ignore[arg-type]  # Patch refuses what it does not know
    budget = Budget(steps=steps, restarts=restarts, views=views, jitter=jitter, at_once=256 if device == "cuda" else 16)
    attacked = job.load_attacked(detector, mode=mode, device=device, layout=layout, input_size=input_size, batch=batch)
    if stored is not None and stored.manifest.detector_names != attacked.detector.names:
        raise ObjectSeekerError(f"{source} was observed with other classes than those of {detector}: name its detector")
    rule = _rule(detector, {"base_score": base_score, "mask_score": mask_score, "low_score": low_score})
    chosen_lines = lines or (30 if stored is None else stored.manifest.lines)
    fill = 114 if stored is None else stored.manifest.fill
    seeker = ObjectSeeker.with_rule(attacked.detector, rule, lines=chosen_lines, fill=fill, batch=batch or 8)
    pipeline = Pipeline(seeker, threshold)
    if stored is None:
        targets = job.targets_of_image(pipeline, source, objects)
    else:
        with _progress("observing objects", objects) as bar:
            targets = []
            for target in job.targets_of_run(pipeline, stored, objects, seed):
                targets.append(target)
                bar.advance()
    with _progress("attacking", 0) as bar:
        found = job.run_attack(attacked, pipeline, targets, threat, budget, out, seed=seed, on_progress=bar.update)
    broken = found["summary"]["broken_guarantees"]
    if as_json:
        _print_json(found)
    else:
        _print_attack(found, out)
    if broken:
        notes.print(
            f"[bold red]A GUARANTEE IS BROKEN:[/] {broken} of {len(targets)} objects were hidden where proven. "
            f"Run check.py in the folders under {_escape(str(out / 'broken'))} and report them."
        )
        raise typer.Exit(3)


@bench.command(name="core")
def bench_core(
    objects: Annotated[int, typer.Option(help="Objects to certify.")] = 10_000,
    boxes: Annotated[int, typer.Option(help="Boxes to prune.")] = 4_000,
    as_json: Json = False,
) -> None:
    """Certifying and pruning, against bitmaps and loops.

    Example:  objectseeker bench core
    """
    from objectseeker.bench import core

    _print_bench(core.run(objects=objects, boxes=boxes), as_json)


@bench.command(name="evaluate")
def bench_evaluate(
    images: Annotated[int, typer.Option(help="Synthetic images to evaluate.")] = 700,
    lines: Lines = 30,
    as_json: Json = False,
) -> None:
    """A whole evaluation from stored boxes, against pruning anew for every threshold.

    Example:  objectseeker bench evaluate --images 700
    """
    from objectseeker.bench import evaluation

    _print_bench(evaluation.run(images=images, lines=lines), as_json)


@bench.command(name="detect")
def bench_detect(
    detector: Spec = "embedded",
    images: Annotated[int, typer.Option(help="Photographs to measure on, of the bundled ones.")] = 3,
    lines: Lines = 30,
    layout: Layout = None,
    input_size: InputSize = None,
    device: Device = None,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """All masked views of an image: by fill, by crop, and by the naive loop of single passes.

    Example:  objectseeker bench detect
    Example:  objectseeker bench detect --detector onnx:yolox_nano.onnx --images 5
    """
    from objectseeker.bench import detect as job

    options = {"layout": layout, "input_size": input_size, "device": device, "precision": precision}
    found = job.run(detector, images=images, lines=lines, **options)
    if as_json:
        _print_json(found)
        return
    table = Table(title=f"{found['views']} views, median of {found['images']} images, {_escape(found['device'])}")
    for column in ("way", "seconds an image", "of the naive loop", "outside the network", "of matrix peak"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for row in found["rows"]:
        shares = (row["of_naive"], row["outside_the_network"], row["share_of_peak"])
        table.add_row(
            row["way"],
            f"{row['seconds']:.3f}",
            f"{shares[0]:.2f}x",
            *("-" if share is None else f"{share:.1%}" for share in shares[1:]),
        )
    printed.print(table)
    for sentence in job.notes(found):
        printed.print(sentence)


# --- helpers -------------------------------------------------------------------------------------------------------


class _Bar:
    """A progress bar that can be told where it stands or be moved on by one."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def advance(self) -> None:
        self._bar.advance(self._task)

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def _progress(what: str, total: int) -> Iterator[_Bar]:
    """A bar with rate and time left on the error stream, so that results can be piped."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        yield _Bar(bar, bar.add_task(what, total=total))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:.1f}/s" if task.speed >= 1 else f"{1 / task.speed:.1f} s each")


def _settings(**given: Any) -> Settings:
    """The settings given, the rest by default."""
    from objectseeker.evaluation import Settings

    return Settings(**{key: value for key, value in given.items() if value is not None})


def _open_run(folder: Path, lowest: float | None = None) -> Run:
    """The run, with a word on what is missing from it; refuses a `lowest` masked score below what was stored."""
    from objectseeker.store import open_run

    run = open_run(folder)
    if not run.complete:
        _warn(f"{folder} is unfinished: {run.finished} of {len(run.manifest.images)} images are used")
    for image in run.broken:
        _warn(f"left out: {image.reason}")
    if run.manifest.excluded:
        _warn(f"classes left out because the detector does not know them: {', '.join(run.manifest.excluded)}")
    if lowest is not None and lowest < run.manifest.mask_floor:
        raise ObjectSeekerError(
            f"the run keeps masked boxes from a score of {run.manifest.mask_floor} on, but these settings look from "
            f"{lowest} on: raise the scores, or observe with a lower --mask-floor"
        )
    return run


def _note_masks(run: Run, patches: int) -> None:
    """Say so where a run's masks are not made for the threat."""
    if patches == 2 and run.manifest.masks == "halves":
        _warn(
            "the run has half masks only: two patches are certified where one of them removes both; use --masks pairs"
        )


def _warn(sentence: str) -> None:
    notes.print(f"[bold yellow]note:[/] {_escape(sentence)}")


def _rule(spec: str, given: dict[str, Any]) -> Rule:
    """The settings given; if no score is, those recommended for the detector take its place."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if spec == "embedded" and not chosen.keys() & {"base_score", "mask_score", "low_score"}:
        from objectseeker.detectors.embedded import RECOMMENDED

        return replace(RECOMMENDED, **chosen)
    return Rule(**chosen)


def _with_iou(rule: Rule, tau_iou: float | None) -> AnyRule:
    """The rule, or the IoU variant around it."""
    return rule if tau_iou is None else IouRule(ioa=rule, tau_iou=tau_iou)


def _demo_cells(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    side = row["largest_certified_square"]
    cells = {
        "object": f"{row['object']}, {row['share_of_image']:.1%}",
        "found": row["found_vanilla"],
        **row["certified"],
        "largest patch": f"{side} px, {row['largest_certified_area']:.1%}" if side else "-",
    }
    return {column: cells[column] for column in columns}


def _print_bench(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    table = Table()
    for column in ("job", "seconds", "naive seconds", "naive measured on", "ratio", "check"):
        table.add_column(column, justify="right" if "seconds" in column or column == "ratio" else "left")
    for row in rows:
        checks = [] if "equal" not in row else ["same result" if row["equal"] else "RESULT DIFFERS"]
        checks += [] if "peak_memory_gb" not in row else [f"peak {row['peak_memory_gb']:.2f} GB"]
        table.add_row(
            row["job"],
            f"{row['seconds']:.4f}",
            f"{row['naive_seconds']:.2f}",
            row["naive_sample"],
            f"{row['naive_seconds'] / row['seconds']:,.0f}x",
            ", ".join(checks),
        )
    printed.print(table)


def _print_attack(found: dict[str, Any], out: Path) -> None:
    """One row per object, and the rates."""
    table = Table(title=f"Attacked by {found['mode']} box; survived: still found under the worst patch tried")
    for column in ("image", "object", "certified", "undefended survived", "defended survived"):
        table.add_column(column)
    for row in found["objects"]:
        survived = [row["vanilla_survived"], row["defence_survived"]]
        cells = ["not attacked" if cell is None else _mark(cell) for cell in survived]
        table.add_row(_escape(row["image"]), f"{row['class']} {row['object']}", _mark(row["certified"]), *cells)
    printed.print(table)
    for key, what in (
        ("hidden_from_detector", "hidden from the undefended detector"),
        ("hidden_uncertified", "not certified, hidden from the defence"),
        ("hidden_certified", "certified, hidden from the defence"),
    ):
        rate = found["summary"][key]
        interval = f" ({rate['low']:.0%} to {rate['high']:.0%} at 95 %)" if rate["of"] else ""
        printed.print(f"{what}: {rate['count']} of {rate['of']}{interval}")
    printed.print(f"Images, pictures, loss curves and attack.json: {out}")


def _mark(cell: Any) -> str:
    return ("[green]yes[/]" if cell else "[red]no[/]") if isinstance(cell, bool) else str(cell)


def _fail(sentence: str) -> NoReturn:
    notes.print(f"[bold red]error:[/] {_escape(sentence)}")
    sys.exit(2)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
