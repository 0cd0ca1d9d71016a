"""objectseeker detect"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker.cli._app import app
from objectseeker.cli._console import escape, notes, print_json, printed, progress
from objectseeker.cli._options import DetectorOptions, Device, Json, MaskOptions, RuleOptions, defence_of, grouped, say


@app.command()
@grouped
def detect(
    inputs: Annotated[list[Path], typer.Argument(metavar="IMAGE|FOLDER...", help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option(help="Folder for detections.json and the annotated images.")],
    rule: RuleOptions,
    detector: DetectorOptions,
    masks: MaskOptions,
    device: Device = None,
    annotate: Annotated[bool, typer.Option(help="Write annotated images.")] = True,
    alert: Annotated[
        bool, typer.Option("--alert", help="Flag images that may be under attack, in alerts.json.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Robust detections of images, as COCO results and annotated images.

    Base boxes are drawn solid; boxes that only masking found are dashed and marked "found_by": "masks". The defence
    that was used lies beside them, in defence.json: certificates hold for these detections if they are about this file.
    Without --defence and scores the rule is the one that all commands share, printed in full.

    With --alert an image is flagged when masking finds what the base boxes do not explain. If an attacker hides a
    certified object from the detector itself, the image is flagged; clean images may be, too (see evaluate).

    Example:  objectseeker detect photos/ --out found
    Example:  objectseeker detect photos/ --defence tuned/defence.json --out found --alert
    Example:  objectseeker detect a.jpg b.png --detector onnx:yolox_nano.onnx --masks halves:10 --out found
    """
    from objectseeker.files.images import find_images
    from objectseeker.files.saving import save_json
    from objectseeker.results import detections as job

    defence = defence_of(detector, masks, rule)
    paths = find_images(inputs)
    names = job.output_names(paths)
    seeker = defence.seeker(device)
    loaded: Any = seeker.detector
    bound = defence.bound_to(loaded.identity)
    out.mkdir(parents=True, exist_ok=True)
    bound.save(out / "defence.json")
    say(bound)
    results: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with progress("detecting", len(paths)) as bar:
        for name, (path, defended) in zip(names, job.defend_files(seeker, paths), strict=True):
            if isinstance(defended, job.Unreadable):
                failed[str(path)] = defended.reason
            else:
                results += job.coco_results(name, defended, loaded.names)
                alerts.append(job.alert_row(name, defended))
                if annotate:
                    job.save_annotated(out / "annotated" / f"{name}.jpg", defended, loaded.names)
            bar.advance()
    save_json(out / "detections.json", [row | {"defence": bound.sha256} for row in results])
    if alert:
        save_json(out / "alerts.json", [row | {"defence": bound.sha256} for row in alerts])
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
                "defence": bound.sha256,
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
