"""Plan of the batches of an image's views: all shapes, and the numbers that go with them.

Both are functions of sizes and masks only. Which views share a batch, and how it is filled up, can therefore not depend
on what any of them shows.

Views of one image differ beyond a line. Far enough from the line a convolution sees either the image alone or the
filling alone, so the first layers are run once on the image and once on nothing but filling, and for every view only on
a strip along its line. A view is then put together cell by cell.

Let cell f of a layer see the pixels [s * f - low, s * f + high) along an axis (`ReceptiveField`), and let a view fill
one side of the line at t. A cell whose interval does not reach across the line is taken from the untouched image or
from the filling; every other cell is one of the view's strip.

Guarantee: no cell of a view depends on a pixel the view fills. Proof: a cell taken from the filling depends on no
pixel at all. A cell of a strip is computed from the view itself, or, behind a second stage, from cells of the view, of
which this is already proved. A cell taken from the untouched image sees pixels on the other side of the line only. QED.
The last step requires of the kernels that a sum is taken over the cell's own pixels only. Matrix products and implicit
ones do that; a Fourier transform or a large Winograd tile computes with neighbors that cancel, up to rounding. So
`DeviceViews.require_no_leak` checks the kernels themselves, bit by bit, before it uses them at a new shape.

Where a strip begins and ends inside the view, its outermost cells see the zeros around the strip instead of the view:
they are computed and not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.detectors.network.preprocess import InputPlacement, Size, ViewPlan

BEYOND = 2**30  # a line that no cell reaches across
EVERYTHING = (0, BEYOND, 0, 0, 0)  # entries of `locate_cells`: everything is before the line and is not filled ...
NOTHING = (0, -BEYOND, 0, 0, 0)  # ... or behind it, where it is filled


class ReceptiveField(NamedTuple):
    """Cell f sees [stride * f - low, stride * f + high) of its input, along either axis."""

    stride: int = 1
    low: int = 0
    high: int = 1

    def then(self, stage: ReceptiveField) -> ReceptiveField:
        """Return what a cell of `stage` sees, two steps back, if its input are these cells."""
        return ReceptiveField(
            self.stride * stage.stride, self.low + self.stride * stage.low, self.high + self.stride * (stage.high - 1)
        )


class FeatureLevel(NamedTuple):
    """The features behind a shared stage: their `size` in cells, and the cells of a strip along a line.

    `strip` is the width of an upright strip and the height of a flat one. A cell is `stride` cells of the level below,
    and the first `margin` cells of a strip are not used.
    """

    size: Size
    receptive_field: ReceptiveField  # on the network input
    stride: int
    margin: int
    strip: Size


class WindowBatch(NamedTuple):
    """Windows of one size, of the level below or of the network input; `strips` explains `table`."""

    size: Size
    table: Ints


def levels(canvas: Size, stages: Sequence[ReceptiveField]) -> tuple[FeatureLevel, ...]:
    """Return the levels behind `stages`, each of which works on the output of the one before."""
    every, total = [], ReceptiveField()
    for stage in stages:
        total = total.then(stage)
        width, height = canvas[0] // total.stride, canvas[1] // total.stride
        near = -(-(total.low + total.high) // total.stride)  # at most this many cells reach across a line
        margin, behind = -(-stage.low // stage.stride), -(-stage.high // stage.stride) - 1
        needed = margin + near + behind
        every.append(
            FeatureLevel((width, height), total, stage.stride, margin, (min(needed, width), min(needed, height)))
        )
    return tuple(every)


def split_lines(filled: Ints, placement: InputPlacement) -> Ints | None:
    """Return every view's line as axis, position and whether it fills below: N x 3; None without lines.

    An empty rectangle is a line beyond the end. The area around the image is the same in all views.
    """
    if filled.shape[1] != 1:
        return None
    x, y = placement.x, placement.y
    begin = np.array([x.offset, y.offset])
    end = begin + np.array([x.resampling.resized, y.resampling.resized])
    low, high = filled[:, 0, :2], filled[:, 0, 2:]
    starts, stops = np.asarray(low <= begin), np.asarray(high >= end)
    spans = starts & stops
    axis = np.where(spans[:, 1], 0, 1)
    views = np.arange(len(filled))
    fills_low = starts[views, axis]
    at = np.where(fills_low, high[views, axis], low[views, axis])
    halves = spans[views, 1 - axis] & (starts[views, axis] | stops[views, axis])
    empty: Bools = np.asarray((low >= high).any(axis=1))
    if not (halves | empty).all():
        return None
    return np.where(empty[:, None], EVERYTHING[:3], np.stack([axis, at, fills_low], axis=1))


def locate_cells(cut: Ints, level: FeatureLevel) -> Ints:
    """Return where the cells of every view are: its cut, its strip's start, and its place in the bank.

    The bank is a list of cells: those of the untouched image, of the filling, of all upright strips and of all flat
    ones, view by view and row by row.
    """
    axis, at, _ = cut.T
    length, strip = np.array(level.size)[axis], np.array(level.strip)[axis]
    near = (at - level.receptive_field.high) // level.receptive_field.stride + 1
    first = np.clip(near - level.margin, 0, length - strip)
    upright, flat = has_strip(cut, 0), has_strip(cut, 1)
    cells = np.where(upright, level.size[1] * level.strip[0], np.where(flat, level.size[0] * level.strip[1], 0))
    start = np.empty(len(cut), np.int64)
    order = np.concatenate([np.flatnonzero(upright), np.flatnonzero(flat), np.flatnonzero(~(upright | flat))])
    start[order] = np.cumsum(cells[order]) - cells[order]
    return np.column_stack([cut, first, 2 * level.size[0] * level.size[1] + start])


def has_strip(cut: Ints, axis: int) -> Bools:
    return np.asarray((cut[:, 0] == axis) & (np.abs(cut[:, 1]) < BEYOND))


def strips(
    cut: Ints, filled: Ints, placement: InputPlacement, every: Sequence[FeatureLevel]
) -> list[list[WindowBatch]]:
    """Return the input of every stage: the untouched image and the filling, upright and flat strips.

    The rows of the first stage hold a corner on the network input and the rectangle to fill; those of a later one a
    corner on the level below and the entry of `locate_cells` there.
    """
    x, y = placement.x, placement.y
    whole = [x.offset, y.offset, x.offset + x.resampling.resized, y.offset + y.resampling.resized]
    size, contents = placement.size, filled[:, 0]
    references = np.array([[0, 0, 0, 0], whole])
    stages = []
    for level in every:
        places = locate_cells(cut, level)
        batches = [WindowBatch(size, np.pad(references, ((0, 0), (2, 0))))]
        for axis in (0, 1):
            members = np.flatnonzero(has_strip(cut, axis))
            if len(members):
                corner = np.zeros((len(members), 2), np.int64)
                corner[:, axis] = places[members, 3] * level.stride
                side = level.strip[axis] * level.stride
                strip = (side, size[1]) if axis == 0 else (size[0], side)
                batches.append(WindowBatch(strip, np.concatenate([corner, contents[members]], axis=1)))
        stages.append(batches)
        size, contents, references = level.size, places, np.array([EVERYTHING, NOTHING])
    return stages


Tensor = Any

PADDED_TO = 4  # views of one of several sizes are filled up to a multiple of it, so that fewer shapes occur


class ViewGroup(NamedTuple):
    """`views` views that run together at one `size`; only the first `members` are needed."""

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


@lru_cache(maxsize=256)  # `cached_view_plan` returns equal views as one object
def plan_batches(
    views: ViewPlan, placement: InputPlacement, receptive_fields: tuple[ReceptiveField, ...], batch: int
) -> tuple[BatchPlan, Ints, Ints]:
    """Plan the batches, the numbers they need, and where each view is found among the results.

    The numbers are consecutive tables: a row for every view of every batch of a shared stage and then of every
    group; `split` takes them apart.
    """
    every: tuple[FeatureLevel, ...] = levels(placement.size, receptive_fields)
    cut = split_lines(views.filled, placement) if every else None
    if cut is None:
        rectangles = views.filled.shape[1]
        rows, nothing, shrink, every = views.filled.reshape(len(views), -1), [0, 0, *placement.size] * rectangles, 1, ()
        early: list[list[WindowBatch]] = []
    else:
        rows, nothing, shrink = locate_cells(cut, every[-1]), list(NOTHING), every[-1].receptive_field.stride
        early = strips(cut, views.filled, placement, every)
    groups, tables, order = group_views(views, rows, nothing, shrink, batch)
    shapes = tuple(tuple((part.size, len(part.table)) for part in parts) for parts in early)
    program = BatchPlan(placement.size, tuple(groups), tables[0].shape[1], every, shapes)
    numbers = np.concatenate([piece.ravel() for piece in [part.table for parts in early for part in parts] + tables])
    for array in (numbers, order):
        array.setflags(write=False)
    return program, numbers, order


def split(program: BatchPlan, tables: Tensor) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Split the numbers of a plan into tables: those of every shared stage, then of every group."""
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
    """Group the views that run together: a table per group, and every view's place among all.

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
            table[: len(part), -1] = views.shows_all[part]
            groups.append(ViewGroup((width // shrink, height // shrink), full, len(part)))
            tables.append(table)
            members.append(part)
    return groups, tables, np.argsort(np.concatenate(members), kind="stable")
