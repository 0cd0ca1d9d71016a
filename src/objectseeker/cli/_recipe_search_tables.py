"""What `tune --passes` found: certified recall against forward passes, as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.core.threats import PatchLocation
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import percent, to_csv, to_markdown
from objectseeker.inference.drawing import BLACK
from objectseeker.metrics.recipe_search import Budgets, Chosen
from objectseeker.report import plots
from objectseeker.report.plots import LINE_STYLES, Line, LineStyle, Panel, Plot

STEM = "frontier-passes"
SHOWN: tuple[PatchLocation, ...] = ("far", "close", "over")
MEAN = LineStyle(BLACK, "D", ":")


def budget_rows(found: Budgets) -> list[dict[str, str]]:
    """For every budget the recipe chosen, and what it gives on the held-out half."""
    rows = []
    for one in found.chosen:
        trial = one.best.held_out
        rows.append(
            {
                "passes allowed": str(one.budget),
                "needed": str(one.candidate.passes),
                "masks": str(one.candidate.recipe),
                "rule": one.family,
                "AP50": percent(trial.outcome.ap50),
                "loss": percent(trial.loss),
                **{where: percent(share) for where, share in _certified(one).items()},
            }
        )
    return rows


def _certified(one: Chosen) -> dict[str, float | None]:
    """The certified recall of the held-out half, and the mean, which is what was maximized."""
    shares = one.best.held_out.outcome.certified_recall()
    return {where: shares[where] for where in SHOWN} | {"mean": one.best.held_out.certified_mean}


def remarks(found: Budgets) -> list[str]:
    """What was not found or not searched as usual, and why figures of the held-out half are missing."""
    reasons = (
        (one.budget, why) for one in found.chosen for why in (one.best.why_not_held_out, one.best.flooding) if why
    )
    return [*found.remarks, *(f"at most {budget} passes: {why}" for budget, why in reasons)]


def budget_plot(found: Budgets) -> Plot:
    """Certified recall against the passes that the recipes need, and what they cost."""
    passes = [one.candidate.passes for one in found.chosen]
    shares = [_certified(one) for one in found.chosen]
    lines = [
        Line(name, passes, [row[name] for row in shares], LINE_STYLES.get(name, MEAN)) for name in (*SHOWN, "mean")
    ]
    why = next(iter(remarks(found)), "nothing was found")
    certified = Panel(
        x_label="forward passes an image needs at most",
        y_label="certified recall, %",
        title="certified recall",
        series=lines,
        y_limits=plots.zero_based_limits([share for line in lines for share in line.y]),
        if_empty=why,
    )
    trials = [one.best.held_out for one in found.chosen]
    undefended = [trial.undefended_ap50 for trial in trials]
    defended = [trial.outcome.ap50 for trial in trials]
    cost = Panel(
        x_label="forward passes an image needs at most",
        y_label="AP50, %",
        title="clean AP50",
        series=[
            Line("undefended", passes, undefended, LINE_STYLES["undefended"]),
            Line("defended", passes, defended, LINE_STYLES["defended"]),
        ],
        y_limits=plots.zoomed_limits([*undefended, *defended]),
    )
    note = (
        f"At {found.search.point}. For every budget the recipe and rule that certify most (the "
        f"mean) on one half of the images at a loss of at most {found.search.most_loss:g} points of AP50, measured on "
        "the other half."
    )
    return Plot("What forward passes buy in certified recall", [certified, cost], note)


def for_terminal(found: Budgets) -> list[Any]:
    """What `tune --passes` prints; recipes are long, so they stand below the table."""
    rows = budget_rows(found)
    short = [{name: cell for name, cell in row.items() if name not in ("masks", "rule")} for row in rows]
    return [
        terminal_table("The best masks and rule within a number of passes, on the held-out half, in percent", short),
        *(f"at most {row['passes allowed']} passes: {row['masks']}, {row['rule']} rule" for row in rows),
        *remarks(found),
    ]


def save(out: Path, found: Budgets) -> None:
    """frontier-passes.json with every recipe tried, .csv, .md, and the plot where matplotlib is installed."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / f"{STEM}.json", found.to_dict())
    save_text(out / f"{STEM}.csv", to_csv(budget_rows(found)))
    notes = "\n".join(f"- {line}" for line in remarks(found))
    save_text(out / f"{STEM}.md", "\n\n".join([to_markdown(budget_rows(found)), *([notes] if notes else [])]) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(budget_plot(found), out / STEM)
