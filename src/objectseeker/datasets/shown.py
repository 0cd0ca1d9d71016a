"""Foreign text: whether files can hold it, and how messages show it (on one line, not longer than it helps)."""

from __future__ import annotations

import os

LONGEST, LONGEST_PATH = 80, 300  # characters


def writable(text: str) -> bool:
    """Whether the text is UTF-8: a file's name may hold other bytes, and JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """The value as Python writes it, cut if it is long."""
    return _cut(repr(value))


def plain(text: str) -> str:
    """The text itself, but for what cannot be printed on one line; cut if it is long."""
    return _cut(_printable(text))


def readable(path: os.PathLike[str] | str) -> str:
    """A path as it can be printed anywhere."""
    return _cut(_printable(os.fspath(path)), LONGEST_PATH)


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _cut(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"
