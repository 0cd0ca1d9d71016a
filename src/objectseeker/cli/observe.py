"""objectseeker observe"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker import detectors
from objectseeker.cli._app import Interrupted, app
from objectseeker.cli._console import escape, notes, print_json, printed, progress, warn
from objectseeker.cli._options import (
    DATASETS,
    AllowOutsidePaths,
    ClassMap,
    DetectorOptions,
    Json,
    MaskOptions,
    grouped,
    read_class_map,
    what_is_observed,
)
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import shown

ENGINES = ("local", "ray")


@app.command()
@grouped
def observe(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help=DATASETS)],
    out: Annotated[
        Path, typer.Option(help="Folder of the run; an unfinished one is continued, a larger --limit makes it grow.")
    ],
    detector: DetectorOptions,
    masks: MaskOptions,
    defense: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Observe with the detector and the masks of this defense.")
    ] = None,
    class_map: ClassMap = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a dataset with unusable annotations instead of leaving them out.")
    ] = False,
    allow_outside_paths: AllowOutsidePaths = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many images.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Only so many images, drawn by --seed.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of --sample: the same draws the same, and more of them. Default: 0.")
    ] = None,
    trust_detector: Annotated[
        bool,
        typer.Option(
            "--trust-detector", help="Continue a run though it cannot be told that the detector is still the same."
        ),
    ] = False,
    base_floor: Annotated[float, typer.Option(help="Smallest score of a base box that is stored.")] = 0.01,
    mask_floor: Annotated[float, typer.Option(help="Smallest score of a masked box that is stored.")] = 0.1,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda (every GPU of this machine), or named: cuda:0,cuda:1.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local: this machine. ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster: auto or HOST:PORT. Default: start one on this machine.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Ray: how many workers. Default: as many as fit.")] = None,
    cpus_per_worker: Annotated[float | None, typer.Option(help="Ray: cores of a worker. Default: 1.")] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="Ray: GPUs of a worker. Default: 1 with --device cuda, else 0.")
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print how long it would take, and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Show a detector every masked view of every image and store what it finds, for evaluate, tune and figures.

    It may be killed at any moment: the same command goes on where it stopped, with a larger --limit or --sample also
    when it was done.

    Example:  objectseeker observe voc:VOCdevkit:val --out runs/voc --estimate
    Example:  objectseeker observe coco:instances_val2017.json:val2017 --detector onnx:yolox_nano.onnx --out runs/coco
    Example:  objectseeker observe yolo:data.yaml:val -d onnx:own.onnx --names n.txt --class-map Pkw=car --out own
    Example:  objectseeker observe voc:VOCdevkit:val --masks pairs:10 --sample 200 --out runs/voc-pairs
    Example:  objectseeker observe voc:VOCdevkit:val --defense tuned/defense.json --out runs/voc
    Example:  objectseeker observe mot:MOT17/train --masks rolling:8:halves:30 --out runs/mot
    Example:  objectseeker observe s3://fleet/2026 --device cuda --engine ray --address auto --out runs/fleet
    """
    from objectseeker.datasets import open_dataset
    from objectseeker.runs.engines import ClusterRequest
    from objectseeker.runs.manifest import ObservationSettings
    from objectseeker.runs.observe import estimate as estimate_time
    from objectseeker.runs.observe import observe, plan_run

    if limit is not None and sample is not None:
        raise ObjectSeekerError("give --limit (the first images) or --sample (some of all), not both")
    if seed is not None and sample is None:
        raise ObjectSeekerError("--seed draws a sample: say with --sample of how many images")
    count, order = (limit, None) if sample is None else (sample, seed or 0)
    wishes = {"address": address, "workers": workers, "cpus": cpus_per_worker, "gpus": gpus_per_worker}
    given: dict[str, Any] = {name: value for name, value in wishes.items() if value is not None}
    if engine not in ENGINES:
        raise ObjectSeekerError(f"engine must be one of {', '.join(ENGINES)}, got {shown(engine)}")
    if given and engine != "ray":
        raise ObjectSeekerError(f"{', '.join(given)} can only be requested of a Ray cluster: add --engine ray")
    data = open_dataset(dataset, strict=strict, allow_outside_paths=allow_outside_paths)
    chosen = what_is_observed(detector, masks, defense)
    settings = ObservationSettings.from_defense(chosen, base_floor=base_floor, mask_floor=mask_floor)
    plan = plan_run(data, settings, limit=count)
    drawn = "" if sample is None else f" drawn with seed {order} from {len(data):,}"
    cost = f"{plan.images:,} images{drawn} x {plan.views_per_image:,} views = {plan.forward_passes:,} forward passes"
    if estimate:
        loaded = detectors.load_detector(chosen.detector, device=device and device.split(",")[0], **chosen.options)
        expected = estimate_time(data, loaded, settings, limit=count, seed=order)
        if as_json:
            print_json({"images": plan.images, "forward_passes": plan.forward_passes, "hours": expected.hours})
        else:
            printed.print(f"{plan.reason}.")
            each = f"{expected.seconds_per_view * 1000:.1f} ms each here"
            printed.print(f"{cost}, {each}: about {_duration(expected.seconds)}")
        return
    notes.print(f"{plan.reason}: {cost}")
    for warning in data.warnings:
        warn(warning)
    steps: list[tuple[int, int]] = []

    def step(done: int, total: int) -> None:
        if not steps and 0 < done < total:
            notes.print(f"{done:,} of {total:,} images are done already")
        steps[:] = [(done, total)]
        bar.update(done, total)

    try:
        with progress("observing", 0) as bar:
            run = observe(
                data,
                chosen,
                out=out,
                base_floor=base_floor,
                mask_floor=mask_floor,
                limit=count,
                seed=order,
                class_map=None if class_map is None else read_class_map(class_map),
                device=device,
                cluster=ClusterRequest(**given) if engine == "ray" else None,
                trust_detector=trust_detector,
                on_progress=step,
                on_warning=warn,
            )
    except KeyboardInterrupt:
        raise Interrupted(_how_far(steps)) from None
    if as_json:
        print_json(run.to_dict())
    else:
        skipped = f", {len(run.unreadable):,} skipped" if run.unreadable else ""
        printed.print(f"{len(run.parts):,} images observed in {escape(str(out))}{skipped}")


def _how_far(steps: list[tuple[int, int]]) -> str:
    """What Ctrl-C leaves."""
    if not steps:
        return "Nothing was observed yet."
    done, total = steps[0]
    return f"{done:,} of {total:,} images are done; rerun the same command to resume."


def _duration(seconds: float) -> str:
    """A time to plan with: seconds, minutes, hours or days, whichever fits."""
    for name, length, most in (("seconds", 1, 100), ("minutes", 60, 100), ("hours", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.{0 if seconds >= 10 * length else 1}f} {name}"
    return f"{seconds / 86400:,.0f} days"
