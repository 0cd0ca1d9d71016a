"""What `tune` found: the frontier of AP against certified recall of both rules, as tables and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.cli._evaluation_tables import slices_for_terminal, slices_in_markdown, slices_json
from objectseeker.core.threats import PatchLocation
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import per_image, percent, to_csv, to_markdown, transpose
from objectseeker.inference.drawing import ORANGE
from objectseeker.metrics import EvaluationSettings, Tuning
from objectseeker.metrics.slices import SliceMetrics
from objectseeker.metrics.tuning import Trial
from objectseeker.report import plots
from objectseeker.report.plots import BLUE, Line, LineStyle, Panel, Plot

SHOWN: tuple[PatchLocation, ...] = ("far", "close", "over")
RULE_STYLES: Mapping[str, LineStyle] = {"paper": LineStyle(ORANGE, "s", "--"), "evidence": LineStyle(BLUE, "o", "-")}


def tuned_rows(tuning: Tuning) -> list[dict[str, str]]:
    """The best setting of each rule, on the half it was searched on and on the other."""
    rows = []
    for family, tuned in tuning.families.items():
        for half, trial in (("searched", tuned.searched), ("held out", tuned.held_out)):
            figures = {
                "undefended": percent(trial.undefended_ap50),
                "AP50": percent(trial.outcome.ap50),
                "base_threshold": "-" if trial.outcome.base_threshold is None else f"{trial.outcome.base_threshold:g}",
                "undefended recall": percent(trial.undefended_clean_recall),
                "clean recall": percent(trial.outcome.clean_recall),
                "wrong boxes": per_image(trial.outcome.fppi),
            }
            rows.append(
                {"rule, half": f"{family}, {half}"} | settings_row(tuned.settings) | figures | _certified(trial)
            )
    return rows


def settings_row(settings: EvaluationSettings) -> dict[str, str]:
    """What a search chooses; what the paper's rule does not have is empty."""
    follow, ioa = settings.threshold_schedule, settings.ioa
    values = {
        "alpha": follow.alpha,
        "beta": follow.beta,
        "low alpha": follow.evidence_alpha,
        "low beta": follow.evidence_beta,
        "evidence_power": None if follow.evidence_alpha is None else ioa.evidence_power,
        "filter_ioa": ioa.filter_ioa,
        "edge_factor": ioa.edge_factor,
        "cluster_distance": ioa.cluster_distance,
    }
    return {name: "" if value is None else f"{value:g}" for name, value in values.items()}


def frontier_rows(tuning: Tuning) -> list[dict[str, str]]:
    """For every loss allowed on the searched half, what both rules give on the held-out half, side by side."""
    best = {family: {one.most_loss: one for one in points} for family, points in tuning.frontier.items()}
    rows = []
    for loss in sorted({loss for points in best.values() for loss in points}):
        row = {"loss allowed": f"{loss:g}"}
        for family, points in best.items():
            trial = points[loss].held_out if loss in points else None
            aps = (None, None) if trial is None else (trial.outcome.ap50, trial.loss)
            shown = {"AP50": percent(aps[0]), "loss": percent(aps[1])} | _certified(trial)
            row |= {f"{family} {name}": value for name, value in shown.items()}
        rows.append(row)
    return rows


def _certified(trial: Trial | None) -> dict[str, str]:
    return {where: percent(None if trial is None else trial.outcome.certified_recall()[where]) for where in SHOWN}


def remarks(tuning: Tuning) -> list[str]:
    """What was not searched as usual, why figures of the held-out half are missing, and what is wrong with the best."""
    missing = [
        f"{family} rule, AP50 loss up to {one.most_loss:g}: {one.why_not_held_out}"
        for family, points in tuning.frontier.items()
        for one in points
        if one.why_not_held_out is not None
    ]
    alike = [
        f"{family} rule: every loss allowed leads to the same setting, so AP is not what limits it"
        for family, points in tuning.frontier.items()
        if len(points) > 1 and len({one.settings for one in points}) == 1
    ]
    flooding = tuning.best.flooding
    return [*tuning.remarks, *missing, *alike, *([flooding] if flooding else [])]


def about_slices(rows: Sequence[SliceMetrics]) -> list[str]:
    return ["The better of the two rules slice by slice, on the held-out half"] if rows else []


def as_json(tuning: Tuning, slices: Sequence[SliceMetrics] = ()) -> dict[str, Any]:
    return tuning.to_dict() | ({"slices": slices_json(slices)} if slices else {})


def frontier_plot(tuning: Tuning) -> Plot:
    """Certified recall against the AP50 lost, both on the held-out half."""
    panels = []
    for where in (*SHOWN, None):  # the mean is what was maximized
        lines = []
        for family, points in tuning.frontier.items():
            known = sorted(
                (one.held_out.loss, share) for one in points if (share := _share(one.held_out, where)) is not None
            )
            look = RULE_STYLES[family]
            lines.append(Line(f"{family} rule", [x for x, _ in known], [y for _, y in known], look))
        heights = [y for line in lines for y in line.y]
        panels.append(
            Panel(
                x_label="AP50 lost, points",
                y_label="certified recall, %",
                title=where or "mean",
                series=lines,
                y_limits=plots.zero_based_limits(heights),
                if_empty=next(iter(remarks(tuning)), "no settings were found"),  # why there are none comes first
            )
        )
    note = (
        f"At {tuning.search.point}. Settings chosen on one half of the images for each allowed loss "
        f"({', '.join(f'{loss:g}' for loss in tuning.search.every_loss)}), both axes measured on the other half; where "
        "several losses lead to one setting, there is one point."
    )
    return Plot("What AP buys in certified recall", panels, note)


def _share(trial: Trial, where: PatchLocation | None) -> float | None:
    return trial.certified_mean if where is None else trial.outcome.certified_recall()[where]


def for_terminal(tuning: Tuning, slices: Sequence[SliceMetrics] = ()) -> list[Any]:
    """What `tune` prints."""
    rows = tuned_rows(tuning)
    both_halves = [transpose(rows[first : first + 2]) for first in range(0, len(rows), 2)]  # a table for each rule
    return [
        *(terminal_table("The best setting within the loss, in percent", of_rule) for of_rule in both_halves),
        terminal_table(
            "The frontier, on the held-out half: AP50, its loss, certified recall", transpose(frontier_rows(tuning))
        ),
        *remarks(tuning),
        *about_slices(slices),
        *slices_for_terminal(slices),
    ]


def save(out: Path, tuning: Tuning, slices: Sequence[SliceMetrics] = ()) -> None:
    """tuning.json with every setting tried, frontier.csv, tuning.md, and the plot where matplotlib is installed;
    slices.csv where there are slices."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "tuning.json", as_json(tuning, slices))
    save_text(out / "frontier.csv", to_csv(frontier_rows(tuning)))
    if slices:
        save_text(out / "slices.csv", to_csv([row.to_row() for row in slices]))
    tables = [to_markdown(transpose(tuned_rows(tuning))), to_markdown(frontier_rows(tuning))]
    notes = "\n".join(f"- {line}" for line in remarks(tuning))
    parts = [*tables, notes, *about_slices(slices), slices_in_markdown(slices)]
    save_text(out / "tuning.md", "\n\n".join(part for part in parts if part) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(frontier_plot(tuning), out / "frontier")
