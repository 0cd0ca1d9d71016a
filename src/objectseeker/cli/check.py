"""objectseeker check"""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Annotated, cast

import typer

from objectseeker import Defense, ObjectSeekerError, Rule, detectors
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import DetectorOptions, Device, Json, TrustDetector, grouped, refuse_beside
from objectseeker.core.recipes import Halves, parse_recipe


@app.command(name="check")
@grouped
def check(
    options: DetectorOptions,
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help=f"One of {', '.join(detectors.SPECS)}; or --defense.")
    ] = None,
    image: Annotated[Path | None, typer.Argument(help="An image with clear objects; default: a bundled one.")] = None,
    defense: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check the detector of this defense, with its own masks.")
    ] = None,
    masks: Annotated[str | None, typer.Option(help="Masks whose views are checked. Default: halves:4.")] = None,
    device: Device = None,
    trust_detector: TrustDetector = False,
    as_json: Json = False,
) -> None:
    """Check that a detector depends only on the pixels it is shown, and measure what an image costs.

    Certificates rest on that. Exit code 1 if a check fails.

    Example:  objectseeker check builtin
    Example:  objectseeker check onnx:model.onnx street.jpg
    Example:  objectseeker check --defense tuned/defense.json
    """
    from objectseeker.demo.samples import samples
    from objectseeker.detectors.check import CheckResult
    from objectseeker.detectors.check import check as check_detector
    from objectseeker.files.images import load_image

    if defense is not None:
        if masks is not None:
            raise ObjectSeekerError(f"--masks {masks} cannot be combined with --defense {defense}: omit one of them")
        if spec is not None:  # the only argument is the image then
            image = Path(spec)
        refuse_beside(defense, options)
        checked = deployed = Defense.load(defense)
        following = f"objectseeker detect IMAGES --out results --defense {shlex.quote(str(defense))}"
    else:
        named, given = options.given()
        if (spec or named) is None:
            raise ObjectSeekerError(f"name a detector to check, one of {', '.join(detectors.SPECS)}, or --defense FILE")
        spec = str(spec or named)
        checked = Defense.for_detector(
            spec, rule=Rule(), threshold_schedule=None, masks=parse_recipe(masks or "halves:4"), **given
        )
        deployed = Defense.for_detector(spec, masks=Halves() if masks is None else checked.masks, **given)
        following = f"objectseeker observe IMAGES --out run --detector {shlex.quote(spec)}{_repeated(options, masks)}"
    seeker = checked.build(device, trust_detector=trust_detector)
    loaded = cast(detectors.LoadedDetector, seeker.detector)
    if reason := detectors.unverified_reason(loaded):
        warn(reason)
    if not as_json:
        printed.print(f"[bold]{escape(loaded.fingerprint)}[/]")

    def show(result: CheckResult) -> None:
        if not as_json:
            mark = {True: "[green]pass[/]", False: "[bold red]FAIL[/]", None: "[dim]info[/]"}[result.passed]
            printed.print(f"{mark}  {result.name}: {escape(result.detail)}")

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
            printed.print(f"cost  {report.cost}")
        if report.passed:
            printed.print(f"All checks passed. Next: {escape(following)}")
        else:
            printed.print(f"{len(report.failed)} checks failed: certificates for this detector would not hold.")
    if not report.passed:
        raise typer.Exit(1)


def _repeated(options: DetectorOptions, masks: str | None) -> str:
    """Return the detector options and masks of this call as they are typed, without the detector itself."""
    given = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "detector"}
    given["masks"] = masks
    return "".join(f" --{n.replace('_', '-')} {shlex.quote(str(v))}" for n, v in given.items() if v is not None)
