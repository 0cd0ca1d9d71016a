"""What every reader returns, and the checks that every format shares."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar, overload

import numpy as np

from objectseeker.core.boxes import LARGEST_COORDINATE, Bools, Detections, Ints
from objectseeker.core.masks import Image
from objectseeker.core.observation import NO_TRACK, FrameIndex
from objectseeker.datasets.parsing import IMPOSSIBLE, NO_AREA, OUTSIDE, InvalidAnnotationError, SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.files.remote import Url
from objectseeker.text import readable, shown

_T = TypeVar("_T")

Xyxy = tuple[float, float, float, float]

OVERHANG = 1.0  # pixels a box may reach outside its image without a warning: annotations are rounded, some are 0-based


@dataclass(frozen=True, slots=True, eq=False)
class DatasetImage:
    """One image and its objects.

    `truth` has labels into the dataset's names. `ignore` marks the objects that are neither to be found nor false
    alarms when found (VOC difficult, COCO crowd, KITTI DontCare); `crowd`, a subset of it, those that stand for any
    number of objects, so that a detection belongs to one by how much of the detection lies inside, not by IoU. `frame`
    and `track` are those of `ObservedImage`.
    """

    id: str
    path: Path | Url
    size: tuple[int, int] | None  # width and height the annotation speaks of; None where there is no annotation
    truth: Detections
    ignore: Bools
    crowd: Bools
    frame: FrameIndex | None = None
    track: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def frame_number(self) -> int | None:
        """Which frame of its sequence it is; None of an image that is no frame."""
        return None if self.frame is None else self.frame.number

    def load(self) -> Image:
        """The image's pixels; refuses one whose size is not the one its boxes were drawn on."""
        return load_sized(self.path, self.size)


def load_sized(path: Path | Url, size: tuple[int, int] | None) -> Image:
    """The image's pixels; refuses one whose size is not the one its annotation states, where it does."""
    image = load_image(path)
    found = image.shape[1], image.shape[0]
    if size is not None and found != size:
        raise ObjectSeekerError(
            f"{path} is {found[0]}x{found[1]} pixels when upright but its annotation says "
            f"{size[0]}x{size[1]}; correct one of them"
        )
    return image


class LazySequence(Sequence[_T]):
    """A sequence of known length that is made anew, one after the other, whenever it is gone through."""

    def __init__(self, make: Callable[[], Iterator[_T]], count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_T]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = index + (self._count if index < 0 else 0)
        if not 0 <= place < self._count:
            raise IndexError(f"there is no item {index} among {self._count}")
        return next(islice(self._make(), place, None))


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images with their objects, in a fixed order.

    `identity` is a SHA-256 over names, image ids, image file sizes in bytes, boxes, labels and flags, and over frames
    and tracks of sequences: two datasets with the same identity hold the same ground truth, wherever they lie on disk.
    `names` is empty where there is no ground truth. `warnings` are sentences for the user.
    """

    spec: str
    names: tuple[str, ...]
    entries: Sequence[DatasetImage]  # of a folder or a list of images: `Streamed`, never all in memory
    identity: str
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def annotated(self) -> bool:
        """Whether there is ground truth at all."""
        return bool(self.names)

    @property
    def objects(self) -> int:
        """The number of objects that count: all but the ignored ones."""
        return sum(int((~entry.ignore).sum()) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotated object as a reader found it; `source` says where, for messages."""

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
    """The dataset of what a reader found, once all of it has been checked; without skip_log every bad box is refused.

    An image stays, whatever is skipped of its objects.
    """
    skip_log = skip_log or SkipLog(strict=True)
    _reject_duplicates(names, f"{spec} names the class")
    records = [replace(record, boxes=_valid_boxes(record, skip_log)) for record in records]
    if not records:
        raise ObjectSeekerError(f"{spec} holds no images")
    _reject_duplicates([record.id for record in records], f"{spec} lists the image")
    labels = {name: label for label, name in enumerate(names)}
    digest = hashlib.sha256(_line(names))
    entries = []
    for record in records:
        entry = _entry(record, labels)
        digest.update(_line([entry.id, _file_size(record)]))
        digest.update(_line([entry.truth.xyxy.tolist(), entry.truth.label.tolist()]))
        digest.update(_line([entry.ignore.tolist(), entry.crowd.tolist()]))
        if entry.frame is not None:
            digest.update(_line([*astuple(entry.frame), entry.track.tolist()]))
        entries.append(entry)
    return Dataset(
        spec=spec,
        names=tuple(names),
        entries=tuple(entries),
        identity=digest.hexdigest(),
        warnings=(*warnings, *skip_log.warnings, *_overhang_warnings(records)),
    )


def stream_dataset(
    spec: str, records: Callable[[SkipLog], Iterator[tuple[str, Path | Url, int | None]]], skip_log: SkipLog
) -> Dataset:
    """A dataset without ground truth, never all in memory: `records` gives id, place and size in bytes, if known.

    It is gone through once now, for the identity and the warnings, and again whenever the entries are.
    """
    seen: list[tuple[int, str]] = []

    def entries() -> Iterator[DatasetImage]:
        digest, count = hashlib.sha256(_line([])), 0
        for identity, path, size in records(SkipLog(strict=skip_log.strict) if seen else skip_log):
            digest.update(_line([identity, size]) + _NO_OBJECTS)
            count += 1
            yield DatasetImage(identity, path, None, _NOTHING, _NO_FLAGS, _NO_FLAGS)
        found = count, digest.hexdigest()
        if not seen:
            seen.append(found)
        elif found != seen[0]:
            raise ObjectSeekerError(f"{spec} changed while it was read: start again")

    for _ in entries():
        pass
    ((count, identity),) = seen
    if not count:
        raise ObjectSeekerError(f"{spec} holds no images")
    return Dataset(
        spec=spec, names=(), entries=LazySequence(entries, count), identity=identity, warnings=skip_log.warnings
    )


def _entry(record: ImageRecord, labels: dict[str, int]) -> DatasetImage:
    count = len(record.boxes)
    crowd = np.array([box.crowd for box in record.boxes], dtype=np.bool_)
    ignore = np.array([box.ignore or box.crowd for box in record.boxes], dtype=np.bool_)
    track = np.array([box.track for box in record.boxes if record.frame is not None], dtype=np.int64)
    for flags in (crowd, ignore, track):
        flags.setflags(write=False)
    truth = Detections([box.xyxy for box in record.boxes], np.ones(count), [labels[box.name] for box in record.boxes])
    return DatasetImage(record.id, record.path, record.size, truth, ignore, crowd, record.frame, track)


def _valid_boxes(record: ImageRecord, skip_log: SkipLog) -> list[Annotation]:
    boxes = []
    for box in record.boxes:
        with skip_log:
            _check_box(box, record.size)
            boxes.append(box)
    return boxes


def _check_box(box: Annotation, size: tuple[int, int] | None) -> None:
    x1, y1, x2, y2 = box.xyxy
    if not all(math.isfinite(value) and abs(value) <= LARGEST_COORDINATE for value in box.xyxy):
        sentence = f"{box.source} has a box with an impossible coordinate: {shown(list(box.xyxy))}"
        raise InvalidAnnotationError(IMPOSSIBLE, box.source, sentence)
    if not (x1 < x2 and y1 < y2):
        sentence = f"{box.source} has a box of {x2 - x1:g} x {y2 - y1:g} pixels; both sides must be above 0"
        raise InvalidAnnotationError(NO_AREA, box.source, sentence)
    if size is not None and not (x1 < size[0] and y1 < size[1] and x2 > 0 and y2 > 0):
        sentence = f"{box.source} has a box entirely outside its {size[0]}x{size[1]} image: {list(box.xyxy)}"
        raise InvalidAnnotationError(OUTSIDE, box.source, sentence)


def _file_size(record: ImageRecord) -> int | None:
    """Bytes of the image file: the check that it is there, and a cheap sign that it is still the same image.

    None for one at an address, where asking for each would take as long as reading it.
    """
    if isinstance(record.path, Url):
        return None
    try:
        if record.path.is_file():
            return record.path.stat().st_size
    except (OSError, ValueError):  # a name the file system cannot hold
        pass
    raise ObjectSeekerError(f"image {shown(record.id)} has no file at {readable(record.path)}")


def _overhang_warnings(records: Iterable[ImageRecord]) -> list[str]:
    """One sentence on the boxes that reach outside their image; they are kept as they are."""
    total, worst, example = 0, OVERHANG, ""
    for record in records:
        for box in record.boxes:
            overhang = _overhang(box.xyxy, record.size)
            total += overhang > OVERHANG
            if overhang > worst:
                worst, example = overhang, box.source
    if not total:
        return []
    return [
        f"boxes that reach more than {OVERHANG:g} pixel outside their image, kept as annotated: {total}, the furthest "
        f"by {worst:.1f} pixels ({example}); many or far ones mean that images were resized or cropped after they "
        "were annotated"
    ]


def _overhang(xyxy: Xyxy, size: tuple[int, int] | None) -> float:
    return 0.0 if size is None else max(-xyxy[0], -xyxy[1], xyxy[2] - size[0], xyxy[3] - size[1])


def _reject_duplicates(values: Sequence[str], opening: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ObjectSeekerError(f"{opening} {shown(value)} twice; rename or remove one")
        seen.add(value)


def _line(value: object) -> bytes:
    """One canonical line of JSON: the same on every machine, since Python prints floats so that they read back."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


_NOTHING = Detections.empty()
_NO_FLAGS = np.zeros(0, np.bool_)
_NO_FLAGS.setflags(write=False)
_NO_OBJECTS = 2 * _line([[], []])
