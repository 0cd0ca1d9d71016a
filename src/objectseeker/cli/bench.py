"""objectseeker bench: core, evaluate, detect, observe"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker.cli._app import bench
from objectseeker.cli._baseline import DEFAULT_SIZE, Baseline, BaselineNetwork, BaselineSize, guarded_way, open_network
from objectseeker.cli._console import escape, print_json, printed
from objectseeker.cli._options import DetectorOptions, Device, Json, Lines, MaskOptions, grouped, what_is_observed


@bench.command(name="core")
def bench_core(
    objects: Annotated[int, typer.Option(help="Objects to certify.")] = 10_000,
    boxes: Annotated[int, typer.Option(help="Boxes to prune.")] = 4_000,
    as_json: Json = False,
) -> None:
    """Certifying and pruning, against bitmaps and loops.

    Example:  objectseeker bench core
    """
    from objectseeker.bench import certifying

    print_bench(certifying.run(objects=objects, boxes=boxes), as_json)


@bench.command(name="evaluate")
def bench_evaluate(
    images: Annotated[int, typer.Option(help="Synthetic images to evaluate.")] = 700,
    lines: Lines = 30,
    as_json: Json = False,
) -> None:
    """A whole evaluation from stored boxes, against pruning anew for every threshold.

    Example:  objectseeker bench evaluate --images 700
    """
    from objectseeker.bench import evaluating

    print_bench(evaluating.run(images=images, lines=lines), as_json)


@bench.command(name="detect")
@grouped
def bench_detect(
    detector: DetectorOptions,
    masks: MaskOptions,
    images: Annotated[int, typer.Option(help="Photographs to measure on, of the bundled ones.")] = 3,
    device: Device = None,
    baseline: Baseline = None,
    baseline_network: BaselineNetwork = None,
    baseline_size: BaselineSize = DEFAULT_SIZE,
    beside: Annotated[
        list[str] | None,
        typer.Option(metavar="RECIPE", help="Further masks, against the same naive loop. May be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """All masked views of an image: by fill, by crop, by drop, and by the naive loop of single passes.

    Example:  objectseeker bench detect
    Example:  objectseeker bench detect --detector onnx:yolox_nano.onnx --masks bands:1% --images 5
    Example:  objectseeker bench detect --beside bands:1% --beside halves:10
    Example:  objectseeker bench detect --baseline detectorguard
    """
    from objectseeker.bench import detecting
    from objectseeker.core.recipes import parse_recipe

    guard = None
    if baseline is not None:
        network = open_network(baseline, baseline_network, baseline_size)
        guard = baseline, partial(guarded_way, baseline, network=network)
    others = [parse_recipe(recipe) for recipe in beside or ()]
    defense = what_is_observed(detector, masks, None)
    measured = detecting.run(defense, device=device, images=images, beside=others, baseline=guard)
    if as_json:
        print_json(measured)
        return
    table = Table(title=f"{measured['masks']}, median of {measured['images']} images, {escape(measured['device'])}")
    for column in ("way", "passes", "seconds an image", "of the naive loop", "outside the network", "of matrix peak"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for row in measured["rows"]:
        shares = (row["of_naive"], row["outside_the_network"], row["share_of_peak"])
        table.add_row(
            row["way"],
            str(row["passes"]),
            f"{row['seconds']:.3f}",
            f"{shares[0]:.2f}x",
            *("-" if share is None else f"{share:.1%}" for share in shares[1:]),
        )
    printed.print(table)
    for sentence in detecting.notes(measured):
        printed.print(sentence)


@bench.command(name="observe")
@grouped
def bench_observe(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Images to observe, as observe takes them.")],
    detector: DetectorOptions,
    masks: MaskOptions,
    images: Annotated[int, typer.Option(help="How many of them, at most.")] = 200,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """A dataset from files to a finished run, against its views alone: what reading and storing leave of the rate.

    Example:  objectseeker bench observe voc:VOCdevkit:val --device cuda --precision float16
    """
    from objectseeker.bench import throughput
    from objectseeker.datasets import open_dataset
    from objectseeker.runs.manifest import ObservationSettings

    defense = what_is_observed(detector, masks, None)
    seeker = defense.seeker(device)
    observing = ObservationSettings(masks=defense.masks, fill=defense.fill, batch=defense.batch)
    loaded: Any = seeker.detector
    measured = throughput.run(open_dataset(dataset), loaded, observing, images=images)
    if as_json:
        print_json(measured)
        return
    printed.print(f"{measured['images']} images of {measured['sizes']} sizes, {measured['views']} views each")
    printed.print(
        f"first image after {measured['first_image_seconds']:.1f} s, then at most "
        f"{measured['longest_stall_seconds']:.1f} s for one; all new sizes together "
        f"{measured['seconds_for_new_sizes']:.1f} s"
    )
    printed.print(
        f"views alone {measured['detect_ms']:.1f} ms an image, observed {measured['observe_ms']:.1f} ms: "
        f"{measured['of_the_rate']:.2f} of the rate"
    )


def print_bench(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table()
    for column in ("job", "seconds", "naive seconds", "naive measured on", "ratio", "check"):
        table.add_column(column, justify="right" if "seconds" in column or column == "ratio" else "left")
    for row in rows:
        checks = [] if "equal" not in row else ["same result" if row["equal"] else "RESULT DIFFERS"]
        checks += [] if "peak_memory_gb" not in row else [f"peak {row['peak_memory_gb']:.2f} GB"]
        table.add_row(
            row["job"],
            f"{row['seconds']:.4f}",
            f"{row['naive_seconds']:.2f}",
            row["naive_sample"],
            f"{row['naive_seconds'] / row['seconds']:,.0f}x",
            ", ".join(checks),
        )
    printed.print(table)
