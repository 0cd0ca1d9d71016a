"""Make untrusted strings safe to show: in messages, in shared pages and files, and in CSV cells."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any

CSV_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes
NEGATIVE = re.compile(r"-(\d+(\.\d+)?(e[+-]?\d+)?)?", re.ASCII)  # a number, or the dash for one that is not there
# Control codes, ends of lines, lone surrogates, and all that is not seen itself, such as what turns the direction
# of writing. Two of the last belong into words of Persian and Hindi, and into emoji.
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
JOINERS = "\u200c\u200d"

_CREDENTIALS = re.compile(r"://.*@", re.DOTALL)  # up to the last @: a password may hold one, or a slash
_QUERY = re.compile(r"(://[^?#]*)[?#].*", re.DOTALL)  # where signed addresses have their key
_PORT = re.compile(r"(://[^/:]*):\d+")
_DRIVE = re.compile(r"(?<![^:=,])[A-Za-z]:(?=[/\\](?!/))")
_SEPARATOR = re.compile("([:=,])")  # between the names of a SPEC
_FOLDER = re.compile(r"[/\\]")
LONGEST, LONGEST_PATH = 80, 300  # characters


def writable(text: str) -> bool:
    """Return whether a string is UTF-8: file names may hold other bytes, and JSON lone surrogates."""
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


def escape_invisible(content: Any) -> Any:
    """Escape what cannot be seen, in all strings of a JSON document, as Python does: \\\\u202e."""
    if isinstance(content, str):
        return content if content.isascii() and content.isprintable() else "".join(map(_seen, content))
    if isinstance(content, dict):
        return {escape_invisible(key): escape_invisible(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [escape_invisible(value) for value in content]
    return content


def _seen(letter: str) -> str:
    if unicodedata.category(letter) not in UNSEEN or letter in JOINERS:
        return letter
    return letter.encode("unicode_escape").decode()


def redact_path(text: str) -> str:
    """A SPEC, an address or a path as a stranger may see it.

    Where it holds an address, an absolute path or one that leads out of its folder, only last names are left, and the
    hosts of addresses; user names, passwords and keys are gone.
    """
    for pattern, left in ((_CREDENTIALS, "://"), (_QUERY, r"\1"), (_PORT, r"\1"), (_DRIVE, "")):
        text = pattern.sub(left, text)
    pieces = _SEPARATOR.split(text)
    return "".join(map(_last_name, pieces)) if any(map(_tells, pieces)) else text


def _tells(piece: str) -> bool:
    """Return whether a path names more than the last folder."""
    return piece.startswith(("/", "\\", "~")) or ".." in _FOLDER.split(piece)


def _last_name(piece: str) -> str:
    host, *folders = _FOLDER.split(piece.removeprefix("//").rstrip("/\\"))
    if not piece.startswith("//") or not host:
        return folders[-1] if folders else host
    return "//" + "/".join([host, *["..."][: len(folders) - 1], *folders[-1:]])


def redact_ids(ids: Iterable[str]) -> list[str]:
    """Ids of images, which in a list are paths or addresses; those that become alike are numbered."""
    shown, seen = [], Counter[str]()
    for one in ids:
        text = redact_path(one)
        seen[text] += 1
        shown.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return shown


def escape_csv_cell(cell: str) -> str:
    """Escape a cell against CSV injection: prefix an apostrophe if a spreadsheet would evaluate it."""
    computed = cell.startswith(CSV_FORMULA_PREFIXES) and not NEGATIVE.fullmatch(cell)
    return f"'{cell}" if computed else cell


def suggest_name(wrong: str, known: Iterable[str]) -> str | None:
    """Ask whether the known name nearest to a wrong one was meant, if one is near."""
    import difflib  # slow to import, and rarely needed

    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"did you mean {plain(near[0])}?" if near else None
