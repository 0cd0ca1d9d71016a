"""Write the tables of README and docs from their data files, and check the numbers of the prose.

    python scripts/write_tables.py            # write all tables
    python scripts/write_tables.py --check    # exit code 1: a page and its data differ

A table is between two lines of a page:

    <!-- table: NAME -->
    <!-- end -->

It is written from docs/results/data/NAME.json (see data_files.py); a cell may refer to another file (`show`). In the
marker, further lines `columns: defense | passes` and `rows: builtin | none` choose and order columns by their names and
rows by their first cells. `claims` is the table of the files in claims/. A page of docs/results also has a line with
date, hardware, software and command below each table.

Numbers with a unit or a decimal point in the prose of a page are measurements. Each must occur in the data of that
page: in its tables, or in files named by `<!-- data: NAME -->`. Write a number that is chosen as `code`; `SETTINGS`
are the few that everything uses.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_files import CONDITIONS

from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.files.atomic import save_text
from objectseeker.metrics.claim import Claim
from objectseeker.text import to_markdown

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "results" / "data"
MARKED = re.compile(r"^( *)<!-- table: ([\w-]+)(.*?)-->\n.*?^ *<!-- end -->$", re.S | re.M)
NAMED = re.compile(r"<!-- data: ([\w -]+?) -->")
UNIT = r"(?:%|points?|seconds?|minutes?|hours?|ms|s|MB|GB|kB|TFLOP|GFLOP|times|fps)"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
WITH_UNIT = rf"(?<![\w.,/=-])({NUMBER})(?: (?:to|and|or) ({NUMBER}))? ?{UNIT}(?!\w)"
MEASURED = re.compile(rf"{WITH_UNIT}|(?<![\w.,=:-])(\d+(?:,\d{{3}})*\.\d+)(?!\w|\.\d)")
SETTINGS = {"0", "0.5", "0.8", "1", "10", "95", "100"}  # T, IoU, clean recall, patch area, far, confidence
VERSION = r"\b(?:Python|BY|version) \d+\.\d+(?:, \d+\.\d+)*"


class TableError(Exception):
    """A page or a data file is wrong, and how."""


def pages() -> list[Path]:
    """Return README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def load(name: str) -> dict[str, Any]:
    """Read a data file strictly; numbers stay as they are written."""
    file = DATA / f"{name}.json"
    if not file.is_file():
        raise TableError(f"there is no data file {name}.json in docs/results/data")
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"), parse_float=str, parse_int=str)
    unknown = set(data) - {*CONDITIONS, "columns", "rows", "values"}
    if unknown or not all(data.get(key) for key in CONDITIONS) or ("columns" in data) != ("rows" in data):
        raise TableError(f"{file.name} must have {', '.join(CONDITIONS)}, and columns with rows, or values")
    if any(len(row) != len(data["columns"]) for row in data.get("rows", ())):
        raise TableError(f"{file.name} has a row with another number of cells than columns")
    return data


def show(cell: Any) -> str:
    """Return a cell as it is shown; `=NAME | ROW | COLUMN` is a cell of another data file, or a metric of a claim."""
    if isinstance(cell, str) and cell.startswith("="):
        return look_up(*(part.strip() for part in cell[1:].split("|")))
    if isinstance(cell, list):
        value, low, high = cell
        return f"{value} ({low} to {high})"
    return "" if cell is None else str(cell)


def look_up(name: str, row: str, column: str) -> str:
    """Return a cell of a data file by the first cell of its row and its column, or a metric of a claim, or a value."""
    if name == "claims":
        claim = Claim.load(ROOT / "claims" / f"{row}.json")
        return f"{claim.metrics[column].value:.1f}" if column in claim.metrics else str(getattr(claim, column))
    data = load(name)
    if row == "values":
        return show(data["values"][column])
    rows, columns = [cells[0] for cells in data["rows"]], data["columns"]
    if row not in rows or column not in columns:
        raise TableError(f"{name} has no cell {row!r}, {column!r}")
    return show(data["rows"][rows.index(row)][columns.index(column)])


def choose(cells: list[str], wanted: str | None, what: str) -> list[int]:
    """Return the indices of the wanted names, in the order of `wanted`; all without it."""
    if wanted is None:
        return list(range(len(cells)))
    names = [name.strip() for name in wanted.split("|")]
    missing = [name for name in names if name not in cells]
    if missing:
        raise TableError(f"there is no {what} {missing[0]!r} among {cells}")
    return [cells.index(name) for name in names]


def claim_rows() -> list[dict[str, str]]:
    """The table of claims, by dataset and name."""
    claims = [Claim.load(file) for file in (ROOT / "claims").glob("*.json")]

    def row(claim: Claim) -> dict[str, str]:
        cells = {name: f"{metric.value:.1f}" for name, metric in claim.metrics.items()}
        return {
            "entry": claim.name,
            "dataset": f"{claim.dataset}, {claim.images} images",
            "passes": str(claim.forward_passes),
            "AP50 undefended": cells.get("undefended.ap50", "-"),
            "AP50": cells.get("defended.ap50", "-"),
            "clean recall": cells.get("defended.clean_recall", "-"),
            **{f"certified {where}": cells.get(f"defended.certified_recall.{where}", "-") for where in PATCH_LOCATIONS},
        }

    return [row(claim) for claim in sorted(claims, key=lambda one: (one.dataset, one.name))]


def table(name: str, options: dict[str, str]) -> str:
    """Return the Markdown table of a data file, or of the claims."""
    if name == "claims":
        return to_markdown(claim_rows())
    data = load(name)
    columns, rows = data["columns"], [[show(cell) for cell in row] for row in data["rows"]]
    chosen = choose(columns, options.get("columns"), f"column of {name}:")
    lines = [columns, *(rows[n] for n in choose([row[0] for row in rows], options.get("rows"), f"row of {name}:"))]
    shown = ["| " + " | ".join(line[n] for n in chosen) + " |" for line in lines]
    return "\n".join([shown[0], "|" + "---|" * len(chosen), *shown[1:]])


def conditions(name: str) -> str:
    """Return the line below a table: when, on what and how it was measured."""
    data = load(name)
    commands = [data["command"]] if isinstance(data["command"], str) else data["command"]
    shown = "; ".join(f"`{command}`" for command in commands)
    return f"*{data['date']}; {data['hardware']}; {data['software']}; {shown}: [data](data/{name}.json).*"


def options_of(text: str) -> dict[str, str]:
    """Read `key: value` lines of a marker."""
    lines = [line.partition(":") for line in text.strip().splitlines() if line.strip()]
    return {key.strip(): value.strip() for key, _, value in lines}


def with_tables(page: Path, text: str) -> str:
    """Return a page with every table as its data file has it."""

    def write(marked: re.Match[str]) -> str:
        indent, name, options = marked.groups()
        opening = marked[0].partition("-->")[0] + "-->"
        body = table(name, options_of(options))
        if page.parent.name == "results" and name != "claims":
            body += f"\n\n{conditions(name)}"
        lines = [line if line == "" else indent + line for line in body.splitlines()]
        return "\n".join([opening, "", *lines, "", f"{indent}<!-- end -->"])

    return MARKED.sub(write, text)


def names_in(text: str) -> list[str]:
    """Return the names of all data files that a page uses."""
    tables = [name for _, name, _ in MARKED.findall(text) if name != "claims"]
    return tables + [name for names in NAMED.findall(text) for name in names.split()]


def prose(text: str) -> str:
    """Return a page without tables, code, comments, addresses and what is generated."""
    for pattern in (MARKED, re.compile(r"^```.*?^```$", re.S | re.M), re.compile(r"<!--.*?-->", re.S)):
        text = pattern.sub("", text)
    text = re.sub(r"^ *\|.*$|^    .*$", "", text, flags=re.M)
    return re.sub(rf"`[^`]*`|\]\([^)]*\)|{VERSION}", "", text)


def numbers_in(text: str) -> Iterator[str]:
    """Yield every number of the prose that looks measured."""
    for found in MEASURED.finditer(" ".join(text.split())):
        yield from (number for number in found.groups() if number)


def unknown_numbers(page: Path, text: str) -> list[str]:
    """Return the numbers of a page's prose that are in none of its data files."""
    files = " ".join(json.dumps(load(name), ensure_ascii=False) for name in names_in(text))
    claims = "".join(file.read_text() for file in (ROOT / "claims").glob("*.json")) if "table: claims" in text else ""
    known = set(re.findall(NUMBER, files + claims)) | SETTINGS
    return [number for number in numbers_in(prose(text)) if number not in known]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page would change")
    options = parser.parse_args()
    differ = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        try:
            written, unknown = with_tables(page, text), unknown_numbers(page, text)
        except TableError as error:
            print(f"{page.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if unknown:
            print(f"{page.relative_to(ROOT)}: in no data file of the page: {', '.join(unknown)}", file=sys.stderr)
            differ = 1
        if written != text:
            print(f"{page.relative_to(ROOT)} {'differs from its data' if options.check else 'written'}")
            differ |= options.check
            if not options.check:
                save_text(page, written)
    return differ


if __name__ == "__main__":
    sys.exit(main())
