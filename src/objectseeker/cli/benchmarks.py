"""Speed against the naive way: bench core, evaluate, detect."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from objectseeker.cli.app import bench
from objectseeker.cli.baseline import DEFAULT_SIZE, Baseline, BaselineNetwork, BaselineSize, guarded_way, open_network
from objectseeker.cli.console import escape, print_json, printed
from objectseeker.cli.options import Device, InputSize, Json, Layout, Lines, Precision, Spec


@bench.command(name="core")
def bench_core(
    objects: Annotated[int, typer.Option(help="Objects to certify.")] = 10_000,
    boxes: Annotated[int, typer.Option(help="Boxes to prune.")] = 4_000,
    as_json: Json = False,
) -> None:
    """Certifying and pruning, against bitmaps and loops.

    Example:  objectseeker bench core
    """
    from objectseeker.bench import certifying as core

    print_bench(core.run(objects=objects, boxes=boxes), as_json)


@bench.command(name="evaluate")
def bench_evaluate(
    images: Annotated[int, typer.Option(help="Synthetic images to evaluate.")] = 700,
    lines: Lines = 30,
    as_json: Json = False,
) -> None:
    """A whole evaluation from stored boxes, against pruning anew for every threshold.

    Example:  objectseeker bench evaluate --images 700
    """
    from objectseeker.bench import evaluating as evaluation

    print_bench(evaluation.run(images=images, lines=lines), as_json)


@bench.command(name="detect")
def bench_detect(
    detector: Spec = "embedded",
    images: Annotated[int, typer.Option(help="Photographs to measure on, of the bundled ones.")] = 3,
    lines: Lines = 30,
    layout: Layout = None,
    input_size: InputSize = None,
    device: Device = None,
    precision: Precision = None,
    baseline: Baseline = None,
    baseline_network: BaselineNetwork = None,
    baseline_size: BaselineSize = DEFAULT_SIZE,
    as_json: Json = False,
) -> None:
    """All masked views of an image: by fill, by crop, and by the naive loop of single passes.

    Example:  objectseeker bench detect
    Example:  objectseeker bench detect --detector onnx:yolox_nano.onnx --images 5
    Example:  objectseeker bench detect --baseline detectorguard
    """
    from objectseeker.bench import detecting as job

    options = {"layout": layout, "input_size": input_size, "device": device, "precision": precision}
    guard = None
    if baseline is not None:
        network = open_network(baseline, baseline_network, baseline_size)
        guard = baseline, partial(guarded_way, baseline, network=network)
    found = job.run(detector, images=images, lines=lines, baseline=guard, **options)
    if as_json:
        print_json(found)
        return
    table = Table(title=f"{found['views']} views, median of {found['images']} images, {escape(found['device'])}")
    for column in ("way", "seconds an image", "of the naive loop", "outside the network", "of matrix peak"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for row in found["rows"]:
        shares = (row["of_naive"], row["outside_the_network"], row["share_of_peak"])
        table.add_row(
            row["way"],
            f"{row['seconds']:.3f}",
            f"{shares[0]:.2f}x",
            *("-" if share is None else f"{share:.1%}" for share in shares[1:]),
        )
    printed.print(table)
    for sentence in job.notes(found):
        printed.print(sentence)


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
