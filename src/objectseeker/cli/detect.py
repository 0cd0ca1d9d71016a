"""objectseeker detect"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import Interrupted, app
from objectseeker.cli._console import escape, notes, print_json, printed, progress
from objectseeker.cli._options import (
    AllowOutsidePaths,
    ClassMap,
    DefenseOptions,
    Device,
    Json,
    ThreatModelOptions,
    grouped,
    note_masks,
    read_class_map,
    say,
)

if TYPE_CHECKING:
    from objectseeker.inference.results import DetectionTotals


@app.command()
@grouped
def detect(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|DATASET|VIDEO...",
            help="Images and folders, one dataset, or one video: a file, an address, a camera's number, video:FOLDER.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results; an unfinished one of images is resumed.")],
    defense: DefenseOptions,
    certify: Annotated[bool, typer.Option("--certify", help="Certify the boxes that are output.")] = False,
    annotate: Annotated[bool, typer.Option(help="Write annotated images or an annotated video.")] = True,
    as_json: Json = False,
    *,
    threat: ThreatModelOptions,
    class_map: ClassMap = None,
    allow_outside_paths: AllowOutsidePaths = False,
    stride: Annotated[int, typer.Option(help="Of a video: use every n-th frame.")] = 1,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a video: start here, in seconds or as h:mm:ss.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a video: stop before this, in seconds or as h:mm:ss.")
    ] = None,
    fps: Annotated[float | None, typer.Option(help="Of a folder of frames: frames per second. Default: 25.")] = None,
    device: Device = None,
    trust_detector: Annotated[
        bool,
        typer.Option("--trust-detector", help="Confirm that the detector is the same, if that cannot be verified."),
    ] = False,
) -> None:
    """Detect in images, a dataset or a video: COCO results, CSV, alerts and annotated images.

    A video gives frames.jsonl, one line of JSON per frame, and annotated.mp4. Boxes that only masking recovered are
    drawn dashed, and have "origin": "recovered"; they raise an alert. If an attacker hides a certified object from the
    undefended detector, the image is flagged; clean images may be flagged, too.

    With --certify every box says where no patch can hide it (far, close, over, anywhere) on the unmodified image. If an
    image is already attacked, objects may be missing from its boxes; no certificate covers those.

    Ctrl-C stops it; finished images are kept, and the same command resumes. One image that fails is named, and
    processing continues. Exit code 1: some images failed. 2: all did.

    Example:  objectseeker detect photos/ --out found
    Example:  objectseeker detect photos/ --defense tuned/defense.json --out found --certify --patch-area 1%
    Example:  objectseeker detect clip.mp4 --start 1:30 --end 2:00 --stride 5 --out clip
    Example:  objectseeker detect 0 --defense builtin-video --out camera
    Example:  objectseeker detect coco:annotations.json:images --class-map Pkw=car --out found
    """
    from objectseeker.inference import detect as run_detection

    if not certify and threat != ThreatModelOptions():
        raise ObjectSeekerError("options of the threat such as --patch-area need --certify: add it")
    chosen = defense.build()
    run = run_detection(
        inputs,
        chosen,
        certify=threat.threat_model() if certify else False,
        out=out,
        annotate=annotate,
        stride=stride,
        start=0.0 if start is None else _seconds(start, "--start"),
        end=None if end is None else _seconds(end, "--end"),
        fps=fps,
        class_map=None if class_map is None else read_class_map(class_map),
        allow_outside_paths=allow_outside_paths,
        device=device,
        trust_detector=trust_detector,
    )

    def on_start(cost: str) -> None:
        say(chosen)
        if certify:
            note_masks(chosen.masks, threat.patch_count)
        notes.print(escape(cost))

    try:
        with progress("detecting", run.total or 0) as bar:
            run.finish(on_start, lambda done, total: bar.update(done, total or 0))
    except KeyboardInterrupt:
        if not run.resumable:
            _print_totals(run.totals, as_json=as_json)
        raise Interrupted(f"{run.kept}.") from None
    _print_totals(run.totals, as_json=as_json)
    if run.totals.exit_status:
        raise typer.Exit(run.totals.exit_status)


def _print_totals(totals: DetectionTotals, *, as_json: bool) -> None:
    if as_json:
        print_json(totals.to_dict())
    else:
        for line in totals.describe():
            printed.print(escape(line))
        for name in totals.flagged_names:
            printed.print(f"[bold red]alert:[/] {escape(name)}")
    for name, error in totals.errors.items():
        notes.print(f"[bold yellow]skipped:[/] {escape(error if totals.unit == 'images' else f'{name}: {error}')}")
    if totals.stop_reason:
        notes.print(f"[bold yellow]skipped:[/] {escape(totals.stop_reason)}")
    if totals.failed > len(totals.errors):
        notes.print(f"and {totals.failed - len(totals.errors):,} more frames, see frames.jsonl")


def _seconds(text: str, option: str) -> float:
    """Parse seconds, or h:mm:ss."""
    try:
        parts = [float(part) for part in text.split(":")]
        if len(parts) > 3 or not all(0 <= part < float("inf") for part in parts):
            raise ValueError
    except ValueError:
        raise ObjectSeekerError(f"{option} is a time in seconds or as h:mm:ss, got {text[:80]!r}") from None
    return float(sum(part * 60**place for place, part in enumerate(reversed(parts))))
