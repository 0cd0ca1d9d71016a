"""Tags of images, and the slices that they make: night, rain, camera 3.

A CSV file has a column `image` and one column for every tag; a COCO file has its tags as fields of its images. What
COCO itself says of an image is no tag. An image without a value is in no slice of that column.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.datasets.parsing import read_bytes
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.run import Run
from objectseeker.text import plain, readable, shown

IMAGE = "image"
OF_COCO = ("id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "date_captured")
BUILT_IN = ("class", "size")  # slices of objects: no tag may be called so
SIZES = {"small": (0.0, 0.01), "medium": (0.01, 0.1), "large": (0.1, 1.0)}  # shares of the image


@dataclass(frozen=True, slots=True)
class Tags:
    """The value of every image, column by column; empty where it has none. `missing` images have no row at all."""

    columns: Mapping[str, tuple[str, ...]]
    missing: int = 0

    def of(self, chosen: Ints) -> Tags:
        """Those of some of the images, in this order."""
        some = {name: tuple(values[n] for n in chosen.tolist()) for name, values in self.columns.items()}
        return replace(self, columns=some)

    def slices(self, asked: str) -> dict[str, Ints]:
        """The images of each slice that COLUMN or COLUMN=VALUE stands for, by name, in alphabetical order."""
        column, equals, value = asked.partition("=")
        if column not in self.columns:
            known = f"they have {', '.join(self.columns)}" if self.columns else "give --tags FILE"
            instead = did_you_mean(column, self.columns) or known
            raise ObjectSeekerError(f"no tags are called {shown(column)}: {instead}")
        values = np.array(self.columns[column], dtype=object)
        present = sorted(set(self.columns[column]) - {""})
        if equals and value not in present:
            known = did_you_mean(value, present) or f"it is {', '.join(present[:10])}"
            raise ObjectSeekerError(f"no image has {plain(column)}={plain(value)}: {known}")
        return {f"{column}={one}": np.flatnonzero(values == one) for one in ([value] if equals else present)}


NO_TAGS = Tags({})


def read_tags(file: Path, ids: Sequence[str], names: Sequence[str]) -> Tags:
    """The tags of the images with these ids, which a file may also call by their file `names`."""
    content = read_bytes(file)
    found = _of_coco(content, file) if file.suffix.lower() == ".json" else _of_csv(content, file)
    rows: dict[str, dict[str, str]] = {}
    for key, row in found:
        if key in rows:
            raise ObjectSeekerError(f"{readable(file)} has image {plain(key)} twice: give it one row")
        rows[key] = row
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    for name in columns:
        if name in BUILT_IN or not name or "=" in name:
            raise ObjectSeekerError(f"{readable(file)}: a column of tags cannot be called {shown(name)}, rename it")
    repeated = {name for name, count in Counter(names).items() if count > 1}
    tagged = [rows.get(key, None if name in repeated else rows.get(name)) for key, name in zip(ids, names, strict=True)]
    if not any(row is not None for row in tagged):
        raise ObjectSeekerError(
            f"{readable(file)} has none of the run's images: the first of its {len(rows)} is "
            f"{plain(next(iter(rows), 'none'))}, the run's first is {plain(ids[0] if ids else 'none')}"
        )
    return Tags(
        {name: tuple("" if row is None else row.get(name, "") for row in tagged) for name in columns},
        sum(row is None for row in tagged),
    )


def tags_of_run(file: Path, run: Run) -> Tags:
    """The tags of the images of a run that were observed."""
    entries = [run.manifest.images[index] for index in run.parts]
    return read_tags(file, [entry.id for entry in entries], [file_name(entry.path) for entry in entries])


def file_name(path: Any) -> str:
    """The last part of a path or an address."""
    return PurePosixPath(str(path).replace("\\", "/")).name


def _of_csv(content: bytes, file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        text = content.decode("utf-8-sig")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ObjectSeekerError(f"{readable(file)} is not a CSV file in UTF-8: {error}") from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    if header.count(IMAGE) != 1 or len(set(header)) < len(header) or len(header) < 2:
        raise ObjectSeekerError(
            f"{readable(file)} must begin with a line such as image,weather,camera: every column once, got "
            f"{shown(','.join(header))}"
        )
    for number, cells in enumerate(lines[1:], 2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise ObjectSeekerError(
                f"line {number} of {readable(file)} has {len(cells)} cells, its first line {len(header)}"
            )
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        yield row.pop(IMAGE), row


def _of_coco(content: bytes, file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        images = json.loads(content)["images"]
        items = [(str(item["id"]), item) for item in images]
        fields = [(key, {name: item[name] for name in item if name not in OF_COCO}) for key, item in items]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ObjectSeekerError(f"{readable(file)} is not a COCO annotation file: it has no list of images") from None
    for key, row in fields:
        yield key, {name: _text(value) for name, value in row.items() if isinstance(value, str | int | float)}


def _text(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def did_you_mean(wrong: str, known: Iterable[str]) -> str | None:
    """A question that names the known word nearest to a wrong one, if one is near."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"did you mean {plain(near[0])}?" if near else None
