"""The figures of the paper: each computes its table and its plot from observed images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from objectseeker.core.certification import visible_area
from objectseeker.core.recipes import Halves, Pairs, Recipe
from objectseeker.core.rules.iou import IOU_THRESHOLD
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, PatchLocation, PatchPositions, patch_sizes
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics import EvaluationSettings, ImageSet, evaluate_images, sweeps
from objectseeker.metrics.average_precision import undefended_curve
from objectseeker.metrics.settings import describe_point
from objectseeker.metrics.sweeps import SweepPoint
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
from objectseeker.text import plural

CLEAN_RECALLS = tuple(step / 20 for step in range(2, 20))
TENTHS = tuple(step / 10 for step in range(10))
LINE_STEPS = 6  # numbers of lines to compare; of 30 stored lines: 5, 10, ... 30
LINE_COUNT_STYLES = (("v", ":"), ("X", "--"), ("o", "-"))  # the same by area: marker and dashes of 10, 20 and 30 lines

CERTIFIED_SHARE = "certified recall, %"
HATCHES = ("", "....", "////", "xxxx")
LINE_SUBSET_NOTE = "every n-th of the stored lines; not Halves(k), and no defense can be deployed with them"
LINE_SUBSET_SENTENCE = f"{LINE_SUBSET_NOTE[0].upper()}{LINE_SUBSET_NOTE[1:]}."
JOINTLY = (
    "Anywhere: objects that no patch can hide, counted one by one. Remain: objects of each image that are guaranteed "
    "to remain under one patch at any position (joint certificate)."
)
FPPI_LABEL = "false positives per image (FPPI), at most"
OWN_THRESHOLDS = "Each detector is at its own lowest base_threshold at and above which it has no higher FPPI."


@dataclass(frozen=True)
class FigureContext:
    """A run and the settings of its figures; what several figures need is computed once."""

    image_set: ImageSet
    settings: EvaluationSettings
    masks: Recipe  # as stored
    mask_floor: float  # the run stores no masked box with a lower score

    @property
    def lines(self) -> int | None:
        """Lines per axis, if the masks consist of lines only."""
        return self.masks.lines if isinstance(self.masks, Halves | Pairs) else None

    @cached_property
    def by_lines(self) -> list[SweepPoint]:
        assert self.lines is not None
        return self.with_mask_names(sweeps.by_lines(self.image_set, self.settings, line_counts(self.lines, LINE_STEPS)))

    @cached_property
    def undefended_ap50(self) -> float:
        return undefended_curve(self.image_set).mean_ap50

    @cached_property
    def vacuous_far(self) -> int:
        """Number of objects without any far position.

        It depends only on the object, because a patch may extend beyond the border.
        """
        image_set, counted = self.image_set, self.image_set.counted
        image = image_set.ground_truth.image[counted]
        box, width, height = (
            image_set.ground_truth.detections.xyxy[counted],
            image_set.width[image],
            image_set.height[image],
        )
        size = patch_sizes(Patch(self.settings.threat.area, self.settings.threat.aspect), width, height, len(box))
        allowed = PatchPositions.of(box, width, height).allowed("far", size)
        has_far = (allowed[..., :2] <= allowed[..., 2:]).all(axis=-1).any(axis=-1)
        return int((~has_far & (visible_area(box, width, height) > 0)).sum())

    def with_mask_names(self, steps: Sequence[SweepPoint]) -> list[SweepPoint]:
        """Name the masks of steps over numbers of lines."""

        def masks(k: int) -> str:
            return str(self.masks) if k == self.lines else f"{k} of the lines of {self.masks}"

        return [replace(step, columns={**step.columns, "masks": masks(step.columns["k"])}) for step in steps]


def line_counts(stored: int, steps: int) -> list[int]:
    """Return numbers of lines to compare, evenly spaced up to all stored lines."""
    return sorted({max(1, round(stored * step / steps)) for step in range(1, steps + 1)})


Drawn = tuple[list[dict[str, Any]], Plot]  # a table and its plot


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: what it shows, and the function that computes its table and its plot."""

    description: str
    draw: Callable[[FigureContext], Drawn]
    needs_lines: bool  # masks that consist of lines, of which a subset can be used


FIGURES: dict[str, Figure] = {}  # by name, in the order in which they are written


def _figure(
    name: str, description: str, *, needs_lines: bool = False
) -> Callable[[Callable[[FigureContext], Drawn]], Callable[[FigureContext], Drawn]]:
    def register(draw: Callable[[FigureContext], Drawn]) -> Callable[[FigureContext], Drawn]:
        FIGURES[name] = Figure(description, draw, needs_lines)
        return draw

    return register


@_figure("precision-recall", "precision against recall: undefended, defended, and defended without pruning")
def _precision_recall(context: FigureContext) -> Drawn:
    rows = sweeps.precision_recall(context.image_set, context.settings)
    series = []
    for detector in dict.fromkeys(row["detector"] for row in rows):
        recall, precision = (
            [row[name] for row in rows if row["detector"] == detector] for name in ("recall", "precision")
        )
        series.append(Line(detector, recall, precision, LINE_STYLES[detector]))
    panel = Panel(
        x_label="recall over all objects, %",
        y_label="precision, %",
        series=series,
        x_limits=(0, 100),
        y_limits=(0, 100),
        if_empty="there are no boxes",
    )
    note = _describe_settings(context, hide=("T", "bound", "area", "aspect", "point"))
    return rows, Plot("Precision and recall", [panel], f"One point per base_threshold. {note}")


@_figure("clean-recall", "certified recall against the clean recall of the operating point")
def _clean_recall(context: FigureContext) -> Drawn:
    steps = sweeps.by_clean_recall(context.image_set, context.settings, CLEAN_RECALLS)
    x = [step.outcome.clean_recall for step in steps]
    panel = _certified(steps, "clean recall (mean over classes), %", x=x, x_limits=(0, 100))
    return _table(steps), Plot("Certified recall against clean recall", [panel], _note(context, hide=("point",)))


@_figure("fppi", "clean and certified recall against false positives per image (FPPI)")
def _fppi(context: FigureContext) -> Drawn:
    steps = sweeps.by_fppi(context.image_set, context.settings)
    x = [step.value for step in steps]
    clean = [
        Line("undefended", x, [step.reference["undefended_clean_recall"] for step in steps], LINE_STYLES["undefended"]),
        Line("defended", x, [step.outcome.clean_recall for step in steps], LINE_STYLES["defended"]),
    ]
    found = Panel(
        title="clean",
        x_label=FPPI_LABEL,
        y_label="clean recall (mean over classes), %",
        series=clean,
        y_limits=zoomed_limits([value for line in clean for value in line.y], min_span=30),
        if_empty=_why_empty(steps),
    )
    certified = _certified(steps, FPPI_LABEL, title="certified")
    panels = [replace(panel, x_scale="log", ticks=_value_ticks(steps)) for panel in (found, certified)]
    note = f"{OWN_THRESHOLDS} {_note(context, hide=('point',))}"
    if _has_gaps(steps):
        note += " Gaps: the FPPI is higher at every base_threshold."
    return _table(steps), Plot("Clean and certified recall against FPPI", panels, note)


@_figure(
    "lines", f"AP and certified recall against k, the number of lines per axis ({LINE_SUBSET_NOTE})", needs_lines=True
)
def _lines(context: FigureContext) -> Drawn:
    label, title = "k, lines per axis", "Effect of the number of lines"
    table, plot = _sweep(context, context.by_lines, "masks", label, title, context.lines)
    panels = [replace(panel, ticks=_value_ticks(context.by_lines)) for panel in plot.panels]
    return table, replace(plot, panels=panels, note=f"{LINE_SUBSET_SENTENCE} {plot.note}")


@_figure("cost", f"certified recall against forward passes per image ({LINE_SUBSET_NOTE})", needs_lines=True)
def _cost(context: FigureContext) -> Drawn:
    steps = context.by_lines
    passes = [step.columns["forward_passes"] for step in steps]
    ticks = {float(count): f"{count}\nk = {step.value:g}" for count, step in zip(passes, steps, strict=True)}
    panel = _certified(steps, "forward passes per image", x=passes, ticks=ticks)
    note = f"{LINE_SUBSET_SENTENCE} {_note(context, steps, hide=('masks',))}"
    return _table(steps), Plot("Certified recall against cost", [panel], note)


@_figure("alpha", "AP and certified recall against alpha, the lowest mask_threshold")
def _alpha(context: FigureContext) -> Drawn:
    used = context.settings.threshold_schedule.alpha
    alphas = sorted({*(one for one in TENTHS if one >= context.mask_floor), used})
    steps = sweeps.by_schedule(context.image_set, context.settings, "alpha", alphas)
    return _sweep(context, steps, "alpha", "alpha, the lowest mask_threshold", "Effect of alpha", used)


@_figure("beta", "AP and certified recall against beta, which ties mask_threshold to base_threshold")
def _beta(context: FigureContext) -> Drawn:
    settings = context.settings
    used = settings.threshold_schedule.beta
    betas = [
        one for one in sorted({*TENTHS, used}) if settings.with_schedule(beta=one).min_mask_score >= context.mask_floor
    ]
    steps = sweeps.by_schedule(context.image_set, settings, "beta", betas)
    label = "beta, how far mask_threshold rises above base_threshold"
    return _sweep(context, steps, "beta", label, "Effect of beta", used)


@_figure("filter-ioa", "AP and certified recall against filter_ioa")
def _filter_ioa(context: FigureContext) -> Drawn:
    rule = context.settings.rule
    used = rule.settings().get("filter_ioa")
    if used is None:
        raise ObjectSeekerError(f"this figure needs a rule with a filter_ioa: got the {rule.name} rule. Leave it out.")
    steps = sweeps.by_filter_ioa(context.image_set, context.settings, sorted({*TENTHS[3:], used}))
    label = "filter_ioa, the IoA above which a base box filters a masked box"
    return _sweep(context, steps, "filter_ioa", label, "Effect of the filter", used)


@_figure("certification-threshold", "certified recall against T, and its mean over T from 0 to 0.9")
def _threshold(context: FigureContext) -> Drawn:
    rule = context.settings.rule
    steps = sweeps.by_threshold(context.image_set, context.settings)
    means, table = sweeps.mean_over_thresholds(steps), _table(steps)
    mean_row = {"certification_threshold": "mean"} | {f"certified_{where}": mean for where, mean in means.items()}
    table.append(dict.fromkeys(table[0]) | mean_row)
    label = "T, IoU with the object" if rule.overlap == "iou" else "T, covered share of the object"
    used = rule.resolve_threshold(context.settings.threat.certification_threshold)
    panel = _certified(steps, label, marked=used)
    series: list[Line | Bars] = []
    for where, line in zip(PATCH_LOCATIONS, panel.series, strict=True):
        mean = means[where]
        series.append(line if mean is None else replace(line, label=f"{where} (mean {mean:.1f})"))
    note = _note(context, steps, hide=("T",))
    return table, Plot("Effect of the certification threshold", [replace(panel, series=series)], note, legend_columns=2)


@_figure("variants", "AP, certified recall and false alerts of every pruning: IoA or IoU, per class or class-agnostic")
def _variants(context: FigureContext) -> Drawn:
    by_iou, image_set = context.settings.iou_variant(), context.image_set
    kinds = {"IoU": by_iou} if by_iou is context.settings else {"IoA": context.settings, "IoU": by_iou}
    found = {
        f"{kind}{suffix}": evaluate_images(image_set.images, image_set.label_map, one, intervals=False)
        for kind, settings in kinds.items()
        for suffix, one in (("", settings), (", class-agnostic", settings.class_agnostic()))
    }
    table: list[dict[str, Any]] = [
        {
            "detector": name,
            "ap50": one.defended.ap50,
            "base_threshold": one.defended.base_threshold,
            "mask_threshold": one.defended.at_point()["mask_threshold"],
            "clean_recall": one.defended.clean_recall,
            **{f"certified_{where}": share for where, share in one.defended.certified_recall().items()},
            "vacuous_far": one.defended.vacuous_far,
            "false_alerts": one.defended.alerts,
            "false_alert_rate": one.false_alert_rate,
        }
        for name, one in found.items()
    ]
    undefended = found["IoU"].undefended.ap50
    wheres: tuple[PatchLocation, ...] = PATCH_LOCATIONS[:3]  # a group has no room for more than four bars
    names = ["AP50", *(f"certified\n{where}" for where in wheres), "false alert\nrate (FAR)"]
    colors = [LINE_STYLES["defended"].color, *(LINE_STYLES[where].color for where in wheres), MUTED]
    columns = ("ap50", *(f"certified_{where}" for where in wheres), "false_alert_rate")
    bars = [
        Bars(row["detector"], [row[column] for column in columns], colors, hatch, number_format="{:.0f}")
        for row, hatch in zip(table, HATCHES, strict=False)
    ]
    note = f"IoU: certified for boxes with an IoU above {IOU_THRESHOLD:g}; IoA: that cover more than T of the object. "
    note += _note(context, gaps=any(one.defended.rule is None for one in found.values()))
    panel = replace(_bar_panel(bars, names, "%"), title=f"undefended AP50: {undefended:.1f} %")
    first = dict.fromkeys(table[0]) | {"detector": "undefended", "ap50": undefended}
    return [first, *table], Plot("IoA or IoU, per class or class-agnostic", [panel], note)


@_figure("iou-threshold", "certified recall of the IoU rule against T, the IoU that the box must exceed")
def _iou_threshold(context: FigureContext) -> Drawn:
    by_iou = context.settings.iou_variant()
    steps = sweeps.by_threshold(context.image_set, by_iou)
    panel = _certified(steps, "T, IoU with the object", marked=IOU_THRESHOLD)
    note = f"IoU rule, filter_iou {by_iou.rule.filter_threshold:g}. {_note(context, steps, hide=('T',))}"
    return _table(steps), Plot("IoU rule: effect of the certification threshold", [panel], note)


@_figure(
    "patch-area",
    f"certified recall, and the joint certificate, against the patch's share of the image ({LINE_SUBSET_NOTE})",
)
def _patch_area(context: FigureContext) -> Drawn:
    threat = context.settings.threat
    areas = sorted({*sweeps.PATCH_AREAS, threat.area})
    ks = [] if context.lines is None else line_counts(context.lines, len(LINE_COUNT_STYLES))
    steps = sweeps.by_patch_area(context.image_set, context.settings, areas, ks=ks)
    about = f"{context.masks}."
    if ks:
        steps, about = context.with_mask_names(steps), LINE_SUBSET_SENTENCE
    by_k: dict[int | None, list[SweepPoint]] = {}
    for step in steps:
        by_k.setdefault(step.columns.get("k"), []).append(step)
    panels = []
    for where in PATCH_LOCATIONS:
        series = []
        for (k, mine), (marker, dash) in zip(by_k.items(), LINE_COUNT_STYLES[-len(by_k) :], strict=True):
            x, of_k = [100 * step.value for step in mine], "" if k is None else f", k = {k}"
            certified = [step.outcome.certified_recall()[where] for step in mine]
            series.append(Line(f"{where}{of_k}", x, certified, LineStyle(LINE_STYLES[where].color, marker, dash)))
        if where == "anywhere" and threat.count == 1:  # of the most lines
            jointly = [step.outcome.joint_certified_recall for step in mine]
            series.append(Line(f"remain{of_k}", x, jointly, LINE_STYLES["remain"]))
        panels.append(
            Panel(
                title=where,
                x_label="patch area, % of the image",
                y_label=CERTIFIED_SHARE,
                series=series,
                x_scale="log",
                ticks={0.1: "0.1", 1: "1", 10: "10", 100: "100"},
                y_limits=zero_based_limits([value for line in series for value in line.y]),
                marked=100 * threat.area,
                if_empty=_why_empty(steps),
            )
        )
    note = f"{about} {_note(context, steps, hide=('masks', 'area'))}"
    note += f" {JOINTLY}" if threat.count == 1 else ""
    plot = Plot("Certified recall against patch area", panels, note, legend_columns=len(PATCH_LOCATIONS) + 1)
    return _table(steps), plot


@_figure("patch-aspect", "certified recall against the patch's width : height, at equal area")
def _patch_aspect(context: FigureContext) -> Drawn:
    used = context.settings.threat.aspect
    steps = sweeps.by_patch_aspect(context.image_set, context.settings, sorted({*sweeps.PATCH_ASPECTS, used}))
    ticks = {aspect: f"{aspect:g}:1" if aspect >= 1 else f"1:{1 / aspect:g}" for aspect in sweeps.PATCH_ASPECTS}
    panel = _certified(steps, "patch width : height", marked=used, x_scale="log", ticks=ticks)
    note = _note(context, steps, hide=("aspect",))
    return _table(steps), Plot("Certified recall against patch aspect ratio", [panel], note)


@_figure("object-size", "number of objects, and certified recall, by object size")
def _object_size(context: FigureContext) -> Drawn:
    bins = sweeps.by_object_size(context.image_set, context.settings)
    names = [f"{100 * one['from']:g}–{100 * one['to']:g}" for one in bins]
    objects = [one["objects"] for one in bins]
    counts = _bar_panel([Bars("", objects, [MUTED] * len(bins), number_format="{:,.0f}")], names, "objects")
    counts = replace(
        counts,
        title="objects",
        x_label="object area, % of the image",
        x_limits=(-0.5, len(bins) - 0.5),
        y_limits=(0, 1.1 * max(objects)),
    )
    x = list(counts.ticks)
    lines = [
        Line(where, x, [one[f"certified_{where}"] for one in bins], LINE_STYLES[where]) for where in PATCH_LOCATIONS
    ]
    certified = replace(
        counts,
        title="certified",
        y_label=CERTIFIED_SHARE,
        series=lines,
        y_limits=zero_based_limits([value for line in lines for value in line.y]),
        if_empty=f"{describe_point(context.settings)} is not reached",
    )
    gaps = any(one["objects"] and one["vacuous_far"] is None for one in bins)  # an empty bin needs no explanation
    return bins, Plot("Objects by size", [counts, certified], _note(context, gaps=gaps))


@_figure("splits", "the same evaluation on two disjoint random halves of the images")
def _splits(context: FigureContext) -> Drawn:
    parts = sweeps.by_split(context.image_set, context.settings)
    names = ["undefended\nAP50", "defended\nAP50", *(f"certified\n{where}" for where in PATCH_LOCATIONS)]
    colors = [LINE_STYLES[name].color for name in ("undefended", "defended", *PATCH_LOCATIONS)]
    bars = [
        Bars(
            f"part {number}: {plural(part.columns['images'], 'image')}, {plural(part.columns['objects'], 'object')}",
            [part.columns["undefended_ap50"], part.outcome.ap50, *part.outcome.certified_recall().values()],
            colors,
            hatch,
        )
        for number, (part, hatch) in enumerate(zip(parts, ("", "////"), strict=True), 1)
    ]
    panel = _bar_panel(bars, names, "AP50 and certified recall, %")
    return _table(parts), Plot("Two disjoint random halves of the images", [panel], _note(context, parts))


def _sweep(
    context: FigureContext, steps: Sequence[SweepPoint], hide: str, x_label: str, title: str, used: float | None
) -> Drawn:
    """Plot what a setting costs in AP, and what it gains in certified recall; the note hides the setting."""
    steps = [replace(step, reference={"undefended_ap50": context.undefended_ap50}) for step in steps]
    x = [step.value for step in steps]
    series = [
        Line("undefended AP50", x, [context.undefended_ap50] * len(x), LINE_STYLES["undefended"]),
        Line("defended AP50", x, [step.outcome.ap50 for step in steps], LINE_STYLES["defended"]),
    ]
    gain = _certified(steps, x_label, marked=used, title="certified")
    cost = replace(
        gain,
        title="clean AP",
        y_label="AP50, %",
        series=series,
        y_limits=zoomed_limits([value for line in series for value in line.y]),
    )
    return _table(steps), Plot(title, [cost, gain], _note(context, steps, hide=(hide,)))


def _certified(steps: Sequence[SweepPoint], x_label: str, *, x: Sequence[Value] | None = None, **panel: Any) -> Panel:
    """Plot certified recall per patch location, by default against the value that a sweep varies."""
    certified = [step.outcome.certified_recall() for step in steps]
    x = [step.value for step in steps] if x is None else x
    series = [Line(where, x, [one[where] for one in certified], LINE_STYLES[where]) for where in PATCH_LOCATIONS]
    return Panel(
        x_label=x_label,
        y_label=CERTIFIED_SHARE,
        series=series,
        y_limits=zero_based_limits([value for line in series for value in line.y]),
        if_empty=_why_empty(steps),
        **panel,
    )


def _bar_panel(bars: Sequence[Bars], names: Sequence[str], y_label: str) -> Panel:
    limits = zero_based_limits([value for one in bars for value in one.heights])
    ticks = {float(n): name for n, name in enumerate(names)}
    return Panel(x_label="", y_label=y_label, series=bars, ticks=ticks, y_limits=limits)


def _table(steps: Sequence[SweepPoint]) -> list[dict[str, Any]]:
    return [step.to_row() for step in steps]


def _value_ticks(steps: Sequence[SweepPoint]) -> dict[float, str]:
    return {step.value: f"{step.value:g}" for step in steps}


def _has_gaps(steps: Sequence[SweepPoint]) -> bool:
    return any(step.outcome.rule is None for step in steps)


def _why_empty(steps: Sequence[SweepPoint]) -> str:
    """Explain why there is no certified recall at all."""
    if not steps:
        return "no value is left to try: the run stores no masked boxes with such low scores"
    best = max((step.outcome for step in steps), key=lambda outcome: outcome.max_clean_recall)
    return best.caveat() or "there is nothing to show"


def _note(
    context: FigureContext, steps: Sequence[SweepPoint] = (), *, gaps: bool = False, hide: Collection[str] = ()
) -> str:
    """Return the caveats of certified recall, of which some of the steps may have none."""
    note = _describe_settings(context, hide=hide)
    if gaps or _has_gaps(steps):
        note += f" Gaps: {describe_point(context.settings)} is not reached."
    if context.vacuous_far:
        note += f" {context.vacuous_far:,} of the objects have no far position and count as certified there (vacuous)."
    return note


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
        "point": f"at {describe_point(settings)}",
    }
    shown = [text.replace(" ", "\N{NO-BREAK SPACE}") for name, text in facts.items() if name not in hide]
    images, objects = plural(context.image_set.image_count, "image"), plural(len(context.image_set.counted), "object")
    return f"{images}, {objects}; {', '.join(shown)}."
