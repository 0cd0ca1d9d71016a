"""What `compare` found: runs side by side as tables and as a plot, and measurements as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from objectseeker.cli._console import terminal_table
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.tables import to_csv, to_markdown
from objectseeker.metrics.comparison import Compared, Comparison, RunFigures, compare
from objectseeker.metrics.comparison_metrics import BetaPoint, BootstrapEstimate, HeldOut
from objectseeker.report import plots
from objectseeker.report.plots import LINE_STYLES, Line, Panel, Plot

MEASURED = ".measured.json"  # ends the name of the file with one run's measurements

Cell = Callable[[Compared], BootstrapEstimate | None]  # of a run, or of a difference of two

# What is shown of the held-out half, and by which name.
HELD_OUT: dict[str, Callable[[HeldOut], BootstrapEstimate | None]] = {
    "clean recall": lambda half: half.clean_recall,
    "clean recall, undefended": lambda half: half.undefended_recall,
    "far": lambda half: half.certified_far,
    "close": lambda half: half.certified_close,
    "over": lambda half: half.certified_over,
    "mean": lambda half: half.certified_mean,
    "AP50": lambda half: half.ap50,
    "AP50 lost": lambda half: half.ap50_loss,
    "spurious boxes": lambda half: half.spurious,
    "far, undefended": lambda half: half.at_undefended_recall.certified_far,
    "close, undefended": lambda half: half.at_undefended_recall.certified_close,
    "over, undefended": lambda half: half.at_undefended_recall.certified_over,
}


def names_of(runs: Sequence[RunFigures]) -> list[str]:
    """Short names of runs: their folders' names, numbered where those are not enough."""
    names = [run.run for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]


def sections(found: Comparison) -> Iterator[tuple[str, dict[str, Cell]]]:
    """All tables: a title, and what stands in each row."""
    first = found.runs[0]
    for number, cell in enumerate(first.tuned):
        title = f"{cell.rule} rule, {cell.point.in_words()}, AP50 loss up to {cell.most_loss:g}"
        yield title, {name: _held_out(number, figure) for name, figure in HELD_OUT.items()}
    betas = [f"beta {point.beta:g}" for point in first.curve]
    lost = {beta: _on_curve(number, lambda point: point.ap50_loss) for number, beta in enumerate(betas)}
    yield "AP50 lost by low mask scores, paper's rule", {"undefended AP50": lambda run: run.undefended.ap50} | lost
    for place, point in enumerate(first.options.points):
        yield (
            f"spurious boxes per clean image, undefended at {point.in_words()}, paper's rule",
            {beta: _on_curve(number, _spurious(place)) for number, beta in enumerate(betas)},
        )


def _held_out(number: int, figure: Callable[[HeldOut], BootstrapEstimate | None]) -> Cell:
    def of(run: Compared) -> BootstrapEstimate | None:
        half = run.tuned[number].held_out
        return None if half is None else figure(half)

    return of


def _on_curve(number: int, figure: Callable[[BetaPoint], BootstrapEstimate]) -> Cell:
    return lambda run: figure(run.curve[number])


def _spurious(place: int) -> Callable[[BetaPoint], BootstrapEstimate]:
    return lambda point: point.at_recall[place].spurious


def columns(found: Comparison) -> dict[str, Compared]:
    """What stands in each column: the runs, and what the others have more than the first."""
    names = names_of(found.runs)
    shown: dict[str, Compared] = dict(zip(names, found.runs, strict=True))
    return shown | {f"{name} - {names[0]}": d for name, d in zip(names[1:], found.differences, strict=True)}


def rows(figures: dict[str, Cell], shown: Mapping[str, Compared]) -> list[dict[str, str]]:
    return [
        {"figure": name} | {column: cell(figure(content)) for column, content in shown.items()}
        for name, figure in figures.items()
    ]


def cell(estimated: BootstrapEstimate | None) -> str:
    """A value and its interval, to about three digits."""
    if estimated is None or estimated.value is None:
        return "-"
    numbers = [number for number in (estimated.value, estimated.low, estimated.high) if number is not None]
    digits = 1 if max(map(abs, numbers)) >= 10 else 2
    value, *interval = (f"{number:z.{digits}f}" for number in numbers)
    return f"{value} [{', '.join(interval)}]" if interval else value


def remarks(found: Comparison) -> list[str]:
    """What a reader of the numbers must know."""
    first, names = found.runs[0], names_of(found.runs)
    options = first.options
    found_on, measured_on = ("each", "the other, the mean of both") if options.both_halves else ("one", "the other")
    lines = [
        f"{first.images} images, {first.objects} objects, patch of {options.patch_area:.2%}. Settings were "
        f"found on {found_on} half of the images; certified recall (far, close, over) and AP50, in percent, from "
        f"{measured_on}.",
        "They are certified where the defended detector has that clean recall or so few wrong boxes an image; the rows "
        "marked undefended where the undefended one has, at another base_threshold. Settings were searched where the "
        f"{options.recall_of} one has.",
        f"In brackets: 95 % bootstrap intervals over images, {options.bootstrap} samples.",
        "Masked boxes count from base_threshold + (1 - base_threshold) * beta on. "
        "A spurious box is one that masks add to a "
        "clean image and that overlaps no object of its class.",
    ]
    for name, difference in zip(names[1:], found.differences, strict=True):
        if not difference.paired:
            lines.append(f"{name} and {names[0]} hold different images: their difference is not paired.")
    for name, run in zip(names, found.runs, strict=True):
        for one in run.tuned:
            where = f"{name}, {one.rule} rule, {one.point.in_words()}, loss {one.most_loss:g}"
            if one.held_out is None:
                lines.append(f"{where}: {one.why}.")
            elif one.held_out.certified_far.unreached:
                missing = one.held_out.certified_far.unreached
                lines.append(f"{where}: {missing} samples never reach that and are left out.")
    return lines


def for_terminal(found: Comparison) -> list[Any]:
    """What `compare` prints: every run beside the first, three columns at a time, so that it fits a terminal."""
    first, *others = names_of(found.runs)
    runs: dict[str, Compared] = dict(zip((first, *others), found.runs, strict=True))
    views = [
        {first: runs[first], other: runs[other], "difference": difference}
        for other, difference in zip(others, found.differences, strict=True)
    ]
    tables = [
        terminal_table(title, rows(figures, view)) for view in views or [runs] for title, figures in sections(found)
    ]
    return [*tables, *remarks(found)]


def curve_plot(found: Comparison) -> Plot:
    """AP50 lost and spurious boxes against beta, one line per run."""
    looks = [look for _, look in zip(found.runs, cycle(LINE_STYLES.values()), strict=False)]
    named = list(zip(names_of(found.runs), found.runs, looks, strict=True))

    def lines(figure: Callable[[BetaPoint], BootstrapEstimate]) -> list[Line]:
        return [
            Line(name, [point.beta for point in run.curve], [figure(point).value for point in run.curve], look)
            for name, run, look in named
        ]

    lost = lines(lambda point: point.ap50_loss)
    panels = [Panel(x_label="beta", y_label="AP50 lost, points", title="What low mask scores cost", series=lost)]
    for place, point in enumerate(found.runs[0].options.points):
        panels.append(
            Panel(
                x_label="beta",
                y_label="spurious boxes per clean image",
                title=f"Undefended at {point.in_words()}",
                series=lines(_spurious(place)),
                if_empty=f"no undefended detector reaches {point.in_words()}",
            )
        )
    return Plot(
        "What training changed", panels, "mask_threshold = base_threshold + (1 - base_threshold) * beta, paper's rule."
    )


def save(out: Path, measured: Sequence[RunFigures]) -> None:
    """One file of measurements per run, comparison.json, .csv and .md, and the plot where matplotlib is installed."""
    out.mkdir(parents=True, exist_ok=True)
    found = compare(measured)
    for name, run in zip(names_of(measured), measured, strict=True):
        save_json(out / f"{name.strip('/').replace('/', '-')}{MEASURED}", run.to_dict())
    save_json(out / "comparison.json", found.to_dict())
    shown = columns(found)
    tables = [(title, rows(figures, shown)) for title, figures in sections(found)]
    save_text(out / "comparison.csv", to_csv([{"table": title} | row for title, part in tables for row in part]))
    text = [f"## {title[0].upper()}{title[1:]}\n\n{to_markdown(part)}" for title, part in tables]
    save_text(out / "comparison.md", "\n\n".join([*text, "\n".join(f"- {line}" for line in remarks(found))]) + "\n")
    if plots.unavailable_reason() is None:
        plots.save(curve_plot(found), out / "comparison")


def read_measured(file: Path) -> RunFigures:
    """What `save` wrote for one run."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ObjectSeekerError(f"cannot read measurements from {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ObjectSeekerError(f"cannot read measurements from {file}: {error}") from None
    try:
        return RunFigures.from_dict(content)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError, OverflowError, RecursionError):
        raise ObjectSeekerError(
            f"{file} holds no measurements of a run; give a run folder or a {MEASURED} file of this version"
        ) from None
