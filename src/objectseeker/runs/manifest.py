"""run.json: what was observed, with what, and where the images and their ground truth are stored.

The file holds no time and nothing that depends on how the run went: the same job writes the same bytes. Its first line
is the SHA-256 of everything below it; one of its settings is the SHA-256 of images.parquet (see `tables`). The run's
fingerprint is the SHA-256 of the settings that stay when it grows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from objectseeker import codec
from objectseeker.core.masks import DEFAULT_FILL, require_gray
from objectseeker.core.recipes import Halves, Pairs, Recipe, Rolling, pair_counts, require_recipe
from objectseeker.datasets import DatasetImage
from objectseeker.defense import BATCH, Defense
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.runs.tables import ImageIndex, sha256_of

BASE_FLOOR, MASK_FLOOR = 0.01, 0.1
DEFAULT_SIZE = (640, 480)  # of an image, where the number of masks depends on it

FORMAT = 1
INDEX, GROWN_INDEX = "images.parquet", "images.parquet.grown"  # the second is longer and has yet to take its name
MUTABLE_SETTINGS = ("detector_trusted", "limit", "images", "images_sha256")  # the other settings identify the run
FIRST_LINES = re.compile(rb'\{\n"sha256": "([0-9a-f]{64})",\n')

OptionValue = str | int | float | tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ObservationSettings:
    """The settings of observing images: masks, batch size, and the lowest scores that are stored.

    `batch_size` is the number of views per call of the detector, None for a detector that makes its own batches. Boxes
    with scores below `base_floor` (unmasked image) or `mask_floor` (masked views) are not stored, so no threshold below
    them may be used.
    """

    masks: Recipe = field(default_factory=Halves)
    fill: int = field(default=DEFAULT_FILL, kw_only=True)
    batch_size: int | None = field(default=BATCH, kw_only=True)
    base_floor: float = field(default=BASE_FLOOR, kw_only=True)
    mask_floor: float = field(default=MASK_FLOOR, kw_only=True)

    def __post_init__(self) -> None:
        checked = {
            "masks": require_recipe(self.masks),
            "fill": require_gray(self.fill),
            "batch_size": None if self.batch_size is None else require_count(self.batch_size, "batch_size"),
            "base_floor": require_fraction(self.base_floor, "base_floor"),
            "mask_floor": require_fraction(self.mask_floor, "mask_floor"),
        }
        for name, value in checked.items():  # numbers of any type are the same settings, and are written alike
            object.__setattr__(self, name, value)

    @classmethod
    def from_defense(
        cls, defense: Defense, *, base_floor: float = BASE_FLOOR, mask_floor: float = MASK_FLOOR
    ) -> ObservationSettings:
        """Observe as the defense detects."""
        batch_size = defense.batch_size or BATCH
        return cls(
            defense.masks, fill=defense.fill, batch_size=batch_size, base_floor=base_floor, mask_floor=mask_floor
        )

    def missing_scores(self, *, lowest_base: float | None = None, lowest_masked: float | None = None) -> list[str]:
        """Name the thresholds that are below the scores that are stored: boxes would be missing there."""
        needed = (
            ("base", "raise the threshold, lower the clean recall", "--base-floor", lowest_base, self.base_floor),
            ("masked", "raise the thresholds", "--mask-floor", lowest_masked, self.mask_floor),
        )
        return [
            f"{boxes} boxes with scores of at least {threshold} are used, but the run stores none below {floor}: "
            f"{advice}, or observe with a lower {option}"
            for boxes, advice, option, threshold, floor in needed
            if threshold is not None and threshold < floor
        ]

    def views_per_image(self) -> tuple[int, str]:
        """Return the number of views of an image, and a sentence on why.

        An image with hardly more pixels than lines has fewer.
        """
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
                views = self.masks.forward_passes(*DEFAULT_SIZE)
                return views, f"a frame shows at most {views - 1:,} masks of {recipe}, {frames} frames show all of them"
            case others:
                views, size = others.forward_passes(*DEFAULT_SIZE), "x".join(map(str, DEFAULT_SIZE))
                return views, f"{others} makes {views - 1:,} masks of a {size} image, about as many of other sizes"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunSettings:
    """The settings of a run, as run.json states them.

    `detector_spec` and `detector_options` are what the detector was loaded by; the spec is None for one that was passed
    as an object. `unverified_reason` says why the fingerprint may not tell the detector from another one, if so, and
    `detector_trusted` that the user confirmed it when the run was resumed. `limit` is the number of images taken, None
    for all, and `seed` that of their random order, None for the dataset's own order. `dataset_labels` is the label map:
    the dataset label of each detector label, -1 for none; None if the dataset has no classes. `unmatched_classes` are
    the dataset classes that the detector does not know. The boxes of `images_per_part` images are one file.
    """

    detector_fingerprint: str
    detector_spec: str | None
    detector_options: dict[str, OptionValue]
    detector_names: tuple[str, ...]
    observation_settings: ObservationSettings
    dataset: str
    dataset_fingerprint: str
    dataset_names: tuple[str, ...]
    limit: int | None
    dataset_labels: tuple[int, ...] | None
    unmatched_classes: tuple[str, ...]
    software: dict[str, str]
    images_per_part: int = 1
    seed: int | None = None
    unverified_reason: str | None = None
    detector_trusted: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Manifest(RunSettings):
    """Everything about a run except its boxes: its settings, its images and their ground truth."""

    images: Sequence[DatasetImage]

    def ids(self) -> Iterator[str]:
        """Iterate over the ids of all images, in order."""
        return self.images.ids() if isinstance(self.images, ImageIndex) else (image.id for image in self.images)

    @property
    def unmatched_labels(self) -> tuple[int, ...]:
        return tuple(self.dataset_names.index(name) for name in self.unmatched_classes)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _RunFile(RunSettings):
    """run.json, without its format."""

    sha256: str
    images: int
    images_sha256: str


def encode_manifest(manifest: Manifest, index: Path) -> bytes:
    """Return the bytes of run.json, one line per setting; `index` is the file that lists the images."""
    settings = {
        "format": FORMAT,
        **_settings(manifest),
        "images": len(ImageIndex(index)),
        "images_sha256": sha256_of(index),
    }
    lines = (f"{codec.write_json(name)}: {codec.write_json(value)}" for name, value in settings.items())
    body = (",\n".join(lines) + "\n}\n").encode()
    return f'{{\n"sha256": "{hashlib.sha256(body).hexdigest()}",\n'.encode() + body


def decode_manifest(content: bytes, source: Path) -> tuple[Manifest, str]:
    """Read what `encode_manifest` wrote into the file `source`, and the image index next to it.

    Raises:
        ObjectSeekerError: A checksum does not match, or the content is not that of a run.
    """
    start = FIRST_LINES.match(content)
    if start is None or hashlib.sha256(content[start.end() :]).hexdigest() != start[1].decode():
        raise _damaged(source)
    document = codec.read_json(content, _RunFile, str(source), format=FORMAT, fix="observe into a new folder")
    images = _open_index(source.with_name(INDEX), document.images_sha256)
    settings = {item.name: getattr(document, item.name) for item in fields(RunSettings)}
    manifest = Manifest(**settings, images=images)
    # What identifies a run and all that grow out of it; which image has which number follows from it, too.
    stays = {name: value for name, value in _settings(manifest).items() if name not in MUTABLE_SETTINGS}
    fingerprint = hashlib.sha256(codec.write_json({"format": FORMAT, **stays}).encode()).hexdigest()
    return manifest, fingerprint


def _settings(manifest: Manifest) -> dict[str, Any]:
    return {item.name: codec.to_plain(getattr(manifest, item.name)) for item in fields(RunSettings)}


def _open_index(file: Path, sha256: str) -> ImageIndex:
    for name in (INDEX, GROWN_INDEX, INDEX):  # while it grows the one becomes the other
        try:
            if sha256_of(file.with_name(name)) == sha256:
                return ImageIndex(file.with_name(name))
        except (OSError, pa.ArrowException):
            continue
    raise _damaged(file)


def _damaged(file: Path) -> ObjectSeekerError:
    return ObjectSeekerError(
        f"{file} is damaged or was edited, its checksum does not match: restore it or observe into a new folder"
    )
