"""objectseeker check-detector"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker import Defense, ObjectSeekerError, Rule, detectors
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, printed, progress, warn
from objectseeker.cli._options import DetectorOptions, Device, Json, TrustDetector, grouped, refuse_beside
from objectseeker.core.recipes import parse_recipe


@app.command(name="check-detector")
@grouped
def check_detector(
    options: DetectorOptions,
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help=f"One of {', '.join(detectors.SPECS)}; or --defense.")
    ] = None,
    image: Annotated[Path | None, typer.Argument(help="An image with clear objects; default: a bundled one.")] = None,
    defense: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check the detector of this defense, under its own masks.")
    ] = None,
    masks: Annotated[str | None, typer.Option(help="Masks to check the views of. Default: halves:4.")] = None,
    device: Device = None,
    trust_detector: TrustDetector = False,
    as_json: Json = False,
) -> None:
    """Verify what the certificates rest on: a detector that is a pure function of the pixels it may see.

    Exit code 1 if a check fails.

    Example:  objectseeker check-detector builtin
    Example:  objectseeker check-detector onnx:model.onnx street.jpg
    Example:  objectseeker check-detector --defense tuned/defense.json
    """
    from objectseeker.demo.samples import samples
    from objectseeker.detectors.check import check_detector as run
    from objectseeker.files.images import load_image

    if defense is not None:
        if masks is not None:
            raise ObjectSeekerError(f"{defense} says it all: leave out --masks, or the file")
        if spec is not None:  # the only argument is the image then
            image = Path(spec)
        refuse_beside(defense, options)
        checked = Defense.load(defense)
    elif (spec or options.detector) is None:
        raise ObjectSeekerError(f"name a detector to check, one of {', '.join(detectors.SPECS)}, or --defense FILE")
    else:
        named, given = options.given()
        checked = Defense.default(
            str(spec or named), rule=Rule(), follow=None, masks=parse_recipe(masks or "halves:4"), **given
        )
    seeker = checked.seeker(device, trust_detector=trust_detector)
    loaded: Any = seeker.detector
    if reason := detectors.unverified_reason(loaded):
        warn(reason)
    picture = load_image(image if image is not None else samples()[0].path)
    findings = []
    if not as_json:
        printed.print(f"[bold]{escape(loaded.fingerprint)}[/]")
    batch = getattr(loaded, "batch", seeker.batch)
    for finding in run(loaded, picture, masks=checked.masks, batch=batch, value=checked.fill, watch=progress):
        findings.append(finding)
        if not as_json:
            mark = {True: "[green]pass[/]", False: "[bold red]FAIL[/]", None: "[dim]info[/]"}[finding.passed]
            printed.print(f"{mark}  {finding.name}: {escape(finding.detail)}")
    failed = [finding for finding in findings if finding.passed is False]
    if as_json:
        rows = [{"name": f.name, "passed": f.passed, "detail": f.detail} for f in findings]
        about = {"detector": loaded.fingerprint, "masks": str(checked.masks), "fill": checked.fill}
        print_json(about | {"passed": not failed, "findings": rows})
    elif failed:
        printed.print(f"{len(failed)} checks failed: certificates for this detector would not hold.")
    else:
        printed.print("All checks passed.")
    if failed:
        raise typer.Exit(1)
