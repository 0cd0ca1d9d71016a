"""What runs for the views of an image: all shapes, and the numbers that go with them.

Both are functions of sizes and masks only. Which views share a batch, and how it is filled up, can therefore not depend
on what any of them shows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.detectors.gpu.shared_layers import (
    NOTHING,
    FeatureLevel,
    ReceptiveField,
    WindowBatch,
    levels,
    locate_cells,
    split_lines,
    strips,
)
from objectseeker.detectors.network.preprocess import InputPlacement, Size
from objectseeker.detectors.network.views import ViewPlan

Tensor = Any

PADDED_TO = 4  # views of one of several sizes are filled up to a multiple of it, so that fewer shapes occur


class ViewGroup(NamedTuple):
    """`views` views that run together at one `size`; the first `members` of them are asked for."""

    size: Size
    views: int
    members: int


class BatchPlan(NamedTuple):
    """All shapes of a call and nothing of its content: calls of one program replay one graph.

    `levels` and, for each, the sizes and numbers of its batches are there if views share their first stages.
    """

    canvas: Size
    groups: tuple[ViewGroup, ...]
    columns: int
    levels: tuple[FeatureLevel, ...] = ()
    batches: tuple[tuple[tuple[Size, int], ...], ...] = ()


@lru_cache(maxsize=256)  # `views.known_views` gives equal views as one object
def plan_batches(
    views: ViewPlan, placement: InputPlacement, reaches: tuple[ReceptiveField, ...], batch: int
) -> tuple[BatchPlan, Ints, Ints]:
    """What runs, the numbers it needs, and where each view is found among its results.

    The numbers are tables, one after the other: a row for every view of every batch
    of a shared stage and then of every group; `split` takes them apart.
    """
    every: tuple[FeatureLevel, ...] = levels(placement.size, reaches)
    cut = split_lines(views.filled, placement) if every else None
    if cut is None:
        rectangles = views.filled.shape[1]
        rows, nothing, shrink, every = views.filled.reshape(len(views), -1), [0, 0, *placement.size] * rectangles, 1, ()
        early: list[list[WindowBatch]] = []
    else:
        rows, nothing, shrink = locate_cells(cut, every[-1]), list(NOTHING), every[-1].reach.stride
        early = strips(cut, views.filled, placement, every)
    groups, tables, order = group_views(views, rows, nothing, shrink, batch)
    shapes = tuple(tuple((part.size, len(part.table)) for part in parts) for parts in early)
    program = BatchPlan(placement.size, tuple(groups), tables[0].shape[1], every, shapes)
    numbers = np.concatenate([piece.ravel() for piece in [part.table for parts in early for part in parts] + tables])
    for array in (numbers, order):
        array.setflags(write=False)
    return program, numbers, order


def split(program: BatchPlan, tables: Tensor) -> tuple[list[list[Tensor]], list[Tensor]]:
    """The tables of the batches of every shared stage, and of every group."""
    early = [[(count, 7 if number else 6) for _, count in shapes] for number, shapes in enumerate(program.batches)]
    late = [(group.views, program.columns) for group in program.groups]
    shapes = [shape for stage in early for shape in stage] + late
    pieces = iter(
        part.reshape(shape) for part, shape in zip(tables.split([r * c for r, c in shapes]), shapes, strict=True)
    )
    return [[next(pieces) for _ in stage] for stage in early], list(pieces)


def group_views(
    views: ViewPlan, rows: Ints, nothing: list[int], shrink: int, batch: int
) -> tuple[list[ViewGroup], list[Ints], Ints]:
    """Which views run together, a table for each group, and every view's place among all.

    A row of a table is a corner, one of `rows`, and 1 if the view shows the whole image. Sizes and corners are in steps
    of `shrink` pixels. Groups that are not full are filled up with views that show `nothing`.
    """
    sizes = list(views.by_size())
    groups, tables, members = [], [], []
    for (width, height), every in sizes:
        full = -(-len(every) // -(-len(every) // batch))  # batches of equal length
        full = full if len(sizes) == 1 else min(-(-full // PADDED_TO) * PADDED_TO, batch)
        for start in range(0, len(every), full):
            part = every[start : start + full]
            table = np.tile([0, 0, *nothing, 0], (full, 1))
            table[: len(part), :2] = views.window[part, :2] // shrink
            table[: len(part), 2:-1] = rows[part]
            table[: len(part), -1] = views.whole[part]
            groups.append(ViewGroup((width // shrink, height // shrink), full, len(part)))
            tables.append(table)
            members.append(part)
    return groups, tables, np.argsort(np.concatenate(members), kind="stable")
