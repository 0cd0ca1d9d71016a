"""Observations on disk: a folder that `observe` writes, that survives being killed, and that everything else reads.

    run.json                         settings, images and ground truth (see `manifest`)
    parts/000012-CHECKSUM.parquet    the boxes of image 12: image, mask (-1: untouched), x1, y1, x2, y2, score, label
    broken/000012-CHECKSUM.json      instead of a part: why image 12 could not be read
    lock                             empty; held by the process that writes

A file appears under its name only when it is whole and on the disk. Labels are the detector's, coordinates and scores
are kept to the last bit (float64: resized-back boxes do not fit float32), and masks are not stored, since they follow
from the image size, the number of lines and the choice of half masks or pairs of them. The checksum is the start of a
SHA-256 over the run's identity, the image's number and the file's content: a damaged part, or one of another image or
run, is told by its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from objectseeker.boxes import Detections, Ints
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.manifest import Manifest, decode, encode, setting_differences, software_differences
from objectseeker.masks import MaskChoice, Masks, make_masks, pair_counts
from objectseeker.observation import Observation, ObservedImage

MANIFEST, PARTS, BROKEN, LOCK = "run.json", "parts", "broken", "lock"
UNFINISHED = ".tmp"  # ends the name of a file that is being written

MOST_MASKS = 2**15 - 1  # numbered in 16 bits
MOST_LINES: dict[MaskChoice, int] = {
    "halves": MOST_MASKS // 4,
    "pairs": max(k for k in range(1, 100) if pair_counts(k)[1] <= MOST_MASKS),
}
LARGEST_LABEL = 2**15 - 1
COORDINATES = ("x1", "y1", "x2", "y2")
SCHEMA = pa.schema(
    [("image", pa.int32()), ("mask", pa.int16())]
    + [(name, pa.float64()) for name in (*COORDINATES, "score")]
    + [("label", pa.int16())]
)

_PART_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.(?:parquet|json)")


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """An image that could not be read: it is left out, and so are its `objects` (those that would have counted)."""

    id: str
    path: Path
    reason: str
    objects: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run as found on disk. `parts` are the intact parts by image number, `damaged` the files that are not."""

    folder: Path
    identity: str
    manifest: Manifest
    parts: Mapping[int, Path]
    unreadable: Mapping[int, str]
    damaged: tuple[Path, ...]

    @property
    def finished(self) -> int:
        """How many images are done with, the broken ones included."""
        return len(self.parts) + len(self.unreadable)

    @property
    def complete(self) -> bool:
        return self.finished == len(self.manifest.images)

    @property
    def broken(self) -> tuple[BrokenImage, ...]:
        """The images that could not be read."""
        records = ((self.manifest.images[index], reason) for index, reason in sorted(self.unreadable.items()))
        excluded = self.manifest.excluded_labels
        return tuple(
            BrokenImage(
                record.id, record.path, reason, int((~record.ignore & ~np.isin(record.truth.label, excluded)).sum())
            )
            for record, reason in records
        )

    def images(self, *, lines: int | None = None) -> list[ObservedImage]:
        """The finished images, in dataset order, with the dataset's labels (the detector's where there are none).

        Boxes of classes the dataset does not have and objects of classes the detector does not know are left out.
        With `lines`, only that many of the stored lines are used, as evenly spaced as they come.
        """
        if self.damaged:
            raise ObjectSeekerError(
                f"{self.folder} has damaged parts ({_listed(self.damaged)}): run observe again with the same settings, "
                "only those are computed again"
            )
        if lines is not None:
            line_subset(self.manifest.lines, lines)  # refuses too many before anything is read
        masks: dict[tuple[int, int], Masks] = {}
        return [self._image(index, lines, masks) for index in sorted(self.parts)]

    def _image(self, index: int, lines: int | None, masks: dict[tuple[int, int], Masks]) -> ObservedImage:
        record = self.manifest.images[index]
        assert record.size is not None  # a part is only written for an image of known size
        if record.size not in masks:
            masks[record.size] = make_masks(self.manifest.masks, *record.size, self.manifest.lines)
        boxes, mask = _read_boxes(self.parts[index], self.identity, index, self.manifest.to_dataset)
        ends = np.searchsorted(mask, np.arange(-1, len(masks[record.size])), side="right").tolist()
        base, *masked = (boxes[start:end] for start, end in zip([0, *ends], ends, strict=False))
        observation = Observation(*record.size, masks[record.size], base, masked)
        known = ~np.isin(record.truth.label, self.manifest.excluded_labels)
        return ObservedImage(
            id=record.id,
            path=record.path,
            observation=observation if lines is None else restrict(observation, lines),
            truth=record.truth[known],
            ignore=record.ignore[known],
            crowd=record.crowd[known],
        )


def open_run(folder: str | Path) -> Run:
    """The run in `folder`, every part's checksum verified; it may be unfinished or have damaged parts."""
    folder = Path(folder)
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ObjectSeekerError(
            f"there is no run in {folder} ({error.strerror}): make one with objectseeker observe"
        ) from None
    manifest, identity = decode(content, folder / MANIFEST)
    parts: dict[int, Path] = {}
    unreadable: dict[int, str] = {}
    damaged: list[Path] = []
    for file in sorted([*folder.glob(f"{PARTS}/*"), *folder.glob(f"{BROKEN}/*")]):
        index = _number(file)
        if index is None:
            continue
        found = _read(file, identity, index)
        if found is None or index in parts or index in unreadable:
            damaged.append(file)
        elif file.parent.name == PARTS:
            parts[index] = file
        else:
            unreadable[index] = json.loads(found)["reason"]
    return Run(folder, identity, manifest, parts, unreadable, tuple(damaged))


@contextmanager
def writing(folder: str | Path, manifest: Manifest) -> Iterator[Run]:
    """The run in `folder`, new or left unfinished with the same settings, locked against other writers.

    Parts that are damaged are removed, so that their images count as not finished; the run lists them.
    """
    folder = Path(folder)
    with _locked(folder):
        for place in (MANIFEST, f"{PARTS}/*", f"{BROKEN}/*"):
            for leftover in folder.glob(place + UNFINISHED):
                leftover.unlink()
        for name in (PARTS, BROKEN):
            (folder / name).mkdir(exist_ok=True)
        if not (folder / MANIFEST).exists():
            _write(folder / MANIFEST, encode(manifest)[0])
        run = open_run(folder)
        differences = setting_differences(run.manifest, manifest)
        if not run.complete:
            differences += software_differences(run.manifest, manifest)
        if differences:
            raise ObjectSeekerError(
                f"{folder} holds another run ({'; '.join(differences)}): use what it was begun with, or another folder"
            )
        for file in run.damaged:
            file.unlink()
        yield run


def write_boxes(run: Run, index: int, base: Detections, masked: Sequence[Detections]) -> None:
    """Store what was found on image number `index`, down to the run's score floors."""
    kept = [base.at_least(run.manifest.base_floor)] + [view.at_least(run.manifest.mask_floor) for view in masked]
    boxes = Detections.concatenate(kept)
    _check_labels(boxes.label, run.manifest.detector_names)
    columns = [np.full(len(boxes), index), np.repeat(np.arange(-1, len(masked)), [len(view) for view in kept])]
    columns += [*boxes.xyxy.T, boxes.score, boxes.label]
    _write_finished(run, index, _to_parquet(columns))


def write_broken(run: Run, index: int, reason: str) -> None:
    """Store that image number `index` could not be read."""
    _write_finished(run, index, json.dumps({"image": index, "reason": reason}).encode() + b"\n", broken=True)


def line_subset(stored: int, count: int) -> list[int]:
    """Which `count` of the lines 1 to `stored` of an axis are spread over it most evenly, ascending."""
    if require_count(count, "lines") > stored:
        raise ObjectSeekerError(f"lines must be at most {stored}, as many as were observed, got {count}")
    return [(2 * t * (stored + 1) + count + 1) // (2 * (count + 1)) for t in range(1, count + 1)]


def restrict(observation: Observation, lines: int) -> Observation:
    """`observation` as if only `lines` of its lines per axis had been used, as evenly spaced as they come.

    An axis that has no more lines than that, because the image is only a few pixels long, keeps all of them.
    """
    masks, halves = observation.masks, observation.masks.halves
    vertical = halves.side % 2 == 0
    kept_half = np.zeros(len(halves), np.bool_)
    for axis in (vertical, ~vertical):
        positions = np.unique(halves.line[axis])
        if len(positions) > require_count(lines, "lines"):
            positions = positions[np.array(line_subset(len(positions), lines)) - 1]
        kept_half |= axis & np.isin(halves.line, positions)
    kept = np.flatnonzero(kept_half[masks.members].all(axis=1))
    return Observation(
        observation.width,
        observation.height,
        masks.subset(kept),
        observation.base,
        [observation.masked[index] for index in kept.tolist()],
    )


def _number(file: Path) -> int | None:
    """The image number in a part's name; None for a file that is no part."""
    name = _PART_NAME.fullmatch(file.name)
    return None if name is None else int(name[1])


def _checksum(identity: str, index: int, content: bytes) -> str:
    return hashlib.sha256(f"{identity} {index}\n".encode() + content).hexdigest()[:16]


def _read(file: Path, identity: str, index: int) -> bytes | None:
    """The content of a part; None if it is not what was written."""
    try:
        content = file.read_bytes()
    except OSError:  # a bad sector is damage like any other
        return None
    return content if f"-{_checksum(identity, index, content)}." in file.name else None


def _read_boxes(file: Path, identity: str, index: int, to_dataset: tuple[int, ...] | None) -> tuple[Detections, Ints]:
    """All boxes of an image with the dataset's labels, and the mask each came from, ascending from -1."""
    content = _read(file, identity, index)
    if content is None:
        raise ObjectSeekerError(f"{file} was damaged while it was in use: run observe again")
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    column = {name: table.column(name).to_numpy() for name in SCHEMA.names}
    label = column["label"] if to_dataset is None else np.array(to_dataset, np.int64)[column["label"]]
    boxes = Detections(np.stack([column[name] for name in COORDINATES], axis=1), column["score"], label)
    known = boxes.label >= 0
    return boxes[known], column["mask"][known].astype(np.int64)


def _to_parquet(columns: Sequence[Any]) -> bytes:
    """Always the same bytes for the same boxes. Splitting floats by byte makes them smaller, not different."""
    floats = [*COORDINATES, "score"]
    table = pa.Table.from_arrays(
        [
            pa.array(np.ascontiguousarray(values), type=field.type)
            for values, field in zip(columns, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=[name for name in SCHEMA.names if name not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def _check_labels(labels: Ints, names: Sequence[str]) -> None:
    """Refuse at the first image what could not be translated when the run is read."""
    most = len(names) - 1 if names else LARGEST_LABEL
    if len(labels) and not 0 <= labels.min() <= labels.max() <= most:
        raise ObjectSeekerError(
            f"the detector returned the labels {labels.min()} to {labels.max()}; they must lie within 0 to {most}"
            + (", one for each of its class names" if names else "")
        )


def _write_finished(run: Run, index: int, content: bytes, *, broken: bool = False) -> None:
    folder, suffix = (BROKEN, "json") if broken else (PARTS, "parquet")
    name = f"{index:06d}-{_checksum(run.identity, index, content)}.{suffix}"
    _write(run.folder / folder / name, content)


def _write(file: Path, content: bytes) -> None:
    """Write so that, whenever the process or the machine stops, the file is either whole or not there."""
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        with unfinished.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
        _sync_folder(file.parent)
    except OSError as error:
        raise ObjectSeekerError(f"cannot write {file}: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk too."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The system lets go of it when the process ends, however it ends."""
    try:
        _require_ours(folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise ObjectSeekerError(f"cannot write into {folder}: {error.strerror}") from None
    with file:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: nothing keeps two writers apart there
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ObjectSeekerError(f"another process is writing {folder}: wait for it or use another folder") from None
        yield


def _require_ours(folder: Path) -> None:
    """Refuse a folder that holds something else; a run that was killed while it began is fine."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return
    strange = sorted({file.name for file in folder.iterdir()} - {PARTS, BROKEN, LOCK, MANIFEST + UNFINISHED})
    if strange:
        raise ObjectSeekerError(f"{folder} holds {strange[0]!r} but no run: use another folder")


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:5])
    return f"{names} and {len(files) - 5} more" if len(files) > 5 else names
