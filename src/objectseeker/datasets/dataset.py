"""Datasets as readers return them: images with ground truth, and the checks that all formats share."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TypeVar, overload

import numpy as np

from objectseeker.core.boxes import LARGEST_COORDINATE, Bools, Detections, Ints
from objectseeker.core.masks import Image
from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.parsing import IMPOSSIBLE, NO_AREA, OUTSIDE, InvalidAnnotationError, SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_sized
from objectseeker.files.remote import Url
from objectseeker.text import display_path, quote

_T = TypeVar("_T")

Xyxy = tuple[float, float, float, float]
ImageFile = tuple[str, Path | Url, int | None]  # id, place and size in bytes, if known

OVERHANG = 1.0  # pixels a box may reach outside its image without a warning: annotations are rounded, some are 0-based


@dataclass(frozen=True, slots=True, eq=False)
class DatasetImage:
    """One image and its objects.

    `ground_truth` has labels into the dataset's names. `ignore` marks the objects that are neither to be found nor
    false positives when found (VOC difficult, COCO crowd, KITTI DontCare); `crowd`, a subset of it, those that
    represent any number of objects, so that a detection is matched by how much of it is inside, not by IoU.
    `frame` and `track` are those of `ObservedImage`.
    """

    id: str
    path: Path | Url
    size: tuple[int, int] | None  # width and height that the annotation assumes; None without annotation
    ground_truth: Detections
    ignore: Bools
    crowd: Bools
    frame: FrameIndex | None = None
    track: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def frame_number(self) -> int | None:
        """Number of the frame in its sequence; None for an image that is not a frame."""
        return None if self.frame is None else self.frame.number

    def load(self) -> Image:
        """Load the pixels; raise an error if their size is not the one that the boxes were drawn on."""
        return load_sized(self.path, self.size)


class IndexedSequence(Sequence[_T]):
    """Sequence whose items are made or read on access."""

    def _item(self, position: int) -> _T:
        """Return the item at a valid position, counted from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        if isinstance(index, slice):
            return [self._item(position) for position in range(*index.indices(len(self)))]
        position = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= position < len(self):
            raise IndexError(f"there is no item {index} among {len(self)}")
        return self._item(position)


class LazySequence(IndexedSequence[_T]):
    """Sequence of known length that is produced again for every iteration, and never held in memory."""

    def __init__(self, make: Callable[[], Iterator[_T]], count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_T]:
        return self._make()

    def _item(self, position: int) -> _T:
        return next(islice(self._make(), position, None))


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images with their objects, in a fixed order.

    `fingerprint` is a SHA-256 over names, image ids, image file sizes in bytes, boxes, labels and flags, and over
    frames and tracks of sequences: two datasets with the same fingerprint hold the same ground truth, wherever they are
    on disk. `names` is empty without ground truth. `warnings` are sentences for the user.
    """

    spec: str
    names: tuple[str, ...]
    images: Sequence[DatasetImage]  # of a folder or a list: a `LazySequence`
    fingerprint: str
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def has_ground_truth(self) -> bool:
        """Return whether there are annotations."""
        return bool(self.names)

    @property
    def objects(self) -> int:
        """Number of objects that count: all but the ignored ones."""
        return sum(int((~image.ignore).sum()) for image in self.images)


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotated object as a reader found it; `source` is its place, for messages."""

    name: str
    xyxy: Xyxy
    source: str
    ignore: bool = False
    crowd: bool = False
    track: int = NO_TRACK


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image as a reader found it."""

    id: str
    path: Path | Url
    size: tuple[int, int] | None
    boxes: list[Annotation]
    frame: FrameIndex | None = None


def build_dataset(
    spec: str,
    names: Sequence[str],
    records: Iterable[ImageRecord],
    skip_log: SkipLog | None = None,
    warnings: Sequence[str] = (),
) -> Dataset:
    """Check what a reader found, and build the dataset; without a skip log every invalid box is an error.

    An image stays, even if all of its objects are skipped.
    """
    skip_log = skip_log or SkipLog(strict=True)
    _reject_duplicates(names, f"{spec} names the class")
    records = [
        replace(record, boxes=skip_log.parse_each(partial(_check_box, size=record.size), record.boxes))
        for record in records
    ]
    if not records:
        raise ObjectSeekerError(f"{spec} holds no images. Name another.")
    _reject_duplicates([record.id for record in records], f"{spec} lists the image")
    labels = {name: label for label, name in enumerate(names)}
    digest = hashlib.sha256(_line(names))
    images = []
    for record in records:
        image = _image(record, labels)
        digest.update(_line([image.id, _file_size(record)]))
        digest.update(_line([image.ground_truth.xyxy.tolist(), image.ground_truth.label.tolist()]))
        digest.update(_line([image.ignore.tolist(), image.crowd.tolist()]))
        if image.frame is not None:
            digest.update(_line([*astuple(image.frame), image.track.tolist()]))
        images.append(image)
    return Dataset(
        spec=spec,
        names=tuple(names),
        images=tuple(images),
        fingerprint=digest.hexdigest(),
        warnings=(*warnings, *skip_log.warnings, *_overhang_warnings(records)),
    )


def stream_dataset(spec: str, files: Callable[[SkipLog], Iterator[ImageFile]], skip_log: SkipLog) -> Dataset:
    """Build a dataset without ground truth that is never all in memory.

    `files` is iterated now, for the fingerprint and the warnings, and again whenever the images are.
    """
    seen: list[tuple[int, str]] = []

    def images() -> Iterator[DatasetImage]:
        digest, count = hashlib.sha256(_line([])), 0
        for image_id, path, size in files(SkipLog(strict=skip_log.strict) if seen else skip_log):
            digest.update(_line([image_id, size]) + _NO_OBJECTS)
            count += 1
            yield DatasetImage(image_id, path, None, _NO_BOXES, _NO_FLAGS, _NO_FLAGS)
        summary = count, digest.hexdigest()
        if not seen:
            seen.append(summary)
        elif summary != seen[0]:
            raise ObjectSeekerError(f"{spec} changed while it was read. Start again.")

    for _ in images():
        pass
    ((count, fingerprint),) = seen
    if not count:
        raise ObjectSeekerError(f"{spec} holds no images. Name another.")
    return Dataset(spec, (), LazySequence(images, count), fingerprint, skip_log.warnings)


def _image(record: ImageRecord, labels: dict[str, int]) -> DatasetImage:
    crowd = np.array([box.crowd for box in record.boxes], dtype=np.bool_)
    ignore = np.array([box.ignore or box.crowd for box in record.boxes], dtype=np.bool_)
    track = np.array([box.track for box in record.boxes if record.frame is not None], dtype=np.int64)
    for flags in (crowd, ignore, track):
        flags.setflags(write=False)
    ground_truth = Detections(
        [box.xyxy for box in record.boxes], np.ones(len(record.boxes)), [labels[box.name] for box in record.boxes]
    )
    return DatasetImage(record.id, record.path, record.size, ground_truth, ignore, crowd, record.frame, track)


def _check_box(box: Annotation, size: tuple[int, int] | None) -> Annotation:
    x1, y1, x2, y2 = box.xyxy
    if not all(math.isfinite(value) and abs(value) <= LARGEST_COORDINATE for value in box.xyxy):
        problem = f"has a box with an impossible coordinate: {quote(list(box.xyxy))}"
        raise InvalidAnnotationError(IMPOSSIBLE, box.source, problem)
    if not (x1 < x2 and y1 < y2):
        problem = f"has a box of {x2 - x1:g} x {y2 - y1:g} pixels; both sides must be above 0"
        raise InvalidAnnotationError(NO_AREA, box.source, problem)
    if size is not None and not (x1 < size[0] and y1 < size[1] and x2 > 0 and y2 > 0):
        problem = f"has a box entirely outside its {size[0]}x{size[1]} image: {list(box.xyxy)}"
        raise InvalidAnnotationError(OUTSIDE, box.source, problem)
    return box


def _file_size(record: ImageRecord) -> int | None:
    """Return the bytes of the image file: it exists, and is probably the same image.

    None for one at an address, where asking for each would take as long as reading it.
    """
    if isinstance(record.path, Url):
        return None
    try:
        if record.path.is_file():
            return record.path.stat().st_size
    except (OSError, ValueError):  # a name the file system cannot hold
        pass
    raise ObjectSeekerError(
        f"image {quote(record.id)} has no file at {display_path(record.path)}. Add it, or remove its annotations."
    )


def _overhang_warnings(records: Iterable[ImageRecord]) -> list[str]:
    """Return one sentence on the boxes that reach outside their image; they are kept unchanged."""
    overhangs = [
        (max(-x1, -y1, x2 - record.size[0], y2 - record.size[1]), box.source)
        for record in records
        if record.size is not None
        for box in record.boxes
        for x1, y1, x2, y2 in (box.xyxy,)
    ]
    overhangs = [(overhang, source) for overhang, source in overhangs if overhang > OVERHANG]
    if not overhangs:
        return []
    largest, example = max(overhangs, key=itemgetter(0))
    return [
        f"boxes that reach more than {OVERHANG:g} pixel outside their image, kept as annotated: {len(overhangs)}, the "
        f"furthest by {largest:.1f} pixels ({example}); many or far ones mean that images were resized or cropped "
        "after they were annotated"
    ]


def _reject_duplicates(values: Sequence[str], opening: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ObjectSeekerError(f"{opening} {quote(value)} twice. Rename or remove one.")
        seen.add(value)


def _line(value: object) -> bytes:
    """Return one canonical line of JSON, equal on every machine: Python prints floats exactly."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


_NO_BOXES = Detections.empty()
_NO_FLAGS = np.zeros(0, np.bool_)
_NO_FLAGS.setflags(write=False)
_NO_OBJECTS = 2 * _line([[], []])
