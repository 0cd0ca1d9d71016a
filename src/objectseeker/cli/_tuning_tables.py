"""Tables of `tune`: the best rule, and the frontier of prices or of forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.cli._evaluation_tables import slices_for_terminal, slices_in_markdown, slices_json
from objectseeker.files.atomic import save_json, save_text
from objectseeker.inference.drawing import BLACK
from objectseeker.metrics import TunedRule, Tuning
from objectseeker.metrics.slices import SliceMetrics
from objectseeker.report import plots
from objectseeker.report.plots import LINE_STYLES, PURPLE, Line, LineStyle, Panel, Plot
from objectseeker.text import to_csv, to_markdown

MEAN_STYLE = LineStyle(BLACK, "D", ":")
UNTUNED_STYLE = LineStyle(PURPLE, "X", "", hollow=True)
PRICES = {"spurious": "spurious boxes per clean image", "max_ap_loss": "points of AP50 lost"}
COSTS = {"spurious": "spurious boxes per image", "max_ap_loss": "points of AP50 lost"}
THRESHOLDS = ("base_threshold", "mask_threshold", "evidence_threshold", "evidence_power")
SLICES_TITLE = "The best rule by slice, on the held-out half"
SCHEDULE = ("alpha", "beta", "evidence_alpha", "evidence_beta")


def has_budgets(tuning: Tuning) -> bool:
    """Return whether the frontier is about several numbers of forward passes, not about prices."""
    return len({point.budget for point in tuning.frontier}) > 1


def frontier_rows(tuning: Tuning) -> list[dict[str, str]]:
    """Return, for every price and kind or every budget, what the rule costs and certifies there, held out."""
    rows = [_frontier_row(f"{point.price:g}", point) for point in tuning.frontier]
    return rows if tuning.untuned is None else [*rows, _frontier_row("untuned", tuning.untuned)]


def _frontier_row(price: str, point: TunedRule) -> dict[str, str]:
    rule, schedule = point.rule.settings(), point.search_split.schedule
    if rule.get("evidence_threshold") is None:
        rule["evidence_power"] = None
    settings = {name: rule.get(name) for name in (*THRESHOLDS, "filter_ioa", "edge_factor", "cluster_distance")}
    if schedule is not None:
        settings |= {name: getattr(schedule, name) for name in SCHEDULE}
    return {
        "price": price,
        "rule": point.kind,
        "max passes": "" if point.budget is None else str(point.budget),
        "passes": str(point.forward_passes),
        "masks": str(point.masks),
        **point.held_out_split.cells(),
        "searched": next(iter(point.search_split.cells().values())),
        **{name: "" if value is None else f"{value:g}" for name, value in settings.items()},
    }


def frontier_plot(tuning: Tuning) -> Plot:
    """Plot certified shares against what the rule costs or the passes it needs, held out."""
    by_passes = has_budgets(tuning)
    x_label = "forward passes per image" if by_passes else PRICES[tuning.best.search_split.price_name]
    panels = []
    for kind in dict.fromkeys(None if by_passes or tuning.untuned else point.kind for point in tuning.frontier):
        points = [point for point in tuning.frontier if kind in (None, point.kind)]
        points.sort(key=lambda point: _x(point, by_passes))
        x = [_x(point, by_passes) for point in points]
        shares = [point.held_out_split.shares() for point in points]
        lines = [Line(name, x, [row[name] for row in shares], LINE_STYLES.get(name, MEAN_STYLE)) for name in shares[0]]
        if tuning.untuned is not None and not by_passes:
            y = list(tuning.untuned.held_out_split.shares().values())[-1]
            lines.append(Line(f"{lines[-1].label}, untuned", [_x(tuning.untuned, by_passes)], [y], UNTUNED_STYLE))
        panels.append(
            Panel(
                x_label=x_label,
                y_label="certified, %",
                title="" if kind is None else f"{kind} rule",
                series=lines,
                y_limits=plots.zero_based_limits([y for line in lines for y in line.y]),
                marked=_x(tuning.best, by_passes) if kind in (None, tuning.best.kind) else None,
            )
        )
    if by_passes:
        costs = [point.held_out_split.cost for point in points]
        line = Line("cost", x, costs, LINE_STYLES["defended"])
        panels.append(Panel(x_label=x_label, y_label=PRICES[tuning.best.search_split.price_name], series=[line]))
    note = (
        f"Base threshold {tuning.threshold:g}: {tuning.threshold_reason}. Rules and masks chosen on one part of the "
        "images for each price or budget, both axes measured on the other."
    )
    return Plot(f"Certified share against {x_label}", panels, note)


def _x(point: TunedRule, by_passes: bool) -> float:
    return float(point.forward_passes or 0) if by_passes else point.held_out_split.cost


def render_tuning(tuning: Tuning, slices: Sequence[SliceMetrics] = ()) -> list[Any]:
    """Return the parts of the output: the answer, one table, how it was chosen, and slices."""
    best, by_passes = tuning.best, has_budgets(tuning)
    price_name = best.search_split.price_name
    cost, *_, gain = best.held_out_split.cells().values()
    location = ("mean of " if len(tuning.locations) > 1 else "") + ", ".join(tuning.locations)
    answer = f"Certified: {gain} %, {location}, for {cost} {COSTS[price_name]}, on images not searched."
    if by_passes:
        table = terminal_table("Held out, by forward passes", [_budget_row(point) for point in tuning.frontier])
    else:
        rows = [{"tuned" if of == "held out" else of: cell for of, cell in row.items()} for row in tuning.rows()]
        table = terminal_table("", [{of: row[of] for of in row if of != "searched"} for row in rows])
    return [
        answer,
        f"{best.kind} rule, the best of {tuning.rules:,} for at most {best.price:g} {PRICES[price_name]}; masks "
        f"{tuning.masks}: at most {tuning.forward_passes} forward passes per image",
        f"base threshold {tuning.threshold:g}: {tuning.threshold_reason}",
        table,
        *([SLICES_TITLE] if slices else []),
        *slices_for_terminal(slices),
        *tuning.caveats,
    ]


def _budget_row(point: TunedRule) -> dict[str, str]:
    """Return the rule and masks of a budget, with what they cost and certify."""
    cells = point.held_out_split.cells()
    ends = (next(iter(cells)), list(cells)[-1])
    masks = f"at most {point.budget} passes: {point.masks}, {point.kind} rule"
    return {"": masks} | {name if name == ends[0] else f"certified {name}, %": cells[name] for name in ends}


def tuning_dict(tuning: Tuning, slices: Sequence[SliceMetrics] = ()) -> dict[str, Any]:
    """Return a tuning result and its slices as JSON."""
    return tuning.to_dict() | ({"slices": slices_json(slices)} if slices else {})


def save_tuning(out: Path, tuning: Tuning, slices: Sequence[SliceMetrics] = ()) -> list[Path]:
    """Write tuning.json, frontier.csv, tuning.md, slices.csv, the plot with matplotlib, and the defense.

    Of several budgets each has its defense. Returns their files.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = frontier_rows(tuning)
    save_json(out / "tuning.json", tuning_dict(tuning, slices))
    save_text(out / "frontier.csv", to_csv(rows))
    if slices:
        save_text(out / "slices.csv", to_csv([row.to_row() for row in slices]))
    caveats = "\n".join(f"- {line}" for line in tuning.caveats)
    of_slices = [SLICES_TITLE, slices_in_markdown(slices)] if slices else []
    parts = [to_markdown(tuning.rows()), to_markdown(rows), caveats, *of_slices]
    save_text(out / "tuning.md", "\n\n".join(part for part in parts if part) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(frontier_plot(tuning), out / "frontier")
    points = tuning.frontier if has_budgets(tuning) else [tuning.best]
    files = []
    for point in points:
        if point.defense is not None:
            files.append(out / (f"defense-{point.budget}.json" if has_budgets(tuning) else "defense.json"))
            point.defense.save(files[-1])
    return files
