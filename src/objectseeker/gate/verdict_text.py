"""Verdicts in words: for the terminal and for a pull request."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from objectseeker.metrics.gate import Gate, Judgement
from objectseeker.metrics.policy import in_unit
from objectseeker.results.evaluation_tables import as_markdown
from objectseeker.text import visible

MARKS = {"pass": "pass", "fail": "FAIL", "undecided": "undecided", "refuted": "REFUTED"}
COLOURS = {"pass": "green", "fail": "bold red", "undecided": "yellow", "refuted": "bold red"}
SPECIAL = "\\`*_{}[]<>#|~&"  # what Markdown would obey


def in_short(gate: Gate) -> str:
    """One sentence on the whole."""
    if gate.refuted:
        return f"{len(gate.refuted)} certificates are refuted by an attack: the guarantee does not hold here"
    counts = {outcome: gate.count(outcome) for outcome in ("pass", "fail", "undecided")}
    words = [f"{counts['pass']} of {len(gate.judgements)} requirements pass"]
    words += [f"{counts['fail']} fail"] if counts["fail"] else []
    words += [f"{counts['undecided']} undecided"] if counts["undecided"] else []
    return ", ".join(words)


def figure_of(judgement: Judgement) -> str:
    """The figure with its interval."""
    interval, unit = judgement.interval, judgement.requirement.unit
    if not interval.known:
        return "-"
    difference = "+" if judgement.requirement.against_baseline and interval.value > 0 else ""
    return f"{difference}{in_unit(interval.value, unit)} ({interval.low:.2f} to {interval.high:.2f})"


def behind(judgement: Judgement) -> str:
    """What the figure was measured on."""
    if not judgement.images:
        return ""
    words = f"{judgement.objects:,} objects in {judgement.images:,} images"
    return words + (f", {judgement.vacuous:,} have no such position" if judgement.vacuous else "")


def why(judgement: Judgement) -> str:
    """The reason, with the slice it is about."""
    if judgement.slice is None:
        return judgement.reason
    worst = f"worst of {len(judgement.slices)} slices, " if judgement.slices else ""
    return f"{worst}{judgement.slice}: {judgement.reason}"


def table_of(gate: Gate) -> Table:
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("", "requirement", "figure", "why"):
        made.add_column(column, overflow="fold")
    for judgement in gate.judgements:
        asked = judgement.requirement
        made.add_row(
            f"[{COLOURS[judgement.outcome]}]{MARKS[judgement.outcome]}[/]",
            escape(visible(asked.title)),
            escape(figure_of(judgement)),
            escape(visible(why(judgement))),
        )
    return made


def markdown_of(gate: Gate) -> str:
    """A comment for a pull request: the verdict, a row for every requirement, and the slices."""
    defence, run = gate.about.get("defence", {}), gate.about.get("run", {})
    parts = [
        f"## Release gate: {MARKS[gate.verdict]}",
        f"{in_short(gate)}. Intervals at {100 * gate.policy.confidence:g} %, over images.",
    ]
    parts += ["\n".join(f"- refuted: {_plain(certificate)}" for certificate in gate.refuted)] if gate.refuted else []
    parts.append(as_markdown([_row(judgement) for judgement in gate.judgements]))
    for judgement in gate.judgements:
        if judgement.slices:
            rows = [{"slice": _plain(str(one.slice))} | _row(one, named=False) for one in judgement.slices]
            parts.append(f"### {_plain(judgement.requirement.name)}\n\n{as_markdown(rows)}")
    if defence and run:
        parts.append(
            f"Defence `{defence['sha256'][:16]}`, detector `{_plain(str(defence['detector']), '`')}`, run "
            f"`{run['digest'][:16]}`, {run['images']:,} images."
        )
    return "\n\n".join(parts) + "\n"


def _row(judgement: Judgement, *, named: bool = True) -> dict[str, str]:
    asked = judgement.requirement
    first = {"": f"**{MARKS[judgement.outcome]}**"}
    first |= {"requirement": _plain(asked.title)} if named else {}
    reason = why(judgement) if named else judgement.reason
    return first | {"figure": _plain(figure_of(judgement)), "measured on": behind(judgement), "why": _plain(reason)}


def _plain(text: str, special: str = SPECIAL) -> str:
    """Text of others, as Markdown shows it."""
    shown = str(visible(text))
    if special == "`":
        return shown.replace("`", "'")
    return "".join(f"\\{letter}" if letter in special else letter for letter in shown)
