"""Rows as CSV, Markdown and HTML, and numbers as cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from objectseeker.errors import sanitize_line
from objectseeker.text import escape_csv_cell


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
    first, *rest = ["| " + " | ".join(map(_escape_markdown, cells)) + " |" for cells in lines]
    return "\n".join([first, "|" + "---|" * len(columns), *rest])


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
    first, *rest = list(rows[0])
    return [{"": column} | {row[first]: row[column] for row in rows} for column in rest]


def percent(value: float | None) -> str:
    """Format a percentage; None is a dash."""
    return "-" if value is None else f"{value:.1f}"


def per_image(value: float | None) -> str:
    """Format a number per image; None is a dash."""
    return "-" if value is None else f"{value:.2f}"
