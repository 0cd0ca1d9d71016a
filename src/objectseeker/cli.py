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
Threshold = Annotated[float | None, typer.Option(help="T: share of an object that must stay covered. Default: 0.")]
WhichBound = Annotated[str | None, typer.Option("--bound", help="exact (default) or paper.")]
PatchArea = Annotated[float | None, typer.Option("--patch", help="Patch area, a share of the image. Default: 0.01.")]
PatchAspect = Annotated[float | None, typer.Option("--aspect", help="Patch width divided by height. Default: 1.")]
CleanRecall = Annotated[float | None, typer.Option(help="r of CertR@r, a fraction. Default: 0.8.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines instead of tables.")]
Spec = Annotated[str, typer.Option("--detector", "-d", help=f"One of {', '.join(detectors.SPECS)}.")]
Lines = Annotated[int, typer.Option(help="Mask lines per axis; 4 masks each.")]
Layout = Annotated[str | None, typer.Option(help="Family of an ONNX graph, where it cannot be told from the graph.")]
InputSize = Annotated[int | None, typer.Option(help="Side of the network input in pixels, where it is free.")]
Batch = Annotated[int | None, typer.Option(help="Views per forward pass.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]


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
    from objectseeker.report import Picture, write_page
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
    found = sum(row["found_vanilla"] for row in rows)
    columns = ["object", "found", *job.LOCATIONS, "largest patch"]
    write_page(
        out / "report.html",
        title="objectseeker demo",
        summary={
            "detector": "embedded",
            "masks": f"{4 * lines}, {lines} lines per axis",
            "patch": f"{patch:.2%} of the image, square",
            "objects": f"{len(rows)}, {found} of them found without any attack",
            **{f"certified {where}": f"{number} of {len(rows)}" for where, number in summary.items()},
        },
        columns=columns,
        pictures=[Picture(v.sample.name, v.picture, [_demo_cells(row, columns) for row in v.rows()]) for v in results],
    )
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
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    annotate: Annotated[bool, typer.Option(help="Write annotated images.")] = True,
    as_json: Json = False,
) -> None:
    """Robust detections of images, as COCO results and annotated images.

    Base boxes are drawn solid; boxes that only masking found are dashed and marked "found_by": "masks". If no score
    is given, the embedded detector uses its recommended settings (evidence rule), all others the paper's rule with
    base_score 0.5 and mask_score 0.7.

    Example:  objectseeker detect photos/ --out found
    Example:  objectseeker detect a.jpg b.png --detector onnx:yolox_nano.onnx --out found
    """
    from objectseeker import jobs
    from objectseeker.images import find_images

    paths = find_images(inputs)
    names = jobs.output_names(paths)
    loaded = detectors.load(detector, layout=layout, input_size=input_size, batch=batch, device=device)
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
    seeker = ObjectSeeker.with_rule(loaded, _rule(detector, given), lines=lines, batch=batch or 8)
    out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with _progress("detecting", len(paths)) as bar:
        for name, (path, found) in zip(names, jobs.defend_files(seeker, paths), strict=True):
            if isinstance(found, jobs.Unreadable):
                failed[str(path)] = found.reason
            else:
                results += jobs.coco_results(name, found, loaded.names)
                if annotate:
                    jobs.save_annotated(out / "annotated" / f"{name}.jpg", found, loaded.names)
            bar.advance()
    jobs.save_json(out / "detections.json", results)
    recovered = sum(row["found_by"] == "masks" for row in results)
    if as_json:
        _print_json(
            {
                "images": len(paths) - len(failed),
                "detections": len(results),
                "found_by_masks_only": recovered,
                "unreadable": failed,
                "out": str(out),
            }
        )
    else:
        printed.print(
            f"{len(results)} boxes in {len(paths) - len(failed)} images, {recovered} of them found by masking only"
        )
        printed.print(f"Written to {out / 'detections.json'}" + (f" and {out / 'annotated'}" if annotate else ""))
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

    loaded = detectors.load(detector, layout=layout, input_size=input_size, batch=batch, device=device)
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
    lines: Lines = 30,
    limit: Annotated[int | None, typer.Option(help="Only the first so many images.")] = None,
    base_floor: Annotated[float, typer.Option(help="Smallest score of a base box that is stored.")] = 0.01,
    mask_floor: Annotated[float, typer.Option(help="Smallest score of a masked box that is stored.")] = 0.1,
    fill: Annotated[int, typer.Option(help="Grey value of removed pixels.")] = 114,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say how long it would take, and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Show a detector every masked view of every image and store what it finds, for evaluate, tune and figures.

    It may be killed at any moment: the same command goes on where it stopped.

    Example:  objectseeker observe voc:VOCdevkit:val --out runs/voc --estimate
    Example:  objectseeker observe coco:instances_val2017.json:val2017 --detector onnx:yolox_nano.onnx --out runs/coco
    """
    from objectseeker import observe as job
    from objectseeker.datasets import open_dataset

    data = open_dataset(dataset)
    loaded = detectors.load(detector, layout=layout, input_size=input_size, batch=batch, device=device)
    if estimate:
        found = job.estimate(data, loaded, lines=lines, fill=fill, batch=batch or 8, limit=limit)
        size = found.plan
        if as_json:
            _print_json({"images": size.images, "passes": size.passes, "hours": found.hours})
        else:
            printed.print(
                f"{size.images:,} images x {size.views_per_image} views = {size.passes:,} forward passes, "
                f"{found.seconds_per_view * 1000:.1f} ms each here: {found.hours:.2f} hours"
            )
        return
    for warning in data.warnings:
        _warn(warning)
    with _progress("observing", 0) as bar:
        run = job.observe(
            data,
            loaded,
            out,
            lines=lines,
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
    clean_recall: CleanRecall = None,
    lines: Annotated[int | None, typer.Option(help="Use only so many of the stored lines.")] = None,
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
        clean_recall=clean_recall,
    )
    stored = _open_run(run, settings.floor)
    found = evaluation.evaluate(stored.images(lines=lines), stored.manifest.names, settings)
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
    threshold: Annotated[float, typer.Option(help="T: share of an object that must stay covered.")] = 0.0,
    bound: Annotated[str, typer.Option(help="exact or paper.")] = "exact",
    patch: Annotated[float, typer.Option(help="Patch area, a share of the image.")] = 0.01,
    aspect: Annotated[float, typer.Option(help="Patch width divided by its height.")] = 1.0,
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
    threats = [Patch(patch, aspect, where) for where in WHERES]
    rows: list[dict[str, Any]] = []
    with _progress("certifying", len(stored.parts)) as bar:
        for found in jobs.certify_images(
            stored.images(),
            stored.manifest.names,
            rule,
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
        clean_recall=clean_recall,
    )
    stored = _open_run(run, settings.floor)
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
def tune(
    run: RunFolder,
    loss: Annotated[float, typer.Option(help="Points of clean AP that may be lost.")] = 1.0,
    clean_recall: CleanRecall = None,
    where: Annotated[list[str] | None, typer.Option(help="What to maximise; default: far, close and over.")] = None,
    filter_ioa: Annotated[list[float] | None, typer.Option(help="Values of filter_ioa to choose from.")] = None,
    edge_factor: Annotated[list[float] | None, typer.Option(help="Values of edge_factor to choose from.")] = None,
    patch: PatchArea = None,
    seed: Annotated[int, typer.Option(help="Of the split into two halves.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for tuning.json and frontier.csv.")] = None,
    as_json: Json = False,
) -> None:
    """Search the scores that certify most within a clean AP loss, on one half of the images; report the other half.

    Example:  objectseeker tune runs/voc --loss 1 --clean-recall 0.8
    """
    from objectseeker import evaluation, tables

    settings = _settings(patch_area=patch, clean_recall=clean_recall)
    stored = _open_run(run)
    images = stored.images()
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
            filter_ioas=filter_ioa or (),
            edge_factors=edge_factor or (),
            seed=seed,
            on_attempt=count,
        )
    if out is not None:
        tables.save_tuning(out, found)
    if as_json:
        _print_json(found.to_json())
        return
    for table in tables.tuning_for_terminal(found):
        printed.print(table)


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


def _warn(sentence: str) -> None:
    notes.print(f"[bold yellow]note:[/] {_escape(sentence)}")


def _rule(spec: str, given: dict[str, Any]) -> Rule:
    """The settings given; if no score is, those recommended for the detector take its place."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if spec == "embedded" and not chosen.keys() & {"base_score", "mask_score", "low_score"}:
        from objectseeker.detectors.embedded import RECOMMENDED

        return replace(RECOMMENDED, **chosen)
    return Rule(**chosen)


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
