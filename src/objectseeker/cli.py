"""The command line: reads options, calls the package, prints. Nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import objectseeker
from objectseeker import ObjectSeeker, ObjectSeekerError, Rule, detectors

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
        notes.print(f"[bold red]error:[/] {_escape(str(error))}")
        sys.exit(2)


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
    with _progress("certifying photographs", count) as advance:
        for verdicts in job.run(lines=lines, patch_area=patch):
            job.save(out, verdicts)
            results.append(verdicts)
            advance()
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
        float | None, typer.Option(help="Evidence rule: score from which masked boxes add up. Default: off.")
    ] = None,
    power: Annotated[float | None, typer.Option(help="Evidence rule: exponent. Default: 1.")] = None,
    filter_ioa: Annotated[
        float | None, typer.Option(help="Share of a masked box that a base box must explain. Default: 0.6.")
    ] = None,
    edge_factor: Annotated[
        float | None, typer.Option(help="Factor on scores of boxes cut by their mask's line. Default: 1.")
    ] = None,
    classwise: Annotated[bool, typer.Option(help="Prune label by label.")] = True,
    layout: Layout = None,
    input_size: InputSize = None,
    batch: Batch = None,
    device: Device = None,
    annotate: Annotated[bool, typer.Option(help="Write annotated images.")] = True,
    as_json: Json = False,
) -> None:
    """Robust detections of images, as COCO results and annotated images.

    Base boxes are drawn solid; boxes that only masking found are dashed and marked "found_by": "masks".

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
        "classwise": classwise,
    }
    seeker = ObjectSeeker.with_rule(loaded, _rule(detector, given), lines=lines, batch=batch or 8)
    out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with _progress("detecting", len(paths)) as advance:
        for name, (path, found) in zip(names, jobs.defend_files(seeker, paths), strict=True):
            if isinstance(found, jobs.Unreadable):
                failed[str(path)] = found.reason
            else:
                results += jobs.coco_results(name, found, loaded.names)
                if annotate:
                    jobs.save_annotated(out / "annotated" / f"{name}.jpg", found, loaded.names)
            advance()
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

    rows = core.run(objects=objects, boxes=boxes)
    if as_json:
        _print_json(rows)
        return
    table = Table()
    for column in ("job", "seconds", "naive seconds", "naive measured on", "ratio", "same result"):
        table.add_column(column, justify="right" if "seconds" in column or column == "ratio" else "left")
    for row in rows:
        ratio = row["naive_seconds"] / row["seconds"]
        table.add_row(
            row["job"],
            f"{row['seconds']:.4f}",
            f"{row['naive_seconds']:.2f}",
            row["naive_sample"],
            f"{ratio:,.0f}x",
            "yes" if row["equal"] else "NO",
        )
    printed.print(table)


# --- helpers -------------------------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar with time left on the error stream, so that results can be piped."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


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


def _mark(cell: Any) -> str:
    return ("[green]yes[/]" if cell else "[red]no[/]") if isinstance(cell, bool) else str(cell)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
