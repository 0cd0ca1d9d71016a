"""Metrics by slice: of a class, an object size, or a tag of images; the worst slice is named.

Tags come from a CSV file with a column `image` and one column per tag, or from extra fields of the images in a COCO
file. An image without a value is in no slice of that column.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation, ThreatModel
from objectseeker.datasets.parsing import read_bytes
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics import metric
from objectseeker.metrics.metric import Metric
from objectseeker.metrics.tally import Tally
from objectseeker.runs.run import Run
from objectseeker.text import display_path, quote, quote_plain, suggest_name

IMAGE = "image"
COCO_FIELDS = ("id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "date_captured")
OBJECT_COLUMNS = ("class", "size")  # slices of objects: no tag may have these names
OBJECT_SIZES = {"small": (0.0, 0.01), "medium": (0.01, 0.1), "large": (0.1, 1.0)}  # shares of the image
MIN_SLICE_OBJECTS = 30  # a share of fewer objects says little, and no smaller slice is called the worst
MAX_LISTED = 4  # slices with fewer objects that are named one by one

Selector = Callable[[Tally], Tally]


@dataclass(frozen=True, slots=True)
class ImageTags:
    """The tag values of images per column, empty where there is none; `missing` images have no row."""

    columns: Mapping[str, tuple[str, ...]]
    missing: int = 0

    def of(self, chosen: Ints) -> ImageTags:
        """Return the tags of some of the images, in this order."""
        some = {name: tuple(values[n] for n in chosen.tolist()) for name, values in self.columns.items()}
        return replace(self, columns=some)

    def slices(self, requested: str) -> dict[str, Ints]:
        """Return the images of each slice that COLUMN or COLUMN=VALUE selects, by name, in alphabetical order."""
        column, equals, value = requested.partition("=")
        if column not in self.columns:
            known = f"choose from {', '.join(self.columns)}" if self.columns else "give --tags FILE"
            suggestion = suggest_name(column, self.columns) or known
            raise ObjectSeekerError(f"no tags are called {quote(column)}: {suggestion}")
        values = np.array(self.columns[column], dtype=object)
        present = sorted(set(self.columns[column]) - {""})
        if equals and value not in present:
            known = suggest_name(value, present) or f"choose from {', '.join(present[:10])}"
            raise ObjectSeekerError(f"no image has {quote_plain(column)}={quote_plain(value)}: {known}")
        return {f"{column}={one}": np.flatnonzero(values == one) for one in ([value] if equals else present)}


NO_TAGS = ImageTags({})


def read_tags(file: Path, ids: Sequence[str], names: Sequence[str]) -> ImageTags:
    """Read the tags of the images with these ids; the file may also name images by their file `names`."""
    content = read_bytes(file)
    found = _of_coco(content, file) if file.suffix.lower() == ".json" else _of_csv(content, file)
    rows: dict[str, dict[str, str]] = {}
    for key, row in found:
        if key in rows:
            raise ObjectSeekerError(f"{display_path(file)} has image {quote_plain(key)} twice: give it one row")
        rows[key] = row
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    for name in columns:
        if name in OBJECT_COLUMNS or not name or "=" in name:
            raise ObjectSeekerError(f"{display_path(file)}: a column of tags cannot be called {quote(name)}, rename it")
    repeated = {name for name, count in Counter(names).items() if count > 1}
    tagged = [rows.get(key, None if name in repeated else rows.get(name)) for key, name in zip(ids, names, strict=True)]
    if not any(row is not None for row in tagged):
        raise ObjectSeekerError(
            f"{display_path(file)} has none of the run's images: the first of its {len(rows)} is "
            f"{quote_plain(next(iter(rows), 'none'))}, the run's first is {quote_plain(ids[0] if ids else 'none')}. "
            "Use the same ids."
        )
    return ImageTags(
        {name: tuple("" if row is None else row.get(name, "") for row in tagged) for name in columns},
        sum(row is None for row in tagged),
    )


def tags_of_run(file: Path, run: Run) -> ImageTags:
    """Read the tags of the observed images of a run."""
    entries = [run.manifest.images[index] for index in run.indices]
    return read_tags(file, [entry.id for entry in entries], [file_name(entry.path) for entry in entries])


def file_name(path: Any) -> str:
    """Return the last part of a path or an address."""
    return PurePosixPath(str(path).replace("\\", "/")).name


def _of_csv(content: bytes, file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        text = content.decode("utf-8-sig")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ObjectSeekerError(f"{display_path(file)} is not a CSV file in UTF-8: {error}. Convert it.") from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    if header.count(IMAGE) != 1 or len(set(header)) < len(header) or len(header) < 2:
        raise ObjectSeekerError(
            f"{display_path(file)} must begin with a line such as image,weather,camera: every column once: got "
            f"{quote(','.join(header))}"
        )
    for number, cells in enumerate(lines[1:], 2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise ObjectSeekerError(
                f"line {number} of {display_path(file)} has {len(cells)} cells, its first line {len(header)}. "
                "Correct it."
            )
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        yield row.pop(IMAGE), row


def _of_coco(content: bytes, file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        images = json.loads(content)["images"]
        items = [(str(item["id"]), item) for item in images]
        fields = [(key, {name: item[name] for name in item if name not in COCO_FIELDS}) for key, item in items]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ObjectSeekerError(
            f"{display_path(file)} is not a COCO annotation file: it has no list of images"
        ) from None
    for key, row in fields:
        yield key, {name: _text(value) for name, value in row.items() if isinstance(value, str | int | float)}


def _text(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceMetrics:
    """The metrics of one slice: shares in percent, None where the slice has no value."""

    name: str  # COLUMN=VALUE
    images: int
    objects: int
    clean_recall: float | None  # the mean over its classes
    certified: dict[PatchLocation, float | None]
    vacuous_far: int
    joint_certified_recall: float | None  # of slices of images
    fppi: float | None  # of slices of images

    @property
    def column(self) -> str:
        return self.name.partition("=")[0]

    @property
    def is_small(self) -> bool:
        return self.objects < MIN_SLICE_OBJECTS

    def to_row(self) -> dict[str, Any]:
        certified = {f"certified_{location}": share for location, share in self.certified.items()}
        return {
            "slice": self.name,
            "images": self.images,
            "objects": self.objects,
            "clean_recall": self.clean_recall,
            **certified,
            "vacuous_far": self.vacuous_far,
            "joint_certified_recall": self.joint_certified_recall,
            "fppi": self.fppi,
        }


def measure_slices(tally: Tally, tags: ImageTags, requested: Sequence[str], threat: ThreatModel) -> list[SliceMetrics]:
    """Return the metrics of every requested slice, in that order.

    Args:
        tally: The counts of the images, with one row per image.
        tags: The tags of the same images.
        requested: COLUMN or COLUMN=VALUE each; class and size are columns of every run.
        threat: A threat that the tally was counted for.

    Raises:
        ObjectSeekerError: The tally holds sums over all images only, so it cannot be sliced.
    """
    images = int(tally.images.count.sum())
    if requested and len(tally.ids) < images:
        raise ObjectSeekerError(
            f"slices need a tally per image: got sums over {images:,} images. Use a sample of the run."
        )
    selected = {
        name: selector(tally)
        for one in dict.fromkeys(requested)
        for name, selector in slice_selectors(one, tally, tags).items()
    }
    return [_slice_metrics(name, part, threat) for name, part in selected.items()]


def worst_slices(slices: Sequence[SliceMetrics]) -> dict[str, SliceMetrics | None]:
    """Return per column the slice with the lowest certified recall; None if all have too few objects."""
    worst: dict[str, SliceMetrics | None] = {}
    for column in dict.fromkeys(one.column for one in slices):
        enough = [one for one in slices if one.column == column and not one.is_small]
        worst[column] = min(enough, key=lambda one: (one.certified["anywhere"] or 0.0, -one.objects), default=None)
    return worst


def describe_worst(slices: Sequence[SliceMetrics]) -> list[str]:
    """Name the worst slice of every column, and the slices that are too small to be called that."""
    lines = []
    for column, worst in worst_slices(slices).items():
        mine = [one for one in slices if one.column == column]
        small = [f"{quote_plain(one.name)} ({one.objects})" for one in mine if one.is_small]
        listed = ", ".join(small) if len(small) <= MAX_LISTED else f"{len(small)} of {len(mine)} slices"
        if worst is None:
            lines.append(
                f"worst {quote_plain(column)}: unknown, every slice has fewer than {MIN_SLICE_OBJECTS} objects: "
                f"{listed}"
            )
            continue
        share = f"{worst.certified['anywhere']:.1f} % of {worst.objects} objects are certified anywhere"
        line = f"worst {quote_plain(column)}: {quote_plain(worst.name)}, {share}"
        lines.append(line + (f"; skipped, with fewer than {MIN_SLICE_OBJECTS} objects: {listed}" if small else ""))
    return lines


def slice_selectors(requested: str, tally: Tally, tags: ImageTags) -> dict[str, Selector]:
    """Return how to select each slice that COLUMN or COLUMN=VALUE names, by its name."""
    column, equals, value = requested.partition("=")
    if column == "class":
        labels = [label_of(value, tally.names)] if equals else np.unique(tally.objects.label).tolist()
        return {f"class={tally.names[n]}": partial(Tally.of_classes, labels=[n]) for n in labels}
    if column == "size":
        limits = {name: OBJECT_SIZES[name] for name in ([_size(value)] if equals else OBJECT_SIZES)}
        return {f"size={name}": partial(Tally.of_sizes, above=low, up_to=high) for name, (low, high) in limits.items()}
    return {name: partial(Tally.of_images, chosen=images) for name, images in tags.slices(requested).items()}


def require_slices(requested: Sequence[str], names: Sequence[str], tags: ImageTags) -> None:
    """Reject a slice that does not exist, before anything long begins."""
    for one in requested:
        column, equals, value = one.partition("=")
        if column == "class" and equals:
            label_of(value, names)
        elif column == "size" and equals:
            _size(value)
        elif column not in OBJECT_COLUMNS:
            tags.slices(one)


def label_of(name: str, names: Sequence[str]) -> int:
    """Return the label of a class of the run."""
    if name in names:
        return list(names).index(name)
    suggestion = suggest_name(name, names) or f"choose from {quote_plain(', '.join(names))}"
    raise ObjectSeekerError(f"the run has no class {quote(name)}: {suggestion}")


def _size(value: str) -> str:
    if value not in OBJECT_SIZES:
        raise ObjectSeekerError(f"a size is {', '.join(OBJECT_SIZES)}: got {quote(value)}. Choose one of them.")
    return value


def _slice_metrics(name: str, part: Tally, threat: ThreatModel) -> SliceMetrics:
    objects = int(part.objects.count.sum())
    of_objects = name.partition("=")[0] in OBJECT_COLUMNS

    def known(one: Metric) -> float | None:
        value = one.value(part)
        return None if np.isnan(value) else value

    of_images = not of_objects and len(part.ids) > 0
    return SliceMetrics(
        name=name,
        images=len(np.unique(part.objects.image)) if of_objects else len(part.ids),
        objects=objects,
        clean_recall=known(metric.clean_recall),
        certified={location: known(metric.certified_recall(threat, location)) for location in PATCH_LOCATIONS},
        vacuous_far=part.objects.vacuous_count(threat, "far"),
        joint_certified_recall=(
            known(metric.joint_certified_recall(threat)) if of_images and threat in part.images.guaranteed else None
        ),
        fppi=known(metric.fppi) if of_images else None,
    )
