"""Output of the commands: results on standard output; notes, progress and errors on standard error.

Untrusted text (paths, names, messages) goes through `escape` before it is printed with markup.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from objectseeker.errors import sanitize_line

LOG_INTERVAL = 60.0  # seconds between lines of progress where there is no terminal
MAX_REPEATS = 3  # notes of one kind
MAX_MESSAGE_LENGTH = 1000  # characters; a message may quote what it was given

stdout_console = Console(soft_wrap=True, highlight=False, emoji=False)
stderr_console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)  # what --quiet does not silence
if not stdout_console.is_terminal and "COLUMNS" not in os.environ:
    stdout_console.width = 1000  # a log or a pipe has no edge: no cell of a table is cut
log = logging.getLogger("objectseeker")

_BRACKETS = re.compile(r"(\\*)(\[|$)")


class ProgressBar:
    """A progress bar that is set or advanced by one; in a log, a line every minute."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._began = self._logged = time.monotonic()
        self._already: float | None = None  # done before it began

    def advance(self) -> None:
        self._bar.advance(self._task)
        self._log()

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        self._log()

    def _log(self) -> None:
        task, now = self._bar.tasks[self._task], time.monotonic()
        if self._already is None:
            self._already = task.completed
        if stderr_console.is_terminal or now - self._logged < LOG_INTERVAL:
            return
        self._logged = now
        done, total = task.completed - self._already, task.total or 0
        left = (now - self._began) * (total - task.completed) / done if done and total else None
        of_all = f" of {total:,.0f}" if total else ""
        remaining = f", about {_duration(left)} left" if left is not None else ""
        stderr_console.print(
            f"{task.description}: {task.completed:,.0f}{of_all}, {_duration(now - self._began)}{remaining}"
        )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


@contextmanager
def progress(description: str, total: int) -> Iterator[ProgressBar]:
    """Show a progress bar with rate and time left on standard error, so that results can be piped."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    began = time.monotonic()
    hidden = stderr_console.quiet or not stderr_console.is_terminal
    bar = Progress(*columns, console=stderr_console, transient=True, disable=hidden)
    with nullcontext() if hidden else bar:  # when it stops, rich before 14 prints an empty line for a disabled bar, too
        yield ProgressBar(bar, bar.add_task(description, total=total))
    log.debug("%s: %.3f s", description, time.monotonic() - began)


class Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:.1f}/s" if task.speed >= 1 else f"{1 / task.speed:.1f} s each")


class ConsoleLogHandler(logging.Handler):
    """Log records as notes; with --verbose also those below a warning, with the time since the start.

    A warning that every image may raise is printed a few times only, unless --verbose is given.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            if record.getMessage() in self._printed:  # a detector that is loaded twice says everything twice
                return
            self._printed.add(record.getMessage())
            self._seen[record.msg] += 1
            count = self._seen[record.msg]
            if count < MAX_REPEATS or log.isEnabledFor(logging.DEBUG):
                warn(record.getMessage())
            elif count == MAX_REPEATS:
                warn(f"{record.getMessage()}; --verbose shows all such notes")
        else:
            stderr_console.print(f"[dim]{record.relativeCreated / 1000:8.3f} s  {escape(record.getMessage())}[/]")


def warn(sentence: str) -> None:
    stderr_console.print(f"[bold yellow]note:[/] {escape(sentence)}")


def fail(sentence: str, code: int = 2) -> NoReturn:
    """End the program with one sentence on one line."""
    cut = sentence if len(sentence) <= MAX_MESSAGE_LENGTH else f"{sentence[:MAX_MESSAGE_LENGTH]}..."
    errors.print(f"[bold red]error:[/] {escape(cut)}")
    sys.exit(code)


def escape(text: str) -> str:
    """Return untrusted text on one line, with brackets and backslashes escaped for markup."""
    return _BRACKETS.sub(_literal, sanitize_line(text))


def _literal(match: re.Match[str]) -> str:
    """Backslashes count double before a tag and only there, so they get a tag that does nothing."""
    backslashes, bracket = match[1], match[2]
    return (f"{backslashes * 2}[none][/none]" if backslashes else "") + (f"\\{bracket}" if bracket else "")


def print_next(command: str) -> None:
    """Print the command to run next; every verb ends with one."""
    stdout_console.print(f"Next: {escape(command)}")


def say(*parts: str | Table) -> None:
    """Print lines, which may look like markup and hold anything, and tables."""
    for part in parts:
        stdout_console.print(escape(part) if isinstance(part, str) else part)


def describe_duration(seconds: float) -> str:
    """Describe a time to plan with, in seconds, minutes, hours or days."""
    for name, length, max_count in (("seconds", 1, 100), ("minutes", 60, 100), ("hours", 3600, 72)):
        if seconds < max_count * length:
            return f"{seconds / length:.{0 if seconds >= 10 * length else 1}f} {name}"
    return f"{seconds / 86400:,.0f} days"


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def terminal_table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Build a terminal table of rows. Names may look like markup, so all of it is plain text."""
    table = Table(
        title=Text(sanitize_line(title)), box=SIMPLE_HEAD, title_justify="left", padding=(0, 0, 0, 1), pad_edge=False
    )
    for number, column in enumerate(rows[0] if rows else ()):
        table.add_column(Text(sanitize_line(column)), justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(sanitize_line(cell)) for cell in row.values()))
    return table
