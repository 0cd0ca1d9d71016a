"""What `compare` found: runs side by side as tables and as a plot, and measurements as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from objectseeker.errors import ObjectSeekerError
from objectseeker.evaluation.comparison import compare
from objectseeker.jobs import save_json, save_text
from objectseeker.results import plots
from objectseeker.results.plots import LOOKS, Line, Panel, Plot
from objectseeker.results.tables import Row, as_csv, as_markdown, table

MEASURED = ".measured.json"  # ends the name of the file with one run's measurements
PARTS = {"run", "options", "vanilla", "curve", "tuned"}  # of such a file, among others

# What is shown of the held-out half, and by which name.
TUNED_FIGURES = {
    "far": ("certified_far",),
    "close": ("certified_close",),
    "over": ("certified_over",),
    "mean": ("certified_mean",),
    "AP50": ("ap50",),
    "AP50 lost": ("ap50_loss",),
    "spurious boxes": ("spurious",),
    "far, vanilla": ("at_vanilla_recall", "certified_far"),
    "close, vanilla": ("at_vanilla_recall", "certified_close"),
    "over, vanilla": ("at_vanilla_recall", "certified_over"),
}

Figure = Callable[[Row], Row | None]  # of a run, or of a difference of two


def names_of(runs: Sequence[Row]) -> list[str]:
    """Short names of runs: their folders' names, or the whole paths where those are not enough."""
    short = [Path(run["run"]).name for run in runs]
    return short if len(set(short)) == len(short) else [str(run["run"]) for run in runs]


def sections(found: Row) -> Iterator[tuple[str, dict[str, Figure]]]:
    """All tables: a title, and what stands in each row."""
    first = found["runs"][0]
    for number, cell in enumerate(first["tuned"]):
        title = f"{cell['rule']} rule, clean recall {cell['clean_recall']:g}, AP50 loss up to {cell['most_loss']:g}"
        yield title, {short: _held_out(number, place) for short, place in TUNED_FIGURES.items()}
    betas = [f"beta {point['beta']:g}" for point in first["curve"]]
    lost = {beta: _on_curve(number, lambda point: point["ap50_loss"]) for number, beta in enumerate(betas)}
    yield "AP50 lost by low mask scores, paper's rule", {"vanilla AP50": lambda run: run["vanilla"]["ap50"]} | lost
    for place, recall in enumerate(first["options"]["recalls"]):
        yield (
            f"spurious boxes per clean image where undefended recall is {recall:g}, paper's rule",
            {beta: _on_curve(number, _spurious(place)) for number, beta in enumerate(betas)},
        )


def _held_out(number: int, place: Sequence[str]) -> Figure:
    def of(run: Row) -> Row | None:
        figure: Row | None = run["tuned"][number].get("held_out")  # a difference has only what both runs have
        for name in place:
            figure = None if figure is None else figure.get(name)
        return figure

    return of


def _on_curve(number: int, figure: Figure) -> Figure:
    return lambda run: figure(run["curve"][number])


def _spurious(place: int) -> Figure:
    return lambda point: point["at_recall"][place]["spurious"]


def columns(found: Row) -> dict[str, Row]:
    """What stands in each column: the runs, and what the others have more than the first."""
    names = names_of(found["runs"])
    runs = dict(zip(names, found["runs"], strict=True))
    return runs | {f"{name} - {names[0]}": d for name, d in zip(names[1:], found["differences"], strict=True)}


def rows(figures: dict[str, Figure], shown: dict[str, Row]) -> list[dict[str, str]]:
    return [
        {"figure": name} | {column: cell(figure(content)) for column, content in shown.items()}
        for name, figure in figures.items()
    ]


def cell(estimated: Row | None) -> str:
    """A value and its interval, to about three digits."""
    if estimated is None or estimated["value"] is None:
        return "-"
    numbers = [estimated[name] for name in ("value", "low", "high") if estimated[name] is not None]
    digits = 1 if max(map(abs, numbers)) >= 10 else 2
    value, *interval = (f"{number:z.{digits}f}" for number in numbers)
    return f"{value} [{', '.join(interval)}]" if interval else value


def remarks(found: Row) -> list[str]:
    """What a reader of the numbers must know."""
    first, names = found["runs"][0], names_of(found["runs"])
    options = first["options"]
    twice = options.get("both_halves", False)
    found_on, measured_on = ("each", "the other, the mean of both") if twice else ("one", "the other")
    lines = [
        f"{first['images']} images, {first['objects']} objects, patch of {options['patch_area']:.2%}. Settings were "
        f"found on {found_on} half of the images; certified recall (far, close, over) and AP50, in percent, from "
        f"{measured_on}.",
        "They are certified where the defended detector reaches the clean recall; the rows marked vanilla where the "
        "undefended one does, at a lower base_score. Settings were searched where the "
        f"{options.get('recall_of', 'defended')} one does.",
        f"In brackets: 95 % bootstrap intervals over images, {options['bootstrap']} samples.",
        "Masked boxes count from base_score + (1 - base_score) * beta on. A spurious box is one that masks add to a "
        "clean image and that overlaps no object of its class.",
    ]
    for name, difference in zip(names[1:], found["differences"], strict=True):
        if not difference["paired"]:
            lines.append(f"{name} and {names[0]} hold different images: their difference is not paired.")
    for name, run in zip(names, found["runs"], strict=True):
        for one in run["tuned"]:
            where = f"{name}, {one['rule']} rule, recall {one['clean_recall']:g}, loss {one['most_loss']:g}"
            if one["held_out"] is None:
                lines.append(f"{where}: {one['why']}.")
            elif one["held_out"]["certified_far"]["unreached"]:
                missing = one["held_out"]["certified_far"]["unreached"]
                lines.append(f"{where}: {missing} samples never reach the clean recall and are left out.")
    return lines


def for_terminal(found: Row) -> list[Any]:
    """What `compare` prints: every run beside the first, three columns at a time, so that it fits a terminal."""
    first, *others = names_of(found["runs"])
    runs = dict(zip((first, *others), found["runs"], strict=True))
    views = [
        {first: runs[first], other: runs[other], "difference": difference}
        for other, difference in zip(others, found["differences"], strict=True)
    ]
    tables = [table(title, rows(figures, view)) for view in views or [runs] for title, figures in sections(found)]
    return [*tables, *remarks(found)]


def curve_plot(found: Row) -> Plot:
    """AP50 lost and spurious boxes against beta, one line per run."""
    looks = [look for _, look in zip(found["runs"], cycle(LOOKS.values()), strict=False)]
    named = list(zip(names_of(found["runs"]), found["runs"], looks, strict=True))

    def lines(value: Figure) -> list[Line]:
        return [
            Line(
                name,
                [point["beta"] for point in run["curve"]],
                [(value(point) or {"value": None})["value"] for point in run["curve"]],
                look,
            )
            for name, run, look in named
        ]

    lost = lines(lambda point: point["ap50_loss"])
    panels = [Panel(x_label="beta", y_label="AP50 lost, points", title="What low mask scores cost", series=lost)]
    for place, recall in enumerate(found["runs"][0]["options"]["recalls"]):
        title = f"Where undefended recall is {100 * recall:g} %"
        boxes = lines(_spurious(place))
        panels.append(Panel(x_label="beta", y_label="spurious boxes per clean image", title=title, series=boxes))
    return Plot("What training changed", panels, "mask_score = base_score + (1 - base_score) * beta, paper's rule.")


def save(out: Path, measured: Sequence[Row]) -> None:
    """One file of measurements per run, comparison.json, .csv and .md, and the plot where matplotlib is installed."""
    out.mkdir(parents=True, exist_ok=True)
    found = compare(measured)
    for name, run in zip(names_of(measured), measured, strict=True):
        save_json(out / f"{name.strip('/').replace('/', '-')}{MEASURED}", run)
    save_json(out / "comparison.json", found)
    shown = columns(found)
    tables = [(title, rows(figures, shown)) for title, figures in sections(found)]
    save_text(out / "comparison.csv", as_csv([{"table": title} | row for title, part in tables for row in part]))
    text = [f"## {title[0].upper()}{title[1:]}\n\n{as_markdown(part)}" for title, part in tables]
    save_text(out / "comparison.md", "\n\n".join([*text, "\n".join(f"- {line}" for line in remarks(found))]) + "\n")
    if plots.missing() is None:
        plots.save(curve_plot(found), out / "comparison")


def read_measured(file: Path) -> Row:
    """What `save` wrote for one run."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ObjectSeekerError(f"cannot read measurements from {file}: {error}") from None
    if not isinstance(content, dict) or not content.keys() >= PARTS:
        raise ObjectSeekerError(f"{file} holds no measurements of a run; give a run folder or a {MEASURED} file")
    return content
