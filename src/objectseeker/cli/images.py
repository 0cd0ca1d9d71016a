"""Commands that look at pictures: demo, detect, check-detector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker import ObjectSeeker, detectors
from objectseeker.cli.app import app
from objectseeker.cli.console import escape, mark, notes, print_json, printed, progress
from objectseeker.cli.options import (
    Batch,
    ClusterDistance,
    Device,
    EdgeFactor,
    FilterIoa,
    InputSize,
    Json,
    Layout,
    Lines,
    MaskBy,
    Power,
    Precision,
    Spec,
    TauIou,
    rule_of,
    with_iou,
)


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
    from objectseeker.demo import photographs as job
    from objectseeker.demo.samples import samples

    count = len(samples())
    out.mkdir(parents=True, exist_ok=True)
    results = []
    with progress("certifying photographs", count) as bar:
        for verdicts in job.run(lines=lines, patch_area=patch):
            job.save(out, verdicts)
            results.append(verdicts)
            bar.advance()
    rows = [row for verdicts in results for row in verdicts.rows()]
    summary = {where: sum(row["certified"][where] for row in rows) for where in job.LOCATIONS}
    columns = ["object", "found", *job.LOCATIONS, "largest patch"]
    job.save_report(out / "report.html", results, lines=lines, patch_area=patch)
    if as_json:
        print_json({"out": str(out), "patch_area": patch, "lines": lines, "objects": rows})
        return
    table = Table(title=f"Objects of at least 1 % of their photograph, square patch of {patch:.2%}")
    for column in ("photo", *columns):
        table.add_column(column)
    for row in rows:
        if row["share_of_image"] >= 0.01:
            table.add_row(row["photo"], *(mark(cell) for cell in demo_cells(row, columns).values()))
    printed.print(table)
    small = sum(row["share_of_image"] < 0.01 for row in rows)
    printed.print(f"{len(rows)} objects in {count} photographs; {small} smaller than 1 % are in the report only.")
    printed.print(", ".join(f"certified {where}: {number}" for where, number in summary.items()))
    printed.print(f"Report: {out / 'report.html'}")


def demo_cells(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    side = row["largest_certified_square"]
    cells = {
        "object": f"{row['object']}, {row['share_of_image']:.1%}",
        "found": row["found_vanilla"],
        **row["certified"],
        "largest patch": f"{side} px, {row['largest_certified_area']:.1%}" if side else "-",
    }
    return {column: cells[column] for column in columns}


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

    Base boxes are drawn solid; boxes that only masking found are dashed and marked "found_by": "masks". Without
    --mask-score and --low-score the evidence rule is used, at scores that follow --base-score (0.5; the embedded
    detector has settings of its own). --mask-score alone is the paper's rule.

    With --alert an image is flagged when masking finds what the base boxes do not explain. If an attacker hides a
    certified object from the detector itself, the image is flagged; clean images may be, too (see evaluate).

    Example:  objectseeker detect photos/ --out found
    Example:  objectseeker detect photos/ --out found --alert
    Example:  objectseeker detect a.jpg b.png --detector onnx:yolox_nano.onnx --out found
    """
    from objectseeker import jobs
    from objectseeker.files.images import find_images

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
    seeker = ObjectSeeker.with_rule(loaded, with_iou(rule_of(detector, given), tau_iou), lines=lines, batch=batch or 8)
    out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with progress("detecting", len(paths)) as bar:
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
        print_json(
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
                printed.print(f"[bold red]alert:[/] {escape(name)}")
    for reason in failed.values():
        notes.print(f"[bold yellow]skipped:[/] {escape(reason)}")
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
    from objectseeker.demo.samples import samples
    from objectseeker.detectors.check import check_detector as run
    from objectseeker.files.images import load_image

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
        printed.print(f"[bold]{escape(loaded.identity)}[/]")
    for finding in run(loaded, picture, lines=lines, batch=getattr(loaded, "batch", batch or 8)):
        findings.append(finding)
        if not as_json:
            mark = {True: "[green]pass[/]", False: "[bold red]FAIL[/]", None: "[dim]info[/]"}[finding.passed]
            printed.print(f"{mark}  {finding.name}: {escape(finding.detail)}")
    failed = [finding for finding in findings if finding.passed is False]
    if as_json:
        rows = [{"name": f.name, "passed": f.passed, "detail": f.detail} for f in findings]
        print_json({"detector": loaded.identity, "passed": not failed, "findings": rows})
    elif failed:
        printed.print(f"{len(failed)} checks failed: certificates for this detector would not hold.")
    else:
        printed.print("All checks passed.")
    if failed:
        raise typer.Exit(1)
