"""Command-line arguments, tables and measurements that the benchmarks share."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from objectseeker.core.recipes import parse_recipe
from objectseeker.defense import Defense

DETECTOR_OPTIONS = ("layout", "precision", "mask_mode")


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the module's docstring, with `--json`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def add_defense_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detector", default="builtin", metavar="SPEC", help="default: builtin")
    parser.add_argument("--masks", default="halves:30", metavar="RECIPE", help="default: halves:30")
    parser.add_argument("--device", help="such as cpu, cuda or cuda:1")
    for name in DETECTOR_OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", help="as in a defense file")


def defense_of(arguments: argparse.Namespace) -> Defense:
    """Return the detector and masks that the arguments name, with the default rule."""
    options = {name: getattr(arguments, name) for name in DETECTOR_OPTIONS if getattr(arguments, name) is not None}
    return Defense.for_detector(arguments.detector, masks=parse_recipe(arguments.masks), **options)


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of text; all columns but the first are right-aligned."""
    table = Table(title=title)
    for number, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table, markup=False)


def print_jobs(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print one row per job: our seconds, the naive seconds and their ratio."""
    if as_json:
        print(json.dumps(rows))
        return
    table = []
    for row in rows:
        checks = [] if "equal" not in row else ["same result" if row["equal"] else "RESULT DIFFERS"]
        checks += [] if row.get("peak_memory_gb") is None else [f"peak {row['peak_memory_gb']:.2f} GB"]
        table.append(
            {
                "job": row["job"],
                "seconds": f"{row['seconds']:.4f}",
                "naive seconds": f"{row['naive_seconds']:.2f}",
                "naive measured on": row["naive_sample"],
                "ratio": f"{row['naive_seconds'] / row['seconds']:,.0f}x",
                "check": ", ".join(checks),
            }
        )
    print_table("", table)


def peak_memory_gb() -> float | None:
    """Return the peak memory of this process, or None where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def best_time(job: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Return the best time of several runs after a warm-up run, and the result."""
    result = job() if repeats > 1 else None
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        result = job()
        best = min(best, time.perf_counter() - started)
    return float(best), result
