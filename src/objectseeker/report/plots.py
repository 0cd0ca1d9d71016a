"""Line and bar charts as SVG and PNG: the same bytes for the same numbers, and readable without color vision."""

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
    "svg.hashsalt": "objectseeker",  # names inside the file are random otherwise
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

# Inches and points. The legend and the note get the height they need below the panels.
PANEL_HEIGHT, SINGLE_WIDTH, DOUBLE_WIDTH = 3.3, 6.6, 9.8
BORDER, TITLE_HEIGHT, LEGEND_LINE, NOTE_LINE = 0.12, 0.42, 0.22, 0.15
NOTE_SIZE, NOTE_CHARACTERS_PER_INCH = 7.5, 18.0
EMPTY_CHARACTERS = 40  # of a line of the text that stands for an empty panel


@dataclass(frozen=True, slots=True)
class Look:
    """A color, and a marker and dashes that tell lines apart without it.

    A hollow marker is large: it shows that another line lies beneath.
    """

    color: Color
    marker: str = ""
    dash: str = "-"
    hollow: bool = False


LOOKS: Mapping[str, Look] = {
    "far": Look(BLUE, "o", "-"),
    "close": Look(ORANGE, "s", "--"),
    "over": Look(VERMILION, "^", "-."),
    "anywhere": Look(BLACK, "D", ":", hollow=True),
    "remain": Look(GREEN, "P", "-"),
    "undefended": Look(MUTED, "", "--"),
    "defended": Look(GREEN, "v", "-"),
    "without pruning": Look(PURPLE, "X", "-."),
}


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    x: Sequence[Value]
    y: Sequence[Value]
    look: Look


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar per position 0, 1, ... of the x axis; several `Bars` of a panel stand side by side."""

    label: str
    heights: Sequence[Value]
    colors: Sequence[Color]
    hatch: str = ""
    form: str = "{:.1f}"  # of the number above each bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`ticks` are positions and texts of the x axis (empty: chosen by itself), `marked` is the setting in use.

    Where there is no value at all, `if_empty` stands in the place of the axes and says why.
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
    """Panels, two to a row, with one legend and a note for them all."""

    title: str
    panels: Sequence[Panel]
    note: str
    legend_columns: int = 6


def missing() -> str | None:
    """Why nothing can be plotted; None if it can."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "matplotlib is not installed, so there are tables but no plots: pip install 'objectseeker[plots]'"
    return None


def save(plot: Plot, stem: Path) -> list[Path]:
    """Write the plot as `stem`.svg and `stem`.png."""
    from matplotlib import style

    svg, png = (stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png"))
    with style.context(["default", STYLE]):  # whatever the user's own defaults are
        figure = _drawn(plot)
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, dpi=PNG_DPI)
    return [svg, png]


def from_zero(values: Sequence[Value]) -> tuple[float, float]:
    """Limits for percentages: from 0 to a round number above the highest."""
    highest = max((value for value in values if value is not None), default=0.0)
    step = 5 if highest <= 30 else 10
    return 0.0, min(100.0, step * max(1, math.ceil(highest / step)))


def close_up(values: Sequence[Value], least: float = 10.0) -> tuple[float, float]:
    """Limits around percentages, at least `least` points apart so that small differences look small."""
    known = [value for value in values if value is not None] or [0.0]
    middle, span = (min(known) + max(known)) / 2, max(least, 1.2 * (max(known) - min(known)))
    low = min(max(0.0, middle - span / 2), max(0.0, 100 - span))
    return low, min(100.0, low + span)


def _drawn(plot: Plot) -> Any:
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
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in places[len(plot.panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(places, plot.panels, strict=False):
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
    """Draw one panel and return what its legend needs."""
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
    look, color = line.look, _rgb(line.look.color)
    (drawn,) = axes.plot(
        _numbers(line.x),
        _numbers(line.y),
        color=color,
        linestyle=look.dash,
        linewidth=1.1 if look.hollow else 1.7,
        marker=look.marker or ("o" if sum(value is not None for value in line.y) == 1 else ""),  # one point is no line
        markersize=8 if look.hollow else 6.5,
        markevery=max(1, len(line.x) // 12),
        markerfacecolor="none" if look.hollow else color,
        markeredgecolor=color if look.hollow else "white",
        markeredgewidth=1.1 if look.hollow else 0.6,
        clip_on=False,  # a marker on the border stays whole
        zorder=3 if look.dash == "-" else 4,  # where lines coincide, what is solid shows between dashes
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
    texts = ["" if height is None else bars.form.format(height) for height in bars.heights]
    axes.bar_label(drawn, texts, size=8, padding=1.5)
    from matplotlib.patches import Patch

    return Patch(facecolor=_rgb(MUTED), hatch=bars.hatch, edgecolor="white", linewidth=0)


def _numbers(values: Sequence[Value]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _rgb(color: Color) -> tuple[float, float, float]:
    red, green, blue = color
    return red / 255, green / 255, blue / 255
