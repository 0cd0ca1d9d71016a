"""objectseeker observe"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from objectseeker import detectors
from objectseeker.cli._app import app
from objectseeker.cli._baseline import (
    DEFAULT_SIZE,
    Baseline,
    BaselineNetwork,
    BaselineSize,
    observe_baseline,
    open_network,
)
from objectseeker.cli._console import notes, print_json, printed, progress, warn
from objectseeker.cli._options import (
    DATASETS,
    DetectorOptions,
    Json,
    MaskOptions,
    grouped,
    read_class_map,
    what_is_observed,
)


@app.command()
@grouped
def observe(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help=DATASETS)],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is continued.")],
    detector: DetectorOptions,
    masks: MaskOptions,
    defence: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Observe with the detector and the masks of this defence.")
    ] = None,
    class_map: Annotated[
        str | None,
        typer.Option(metavar="DETECTOR=DATASET,...", help="Classes that names do not match; or a file, one a line."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a data set with unusable annotations instead of leaving them out.")
    ] = False,
    outside: Annotated[
        bool, typer.Option("--outside", help="Allow annotations to name images outside the folder.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Only the first so many images.")] = None,
    base_floor: Annotated[float, typer.Option(help="Smallest score of a base box that is stored.")] = 0.01,
    mask_floor: Annotated[float, typer.Option(help="Smallest score of a masked box that is stored.")] = 0.1,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda (every GPU of this machine), or named: cuda:0,cuda:1.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local: this machine. ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster: auto or HOST:PORT. Default: start one on this machine.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Ray: how many workers. Default: as many as fit.")] = None,
    cpus_per_worker: Annotated[float | None, typer.Option(help="Ray: cores of a worker. Default: 1.")] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="Ray: GPUs of a worker. Default: 1 with --device cuda, else 0.")
    ] = None,
    baseline: Baseline = None,
    baseline_network: BaselineNetwork = None,
    baseline_size: BaselineSize = DEFAULT_SIZE,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say how long it would take, and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Show a detector every masked view of every image and store what it finds, for evaluate, tune and figures.

    It may be killed at any moment: the same command goes on where it stopped.

    Example:  objectseeker observe voc:VOCdevkit:val --out runs/voc --estimate
    Example:  objectseeker observe coco:instances_val2017.json:val2017 --detector onnx:yolox_nano.onnx --out runs/coco
    Example:  objectseeker observe yolo:data.yaml:val -d onnx:own.onnx --names n.txt --class-map Pkw=car --out own
    Example:  objectseeker observe voc:VOCdevkit:val --masks pairs:10 --limit 200 --out runs/voc-pairs
    Example:  objectseeker observe voc:VOCdevkit:val --defence tuned/defence.json --out runs/voc
    Example:  objectseeker observe s3://fleet/2026 --device cuda --engine ray --address auto --out runs/fleet
    Example:  objectseeker observe voc:VOCdevkit:val --baseline detectorguard --out runs/voc
    """
    from objectseeker.datasets import open_dataset
    from objectseeker.runs import observe as job
    from objectseeker.runs.engines.choice import open_engine
    from objectseeker.runs.observing import Observing

    pairs = None if class_map is None else read_class_map(class_map)
    data = open_dataset(dataset, strict=strict, outside=outside)
    chosen = what_is_observed(detector, masks, defence)
    observing = Observing(
        masks=chosen.masks,
        fill=chosen.fill,
        batch=chosen.batch or 8,
        base_floor=base_floor,
        mask_floor=mask_floor,
    )
    size = job.plan(data, observing, limit=limit)
    cost = f"{size.images:,} images x {size.views_per_image:,} views = {size.passes:,} forward passes"
    options: dict[str, Any] = chosen.options | {"device": device}
    if estimate:
        one = detectors.load(chosen.detector, **options | {"device": device and device.split(",")[0]})
        expected = job.estimate(data, one, observing, limit=limit)
        if as_json:
            print_json({"images": size.images, "passes": size.passes, "hours": expected.hours})
        else:
            printed.print(f"{size.why}.")
            printed.print(f"{cost}, {expected.seconds_per_view * 1000:.1f} ms each here: {expected.hours:.2f} hours")
        return
    guard = None if baseline is None else open_network(baseline, baseline_network, baseline_size)
    notes.print(f"{size.why}: {cost}")
    for warning in data.warnings:
        warn(warning)
    asked = {"address": address, "workers": workers, "cpus": cpus_per_worker, "gpus": gpus_per_worker}
    with open_engine(engine, chosen.detector, options, asked, warn) as working, progress("observing", 0) as bar:
        run = job.observe(
            data, working, out, observing, limit=limit, class_map=pairs, on_progress=bar.update, on_warning=warn
        )
    if guard is not None:
        observe_baseline(run, guard)
    broken = {str(image.path): image.reason for image in run.broken}
    if as_json:
        print_json({"run": str(out), "images": len(run.parts), "broken": broken, "complete": run.complete})
    else:
        printed.print(f"{len(run.parts)} images observed in {out}" + (f", {len(broken)} left out" if broken else ""))
