"""Line and bar charts as SVG and PNG: bit-identical for equal numbers, readable without color vision."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objectseeker.inference.drawing import BLACK, GREEN, ORANGE, VERMILION, Color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = float | None  # None leaves a gap

BLUE: Color = (0, 114, 178)
PURPLE: Color = (204, 121, 167)
MUTED: Color = (110, 110, 110)

STYLE = {
    "svg.hashsalt": "objectseeker",  # otherwise names inside the file are random
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.8,
}
PNG_DPI = 160

# Inches and points. Legend and note take the height they need below the panels.
PANEL_HEIGHT, SINGLE_WIDTH, DOUBLE_WIDTH = 3.3, 6.6, 9.8
BORDER, TITLE_HEIGHT, LEGEND_LINE, NOTE_LINE = 0.12, 0.42, 0.22, 0.15
NOTE_SIZE, NOTE_CHARACTERS_PER_INCH = 7.5, 18.0
EMPTY_CHARACTERS = 40  # per line of the message in an empty panel


@dataclass(frozen=True, slots=True)
class LineStyle:
    """A color, and a marker and dashes that tell lines apart without it.

    A hollow marker is large, so that a line beneath stays visible.
    """

    color: Color
    marker: str = ""
    dash: str = "-"
    hollow: bool = False


LINE_STYLES: Mapping[str, LineStyle] = {
    "far": LineStyle(BLUE, "o", "-"),
    "close": LineStyle(ORANGE, "s", "--"),
    "over": LineStyle(VERMILION, "^", "-."),
    "anywhere": LineStyle(BLACK, "D", ":", hollow=True),
    "remain": LineStyle(GREEN, "P", "-"),
    "undefended": LineStyle(MUTED, "", "--"),
    "defended": LineStyle(GREEN, "v", "-"),
    "without pruning": LineStyle(PURPLE, "X", "-."),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel; None leaves a gap."""

    label: str
    x: Sequence[Value]
    y: Sequence[Value]
    style: LineStyle


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar per position 0, 1, ... of the x axis; several `Bars` of a panel are drawn in groups."""

    label: str
    heights: Sequence[Value]
    colors: Sequence[Color]
    hatch: str = ""
    number_format: str = "{:.1f}"  # of the number above each bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    `ticks` are positions and labels of the x axis (empty: automatic), `marked` is the setting in use. Without any
    value, the message `if_empty` replaces the axes.
    """

    x_label: str
    y_label: str
    series: Sequence[Line | Bars]
    title: str = ""
    x_scale: str = "linear"
    ticks: Mapping[float, str] = field(default_factory=dict)
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    marked: float | None = None
    if_empty: str = "there is nothing to show"

    @property
    def is_empty(self) -> bool:
        return all(value is None for one in self.series for value in (one.y if isinstance(one, Line) else one.heights))


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels, two per row, with one legend and one note."""

    title: str
    panels: Sequence[Panel]
    note: str
    legend_columns: int = 6


def unavailable_reason() -> str | None:
    """Return why nothing can be plotted; None if plotting works."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "matplotlib is not installed, so tables are written, but no plots: pip install 'objectseeker[plots]'"
    return None


def save(plot: Plot, stem: Path) -> list[Path]:
    """Write the plot as `stem`.svg and `stem`.png."""
    from matplotlib.style import context

    svg, png = (stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png"))
    with context(["default", STYLE]):  # independent of the user's defaults
        figure = _draw(plot)
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, dpi=PNG_DPI)
    return [svg, png]


def zero_based_limits(values: Sequence[Value]) -> tuple[float, float]:
    """Return limits for percentages: from 0 to a round number at or above the largest."""
    largest = max((value for value in values if value is not None), default=0.0)
    step = 5 if largest <= 30 else 10
    return 0.0, min(100.0, step * max(1, math.ceil(largest / step)))


def zoomed_limits(values: Sequence[Value], min_span: float = 10.0) -> tuple[float, float]:
    """Return limits around percentages, at least `min_span` points apart: small differences look small."""
    known = [value for value in values if value is not None] or [0.0]
    middle, span = (min(known) + max(known)) / 2, max(min_span, 1.2 * (max(known) - min(known)))
    low = min(max(0.0, middle - span / 2), max(0.0, 100 - span))
    return low, min(100.0, low + span)


def _draw(plot: Plot) -> Any:
    from matplotlib.figure import Figure

    labels = {one.label for panel in plot.panels if not panel.is_empty for one in panel.series if one.label}
    rows, columns = math.ceil(len(plot.panels) / 2), min(2, len(plot.panels))
    width = SINGLE_WIDTH if columns == 1 else DOUBLE_WIDTH
    marked = (
        " Gray band: the setting in use."
        if any(panel.marked is not None and not panel.is_empty for panel in plot.panels)
        else ""
    )
    note = textwrap.wrap(plot.note + marked, int((width - 2 * BORDER) * NOTE_CHARACTERS_PER_INCH))
    note_top = BORDER + NOTE_LINE * len(note)
    below = note_top + BORDER + LEGEND_LINE * math.ceil(len(labels) / plot.legend_columns)
    height = TITLE_HEIGHT + rows * PANEL_HEIGHT + below
    figure = Figure(figsize=(width, height), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.0, below / height, 1.0, rows * PANEL_HEIGHT / height), w_pad=0.1, h_pad=0.08)
    handles: dict[str, Any] = {}
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in cells[len(plot.panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(cells, plot.panels, strict=False):
        for label, handle in _draw_panel(axes, panel).items():
            handles.setdefault(label, handle)
    left = BORDER / width
    figure.text(left, 1 - BORDER / height, plot.title, size=12, weight="bold", va="top")
    figure.text(left, note_top / height, "\n".join(note), size=NOTE_SIZE, color="0.35", va="top", linespacing=1.35)
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="lower center",
            bbox_to_anchor=(0.5, note_top / height),
            ncols=plot.legend_columns,
            frameon=False,
            handlelength=3.2,
            columnspacing=1.6,
            borderaxespad=0.2,
            labelspacing=0.35,
        )
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> dict[str, Any]:
    """Draw one panel; return the handles of its legend by label."""
    if panel.is_empty:
        axes.set_axis_off()
        axes.text(0.5, 0.5, textwrap.fill(panel.if_empty, EMPTY_CHARACTERS), ha="center", va="center", color="0.35")
        axes.set_title(panel.title, loc="left", size=10.5)
        return {}
    handles: dict[str, Any] = {}
    groups = [one for one in panel.series if isinstance(one, Bars)]
    for one in panel.series:
        drawn = _draw_line(axes, one) if isinstance(one, Line) else _draw_bars(axes, one, groups)
        if one.label:
            handles[one.label] = drawn
    if panel.marked is not None:
        axes.axvline(panel.marked, color="0.75", linewidth=5, alpha=0.5, zorder=0)
    axes.set_xscale(panel.x_scale)
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()), minor=False)
        axes.set_xticks([], minor=True)
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    if groups:
        axes.grid(visible=False, axis="x")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left", size=10.5)
    return handles


def _draw_line(axes: Axes, line: Line) -> Any:
    style, color = line.style, _rgb(line.style.color)
    (drawn,) = axes.plot(
        _numbers(line.x),
        _numbers(line.y),
        color=color,
        linestyle=style.dash,
        linewidth=1.1 if style.hollow else 1.7,
        marker=style.marker
        or ("o" if sum(value is not None for value in line.y) == 1 else ""),  # a single point needs a marker
        markersize=8 if style.hollow else 6.5,
        markevery=max(1, len(line.x) // 12),
        markerfacecolor="none" if style.hollow else color,
        markeredgecolor=color if style.hollow else "white",
        markeredgewidth=1.1 if style.hollow else 0.6,
        clip_on=False,  # a marker on the border is not clipped
        zorder=3 if style.dash == "-" else 4,  # where lines coincide, a solid line shows between dashes
    )
    return drawn


def _draw_bars(axes: Axes, bars: Bars, groups: Sequence[Bars]) -> Any:
    width = 0.8 / len(groups)
    offset = (groups.index(bars) - (len(groups) - 1) / 2) * width
    drawn = axes.bar(
        [position + offset for position in range(len(bars.heights))],
        _numbers(bars.heights),
        width=0.94 * width,
        color=[_rgb(color) for color in bars.colors],
        hatch=bars.hatch,
        edgecolor="white",
        linewidth=0,
    )
    labels = ["" if height is None else bars.number_format.format(height) for height in bars.heights]
    axes.bar_label(drawn, labels, size=8, padding=1.5)
    from matplotlib.patches import Patch

    return Patch(facecolor=_rgb(MUTED), hatch=bars.hatch, edgecolor="white", linewidth=0)


def _numbers(values: Sequence[Value]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _rgb(color: Color) -> tuple[float, float, float]:
    red, green, blue = color
    return red / 255, green / 255, blue / 255
