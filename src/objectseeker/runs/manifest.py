"""run.json and images.parquet: what was observed, with what, and the ground truth.

The files hold no time of day and nothing that depends on how the run went: the same job writes the same bytes. The
first line of run.json is the SHA-256 of everything below it; one of its settings is the SHA-256 of images.parquet (see
`listing`). The run's identity is the SHA-256 of the settings that stay when it grows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from objectseeker.core.masks import DEFAULT_FILL, require_gray
from objectseeker.core.recipes import Halves, Pairs, Recipe, Rolling, pair_counts, parse_recipe, require_recipe
from objectseeker.datasets import DatasetImage
from objectseeker.defense import BATCH
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.runs.image_index import ImageIndex, IndexSummary, hash_of
from objectseeker.text import readable

# How images are observed: under which masks, in which batches, and down to which scores boxes are stored.


BASE_FLOOR, MASK_FLOOR = 0.01, 0.1
USUAL_SIZE = (640, 480)  # of an image, where the number of masks depends on it


@dataclass(frozen=True, slots=True)
class ObservationSettings:
    """What a run, the job that makes it and its cost have in common.

    `batch` is how many views the detector is shown at a time, None for one that makes its own batches. Boxes scored
    below `base_floor` (untouched image) or `mask_floor` (masked views) are not stored, so no threshold below them may
    be used.
    """

    masks: Recipe = field(default_factory=Halves)
    fill: int = field(default=DEFAULT_FILL, kw_only=True)
    batch: int | None = field(default=BATCH, kw_only=True)
    base_floor: float = field(default=BASE_FLOOR, kw_only=True)
    mask_floor: float = field(default=MASK_FLOOR, kw_only=True)

    def __post_init__(self) -> None:
        plain = {
            "masks": require_recipe(self.masks),
            "fill": require_gray(self.fill),
            "batch": None if self.batch is None else require_count(self.batch, "batch"),
            "base_floor": require_fraction(self.base_floor, "base_floor"),
            "mask_floor": require_fraction(self.mask_floor, "mask_floor"),
        }
        for name, value in plain.items():  # numbers of any type are the same settings, and written as such
            object.__setattr__(self, name, value)

    def cost(self) -> tuple[int, str]:
        """How many views an image has (fewer if it has hardly more pixels than lines), and a sentence on why."""
        match self.masks:
            case Halves(lines):
                return 1 + 4 * lines, f"{lines} lines per axis are {4 * lines} half masks"
            case Pairs(lines):
                unordered, distinct = pair_counts(lines)
                return 1 + distinct, (
                    f"{lines} lines per axis are {4 * lines} half masks, {unordered:,} pairs of them, {distinct:,} of "
                    "which remove something different and leave something"
                )
            case Rolling(recipe, frames):
                views = self.masks.passes(*USUAL_SIZE)
                return views, f"a frame shows at most {views - 1:,} masks of {recipe}, {frames} frames show all of them"
            case others:
                views, size = others.passes(*USUAL_SIZE), "x".join(map(str, USUAL_SIZE))
                return views, f"{others} makes {views - 1:,} masks of a {size} image, about as many of other sizes"

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads back to an equal object."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"masks": str(self.masks)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ObservationSettings:
        return cls(**dict(values) | {"masks": parse_recipe(values["masks"])})


FORMAT = 5
LISTING, GROWN = "images.parquet", "images.parquet.grown"  # the second is a longer one that has yet to take its name
MUTABLE_SETTINGS = (
    "detector_trusted",
    "limit",
    "images",
    "images_sha256",
)  # the settings that may change; the others decide
FIRST_LINES = re.compile(rb'\{\n"sha256": "([0-9a-f]{64})",\n')


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Manifest:
    """Everything about a run but its boxes.

    `detector` is the detector's identity; `detector_spec` and `detector_options` are what it was loaded by, None where
    it was handed over as an object. `detector_unverified` says why its identity does not tell it from another, where
    that is so, and `detector_trusted` that the run went on nevertheless, on the user's word. `limit` is how many images
    were taken, None for all, and `seed` that of the order they were drawn in, None for the dataset's own. `to_dataset`
    translates detector labels, -1 for none, and is None where the dataset has no classes; `excluded` are the dataset
    classes the detector does not know. The boxes of `images_per_part` images are one file.
    """

    detector: str
    detector_spec: str | None
    detector_options: dict[str, Any]
    detector_names: tuple[str, ...]
    observing: ObservationSettings
    dataset: str
    dataset_identity: str
    dataset_names: tuple[str, ...]
    limit: int | None
    to_dataset: tuple[int, ...] | None
    unmatched_classes: tuple[str, ...]
    software: dict[str, str]
    images: Sequence[DatasetImage]
    images_per_part: int = 1
    seed: int | None = None
    detector_unverified: str | None = None
    detector_trusted: bool = False

    def ids(self) -> Iterator[str]:
        """The ids of all images, in order."""
        return self.images.ids() if isinstance(self.images, ImageIndex) else (image.id for image in self.images)

    @property
    def excluded_labels(self) -> tuple[int, ...]:
        return tuple(self.dataset_names.index(name) for name in self.unmatched_classes)


def encode(manifest: Manifest, listing: IndexSummary) -> tuple[bytes, str]:
    """The bytes of run.json, one line per setting, and the run's identity."""
    settings = {"format": FORMAT} | {field.name: getattr(manifest, field.name) for field in fields(Manifest)}
    settings |= {"observing": manifest.observing.to_dict()}
    settings |= {"images": listing.images, "images_sha256": listing.sha256}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in settings.items())
    body = (",\n".join(lines) + "\n}\n").encode()
    start = f'{{\n"sha256": "{hashlib.sha256(body).hexdigest()}",\n'.encode()
    return start + body, _identity(json.loads(start + body))


def decode(content: bytes, source: Path) -> tuple[Manifest, str]:
    """What `encode` wrote into the file `source`, and the listing next to it; anything else is refused."""
    start = FIRST_LINES.match(content)
    if start is None or hashlib.sha256(content[start.end() :]).hexdigest() != start[1].decode():
        raise _damaged(source)
    values = json.loads(content)
    identity = _identity(values)
    del values["sha256"]
    written_as = values.pop("format")
    if written_as != FORMAT:
        raise ObjectSeekerError(
            f"{source} has format {written_as}, this objectseeker reads format {FORMAT}: use the version that wrote it"
        )
    values["images"] = _listing(source.with_name(LISTING), values.pop("images_sha256"))
    values["observing"] = ObservationSettings.from_dict(values["observing"])
    values["detector_options"] = {name: _tupled(value) for name, value in values["detector_options"].items()}
    return Manifest(**{name: _tupled(value) for name, value in values.items()}), identity


def _identity(values: Mapping[str, Any]) -> str:
    """What a run and all that grow out of it have in common. Which image has which number follows from it, too."""
    stays = {name: value for name, value in values.items() if name not in ("sha256", *MUTABLE_SETTINGS)}
    return hashlib.sha256(json.dumps(stays).encode()).hexdigest()


def setting_differences(old: Manifest, new: Manifest) -> list[str]:
    """What makes `new` another run than `old`, each in a few words."""
    pairs = zip(_settings(old).items(), _settings(new).values(), strict=True)
    named = [f"{name} was {_show(before)}, now {_show(now)}" for (name, before), now in pairs if before != now]
    if old.detector_names == new.detector_names and old.to_dataset != new.to_dataset:
        named.append("the class map was another one")
    return named + _class_differences(old.detector_names, new.detector_names)


def software_differences(old: Manifest, new: Manifest) -> list[str]:
    """Packages in another version than when the run began: they may round differently, or write other bytes.

    A package that only one side has loaded took no part in it. Python itself computes nothing here.
    """
    shared = sorted((old.software.keys() & new.software.keys()) - {"python"})
    pairs = ((name, old.software[name], new.software[name]) for name in shared)
    return [f"{name} was {before}, now {now}" for name, before, now in pairs if before != now]


def _settings(manifest: Manifest) -> dict[str, object]:
    """What must be the same for a run to go on: everything else follows from it, or is only for the reader."""
    observing = {
        field.name.replace("_", " "): getattr(manifest.observing, field.name) for field in fields(ObservationSettings)
    }
    order = "the dataset's" if manifest.seed is None else f"drawn with seed {manifest.seed}"
    return {"detector": manifest.detector, **observing, "order": order}


def _class_differences(old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    """Only the first of them: a detector may have hundreds of classes."""
    for label, (before, now) in enumerate(zip_longest(old, new)):
        if before != now:
            counts = f"{len(old)} classes, now {len(new)}"
            return [f"detector class {label} was {_show(before)}, now {_show(now)} ({counts})"]
    return []


def _show(value: object) -> str:
    return "none" if value is None else readable(str(value))


def _tupled(value: Any) -> Any:
    """JSON knows no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _listing(file: Path, sha256: str) -> ImageIndex:
    for name in (LISTING, GROWN, LISTING):  # while it grows the one becomes the other
        try:
            if hash_of(file.with_name(name)) == sha256:
                return ImageIndex(file.with_name(name))
        except (OSError, pa.ArrowException):
            continue
    raise _damaged(file)


def _damaged(file: Path) -> ObjectSeekerError:
    return ObjectSeekerError(
        f"{file} is damaged or was edited, its checksum does not fit: restore it or observe into a new folder"
    )
