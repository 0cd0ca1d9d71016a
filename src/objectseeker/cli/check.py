"""The command `objectseeker check`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from objectseeker import Defense, ObjectSeekerError, detectors
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, print_next, progress, say, stdout_console, warn
from objectseeker.cli._options import (
    DefenseName,
    Device,
    Json,
    Settings,
    TrustDetector,
    change_settings,
    default_defense,
    tune_command,
)
from objectseeker.text import plural


@app.command()
def check(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="Detector, such as onnx:FILE; omit it with --defense.")
    ] = None,
    image: Annotated[
        Path | None, typer.Argument(metavar="[IMAGE]", help="Image with clear objects. Default: a bundled one.")
    ] = None,
    defense: DefenseName = None,
    settings: Settings = None,
    as_json: Json = False,
    device: Device = None,
    trust_detector: TrustDetector = False,
) -> None:
    """Check that a detector depends only on the pixels it is shown, and measure what an image costs.

    Certificates rest on that. The detector's views are checked with the masks of the defense, or with halves:4 if
    neither --defense nor --set masks=RECIPE chooses masks. Exit code 1: a check failed.

    SPEC is builtin, onnx:FILE, torchvision:NAME, transformers:NAME, ultralytics:FILE or python:MODULE:FUNCTION.

    Example:  objectseeker check onnx:model.onnx street.jpg
    Example:  objectseeker check transformers:FOLDER --set mask_mode=drop
    Example:  objectseeker check --defense tuned/defense.json
    """
    from objectseeker.demo.samples import samples
    from objectseeker.detectors.check import DEFAULT_MASKS, CheckResult
    from objectseeker.detectors.check import check as check_detector
    from objectseeker.files.images import load_image

    changes = settings or []
    if defense is not None:
        if image is not None:
            raise ObjectSeekerError(f"SPEC and --defense name a detector each: got {spec} and {defense}. Omit one.")
        image = None if spec is None else Path(spec)  # the only argument
        checked = deployed = change_settings(Defense.load(defense), changes)
        following = f"detect IMAGES --defense {shlex.quote(str(defense))}{_repeated(changes)} --out results"
    else:
        if spec is None:
            raise ObjectSeekerError(f"name a detector to check, one of {', '.join(detectors.SPECS)}, or --defense FILE")
        checked = deployed = default_defense(spec, changes)
        if not any(change.startswith("masks") for change in changes):
            checked = replace(deployed, masks=DEFAULT_MASKS)
        following = f"observe IMAGES --detector {shlex.quote(spec)}{_repeated(changes)} --out run"
    seeker = checked.build(device, trust_detector=trust_detector)
    loaded = cast(detectors.LoadedDetector, seeker.detector)
    if reason := detectors.unverified_reason(loaded):
        warn(reason)
    if not as_json:
        stdout_console.print(f"[bold]{escape(loaded.fingerprint)}[/]")

    failures: set[str] = set()

    def show(result: CheckResult) -> None:
        if result.passed is False and result.detail in failures:
            return  # a detector that cannot run fails every check for one reason
        failures.add(result.detail)
        if not as_json:
            mark = {True: "[green]pass[/]", False: "[bold red]FAIL[/]", None: "[dim]info[/]"}[result.passed]
            stdout_console.print(f"{mark}  {result.name}: {escape(result.detail)}")

    report = check_detector(
        loaded,
        load_image(image if image is not None else samples()[0].path),
        masks=checked.masks,
        deployed_masks=deployed.masks,
        batch_size=getattr(loaded, "batch_size", seeker.batch_size),
        fill=checked.fill,
        open_progress=progress,
        on_result=show,
    )
    if as_json:
        print_json(report.to_dict())
    else:
        if report.cost is not None:
            say(f"cost  {report.cost}")
        if report.passed:
            say("All checks passed.")
            print_next(
                tune_command(deployed, "IMAGES", changes)
                if defense is None and deployed.is_untuned
                else f"objectseeker {following}"
            )
        else:
            say(f"{plural(len(report.failed), 'check')} failed: {', '.join(report.failed)}.")
            say("Certificates for this detector would not hold.")
    if not report.passed:
        raise typer.Exit(1)


def _repeated(settings: Sequence[str]) -> str:
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)
