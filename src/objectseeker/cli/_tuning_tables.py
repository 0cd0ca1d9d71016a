"""Tables of `tune`: the best rules, the frontier of price against certificates, and the best masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.cli._evaluation_tables import slices_for_terminal, slices_in_markdown, slices_json
from objectseeker.core.threats import PatchLocation
from objectseeker.files.atomic import save_json, save_text
from objectseeker.inference.drawing import BLACK, ORANGE
from objectseeker.metrics import EvaluationSettings, Tuning, TuningResult
from objectseeker.metrics.ap_search import Trial, TunedRule
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.metrics.recipe_search import RecipeChoice, RecipeSearchResult
from objectseeker.metrics.slices import SliceMetrics
from objectseeker.metrics.tuning import PricedRule, format_interval
from objectseeker.report import plots
from objectseeker.report.plots import BLUE, LINE_STYLES, PURPLE, Line, LineStyle, Panel, Plot
from objectseeker.text import per_image, percent, to_csv, to_markdown, transpose

LOCATIONS: tuple[PatchLocation, ...] = ("far", "close", "over")
RULE_STYLES: Mapping[str, LineStyle] = {"paper": LineStyle(ORANGE, "s", "--"), "evidence": LineStyle(BLUE, "o", "-")}
MEAN_STYLE = LineStyle(BLACK, "D", ":")
RECIPE_STEM = "mask-frontier"


# --- The best rule ----------------------------------------------------------------------------------------------------


def tuned_rows(tuning: TuningResult) -> list[dict[str, str]]:
    """Return the best setting of each rule, on the half where it was searched and on the held-out half."""
    rows = []
    for kind, tuned in tuning.rules.items():
        for half, trial in (("searched", tuned.search_split), ("held out", tuned.held_out_split)):
            base_threshold = trial.outcome.base_threshold
            metrics = {
                "undefended": percent(trial.undefended_ap50),
                "AP50": percent(trial.outcome.ap50),
                "base_threshold": "-" if base_threshold is None else f"{base_threshold:g}",
                "undefended recall": percent(trial.undefended_clean_recall),
                "clean recall": percent(trial.outcome.clean_recall),
                "FPPI": per_image(trial.outcome.fppi),
            }
            rows.append({"rule, half": f"{kind}, {half}"} | _settings_row(tuned.settings) | metrics | _certified(trial))
    return rows


def _settings_row(settings: EvaluationSettings) -> dict[str, str]:
    """Return the hyperparameters that the search chooses; empty where a rule does not have one."""
    schedule, rule = settings.threshold_schedule, settings.rule.settings()
    values = {
        "alpha": schedule.alpha,
        "beta": schedule.beta,
        "evidence_alpha": schedule.evidence_alpha,
        "evidence_beta": schedule.evidence_beta,
        "evidence_power": None if schedule.evidence_alpha is None else rule.get("evidence_power"),
        "filter_ioa": rule.get("filter_ioa"),
        "edge_factor": rule.get("edge_factor"),
        "cluster_distance": rule.get("cluster_distance"),
    }
    return {name: "" if value is None else f"{value:g}" for name, value in values.items()}


def frontier_rows(tuning: TuningResult) -> list[dict[str, str]]:
    """Return the held-out metrics of both rules for each maximal AP loss."""
    best = {kind: {point.max_ap_loss: point for point in points} for kind, points in tuning.frontier.items()}
    rows = []
    for max_loss in sorted({loss for points in best.values() for loss in points}):
        row = {"max AP loss": f"{max_loss:g}"}
        for kind, points in best.items():
            trial = points[max_loss].held_out_split if max_loss in points else None
            ap50, loss = (None, None) if trial is None else (trial.outcome.ap50, trial.ap_loss)
            cells = {"AP50": percent(ap50), "AP loss": percent(loss)} | _certified(trial)
            row |= {f"{kind} {name}": cell for name, cell in cells.items()}
        rows.append(row)
    return rows


def _certified(trial: Trial | None) -> dict[str, str]:
    shares = None if trial is None else trial.outcome.certified_recall()
    return {location: percent(None if shares is None else shares[location]) for location in LOCATIONS}


def tuning_caveats(tuning: TuningResult) -> list[str]:
    """Explain limits of the search, and problems of the best rule."""
    unlimited = [
        f"{kind} rule: every allowed loss leads to the same setting, so AP is not the limit"
        for kind, points in tuning.frontier.items()
        if len(points) > 1 and len({point.settings for point in points}) == 1
    ]
    fppi_warning = tuning.best.fppi_warning
    return [*tuning.caveats, *unlimited, *([fppi_warning] if fppi_warning else [])]


def tuning_dict(tuning: TuningResult, slices: Sequence[SliceMetrics] = ()) -> dict[str, Any]:
    """Return a tuning result and its slices as JSON."""
    return tuning.to_dict() | ({"slices": slices_json(slices)} if slices else {})


def frontier_plot(tuning: TuningResult) -> Plot:
    """Plot certified recall against the AP50 loss, both on the held-out half."""
    panels = []
    for location in (*LOCATIONS, None):  # None: the mean, which the search maximizes
        lines = []
        for kind, points in tuning.frontier.items():
            known = sorted(
                (point.held_out_split.ap_loss, share)
                for point in points
                if (share := _certified_share(point.held_out_split, location)) is not None
            )
            lines.append(Line(f"{kind} rule", [x for x, _ in known], [y for _, y in known], RULE_STYLES[kind]))
        panels.append(
            Panel(
                x_label="AP50 loss, points",
                y_label="certified recall, %",
                title=location or "mean",
                series=lines,
                y_limits=plots.zero_based_limits([y for line in lines for y in line.y]),
                if_empty=next(iter(tuning_caveats(tuning)), "no settings were found"),
            )
        )
    note = (
        f"At {tuning.search.point}. Settings chosen on one half of the images for each allowed loss "
        f"({', '.join(f'{loss:g}' for loss in tuning.search.every_loss)}), both axes measured on the other half. Where "
        "several losses lead to one setting, there is one point."
    )
    return Plot("Certified recall against AP loss", panels, note)


def _certified_share(trial: Trial, location: PatchLocation | None) -> float | None:
    return trial.mean_certified_recall if location is None else trial.outcome.certified_recall()[location]


def _slices_heading(slices: Sequence[SliceMetrics]) -> list[str]:
    return ["The better of the two rules by slice, on the held-out half"] if slices else []


def render_tuning(tuning: TuningResult, slices: Sequence[SliceMetrics] = ()) -> list[Any]:
    """Return the parts of the output: the best rule on both halves. Files have the rest."""
    best = tuning.best
    title = f"Best: the {best.search_split.kind} rule, at most {best.max_ap_loss:g} points of AP50 lost; in percent"
    return [
        terminal_table(title, best_rows(best)),
        *tuning_caveats(tuning),
        *_slices_heading(slices),
        *slices_for_terminal(slices),
    ]


def best_rows(best: TunedRule) -> list[dict[str, str]]:
    """Return the metrics of the best rule, searched next to held out."""
    halves = {"searched": best.search_split, "held out": best.held_out_split}
    rows: dict[str, Callable[[Trial], str]] = {
        "AP50 undefended": lambda trial: percent(trial.undefended_ap50),
        "AP50": lambda trial: percent(trial.outcome.ap50),
        "clean recall": lambda trial: percent(trial.outcome.clean_recall),
        "FPPI": lambda trial: per_image(trial.outcome.fppi),
    }
    table = [{"": name} | {half: cell(trial) for half, trial in halves.items()} for name, cell in rows.items()]
    for location in LOCATIONS:
        cells = {half: percent(trial.outcome.certified_recall()[location]) for half, trial in halves.items()}
        table.append({"": f"certified {location}"} | cells)
    return table


def save_tuning(out: Path, tuning: TuningResult, slices: Sequence[SliceMetrics] = ()) -> None:
    """Write tuning.json (every setting tried), frontier.csv, tuning.md, slices.csv and the plot."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "tuning.json", tuning_dict(tuning, slices))
    save_text(out / "frontier.csv", to_csv(frontier_rows(tuning)))
    if slices:
        save_text(out / "slices.csv", to_csv([row.to_row() for row in slices]))
    tables = [to_markdown(transpose(tuned_rows(tuning))), to_markdown(frontier_rows(tuning))]
    parts = [*tables, _bullets(tuning_caveats(tuning)), *_slices_heading(slices), slices_in_markdown(slices)]
    save_text(out / "tuning.md", "\n\n".join(part for part in parts if part) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(frontier_plot(tuning), out / "frontier")


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


# --- Unlabeled images: the best rule for a number of spurious boxes ---------------------------------------------------


def price_rows(tuning: Tuning) -> list[dict[str, str]]:
    """Return, for each price, the rule and what it costs and certifies on the held-out images."""
    return [_price_row(f"{point.price:g}", point) for point in tuning.frontier] + [
        _price_row("untuned", tuning.untuned)
    ]


def _price_row(name: str, point: PricedRule) -> dict[str, str]:
    held_out, rule = point.held_out, point.rule
    metrics = {"spurious per image": held_out.spurious} | dict(held_out.certified) | {"mean": held_out.mean_certified}
    cells = {key: format_interval(one, 2 if key == "spurious per image" else 1) for key, one in metrics.items()}
    low = rule.evidence_threshold
    return {
        "price": name,
        **cells,
        "searched": format_interval(point.searched.spurious, 2),
        "mask_threshold": f"{rule.mask_threshold:g}",
        "evidence_threshold": "" if low is None else f"{low:g}",
        "evidence_power": "" if low is None else f"{rule.evidence_power:g}",
        "filter_ioa": f"{rule.filter_ioa:g}",
        "edge_factor": f"{rule.edge_factor:g}",
        "cluster_distance": f"{rule.cluster_distance:g}",
    }


def price_plot(tuning: Tuning) -> Plot:
    """Plot the certified share of own boxes against spurious boxes per image, both on the held-out images."""
    points = sorted(tuning.frontier, key=lambda point: point.held_out.spurious.value)
    x = [point.held_out.spurious.value for point in points]
    lines = [
        Line(location, x, [_known(point.held_out.certified[location]) for point in points], LINE_STYLES[location])
        for location in LOCATIONS
    ]
    lines.append(Line("mean", x, [_known(point.held_out.mean_certified) for point in points], MEAN_STYLE))
    untuned = tuning.untuned.held_out
    style = LineStyle(PURPLE, "X", "", hollow=True)
    lines.append(Line("mean, untuned", [untuned.spurious.value], [_known(untuned.mean_certified)], style))
    panel = Panel(
        x_label="spurious boxes per clean image",
        y_label="own boxes certified, %",
        series=lines,
        y_limits=plots.zero_based_limits([y for line in lines for y in line.y]),
        marked=tuning.best.held_out.spurious.value,
    )
    held_out = tuning.best.held_out
    note = (
        f"Base threshold {tuning.threshold:g}, masks {tuning.masks}. Rules chosen on "
        f"{tuning.best.searched.images} unlabeled images for each price, both axes measured on {held_out.images} other "
        f"images with {held_out.own_boxes} own boxes."
    )
    return Plot("Certified share against spurious boxes", [panel], note)


def _known(interval: ConfidenceInterval) -> float | None:
    return interval.value if interval.known else None


def render_prices(tuning: Tuning) -> list[Any]:
    """Return the parts of the output: the threshold, the tuned and the untuned rule, and the frontier."""
    held_out, best = tuning.best.held_out, tuning.best
    title = f"On {held_out.images} held-out images with {held_out.own_boxes} own boxes, 95 % intervals"
    short = [
        {name: row[name] for name in ("price", "spurious per image", *LOCATIONS, "mean")} for row in price_rows(tuning)
    ]
    searched = best.searched
    return [
        f"base threshold {tuning.threshold:g}: {tuning.threshold_reason}",
        f"masks {tuning.masks}: at most {tuning.forward_passes} forward passes per image",
        f"{tuning.rules:,} rules competed on {searched.images} images in {tuning.seconds:.0f} seconds; the best for at "
        f"most {best.price:g} spurious boxes per image has {format_interval(searched.spurious, 2)} there",
        terminal_table(title, tuning.rows()),
        terminal_table("Other prices, on the held-out images; certified shares in percent", short),
        *tuning.caveats,
    ]


def save_prices(out: Path, tuning: Tuning) -> None:
    """Write tuning.json, frontier.csv, tuning.md, and the plot with matplotlib."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "tuning.json", tuning.to_dict())
    rows = price_rows(tuning)
    save_text(out / "frontier.csv", to_csv(rows))
    parts = [to_markdown(tuning.rows()), to_markdown(rows), _bullets(tuning.caveats)]
    save_text(out / "tuning.md", "\n\n".join(part for part in parts if part) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(price_plot(tuning), out / "frontier")


# --- The best masks within a number of forward passes -----------------------------------------------------------------


def recipe_rows(result: RecipeSearchResult) -> list[dict[str, str]]:
    """Return, for each budget of forward passes, the chosen recipe and its metrics on the held-out half."""
    rows = []
    for choice in result.chosen:
        trial = choice.best.held_out_split
        rows.append(
            {
                "max passes": str(choice.budget),
                "passes": str(choice.candidate.forward_passes),
                "masks": str(choice.candidate.recipe),
                "rule": choice.kind,
                "AP50": percent(trial.outcome.ap50),
                "AP loss": percent(trial.ap_loss),
                **{name: percent(share) for name, share in _certified_shares(choice).items()},
            }
        )
    return rows


def _certified_shares(choice: RecipeChoice) -> dict[str, float | None]:
    """Return certified recall on the held-out half, and its mean, which the search maximizes."""
    shares = choice.best.held_out_split.outcome.certified_recall()
    return {location: shares[location] for location in LOCATIONS} | {
        "mean": choice.best.held_out_split.mean_certified_recall
    }


def recipe_caveats(result: RecipeSearchResult) -> list[str]:
    """Explain limits of the search, missing held-out metrics, and problems of the chosen rules."""
    reasons = (
        (choice.budget, reason)
        for choice in result.chosen
        for reason in (choice.best.broken_promise, choice.best.fppi_warning)
        if reason
    )
    return [*result.caveats, *(f"at most {budget} passes: {reason}" for budget, reason in reasons)]


def recipe_plot(result: RecipeSearchResult) -> Plot:
    """Plot certified recall and clean AP50 against the forward passes that the recipes need."""
    passes = [choice.candidate.forward_passes for choice in result.chosen]
    shares = [_certified_shares(choice) for choice in result.chosen]
    names = (*LOCATIONS, "mean")
    lines = [Line(name, passes, [row[name] for row in shares], LINE_STYLES.get(name, MEAN_STYLE)) for name in names]
    certified = Panel(
        x_label="forward passes per image, at most",
        y_label="certified recall, %",
        title="certified recall",
        series=lines,
        y_limits=plots.zero_based_limits([share for line in lines for share in line.y]),
        if_empty=next(iter(recipe_caveats(result)), "nothing was found"),
    )
    trials = [choice.best.held_out_split for choice in result.chosen]
    undefended = [trial.undefended_ap50 for trial in trials]
    defended = [trial.outcome.ap50 for trial in trials]
    cost = Panel(
        x_label="forward passes per image, at most",
        y_label="AP50, %",
        title="clean AP50",
        series=[
            Line("undefended", passes, undefended, LINE_STYLES["undefended"]),
            Line("defended", passes, defended, LINE_STYLES["defended"]),
        ],
        y_limits=plots.zoomed_limits([*undefended, *defended]),
    )
    note = (
        f"At {result.search.point}. For every budget, the recipe and rule with the highest mean certified recall on "
        f"one half of the images with at most {result.search.max_ap_loss:g} points of AP50 lost, measured on the other."
    )
    return Plot("Certified recall against forward passes", [certified, cost], note)


def render_recipes(result: RecipeSearchResult) -> list[Any]:
    """Return what `tune` prints for a budget of passes; long recipes are listed below the table."""
    rows = recipe_rows(result)
    short = [{name: cell for name, cell in row.items() if name not in ("masks", "rule")} for row in rows]
    return [
        terminal_table("The best masks and rule within a number of passes, on the held-out half, in percent", short),
        *(f"at most {row['max passes']} passes: {row['masks']}, {row['rule']} rule" for row in rows),
        *recipe_caveats(result),
    ]


def save_recipes(out: Path, result: RecipeSearchResult) -> None:
    """Write mask-frontier.json with every recipe tried, .csv, .md, and the plot with matplotlib."""
    out.mkdir(parents=True, exist_ok=True)
    rows, caveats = recipe_rows(result), _bullets(recipe_caveats(result))
    save_json(out / f"{RECIPE_STEM}.json", result.to_dict())
    save_text(out / f"{RECIPE_STEM}.csv", to_csv(rows))
    save_text(out / f"{RECIPE_STEM}.md", "\n\n".join([to_markdown(rows), *([caveats] if caveats else [])]) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(recipe_plot(result), out / RECIPE_STEM)
