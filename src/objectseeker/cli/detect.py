"""The verb detect."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from objectseeker import Defense, ObjectSeekerError
from objectseeker.cli._app import Interrupted, app
from objectseeker.cli._console import (
    escape,
    print_json,
    print_next,
    progress,
    say,
    stderr_console,
    stdout_console,
    terminal_table,
)
from objectseeker.cli._options import (
    OUTPUT,
    THREAT,
    AllowOutsidePaths,
    ClassMap,
    DefenseOptions,
    Device,
    Json,
    ThreatModelOptions,
    TrustDetector,
    expand_groups,
    option,
    print_rule,
    read_class_map,
    tune_command,
    warn_unsuitable_masks,
)
from objectseeker.files.images import looks_like_image

if TYPE_CHECKING:
    from objectseeker.inference.results import DetectionTotals

VIDEO = "Video"


@app.command()
@expand_groups
def detect(
    inputs: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Images, folders, a dataset or a video.")],
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder for the results.")],
    defense: DefenseOptions,
    annotate: Annotated[bool, option(OUTPUT, None, "Write annotated images or video.", show_default=False)] = True,
    as_json: Json = False,
    certify: Annotated[bool, option(THREAT, None, "Certify the boxes that are output.", "--certify")] = False,
    only_certified: Annotated[
        bool, option(THREAT, None, "Output only boxes no patch made.", "--only-certified")
    ] = False,
    *,
    threat: ThreatModelOptions,
    stride: Annotated[int, option(VIDEO, "N", "Use every n-th frame.")] = 1,
    start: Annotated[str | None, option(VIDEO, "TIME", "Start at 90 or 1:30.")] = None,
    end: Annotated[str | None, option(VIDEO, "TIME", "Stop before this.")] = None,
    fps: Annotated[float | None, option(VIDEO, "X", "Of a folder of frames. Default: 25.")] = None,
    class_map: ClassMap = None,
    allow_outside_paths: AllowOutsidePaths = False,
    device: Device = None,
    trust_detector: TrustDetector = False,
) -> None:
    """Detect in images, a dataset or a video; write COCO results and alerts.

    Boxes that only masking recovered raise an alert. With --certify every box says where no patch can hide it on the
    unmodified image, and where no patch can have made it. Exit code 1: some images failed. 2: all did.

    Example:  objectseeker detect images/ --out found --certify
    Example:  objectseeker detect images/ --defense defense.json --out found
    Example:  objectseeker detect clip.mp4 --start 1:30 --stride 5 --out clip
    """
    from objectseeker.inference import detect as run_detection

    certify = certify or only_certified
    if not certify and threat != ThreatModelOptions():
        raise ObjectSeekerError("options of the threat such as --patch-area need --certify: add it")
    chosen = defense.build()
    run = run_detection(
        inputs,
        chosen,
        certify=threat.threat_model() if certify else False,
        only_certified=only_certified,
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
        print_rule(chosen)
        if certify:
            warn_unsuitable_masks(chosen.masks, threat.patch_count)
        stderr_console.print(escape(cost))

    try:
        with progress("detecting", run.total or 0) as bar:
            run.finish(on_start, lambda done, total: bar.update(done, total or 0))
    except KeyboardInterrupt:
        if not run.resumable:
            _print_totals(run.totals, as_json=as_json)
        raise Interrupted(f"{run.kept}.") from None
    _print_totals(run.totals, as_json=as_json)
    if not as_json and run.totals.images:
        print_next(_next_step(chosen, inputs[0], defense.settings, out))
    if run.totals.exit_status:
        raise typer.Exit(run.totals.exit_status)


def _next_step(defense: Defense, source: str, settings: Sequence[str] | None, out: Path) -> str:
    """Return the command to run next: tune an untuned defense, or serve this one."""
    if defense.is_untuned:
        return tune_command(defense, "IMAGES" if looks_like_image(source) else source, settings)
    return f"objectseeker serve --defense {shlex.quote(str(out / 'defense.json'))}"


def _print_totals(totals: DetectionTotals, *, as_json: bool) -> None:
    if as_json:
        print_json(totals.to_dict())
    else:
        rows = totals.certificate_rows()
        tables = [terminal_table("certified boxes, by the location of the patch", rows)] if rows else []
        say(totals.headline, *tables, *totals.notes())
        for name in totals.flagged_names:
            stdout_console.print(f"[bold red]alert:[/] {escape(name)}")
    for name, error in totals.errors.items():
        stderr_console.print(
            f"[bold yellow]skipped:[/] {escape(error if totals.unit == 'images' else f'{name}: {error}')}"
        )
    if totals.stop_reason:
        stderr_console.print(f"[bold yellow]skipped:[/] {escape(totals.stop_reason)}")
    if totals.failed > len(totals.errors):
        stderr_console.print(f"and {totals.failed - len(totals.errors):,} more frames, see frames.jsonl")


def _seconds(text: str, option: str) -> float:
    """Parse seconds, or h:mm:ss."""
    try:
        parts = [float(part) for part in text.split(":")]
        if len(parts) > 3 or not all(0 <= part < float("inf") for part in parts):
            raise ValueError
    except ValueError:
        raise ObjectSeekerError(f"{option} must be a time in seconds or as h:mm:ss: got {text[:80]!r}") from None
    return float(sum(part * 60**power for power, part in enumerate(reversed(parts))))
