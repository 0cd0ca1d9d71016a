"""Strings and tables that are safe to show: in messages, shared pages and files, and spreadsheets."""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from objectseeker.errors import sanitize_line

CSV_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes
NEGATIVE = re.compile(r"-(\d+(\.\d+)?(e[+-]?\d+)?)?", re.ASCII)  # a number, or the dash for a missing one
# Unicode categories of control codes, invisible format characters such as bidirectional marks, lone surrogates and
# line separators. The two joiners belong into words of Persian and Hindi, and into emoji.
INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
JOINERS = "\u200c\u200d"
MAX_VALUE_LENGTH, MAX_PATH_LENGTH = 80, 300  # characters

_CREDENTIALS = re.compile(r"://.*@", re.DOTALL)  # up to the last @: a password may hold one, or a slash
_QUERY = re.compile(r"(://[^?#]*)[?#].*", re.DOTALL)  # where signed addresses have their key
_PORT = re.compile(r"(://[^/:]*):\d+")
_DRIVE = re.compile(r"(?<![^:=,])[A-Za-z]:(?=[/\\](?!/))")
_SEPARATOR = re.compile("([:=,])")  # between the names of a SPEC
_FOLDER = re.compile(r"[/\\]")


def is_utf8(text: str) -> bool:
    """Return whether a string is UTF-8: file names may hold other bytes, and JSON lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quote(value: object) -> str:
    """Quote a value as Python writes it; truncate a long one."""
    return _truncate(repr(value))


def quote_plain(text: str) -> str:
    """Return a string without quotes, with unprintable characters escaped; truncate a long one."""
    return _truncate(_escape_unprintable(text))


def display_path(path: os.PathLike[str] | str) -> str:
    """Return a path that can be printed anywhere, with unprintable characters escaped."""
    return _truncate(_escape_unprintable(os.fspath(path)), MAX_PATH_LENGTH)


def _escape_unprintable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _truncate(text: str, length: int = MAX_VALUE_LENGTH) -> str:
    return text if len(text) <= length else f"{text[:length]}... ({len(text)} characters)"


def escape_invisible(content: Any) -> Any:
    """Escape invisible characters in all strings of a JSON document, as Python does: \\\\u202e."""
    if isinstance(content, str):
        is_plain = content.isascii() and content.isprintable()
        return content if is_plain else "".join(map(_escape_if_invisible, content))
    if isinstance(content, dict):
        return {escape_invisible(key): escape_invisible(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [escape_invisible(value) for value in content]
    return content


def _escape_if_invisible(letter: str) -> str:
    if unicodedata.category(letter) not in INVISIBLE_CATEGORIES or letter in JOINERS:
        return letter
    return letter.encode("unicode_escape").decode()


def redact_path(text: str) -> str:
    """Return a SPEC, an address or a path without user names, passwords, keys and the folders above.

    Of an address, an absolute path or one that leads out of its folder, only the last name remains, and the host.
    """
    for pattern, kept in ((_CREDENTIALS, "://"), (_QUERY, r"\1"), (_PORT, r"\1"), (_DRIVE, "")):
        text = pattern.sub(kept, text)
    pieces = _SEPARATOR.split(text)
    return "".join(map(_last_name, pieces)) if any(map(_reveals_folders, pieces)) else text


def _reveals_folders(piece: str) -> bool:
    return piece.startswith(("/", "\\", "~")) or ".." in _FOLDER.split(piece)


def _last_name(piece: str) -> str:
    host, *folders = _FOLDER.split(piece.removeprefix("//").rstrip("/\\"))
    if not piece.startswith("//") or not host:
        return folders[-1] if folders else host
    return "//" + "/".join([host, *["..."][: len(folders) - 1], *folders[-1:]])


def redact_ids(ids: Iterable[str]) -> list[str]:
    """Redact image ids, which may be paths or addresses; number those that become equal."""
    redacted, counts = [], Counter[str]()
    for text in map(redact_path, ids):
        counts[text] += 1
        redacted.append(text if counts[text] == 1 else f"{text} ({counts[text]})")
    return redacted


def escape_csv_cell(cell: str) -> str:
    """Escape a cell against CSV injection: prefix an apostrophe if a spreadsheet would evaluate it."""
    is_formula = cell.startswith(CSV_FORMULA_PREFIXES) and not NEGATIVE.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def plural(count: int, word: str, words: str | None = None) -> str:
    """Return a count with its noun, such as 1 box and 2,000 boxes; by default the plural has an s."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def suggest_name(unknown: str, known: Iterable[str]) -> str | None:
    """Ask whether the known name nearest to an unknown one was meant, if one is near."""
    import difflib  # slow to import, and rarely needed

    near = difflib.get_close_matches(unknown, list(known), 1)
    return f"did you mean {quote_plain(near[0])}?" if near else None


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV; every string cell is escaped against CSV injection."""
    buffer = io.StringIO()
    if rows:
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([escape_csv_cell(column) for column in rows[0]])
        for row in rows:
            cells = [row[column] for column in rows[0]]
            writer.writerow([escape_csv_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return buffer.getvalue()


def to_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Write rows as a Markdown table."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, *([row[column] for column in columns] for row in rows)]
    head, *body = ["| " + " | ".join(map(_escape_markdown, cells)) + " |" for cells in lines]
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def to_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as an HTML table, for a notebook."""
    if not rows:
        return ""

    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(sanitize_line(str(cell)))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(rows[0], "th") + "".join(line(row.values(), "td") for row in rows) + "</table>"


def _escape_markdown(cell: str) -> str:
    """Escape what would end a cell, a row or a word of text."""
    return sanitize_line(cell).replace("|", "\\|").replace("<", "&lt;")


def transpose(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Turn columns into rows, so that a table with many columns and few rows fits a terminal."""
    first, *columns = list(rows[0])
    return [{"": column} | {row[first]: row[column] for row in rows} for column in columns]


def percent(value: float | None) -> str:
    """Format a percentage; None is a dash."""
    return "-" if value is None else f"{value:.1f}"


def per_image(value: float | None) -> str:
    """Format a number per image; None is a dash."""
    return "-" if value is None else f"{value:.2f}"
