"""Foreign text in messages: on one line, and not longer than it helps."""

from __future__ import annotations

import os

LONGEST = 80  # characters


def shown(value: object) -> str:
    """The value as Python writes it, cut if it is long."""
    return _cut(repr(value))


def plain(text: str) -> str:
    """The text itself where it is short and printable, else as Python writes it."""
    return _cut(text if text.isprintable() else repr(text))


def readable(path: os.PathLike[str] | str) -> str:
    """A path as it can be printed anywhere, bytes that are no text as their numbers."""
    return os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
