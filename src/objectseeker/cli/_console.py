"""What the commands print with: results on the output stream, notes and progress on the error stream."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

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
from rich.text import Text

LOG_EVERY = 60.0  # seconds between lines of progress where there is no terminal

printed = Console(soft_wrap=True, highlight=False)
notes = Console(stderr=True, soft_wrap=True, highlight=False)


class Bar:
    """A progress bar that can be told where it stands or be moved on by one; in a log, a line every minute."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._began = self._said = time.monotonic()
        self._already: float | None = None  # done before it began

    def advance(self) -> None:
        self._bar.advance(self._task)
        self._say()

    def count(self, _: object) -> None:
        """One more, whatever it was."""
        self.advance()

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        self._say()

    def _say(self) -> None:
        """What a terminal shows all the time, for a log: how far it is, and how long it will take."""
        task, now = self._bar.tasks[self._task], time.monotonic()
        if self._already is None:
            self._already = task.completed
        if notes.is_terminal or now - self._said < LOG_EVERY:
            return
        self._said = now
        done, total = task.completed - self._already, task.total or 0
        left = (now - self._began) * (total - task.completed) / done if done and total else None
        of_all = f" of {total:,.0f}" if total else ""
        remaining = f", about {_duration(left)} left" if left is not None else ""
        notes.print(f"{task.description}: {task.completed:,.0f}{of_all}, {_duration(now - self._began)}{remaining}")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


@contextmanager
def progress(what: str, total: int) -> Iterator[Bar]:
    """A bar with rate and time left on the error stream, so that results can be piped."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        yield Bar(bar, bar.add_task(what, total=total))


class Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:.1f}/s" if task.speed >= 1 else f"{1 / task.speed:.1f} s each")


def warn(sentence: str) -> None:
    notes.print(f"[bold yellow]note:[/] {escape(sentence)}")


def mark(cell: Any) -> str:
    return ("[green]yes[/]" if cell else "[red]no[/]") if isinstance(cell, bool) else str(cell)


def fail(sentence: str) -> NoReturn:
    notes.print(f"[bold red]error:[/] {escape(sentence)}")
    sys.exit(2)


def escape(text: str) -> str:
    return text.replace("[", "\\[")


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))
