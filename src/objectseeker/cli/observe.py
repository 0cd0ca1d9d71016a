"""The command `objectseeker observe`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from objectseeker import detectors
from objectseeker.cli._app import Interrupted, app
from objectseeker.cli._console import (
    describe_duration,
    print_json,
    print_next,
    progress,
    say,
    stderr_console,
    warn,
)
from objectseeker.cli._options import (
    ADVANCED,
    DATASET,
    DEFENSE,
    INPUT,
    OUTPUT,
    AllowOutsidePaths,
    ClassMap,
    DefenseOptions,
    Devices,
    Json,
    expand_groups,
    option,
    read_class_map,
)
from objectseeker.errors import ObjectSeekerError


@app.command()
@expand_groups
def observe(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help=DATASET)],
    *,
    limit: Annotated[int | None, option(INPUT, "N", "Number of images to observe.", min=1)] = None,
    sample: Annotated[int | None, option(INPUT, "N", "Number of images to draw at random.", min=1)] = None,
    seed: Annotated[int | None, option(INPUT, "N", "Seed of --sample; a larger sample adds images.", min=0)] = None,
    exclude: Annotated[list[Path] | None, option(INPUT, "RUN", "Skip the images of this run; repeatable.")] = None,
    class_map: ClassMap = None,
    defense: DefenseOptions,
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder of the run; one that exists is resumed.")],
    masks: Annotated[str | None, option(DEFENSE, "RECIPE", "Masks, such as halves:30, pairs:10 or bands:1%.")] = None,
    device: Devices = None,
    ray: Annotated[str | None, option(ADVANCED, "ADDRESS|local", "Observe on a Ray cluster; local: here.")] = None,
    workers: Annotated[int | None, option(ADVANCED, "N", "Number of Ray workers.", min=1)] = None,
    base_floor: Annotated[float, option(ADVANCED, "X", "Lowest stored base score.")] = 0.01,
    mask_floor: Annotated[float, option(ADVANCED, "X", "Lowest stored masked score.")] = 0.1,
    strict: Annotated[bool, option(ADVANCED, None, "Reject unusable annotations.", "--strict")] = False,
    allow_outside_paths: AllowOutsidePaths = False,
    trust_detector: Annotated[
        bool, option(ADVANCED, None, "Confirm it is the same detector.", "--trust-detector")
    ] = False,
    estimate: Annotated[bool, option(OUTPUT, None, "Print how long it takes, and exit.", "--estimate")] = False,
    as_json: Json = False,
) -> None:
    """Run a detector on every masked view of every image, and store its boxes for all other verbs.

    It can be interrupted at any time; the same command resumes, and a larger --limit or --sample enlarges the run.
    Settings of the rule have no effect.

    DATASET is coco:FILE.json:IMAGES, coco:ROOT, voc:VOCDEVKIT:SPLIT, kitti:DIR, yolo:DIR, list:FILE.txt,
    list:FILE.parquet, or a folder of images; of sequences mot:DIR, cvat:FILE.xml:IMAGES, boxes:DIR, or any other after
    frames:. Images may be at addresses such as s3://bucket/folder. python:MODULE:NAME is a MAITE dataset, which is
    stored in --out; naming one executes its code.

    Example:  objectseeker observe voc:VOCdevkit:val --out runs/voc --estimate
    Example:  objectseeker observe coco:instances_val2017.json:val2017 --detector onnx:yolox_nano.onnx --out runs/coco
    Example:  objectseeker observe yolo:data.yaml:val -d onnx:own.onnx --class-map Pkw=car --out own
    Example:  objectseeker observe voc:VOCdevkit:val --masks pairs:10 --sample 200 --out runs/voc-pairs
    Example:  objectseeker observe mot:MOT17/train --masks rolling:8:halves:30 --out runs/mot
    Example:  objectseeker observe s3://fleet/2026 --device cuda --ray auto --out runs/fleet
    """
    from objectseeker.runs.engines import ClusterRequest
    from objectseeker.runs.manifest import ObservationSettings
    from objectseeker.runs.observe import dataset_of, observe, plan_run, time_view, without_images_of

    if limit is not None and sample is not None:
        raise ObjectSeekerError("give --limit (the first images) or --sample (some of all), not both")
    if seed is not None and sample is None:
        raise ObjectSeekerError("--seed draws a sample: say with --sample of how many images")
    count, order = (limit, None) if sample is None else (sample, seed or 0)
    if workers is not None and ray is None:
        raise ObjectSeekerError(f"--workers {workers} needs a Ray cluster: add --ray auto or --ray local")
    cluster = None if ray is None else ClusterRequest(address=None if ray == "local" else ray, workers=workers)
    data = dataset_of(dataset, out, strict=strict, allow_outside_paths=allow_outside_paths)
    data = without_images_of(data, exclude or ())
    settings = [*(defense.settings or ()), *([] if masks is None else [f"masks={masks}"])]
    chosen = replace(defense, settings=settings).build()
    stored = ObservationSettings.from_defense(chosen, base_floor=base_floor, mask_floor=mask_floor)
    plan = plan_run(data, stored, limit=count)
    drawn = "" if order is None else f" drawn with seed {order} from {len(data):,}"
    cost = f"{plan.images:,} images{drawn} x {plan.views_per_image:,} views = {plan.forward_passes:,} forward passes"
    if estimate:
        loaded = detectors.load_detector(chosen.detector, device=device and device.split(",")[0], **chosen.options)
        seconds_per_view = time_view(data, loaded, stored, limit=count, seed=order)
        seconds = plan.forward_passes * seconds_per_view
        if as_json:
            print_json({"images": plan.images, "forward_passes": plan.forward_passes, "hours": seconds / 3600})
        else:
            each = f"{seconds_per_view * 1000:.1f} ms each here"
            say(f"{plan.reason}.", f"{cost}, {each}: about {describe_duration(seconds)}")
        return
    stderr_console.print(f"{plan.reason}: {cost}")
    for warning in data.warnings:
        warn(warning)
    steps: list[tuple[int, int]] = []

    def step(done: int, total: int) -> None:
        if not steps and 0 < done < total:
            stderr_console.print(f"{done:,} of {total:,} images are done already")
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
                cluster=cluster,
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
        say(f"{len(run.indices):,} images observed in {out}{skipped}")
        folder = shlex.quote(str(out))
        chosen_by_name = "" if defense.defense is None else defense.as_options()
        if not run.has_labels:
            print_next(f"objectseeker report {folder}{chosen_by_name} --out report.html")
        elif chosen_by_name:
            print_next(f"objectseeker evaluate {folder}{chosen_by_name}")
        else:
            print_next(f"objectseeker tune {folder} --out tuned")


def _how_far(steps: list[tuple[int, int]]) -> str:
    """Return what an interrupted run has kept."""
    if not steps:
        return "Nothing was observed yet."
    done, total = steps[0]
    return f"{done:,} of {total:,} images are done; rerun the same command to resume."
