"""What `tune` found: the frontier of AP against certified recall of both rules, as tables and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from objectseeker.evaluation import Tuning
from objectseeker.evaluation.settings import Settings
from objectseeker.evaluation.tuning import Tuned
from objectseeker.jobs import save_json, save_text
from objectseeker.results import plots
from objectseeker.results.drawing import ORANGE
from objectseeker.results.plots import BLUE, Line, Look, Panel, Plot
from objectseeker.results.tables import as_csv, as_markdown, percent, table, turned

PLACES = ("far", "close", "over")
LOOKS: Mapping[str, Look] = {"paper": Look(ORANGE, "s", "--"), "evidence": Look(BLUE, "o", "-")}


def tuned_rows(tuning: Tuning) -> list[dict[str, str]]:
    """The best setting of each rule, on the half it was searched on and on the other."""
    rows = []
    for family, tuned in tuning.families.items():
        for half, row in (("searched", tuned.searched), ("held out", tuned.held_out)):
            measured = {"vanilla AP50": row["vanilla_ap50"], "AP50": row["ap50"]}
            measured |= {where: row[f"certified_{where}"] for where in PLACES}
            rows.append(
                {"rule, half": f"{family}, {half}"}
                | settings_row(tuned.settings)
                | {name: percent(value) for name, value in measured.items()}
            )
    return rows


def settings_row(settings: Settings) -> dict[str, str]:
    """What a search chooses; what the paper's rule does not have is empty."""
    low = settings.low_alpha is not None
    values = {
        "alpha": settings.alpha,
        "beta": settings.beta,
        "low alpha": settings.low_alpha,
        "low beta": settings.low_beta,
        "power": settings.power if low else None,
        "filter_ioa": settings.filter_ioa,
        "edge_factor": settings.edge_factor,
        "cluster_distance": settings.cluster_distance,
    }
    return {name: "" if value is None else f"{value:g}" for name, value in values.items()}


def frontier_rows(tuning: Tuning) -> list[dict[str, str]]:
    """For every loss allowed on the searched half, what both rules give on the held-out half, side by side."""
    found = {family: {one.most_loss: one for one in points} for family, points in tuning.frontier.items()}
    rows = []
    for loss in sorted({loss for points in found.values() for loss in points}):
        row = {"loss allowed": f"{loss:g}"}
        for family, points in found.items():
            row |= {f"{family} {name}": value for name, value in _held_out(points.get(loss)).items()}
        rows.append(row)
    return rows


def _held_out(tuned: Tuned | None) -> dict[str, str]:
    row = {} if tuned is None else tuned.held_out
    measured = {"AP50": row.get("ap50"), "loss": row.get("ap50_loss")}
    measured |= {where: row.get(f"certified_{where}") for where in PLACES}
    return {name: percent(value) for name, value in measured.items()}


def frontier_plot(tuning: Tuning, clean_recall: float) -> Plot:
    """Certified recall against the AP50 lost, both on the held-out half."""
    panels = []
    for where in (*PLACES, "mean"):  # the mean is what was maximised
        lines = []
        for family, points in tuning.frontier.items():
            known = sorted(
                (one.held_out["ap50_loss"], one.held_out[f"certified_{where}"])
                for one in points
                if one.held_out[f"certified_{where}"] is not None
            )
            lines.append(Line(f"{family} rule", [x for x, _ in known], [y for _, y in known], LOOKS[family]))
        heights = [y for line in lines for y in line.y]
        panels.append(
            Panel(
                x_label="AP50 lost, points",
                y_label="certified recall, %",
                title=where,
                series=lines,
                y_limits=plots.from_zero(heights),
            )
        )
    note = (
        f"At clean recall {100 * clean_recall:g} %. Settings chosen on one half of the images for each allowed loss, "
        "both axes measured on the other half."
    )
    return Plot("What AP buys in certified recall", panels, note)


def for_terminal(tuning: Tuning) -> list[Any]:
    """What `tune` prints."""
    return [
        table("The best setting of each rule within the loss, in percent", turned(tuned_rows(tuning))),
        table("The frontier, on the held-out half: AP50, its loss, certified recall", turned(frontier_rows(tuning))),
    ]


def save(out: Path, tuning: Tuning, clean_recall: float) -> None:
    """tuning.json with every setting tried, frontier.csv, tuning.md, and the plot where matplotlib is installed."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "tuning.json", tuning.to_json())
    save_text(out / "frontier.csv", as_csv(frontier_rows(tuning)))
    text = as_markdown(turned(tuned_rows(tuning))) + "\n\n" + as_markdown(frontier_rows(tuning)) + "\n"
    save_text(out / "tuning.md", text)
    if plots.missing() is None:
        plots.save(frontier_plot(tuning, clean_recall), out / "frontier")
