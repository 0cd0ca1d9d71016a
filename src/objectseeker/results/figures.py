"""Every analysis of the paper from one stored run, as tables and plots. No detector runs here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np

from objectseeker.core.certification import verdicts
from objectseeker.core.iou_variant import IOU_THRESHOLD, TAU_IOU
from objectseeker.core.threats import WHERES
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.evaluation import Scene, Settings, evaluate, sweeps
from objectseeker.evaluation.curves import vanilla_curve
from objectseeker.evaluation.defence import Defence
from objectseeker.evaluation.iou import IouDefence
from objectseeker.evaluation.summary import Row
from objectseeker.jobs import save_json
from objectseeker.results import plots
from objectseeker.results.plots import GREY, LOOKS, Bars, Line, Look, Panel, Plot, Value, close_up, from_zero
from objectseeker.results.tables import as_csv
from objectseeker.runs.run import restrict

CLEAN_RECALLS = tuple(step / 20 for step in range(2, 20))
TENTHS = tuple(step / 10 for step in range(10))
FILTER_IOAS = TENTHS[3:]
LINE_STEPS = 6  # how many numbers of lines are compared; of 30 stored lines: 5, 10, ... 30
LINE_STEPS_OF_AREAS = 3  # likewise where each of them gets a line of its own: 10, 20, 30

CERTIFIED = "certified recall, %"
HATCHES = ("", "....", "////", "xxxx")
LOOKS_OF_LINES = (("v", ":"), ("X", "--"), ("o", "-"))  # marker and dashes of LINE_STEPS_OF_AREAS numbers of lines


@dataclass(frozen=True)
class Study:
    """A run and the settings its figures are made around; what several figures need is computed once."""

    scene: Scene
    settings: Settings
    lines: int  # per axis, as stored
    mask_floor: float  # masked boxes of lower scores were not stored

    @cached_property
    def by_lines(self) -> list[Row]:
        return sweeps.by_lines(self.scene, self.settings, line_counts(self.lines, LINE_STEPS), restrict)

    @cached_property
    def vanilla_ap50(self) -> float:
        return vanilla_curve(self.scene).mean_ap50

    @cached_property
    def vacuous_far(self) -> int:
        """Objects no position is far from. That depends on the object alone, since a patch may hang over the border."""
        scene, counted = self.scene, self.scene.counted
        box, image = scene.truth.detections.xyxy[counted], scene.truth.image[counted]
        width, height = scene.width[image], scene.height[image]
        far = self.settings.patches()[WHERES.index("far")]
        _, vacuous = verdicts(np.zeros((len(box), 4), np.int64), box, width, height, [far])
        inside = np.clip(box, 0, np.stack([width, height, width, height], axis=1))
        return int((vacuous[0] & (inside[:, 2:] > inside[:, :2]).all(axis=1)).sum())

    def with_vanilla(self, rows: Sequence[Row]) -> list[Row]:
        return [row | {"vanilla_ap50": self.vanilla_ap50} for row in rows]


@dataclass(frozen=True, slots=True)
class Figure:
    description: str
    rows: Callable[[Study], list[Row]]
    plot: Callable[[Study, list[Row]], Plot]


def write_figures(
    scene: Scene,
    settings: Settings,
    out: Path,
    *,
    lines: int,
    mask_floor: float,
    only: Collection[str] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Write figures.json (what they were made with) and, for each figure, NAME.csv, NAME.svg and NAME.png.

    `lines` and `mask_floor` are those the run was stored with, `only` names some of FIGURES. Without matplotlib there
    are tables but no plots: `plots.missing()` says so in a sentence. `on_progress(done, total)` is called once at the
    start and after every figure.
    """
    chosen = _chosen(only)
    study = Study(scene, settings, require_count(lines, "lines"), require_fraction(mask_floor, "mask_floor"))
    if settings.floor < mask_floor:
        raise ObjectSeekerError(
            f"the run keeps masked boxes from a score of {mask_floor!r} on, but these settings look from "
            f"{settings.floor!r} on: raise alpha and beta, or observe with a lower floor"
        )
    drawing = plots.missing() is None
    written = [out / "figures.json"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        save_json(written[0], _about(study, chosen))
        on_progress(0, len(chosen))
        for done, (name, figure) in enumerate(chosen.items(), start=1):
            rows = figure.rows(study)
            table = out / f"{name}.csv"
            table.write_text(as_csv(rows), encoding="utf-8")
            written.append(table)
            if drawing:
                written += plots.save(figure.plot(study, rows), out / name)
            on_progress(done, len(chosen))
    except OSError as error:
        raise ObjectSeekerError(f"cannot write into {out}: {error.strerror}") from None
    return written


def line_counts(stored: int, steps: int) -> list[int]:
    """Numbers of lines to compare: evenly spaced up to all that are stored."""
    return sorted({max(1, round(stored * step / steps)) for step in range(1, steps + 1)})


# --- rows: what the sweeps do not have ready -----------------------------------------------------------------------


def _alpha_rows(study: Study) -> list[Row]:
    alphas = _around([alpha for alpha in TENTHS if alpha >= study.mask_floor], study.settings.alpha)
    return study.with_vanilla(sweeps.by_alpha(study.scene, study.settings, alphas))


def _beta_rows(study: Study) -> list[Row]:
    tried = [replace(study.settings, beta=beta) for beta in _around(TENTHS, study.settings.beta)]
    tried = [one for one in tried if one.floor >= study.mask_floor]
    defence = Defence.prepare(study.scene, study.settings, floor=min(one.floor for one in tried))
    rows = []
    for one in tried:
        curve = defence.curve(one)
        rows.append({"beta": one.beta} | sweeps.outcome(curve, defence.at_recall(one, curve)))
    return study.with_vanilla(rows)


def _filter_ioa_rows(study: Study) -> list[Row]:
    filter_ioas = _around(FILTER_IOAS, study.settings.filter_ioa)
    return study.with_vanilla(sweeps.by_filter_ioa(study.scene, study.settings, filter_ioas))


def _threshold_rows(study: Study) -> list[Row]:
    rows = sweeps.by_threshold(study.scene, study.settings)
    return [*rows, dict.fromkeys(rows[0]) | {"threshold": "mean"} | sweeps.mean_over_thresholds(rows)]


def _patch_area_rows(study: Study) -> list[Row]:
    ks = line_counts(study.lines, LINE_STEPS_OF_AREAS)
    areas = _around(sweeps.PATCH_AREAS, study.settings.patch_area)
    return sweeps.by_patch_area(study.scene, study.settings, areas, ks=ks, restrict=restrict)


def _patch_aspect_rows(study: Study) -> list[Row]:
    aspects = _around(sweeps.PATCH_ASPECTS, study.settings.patch_aspect)
    return sweeps.by_patch_aspect(study.scene, study.settings, aspects)


def _variant_rows(study: Study) -> list[Row]:
    """Every way to prune, label by label and without labels, beside the undefended detector."""
    found = evaluate(study.scene.images, study.scene.names, study.settings)
    rows: list[Row] = [{"detector": "vanilla", "ap50": found["vanilla"]["ap50"]}]
    for name, key in (("IoA", "objectseeker"), ("IoU", "iou_variant")):
        for detector, suffix in ((name, ""), (f"{name}, label-free", "_label_free")):
            point = found[key] if not suffix else found[key]["label_free"]
            certified = found[key][f"certified_recall{suffix}"]
            rows.append(
                {
                    "detector": detector,
                    "ap50": found[key][f"ap50{suffix}"],
                    "base_score": point["base_score"],
                    "mask_score": point["mask_score"],
                    "clean_recall": point["clean_recall"],
                    **{f"certified_{where}": certified[where] for where in WHERES},
                    "vacuous_far": found[key]["vacuous_far"],
                    "false_alerts": found[key][f"false_alerts{suffix}"]["images"],
                    "false_alert_rate": found[key][f"false_alerts{suffix}"]["rate"],
                }
            )
    return [{column: row.get(column) for column in rows[1]} for row in rows]


def _iou_threshold_rows(study: Study) -> list[Row]:
    defence = IouDefence.prepare(study.scene, study.settings)
    curve = defence.curve(study.settings)
    return [
        {"threshold": t} | sweeps.outcome(curve, defence.at_recall(study.settings, curve, t)) for t in sweeps.THRESHOLDS
    ]


def _cost_rows(study: Study) -> list[Row]:
    columns = ["k", "forward_passes", *(f"certified_{where}" for where in WHERES), "vacuous_far"]
    return [{column: row[column] for column in columns} for row in study.by_lines]


def _around(values: Sequence[float], used: float) -> list[float]:
    """The usual values and the one in use, ascending."""
    return sorted({*values, used})


# --- plots ---------------------------------------------------------------------------------------------------------


def _precision_recall(study: Study, rows: list[Row]) -> Plot:
    lines = []
    for detector in dict.fromkeys(row["detector"] for row in rows):
        mine = [row for row in rows if row["detector"] == detector]
        lines.append(Line(detector, _column(mine, "recall"), _column(mine, "precision"), LOOKS[detector]))
    panel = Panel(
        x_label="recall over all objects, %",
        y_label="precision, %",
        series=lines,
        x_limits=(0, 100),
        y_limits=(0, 100),
    )
    note = _about_settings(study, hide=("T", "bound", "area", "aspect", "clean recall"))
    return Plot("Precision and recall", [panel], f"One point per base_score. {note}")


def _clean_recall(study: Study, rows: list[Row]) -> Plot:
    panel = replace(_certified(rows, "clean_recall", "clean recall (mean over classes), %"), x_limits=(0, 100))
    return Plot("Certified recall against clean recall", [panel], _note(study, hide=("clean recall",)))


def _lines(study: Study, rows: list[Row]) -> Plot:
    plot = _sweep(study, rows, "k", "k, lines per axis", "Effect of the number of lines", study.lines)
    ticks = {row["k"]: str(row["k"]) for row in rows}
    return replace(plot, panels=[replace(panel, ticks=ticks) for panel in plot.panels])


def _alpha(study: Study, rows: list[Row]) -> Plot:
    used = study.settings.alpha
    return _sweep(study, rows, "alpha", "alpha, the lowest mask_score", "Effect of alpha", used)


def _beta(study: Study, rows: list[Row]) -> Plot:
    used = study.settings.beta
    return _sweep(study, rows, "beta", "beta, how far mask_score rises above base_score", "Effect of beta", used)


def _filter_ioa(study: Study, rows: list[Row]) -> Plot:
    label, used = "filter_ioa, share of a masked box that a base box explains", study.settings.filter_ioa
    return _sweep(study, rows, "filter_ioa", label, "Effect of the filter", used)


def _threshold(study: Study, rows: list[Row]) -> Plot:
    *each, mean = rows
    panel = _certified(each, "threshold", "T, share of the object that stays covered", marked=study.settings.threshold)
    series = []
    for where, line in zip(WHERES, panel.series, strict=True):
        value = mean[f"certified_{where}"]
        series.append(line if value is None else replace(line, label=f"{where} (mean {value:.1f})"))
    note = _note(study, each, hide=("T",))
    return Plot("Effect of the coverage asked for", [replace(panel, series=series)], note, legend_columns=2)


def _variants(study: Study, rows: list[Row]) -> Plot:
    wheres = WHERES[:3]  # four bars a group leave no room for more
    columns = {"ap50": "AP50", **{f"certified_{where}": f"certified\n{where}" for where in wheres}}
    columns["false_alert_rate"] = "flagged\nclean images"
    colours = [LOOKS["defended"].colour, *(LOOKS[where].colour for where in wheres), GREY]
    bars = [
        Bars(row["detector"], [row[column] for column in columns], colours, hatch, form="{:.0f}")
        for row, hatch in zip(rows[1:], HATCHES, strict=False)
    ]
    panel = Panel(
        title=f"vanilla AP50: {rows[0]['ap50']:.1f} %",
        x_label="",
        y_label="%",
        series=bars,
        ticks={float(n): name for n, name in enumerate(columns.values())},
        y_limits=from_zero([value for one in bars for value in one.heights]),
    )
    note = f"IoU: certified for boxes with an IoU above {IOU_THRESHOLD:g}; IoA: that cover more than T of the object. "
    note += _note(study, rows[1:])
    return Plot("IoA or IoU, label by label or without labels", [panel], note)


def _iou_threshold(study: Study, rows: list[Row]) -> Plot:
    panel = _certified(rows, "threshold", "T, IoU with the object that stays exceeded", marked=IOU_THRESHOLD)
    note = f"IoU variant, tau_iou {TAU_IOU:g}. {_note(study, rows, hide=('T',))}"
    return Plot("IoU variant: effect of the IoU asked for", [panel], note)


def _patch_area(study: Study, rows: list[Row]) -> Plot:
    ks = list(dict.fromkeys(row["k"] for row in rows))
    panels = []
    for where in WHERES:
        lines = []
        for k, (marker, dash) in zip(ks, LOOKS_OF_LINES[-len(ks) :], strict=True):
            mine = [row for row in rows if row["k"] == k]
            look = Look(LOOKS[where].colour, marker, dash)
            percent = [100 * row["patch_area"] for row in mine]
            lines.append(Line(f"{where}, k = {k}", percent, _column(mine, f"certified_{where}"), look))
        panels.append(
            Panel(
                title=where,
                x_label="patch area, % of the image",
                y_label=CERTIFIED,
                series=lines,
                x_scale="log",
                ticks={0.1: "0.1", 1: "1", 10: "10", 100: "100"},
                y_limits=from_zero([value for line in lines for value in line.y]),
                marked=100 * study.settings.patch_area,
            )
        )
    note = _note(study, rows, hide=("k", "area"))
    return Plot("Certified recall against patch size", panels, note, legend_columns=len(WHERES))


def _patch_aspect(study: Study, rows: list[Row]) -> Plot:
    ticks = {aspect: f"{aspect:g}:1" if aspect >= 1 else f"1:{1 / aspect:g}" for aspect in sweeps.PATCH_ASPECTS}
    panel = _certified(rows, "patch_aspect", "patch width : height", marked=study.settings.patch_aspect)
    note = _note(study, rows, hide=("aspect",))
    return Plot("Certified recall against patch shape", [replace(panel, x_scale="log", ticks=ticks)], note)


def _object_size(study: Study, rows: list[Row]) -> Plot:
    label = "object area, % of the image"
    ticks = {float(n): f"{100 * row['from']:g}–{100 * row['to']:g}" for n, row in enumerate(rows)}
    limits = (-0.5, len(rows) - 0.5)
    objects = Panel(
        title="objects",
        x_label=label,
        y_label="objects",
        series=[Bars("", _column(rows, "objects"), [GREY] * len(rows), form="{:,.0f}")],
        ticks=ticks,
        x_limits=limits,
        y_limits=(0, 1.1 * max(row["objects"] for row in rows)),
    )
    certified = _certified([row | {"bin": n} for n, row in enumerate(rows)], "bin", label)
    certified = replace(certified, title="certified", ticks=ticks, x_limits=limits)
    note = _note(study, [row for row in rows if row["objects"]])  # an empty bin is no gap to explain
    return Plot("Objects by size", [objects, certified], note)


def _cost(study: Study, rows: list[Row]) -> Plot:
    ticks = {row["forward_passes"]: f"{row['forward_passes']}\nk = {row['k']}" for row in rows}
    panel = replace(_certified(rows, "forward_passes", "forward passes per image"), ticks=ticks)
    return Plot("Certified recall against cost", [panel], _note(study, rows, hide=("k",)))


def _splits(study: Study, rows: list[Row]) -> Plot:
    columns = {"vanilla_ap50": "vanilla", "ap50": "defended"} | {f"certified_{where}": where for where in WHERES}
    names = ["vanilla\nAP50", "defended\nAP50", *(f"certified\n{where}" for where in WHERES)]
    bars = [
        Bars(
            f"part {row['split'] + 1}: {row['images']:,} images, {row['objects']:,} objects",
            [row[column] for column in columns],
            [LOOKS[name].colour for name in columns.values()],
            hatch="" if row["split"] == 0 else "////",
        )
        for row in rows
    ]
    panel = Panel(
        x_label="",
        y_label="AP50 and certified recall, %",
        series=bars,
        ticks={float(n): name for n, name in enumerate(names)},
        y_limits=from_zero([value for one in bars for value in one.heights]),
    )
    return Plot("Two disjoint random halves of the images", [panel], _note(study, rows))


def _sweep(study: Study, rows: list[Row], column: str, x_label: str, title: str, used: float) -> Plot:
    """What a setting costs, and what it brings."""
    x = _column(rows, column)
    series = [
        Line("vanilla AP50", x, _column(rows, "vanilla_ap50"), LOOKS["vanilla"]),
        Line("defended AP50", x, _column(rows, "ap50"), LOOKS["defended"]),
    ]
    cost = Panel(
        title="clean AP",
        x_label=x_label,
        y_label="AP50, %",
        series=series,
        y_limits=close_up([value for line in series for value in line.y]),
        marked=used,
    )
    gain = replace(_certified(rows, column, x_label, marked=used), title="certified")
    return Plot(title, [cost, gain], _note(study, rows, hide=(column,)))


def _certified(rows: list[Row], column: str, x_label: str, *, marked: float | None = None) -> Panel:
    """Certified recall against one column, place by place."""
    x = _column(rows, column)
    series = [Line(where, x, _column(rows, f"certified_{where}"), LOOKS[where]) for where in WHERES]
    limits = from_zero([value for line in series for value in line.y])
    return Panel(x_label=x_label, y_label=CERTIFIED, series=series, y_limits=limits, marked=marked)


def _column(rows: Sequence[Row], name: str) -> list[Value]:
    return [row[name] for row in rows]


def _note(study: Study, rows: Sequence[Row] = (), *, hide: Collection[str] = ()) -> str:
    """What a reader of certified recalls must know."""
    note = _about_settings(study, hide=hide)
    if any(row["certified_far"] is None for row in rows):
        note += f" Gaps: clean recall {100 * study.settings.clean_recall:g} % is not reached."
    if study.vacuous_far:
        note += f" {study.vacuous_far:,} of the objects have no far position and count as certified there."
    return note


def _about_settings(study: Study, *, hide: Collection[str]) -> str:
    """The run and the settings; `hide` names what the plot itself shows or does not depend on."""
    settings = study.settings
    facts = {"k": f"k = {study.lines}", "alpha": f"alpha {settings.alpha:g}", "beta": f"beta {settings.beta:g}"}
    if settings.low_alpha is not None:
        facts["low_alpha"] = f"low_alpha {settings.low_alpha:g}"
        facts["low_beta"] = f"low_beta {settings.low_beta:g}"
        facts["power"] = f"power {settings.power:g}"
    if settings.edge_factor != 1:
        facts["edge_factor"] = f"edge_factor {settings.edge_factor:g}"
    facts |= {
        "filter_ioa": f"filter_ioa {settings.filter_ioa:g}",
        "T": f"T = {settings.threshold:g}",
        "bound": f"{settings.bound} bound",
        "area": f"patch area {100 * settings.patch_area:g} %",
        "aspect": "square" if settings.patch_aspect == 1 else f"width : height {settings.patch_aspect:g}",
        "clean recall": f"at clean recall {100 * settings.clean_recall:g} %",
    }
    shown = [text.replace(" ", "\N{NO-BREAK SPACE}") for name, text in facts.items() if name not in hide]
    return f"{len(study.scene.images):,} images, {len(study.scene.counted):,} objects; {', '.join(shown)}."


def _about(study: Study, chosen: Mapping[str, Figure]) -> Row:
    return {
        "images": len(study.scene.images),
        "objects": len(study.scene.counted),
        "vacuous_far": study.vacuous_far,
        "lines": study.lines,
        "mask_floor": study.mask_floor,
        "settings": asdict(study.settings),
        "figures": {name: figure.description for name, figure in chosen.items()},
    }


def _chosen(only: Collection[str] | None) -> dict[str, Figure]:
    for name in only or ():
        if name not in _FIGURES:
            raise ObjectSeekerError(f"there is no figure {name!r}: choose from {', '.join(_FIGURES)}")
    return {name: figure for name, figure in _FIGURES.items() if not only or name in only}


_FIGURES: dict[str, Figure] = {
    "precision-recall": Figure(
        "precision against recall: vanilla, defended, and defended without pruning",
        lambda study: sweeps.precision_recall(study.scene, study.settings),
        _precision_recall,
    ),
    "clean-recall": Figure(
        "certified recall against the clean recall it is measured at",
        lambda study: sweeps.by_clean_recall(study.scene, study.settings, CLEAN_RECALLS),
        _clean_recall,
    ),
    "lines": Figure(
        "AP and certified recall against k, the number of lines per axis",
        lambda study: study.with_vanilla(study.by_lines),
        _lines,
    ),
    "cost": Figure("certified recall against forward passes per image", _cost_rows, _cost),
    "alpha": Figure("AP and certified recall against alpha, the lowest mask_score", _alpha_rows, _alpha),
    "beta": Figure("AP and certified recall against beta, which ties mask_score to base_score", _beta_rows, _beta),
    "filter-ioa": Figure("AP and certified recall against filter_ioa", _filter_ioa_rows, _filter_ioa),
    "threshold": Figure("certified recall against T, and its mean over T from 0 to 0.9", _threshold_rows, _threshold),
    "variants": Figure(
        "AP, certified recall and false alerts of every way to prune: IoA or IoU, label by label or without labels",
        _variant_rows,
        _variants,
    ),
    "iou-threshold": Figure(
        "certified recall of the IoU variant against T, the IoU that is exceeded", _iou_threshold_rows, _iou_threshold
    ),
    "patch-area": Figure(
        "certified recall against the patch's share of the image, for several k", _patch_area_rows, _patch_area
    ),
    "patch-aspect": Figure(
        "certified recall against the patch's width : height, at equal area", _patch_aspect_rows, _patch_aspect
    ),
    "object-size": Figure(
        "how many objects have which size, and certified recall by size",
        lambda study: sweeps.by_object_size(study.scene, study.settings),
        _object_size,
    ),
    "splits": Figure(
        "the same measurement on two disjoint random halves of the images",
        lambda study: sweeps.by_split(study.scene, study.settings),
        _splits,
    ),
}

FIGURES: Mapping[str, str] = MappingProxyType({name: figure.description for name, figure in _FIGURES.items()})
