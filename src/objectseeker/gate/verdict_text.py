"""Verdicts in words: for the terminal and for a pull request."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from objectseeker.files.tables import to_markdown
from objectseeker.metrics.gate import Gate, Judgement
from objectseeker.metrics.policy import in_unit
from objectseeker.text import escape_invisible

MARKS = {"pass": "pass", "fail": "FAIL", "undecided": "undecided", "refuted": "REFUTED"}
COLORS = {"pass": "green", "fail": "bold red", "undecided": "yellow", "refuted": "bold red"}
SPECIAL = "\\`*_{}[]<>#|~&"  # what Markdown would obey


def in_short(gate: Gate) -> str:
    """One sentence on the whole."""
    if gate.refuted:
        return f"{len(gate.refuted)} certificates are refuted by an attack: the guarantee does not hold here"
    counts = {outcome: gate.count(outcome) for outcome in ("pass", "fail", "undecided")}
    words = [f"{counts['pass']} of {len(gate.judgments)} requirements pass"]
    words += [f"{counts['fail']} fail"] if counts["fail"] else []
    words += [f"{counts['undecided']} undecided"] if counts["undecided"] else []
    return ", ".join(words)


def figure_of(judgment: Judgement) -> str:
    """The figure with its interval."""
    interval, unit = judgment.interval, judgment.requirement.unit
    if not interval.known:
        return "-"
    difference = "+" if judgment.requirement.against_baseline and interval.value > 0 else ""
    return f"{difference}{in_unit(interval.value, unit)} ({interval.low:.2f} to {interval.high:.2f})"


def behind(judgment: Judgement) -> str:
    """What the figure was measured on."""
    if not judgment.images:
        return ""
    words = f"{judgment.objects:,} objects in {judgment.images:,} images"
    return words + (f", {judgment.vacuous:,} have no such position" if judgment.vacuous else "")


def why(judgment: Judgement) -> str:
    """The reason, with the slice it is about."""
    if judgment.slice is None:
        return judgment.reason
    worst = f"worst of {len(judgment.slices)} slices, " if judgment.slices else ""
    return f"{worst}{judgment.slice}: {judgment.reason}"


def table_of(gate: Gate) -> Table:
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("", "requirement", "figure", "why"):
        made.add_column(column, overflow="fold")
    for judgment in gate.judgments:
        asked = judgment.requirement
        made.add_row(
            f"[{COLORS[judgment.outcome]}]{MARKS[judgment.outcome]}[/]",
            escape(escape_invisible(asked.title)),
            escape(figure_of(judgment)),
            escape(escape_invisible(why(judgment))),
        )
    return made


def markdown_of(gate: Gate) -> str:
    """A comment for a pull request: the verdict, a row for every requirement, and the slices."""
    defense, run = gate.about.get("defense", {}), gate.about.get("run", {})
    parts = [
        f"## Release gate: {MARKS[gate.verdict]}",
        f"{in_short(gate)}. Intervals at {100 * gate.policy.confidence:g} %, over images.",
    ]
    parts += ["\n".join(f"- refuted: {_plain(certificate)}" for certificate in gate.refuted)] if gate.refuted else []
    parts.append(to_markdown([_row(judgment) for judgment in gate.judgments]))
    for judgment in gate.judgments:
        if judgment.slices:
            rows = [{"slice": _plain(str(one.slice))} | _row(one, named=False) for one in judgment.slices]
            parts.append(f"### {_plain(judgment.requirement.name)}\n\n{to_markdown(rows)}")
    if defense and run:
        parts.append(
            f"Defense `{defense['sha256'][:16]}`, detector `{_plain(str(defense['detector']), '`')}`, run "
            f"`{run['digest'][:16]}`, {run['images']:,} images."
        )
    return "\n\n".join(parts) + "\n"


def _row(judgment: Judgement, *, named: bool = True) -> dict[str, str]:
    asked = judgment.requirement
    first = {"": f"**{MARKS[judgment.outcome]}**"}
    first |= {"requirement": _plain(asked.title)} if named else {}
    reason = why(judgment) if named else judgment.reason
    return first | {"figure": _plain(figure_of(judgment)), "measured on": behind(judgment), "why": _plain(reason)}


def _plain(text: str, special: str = SPECIAL) -> str:
    """Text of others, as Markdown shows it."""
    shown = str(escape_invisible(text))
    if special == "`":
        return shown.replace("`", "'")
    return "".join(f"\\{letter}" if letter in special else letter for letter in shown)
