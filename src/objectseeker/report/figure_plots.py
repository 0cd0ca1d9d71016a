"""The plot of each figure, and the list of all figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from objectseeker.core.rules.iou import IOU_THRESHOLD
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation
from objectseeker.metrics import DefendedOutcome, sweeps
from objectseeker.metrics.settings import describe_fppi
from objectseeker.metrics.sweeps import Part, PrecisionRecall, SizeBin, SweepPoint
from objectseeker.report import figure_rows
from objectseeker.report.figure_rows import CLEAN_RECALLS, FigureContext, MeanOverT, Variant
from objectseeker.report.plots import (
    LINE_STYLES,
    MUTED,
    Bars,
    Line,
    LineStyle,
    Panel,
    Plot,
    Value,
    zero_based_limits,
    zoomed_limits,
)

CERTIFIED_SHARE = "certified recall, %"
HATCHES = ("", "....", "////", "xxxx")
LINE_COUNT_STYLES = (("v", ":"), ("X", "--"), ("o", "-"))  # marker and dashes of AREA_LINE_STEPS numbers of lines
LINE_SUBSET_NOTE = "every n-th of the stored lines; not Halves(k), and no defense can be deployed with them"
JOINTLY = (
    "Anywhere: objects that no patch can hide, counted one by one. Remain: objects of each image that are guaranteed "
    "to remain under one patch at any position (joint certificate)."
)
FPPI_LABEL = "false positives per image (FPPI), at most"
OWN_THRESHOLDS = "Each detector is at its own lowest base_threshold at and above which it has no higher FPPI."
LINE_SUBSET_SENTENCE = f"{LINE_SUBSET_NOTE[0].upper()}{LINE_SUBSET_NOTE[1:]}."

_Rows = TypeVar("_Rows")


@dataclass(frozen=True, slots=True)
class Figure(Generic[_Rows]):
    """A figure: its rows, and how they are plotted."""

    description: str
    rows: Callable[[FigureContext], _Rows]
    plot: Callable[[FigureContext, _Rows], Plot]
    needs_lines: bool = False  # masks that consist of lines, of which a subset can be used


def _precision_recall(context: FigureContext, rows: list[PrecisionRecall]) -> Plot:
    series = []
    for detector in dict.fromkeys(row.detector for row in rows):
        mine = [row for row in rows if row.detector == detector]
        series.append(
            Line(detector, [row.recall for row in mine], [row.precision for row in mine], LINE_STYLES[detector])
        )
    panel = Panel(
        x_label="recall over all objects, %",
        y_label="precision, %",
        series=series,
        x_limits=(0, 100),
        y_limits=(0, 100),
        if_empty="there are no boxes",
    )
    note = _describe_settings(context, hide=("T", "bound", "area", "aspect", "point"))
    return Plot("Precision and recall", [panel], f"One point per base_threshold. {note}")


def _clean_recall(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    x = [step.outcome.clean_recall for step in steps]
    panel = _certified(x, _outcomes(steps), "clean recall (mean over classes), %")
    note = _note(context, hide=("point",))
    return Plot("Certified recall against clean recall", [replace(panel, x_limits=(0, 100))], note)


def _fppi(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    x: list[Value] = [step.value for step in steps]
    ticks = {step.value: f"{step.value:g}" for step in steps}
    clean = [
        Line("undefended", x, [step.reference["undefended_clean_recall"] for step in steps], LINE_STYLES["undefended"]),
        Line("defended", x, [step.outcome.clean_recall for step in steps], LINE_STYLES["defended"]),
    ]
    why = _why_empty(_outcomes(steps))
    found = Panel(
        title="clean",
        x_label=FPPI_LABEL,
        y_label="clean recall (mean over classes), %",
        series=clean,
        y_limits=zoomed_limits([value for line in clean for value in line.y], min_span=30),
        if_empty=why,
    )
    certified = replace(_certified(x, _outcomes(steps), FPPI_LABEL), title="certified")
    panels = [replace(panel, x_scale="log", ticks=ticks) for panel in (found, certified)]
    note = _note(context, hide=("point",))
    if any(step.outcome.point is None for step in steps):
        note += " Gaps: the FPPI is higher at every base_threshold."
    return Plot("Clean and certified recall against FPPI", panels, f"{OWN_THRESHOLDS} {note}")


def _lines(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    plot = _sweep(context, steps, "k", "k, lines per axis", "Effect of the number of lines", context.lines)
    ticks = {step.value: f"{step.value:g}" for step in steps}
    panels = [replace(panel, ticks=ticks) for panel in plot.panels]
    return replace(plot, panels=panels, note=f"{LINE_SUBSET_SENTENCE} {plot.note}")


def _alpha(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    used = context.settings.threshold_schedule.alpha
    return _sweep(context, steps, "alpha", "alpha, the lowest mask_threshold", "Effect of alpha", used)


def _beta(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    used = context.settings.threshold_schedule.beta
    return _sweep(
        context, steps, "beta", "beta, how far mask_threshold rises above base_threshold", "Effect of beta", used
    )


def _filter_ioa(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    label, used = (
        "filter_ioa, the IoA above which a base box filters a masked box",
        context.settings.rule.settings()["filter_ioa"],
    )
    return _sweep(context, steps, "filter_ioa", label, "Effect of the filter", used)


def _threshold(context: FigureContext, rows: list[SweepPoint | MeanOverT]) -> Plot:
    steps = [row for row in rows if isinstance(row, SweepPoint)]
    means = next(row.certified for row in rows if isinstance(row, MeanOverT))
    label = "T, IoU with the object" if context.settings.rule.overlap == "iou" else "T, covered share of the object"
    panel = _by_value(
        steps,
        label,
        marked=context.settings.rule.resolve_threshold(context.settings.threat.certification_threshold),
    )
    series: list[Line | Bars] = []
    for where, line in zip(PATCH_LOCATIONS, panel.series, strict=True):
        mean = means[where]
        series.append(line if mean is None else replace(line, label=f"{where} (mean {mean:.1f})"))
    note = _note(context, _outcomes(steps), hide=("T",))
    return Plot("Effect of the certification threshold", [replace(panel, series=series)], note, legend_columns=2)


def _variants(context: FigureContext, rows: list[Variant]) -> Plot:
    wheres: tuple[PatchLocation, ...] = PATCH_LOCATIONS[:3]  # a group has no room for more than four bars
    names = ["AP50", *(f"certified\n{where}" for where in wheres), "false alert\nrate (FAR)"]
    colors = [LINE_STYLES["defended"].color, *(LINE_STYLES[where].color for where in wheres), MUTED]
    undefended, *pruned = rows
    bars = []
    for row, hatch in zip(pruned, HATCHES, strict=False):
        heights = [row.ap50, *(row.certified(where) for where in wheres), row.alert_rate]
        bars.append(Bars(row.detector, heights, colors, hatch, number_format="{:.0f}"))
    panel = Panel(
        title=f"undefended AP50: {undefended.ap50:.1f} %",
        x_label="",
        y_label="%",
        series=bars,
        ticks={float(n): name for n, name in enumerate(names)},
        y_limits=zero_based_limits([value for one in bars for value in one.heights]),
    )
    note = f"IoU: certified for boxes with an IoU above {IOU_THRESHOLD:g}; IoA: that cover more than T of the object. "
    note += _note(context, [row.outcome for row in pruned if row.outcome is not None])
    return Plot("IoA or IoU, per class or class-agnostic", [panel], note)


def _iou_threshold(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    panel = _by_value(steps, "T, IoU with the object", marked=IOU_THRESHOLD)
    filter_iou = context.settings.by_iou().rule.filter_threshold
    note = f"IoU rule, filter_iou {filter_iou:g}. {_note(context, _outcomes(steps), hide=('T',))}"
    return Plot("IoU rule: effect of the certification threshold", [panel], note)


def _patch_area(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    ks = list(dict.fromkeys(step.k for step in steps))
    panels = []
    for where in PATCH_LOCATIONS:
        series = []
        for k, (marker, dash) in zip(ks, LINE_COUNT_STYLES[-len(ks) :], strict=True):
            mine = [step for step in steps if step.k == k]
            look = LineStyle(LINE_STYLES[where].color, marker, dash)
            label = where if k is None else f"{where}, k = {k}"
            certified = [step.outcome.certified_recall()[where] for step in mine]
            series.append(Line(label, [100 * step.value for step in mine], certified, look))
        if where == "anywhere" and context.settings.threat.count == 1:
            mine = [step for step in steps if step.k == ks[-1]]
            jointly = [step.outcome.joint_certified_recall for step in mine]
            label = "remain" if ks[-1] is None else f"remain, k = {ks[-1]}"
            series.append(Line(label, [100 * step.value for step in mine], jointly, LINE_STYLES["remain"]))
        panels.append(
            Panel(
                title=where,
                x_label="patch area, % of the image",
                y_label=CERTIFIED_SHARE,
                series=series,
                x_scale="log",
                ticks={0.1: "0.1", 1: "1", 10: "10", 100: "100"},
                y_limits=zero_based_limits([value for line in series for value in line.y]),
                marked=100 * context.settings.threat.area,
                if_empty=_why_empty(_outcomes(steps)),
            )
        )
    note = _note(context, _outcomes(steps), hide=("masks", "area"))
    about = f"{context.masks}." if context.lines is None else LINE_SUBSET_SENTENCE
    note += f" {JOINTLY}" if context.settings.threat.count == 1 else ""
    return Plot(
        "Certified recall against patch area", panels, f"{about} {note}", legend_columns=len(PATCH_LOCATIONS) + 1
    )


def _patch_aspect(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    ticks = {aspect: f"{aspect:g}:1" if aspect >= 1 else f"1:{1 / aspect:g}" for aspect in sweeps.PATCH_ASPECTS}
    panel = _by_value(steps, "patch width : height", marked=context.settings.threat.aspect)
    note = _note(context, _outcomes(steps), hide=("aspect",))
    return Plot("Certified recall against patch aspect ratio", [replace(panel, x_scale="log", ticks=ticks)], note)


def _object_size(context: FigureContext, bins: list[SizeBin]) -> Plot:
    label = "object area, % of the image"
    x = [float(n) for n in range(len(bins))]
    ticks = {n: f"{100 * one.above:g}–{100 * one.up_to:g}" for n, one in zip(x, bins, strict=True)}
    limits = (-0.5, len(bins) - 0.5)
    objects = Panel(
        title="objects",
        x_label=label,
        y_label="objects",
        series=[Bars("", [one.objects for one in bins], [MUTED] * len(bins), number_format="{:,.0f}")],
        ticks=ticks,
        x_limits=limits,
        y_limits=(0, 1.1 * max(one.objects for one in bins)),
    )
    lines = [Line(where, x, [one.certified[where] for one in bins], LINE_STYLES[where]) for where in PATCH_LOCATIONS]
    unreached = any(one.objects and one.vacuous_far is None for one in bins)  # an empty bin needs no explanation
    certified = Panel(
        title="certified",
        x_label=label,
        y_label=CERTIFIED_SHARE,
        series=lines,
        y_limits=zero_based_limits([value for line in lines for value in line.y]),
        ticks=ticks,
        x_limits=limits,
        if_empty=f"{_point(context)} is not reached",
    )
    return Plot("Objects by size", [objects, certified], _note(context, unreached=unreached))


def _cost(context: FigureContext, steps: list[SweepPoint]) -> Plot:
    passes: list[Value] = [step.forward_passes for step in steps]
    ticks = {float(step.forward_passes or 0): f"{step.forward_passes}\nk = {step.value:g}" for step in steps}
    panel = replace(_certified(passes, _outcomes(steps), "forward passes per image"), ticks=ticks)
    note = f"{LINE_SUBSET_SENTENCE} {_note(context, _outcomes(steps), hide=('masks',))}"
    return Plot("Certified recall against cost", [panel], note)


def _splits(context: FigureContext, parts: list[Part]) -> Plot:
    names = ["undefended\nAP50", "defended\nAP50", *(f"certified\n{where}" for where in PATCH_LOCATIONS)]
    colors = [LINE_STYLES[name].color for name in ("undefended", "defended", *PATCH_LOCATIONS)]
    bars = [
        Bars(
            f"part {part.number + 1}: {part.images:,} images, {part.objects:,} objects",
            [part.undefended_ap50, part.outcome.ap50, *part.outcome.certified_recall().values()],
            colors,
            hatch="" if part.number == 0 else "////",
        )
        for part in parts
    ]
    panel = Panel(
        x_label="",
        y_label="AP50 and certified recall, %",
        series=bars,
        ticks={float(n): name for n, name in enumerate(names)},
        y_limits=zero_based_limits([value for one in bars for value in one.heights]),
    )
    note = _note(context, [part.outcome for part in parts])
    return Plot("Two disjoint random halves of the images", [panel], note)


def _sweep(
    context: FigureContext, steps: list[SweepPoint], hide: str, x_label: str, title: str, used: float | None
) -> Plot:
    """Plot what a setting costs in AP, and what it gains in certified recall."""
    x: list[Value] = [step.value for step in steps]
    series = [
        Line("undefended AP50", x, [step.undefended_ap50 for step in steps], LINE_STYLES["undefended"]),
        Line("defended AP50", x, [step.outcome.ap50 for step in steps], LINE_STYLES["defended"]),
    ]
    cost = Panel(
        title="clean AP",
        x_label=x_label,
        y_label="AP50, %",
        series=series,
        y_limits=zoomed_limits([value for line in series for value in line.y]),
        marked=used,
        if_empty=_why_empty(_outcomes(steps)),
    )
    gain = replace(_by_value(steps, x_label, marked=used), title="certified")
    hidden = ("masks",) if hide == "k" else (hide,)
    return Plot(title, [cost, gain], _note(context, _outcomes(steps), hide=hidden))


def _by_value(steps: Sequence[SweepPoint], x_label: str, *, marked: float | None) -> Panel:
    """Plot certified recall against the value that a sweep varies."""
    return replace(_certified([step.value for step in steps], _outcomes(steps), x_label), marked=marked)


def _certified(x: Sequence[Value], outcomes: Sequence[DefendedOutcome], x_label: str) -> Panel:
    """Plot certified recall per patch location."""
    certified = [outcome.certified_recall() for outcome in outcomes]
    series = [Line(where, x, [one[where] for one in certified], LINE_STYLES[where]) for where in PATCH_LOCATIONS]
    limits = zero_based_limits([value for line in series for value in line.y])
    return Panel(
        x_label=x_label, y_label=CERTIFIED_SHARE, series=series, y_limits=limits, if_empty=_why_empty(outcomes)
    )


def _outcomes(steps: Sequence[SweepPoint]) -> list[DefendedOutcome]:
    return [step.outcome for step in steps]


def _why_empty(outcomes: Sequence[DefendedOutcome]) -> str:
    """Explain why there is no certified recall at all."""
    if not outcomes:
        return "no value is left to try: the run stores no masked boxes with such low scores"
    best = max(outcomes, key=lambda outcome: outcome.max_clean_recall)
    return best.caveat() or "there is nothing to show"


def _note(
    context: FigureContext,
    outcomes: Sequence[DefendedOutcome] = (),
    *,
    hide: Collection[str] = (),
    unreached: bool = False,
) -> str:
    """Return the caveats of certified recall."""
    note = _describe_settings(context, hide=hide)
    if unreached or any(outcome.point is None for outcome in outcomes):
        note += f" Gaps: {_point(context)} is not reached."
    if context.vacuous_far:
        note += f" {context.vacuous_far:,} of the objects have no far position and count as certified there (vacuous)."
    return note


def _point(context: FigureContext) -> str:
    """Describe the operating point."""
    settings = context.settings
    if settings.clean_recall is not None:
        return f"clean recall {100 * settings.clean_recall:g} %"
    if settings.fppi is not None:
        return f"a base_threshold with {describe_fppi(settings.fppi)}"
    fixed = settings.rule.base_threshold if settings.base_threshold is None else settings.base_threshold
    return f"base_threshold {fixed:g}"


def _describe_settings(context: FigureContext, *, hide: Collection[str]) -> str:
    """Describe the run and the settings; `hide` names what the plot shows itself or does not depend on."""
    settings, threat = context.settings, context.settings.threat
    follow, rule = settings.threshold_schedule, settings.rule.settings()
    masks = str(context.masks) if context.lines is None else f"k = {context.lines}"
    facts = {"masks": masks, "alpha": f"alpha {follow.alpha:g}", "beta": f"beta {follow.beta:g}"}
    if follow.evidence_alpha is not None:
        facts["evidence_alpha"] = f"evidence_alpha {follow.evidence_alpha:g}"
        facts["evidence_beta"] = f"evidence_beta {follow.evidence_beta:g}"
        facts["evidence_power"] = f"evidence power {rule['evidence_power']:g}"
    if settings.rule.edge_factor != 1:
        facts["edge_factor"] = f"edge_factor {settings.rule.edge_factor:g}"
    if "filter_ioa" in rule:
        facts["filter_ioa"] = f"filter_ioa {rule['filter_ioa']:g}"
    facts |= {
        "T": f"T = {settings.rule.resolve_threshold(threat.certification_threshold):g}",
        "bound": f"{threat.bound} bound",
        "area": f"patch area {100 * threat.area:g} %",
        "aspect": "square" if threat.aspect == 1 else f"width : height {threat.aspect:g}",
        "point": f"at {_point(context)}",
    }
    shown = [text.replace(" ", "\N{NO-BREAK SPACE}") for name, text in facts.items() if name not in hide]
    return f"{len(context.image_set.images):,} images, {len(context.image_set.counted):,} objects; {', '.join(shown)}."


FIGURES_BY_NAME: dict[str, Figure[Any]] = {
    "precision-recall": Figure(
        "precision against recall: undefended, defended, and defended without pruning",
        lambda context: sweeps.precision_recall(context.image_set, context.settings),
        _precision_recall,
    ),
    "clean-recall": Figure(
        "certified recall against the clean recall of the operating point",
        lambda context: sweeps.by_clean_recall(context.image_set, context.settings, CLEAN_RECALLS),
        _clean_recall,
    ),
    "fppi": Figure(
        "clean and certified recall against false positives per image (FPPI)",
        lambda context: sweeps.by_fppi(context.image_set, context.settings),
        _fppi,
    ),
    "lines": Figure(
        f"AP and certified recall against k, the number of lines per axis ({LINE_SUBSET_NOTE})",
        figure_rows.lines,
        _lines,
        needs_lines=True,
    ),
    "cost": Figure(
        f"certified recall against forward passes per image ({LINE_SUBSET_NOTE})",
        lambda context: context.by_lines,
        _cost,
        needs_lines=True,
    ),
    "alpha": Figure("AP and certified recall against alpha, the lowest mask_threshold", figure_rows.alpha, _alpha),
    "beta": Figure(
        "AP and certified recall against beta, which ties mask_threshold to base_threshold", figure_rows.beta, _beta
    ),
    "filter-ioa": Figure("AP and certified recall against filter_ioa", figure_rows.filter_ioa, _filter_ioa),
    "certification-threshold": Figure(
        "certified recall against T, and its mean over T from 0 to 0.9", figure_rows.threshold, _threshold
    ),
    "variants": Figure(
        "AP, certified recall and false alerts of every variant of pruning: IoA or IoU, per class or class-agnostic",
        figure_rows.variants,
        _variants,
    ),
    "iou-threshold": Figure(
        "certified recall of the IoU rule against T, the IoU that the box must exceed",
        lambda context: sweeps.by_threshold(context.image_set, context.settings.by_iou()),
        _iou_threshold,
    ),
    "patch-area": Figure(
        f"certified recall, and the joint certificate, against the patch's share of the image, for several k "
        f"({LINE_SUBSET_NOTE})",
        figure_rows.patch_area,
        _patch_area,
    ),
    "patch-aspect": Figure(
        "certified recall against the patch's width : height, at equal area", figure_rows.patch_aspect, _patch_aspect
    ),
    "object-size": Figure(
        "number of objects, and certified recall, by object size",
        lambda context: sweeps.by_object_size(context.image_set, context.settings),
        _object_size,
    ),
    "splits": Figure(
        "the same evaluation on two disjoint random halves of the images",
        lambda context: sweeps.by_split(context.image_set, context.settings),
        _splits,
    ),
}
