"""Observations on disk: a folder that `observe` writes, that survives being killed, and that everything else reads.

    run.json                         settings (see `manifest`)
    images.parquet                   images and ground truth (see `listing`)
    parts/000012-CHECKSUM.parquet    the boxes of part 12: image, mask (-1: untouched), x1, y1, x2, y2, score, label
    pending/000012-CHECKSUM.parquet  some images of part 12, until all of them are done
    broken/000012-CHECKSUM.json      why image 12 could not be read
    lock                             empty; held by the process that writes (see `writer`)

Part n holds the boxes of the images from n * images_per_part on: one image in a small run, many in a large one. Labels
are the detector's, coordinates and scores are kept to the last bit (float64: resized-back boxes do not fit float32),
and masks are not stored, since they follow from the image size, the number of lines and the choice of half masks or
pairs of them. The checksum is the start of a SHA-256 over the run's identity, the number and the file's content: a
damaged part, or one of another place or run, is told by its name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast, overload

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import MaskChoice, Masks, make_masks
from objectseeker.core.recipes import pair_counts
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.runs.manifest import Manifest, decode
from objectseeker.runs.findings import Findings, sizes_in
from objectseeker.runs.findings import decode as decode_part

MANIFEST, PARTS, PENDING, BROKEN, LOCK = "run.json", "parts", "pending", "broken", "lock"

MOST_MASKS = 2**15 - 1  # numbered in 16 bits
MOST_LINES: dict[MaskChoice, int] = {
    "halves": MOST_MASKS // 4,
    "pairs": max(k for k in range(1, 100) if pair_counts(k)[1] <= MOST_MASKS),
}

MOST_SIZES = 1000  # image sizes whose masks are kept at a time

_PART_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.(?:parquet|json)")


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """An image that could not be read: it is left out, and so are its `objects` (those that would have counted)."""

    id: str
    path: Path
    reason: str
    objects: int


class Parts(Mapping[int, Path]):
    """The file that each finished image is in. What it keeps grows with the number of files, not of images."""

    def __init__(
        self, manifest: Manifest, whole: Mapping[int, Path], begun: Mapping[int, Mapping[int, Path]], broken: Ints
    ) -> None:
        self.whole, self.begun = whole, begun  # parts that have all their images, and the images of those that do not
        self._manifest, self._broken = manifest, broken
        sizes = (len(part_range(manifest, number)) for number in whole)
        not_there = np.isin(broken // manifest.images_per_part, list(whole)).sum()
        self._count = sum(sizes) - int(not_there) + sum(map(len, begun.values()))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for number in sorted({*self.whole, *self.begun}):
            yield from self.images_of(number)

    def __getitem__(self, index: int) -> Path:
        number = index // self._manifest.images_per_part
        if number in self.begun:
            return self.begun[number][index]
        if number in self.whole and index in self.images_of(number):
            return self.whole[number]
        raise KeyError(index)

    def images_of(self, number: int) -> list[int]:
        """The finished images of a part, in order."""
        if number in self.begun:
            return sorted(self.begun[number])
        everything = part_range(self._manifest, number)
        start, end = np.searchsorted(self._broken, [everything.start, everything.stop]).tolist()
        return sorted(set(everything) - set(self._broken[start:end].tolist()))

    def files_of(self, number: int) -> list[Path]:
        """The files that have the finished images of a part."""
        return sorted(set(self.begun[number].values())) if number in self.begun else [self.whole[number]]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run as found on disk. `parts` are the intact parts by image number, `damaged` the files that are not.

    `superfluous` are pending files whose images are in a part already: the run was stopped just after that was written.
    """

    folder: Path
    identity: str
    manifest: Manifest
    parts: Parts
    unreadable: Mapping[int, str]
    damaged: tuple[Path, ...]
    superfluous: tuple[Path, ...]

    @property
    def finished(self) -> int:
        """How many images are done with, the broken ones included."""
        return len(self.parts) + len(self.unreadable)

    @property
    def complete(self) -> bool:
        return self.finished == len(self.manifest.images)

    def is_finished(self, index: int) -> bool:
        number = index // self.manifest.images_per_part
        return number in self.parts.whole or index in self.parts.begun.get(number, ()) or index in self.unreadable

    @property
    def broken(self) -> tuple[BrokenImage, ...]:
        """The images that could not be read."""
        records = ((self.manifest.images[index], reason) for index, reason in sorted(self.unreadable.items()))
        excluded = self.manifest.excluded_labels
        return tuple(
            BrokenImage(
                record.id,
                cast(Path, record.path),
                reason,
                int((~record.ignore & ~np.isin(record.truth.label, excluded)).sum()),
            )
            for record, reason in records
        )

    def images(self, *, lines: int | None = None) -> Sequence[ObservedImage]:
        """The finished images, in dataset order, with the dataset's labels (the detector's where there are none).

        Boxes of classes the dataset does not have and objects of classes the detector does not know are left out.
        With `lines`, only that many of the stored lines are used, as evenly spaced as they come.

        They are read when they are asked for, and only those of one part are kept.
        """
        if self.damaged:
            raise ObjectSeekerError(
                f"{self.folder} has damaged parts ({_listed(self.damaged)}): run observe again with the same settings, "
                "only those are computed again"
            )
        if lines is not None:
            line_subset(self.manifest.lines, lines)  # refuses too many before anything is read
        return StoredImages(self, lines)

    def findings(self, number: int) -> Findings:
        """What is stored of the finished images of a part."""
        return Findings.join([self._read(file, number) for file in self.parts.files_of(number)])

    def _read(self, file: Path, number: int) -> Findings:
        content = read_part(file, self.identity, number)
        if content is None:
            raise ObjectSeekerError(f"{file} was damaged while it was in use: run observe again")
        found = decode_part(content)
        if not found.sizes:  # of format 1 or 2, where a part was one image and the manifest knew its size
            size = self.manifest.images[number].size
            assert size is not None  # a part was only written for an image of known size
            found = Findings(found.image, found.mask, found.boxes, {number: size}, {})
        return found


class StoredImages(Sequence[ObservedImage]):
    """The images of a run. Going through them in order reads every part once."""

    def __init__(self, run: Run, lines: int | None) -> None:
        self._run, self._lines = run, lines
        self._number, self._findings = -1, Findings.join([Findings.unreadable(-1, "")])
        self._masks: dict[tuple[int, int], Masks] = {}

    def __len__(self) -> int:
        return len(self._run.parts)

    def __iter__(self) -> Iterator[ObservedImage]:
        return map(self._image, self._run.parts)

    @overload
    def __getitem__(self, place: int) -> ObservedImage: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ObservedImage]: ...
    def __getitem__(self, place: int | slice) -> ObservedImage | Sequence[ObservedImage]:
        if isinstance(place, slice):
            return [self._image(index) for index in self._order[place].tolist()]
        return self._image(int(self._order[place]))

    @cached_property
    def _order(self) -> Ints:
        return np.fromiter(self._run.parts, np.int64, len(self))

    def _image(self, index: int) -> ObservedImage:
        manifest = self._run.manifest
        record = manifest.images[index]
        number = index // manifest.images_per_part
        if number != self._number:
            self._findings, self._number = self._run.findings(number), number
        size = self._findings.sizes[index]
        boxes, mask = _relabelled(*self._findings.of(index), manifest.to_dataset)
        masks = self._masks_of(size)
        ends = np.searchsorted(mask, np.arange(-1, len(masks)), side="right").tolist()
        base, *masked = (boxes[start:end] for start, end in zip([0, *ends], ends, strict=False))
        observation = Observation(*size, masks, base, masked)
        known = ~np.isin(record.truth.label, manifest.excluded_labels)
        return ObservedImage(
            id=record.id,
            path=cast(Path, record.path),  # a Url has all that is asked of it: a name, and that it can be loaded
            observation=observation if self._lines is None else restrict(observation, self._lines),
            truth=record.truth[known],
            ignore=record.ignore[known],
            crowd=record.crowd[known],
        )

    def _masks_of(self, size: tuple[int, int]) -> Masks:
        """Images of one size share their masks; there are few sizes in most datasets, and at most MOST_SIZES here."""
        if size not in self._masks:
            if len(self._masks) >= MOST_SIZES:
                self._masks.clear()
            self._masks[size] = make_masks(self._run.manifest.masks, *size, self._run.manifest.lines)
        return self._masks[size]


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
    damaged: list[Path] = []
    superfluous: list[Path] = []
    unreadable: dict[int, str] = {}
    for file, index in _numbered(folder / BROKEN):
        found = read_part(file, identity, index)
        if found is None or index in unreadable:
            damaged.append(file)
        else:
            unreadable[index] = json.loads(found)["reason"]
    whole: dict[int, Path] = {}
    begun: dict[int, dict[int, Path]] = {}
    for place in (PARTS, PENDING):
        for file, number in _numbered(folder / place):
            content_of = read_part(file, identity, number)
            sizes = {} if content_of is None else sizes_in(content_of) or {number: (0, 0)}
            known = number in whole or not begun.get(number, {}).keys().isdisjoint(sizes)
            if content_of is None or not unreadable.keys().isdisjoint(sizes) or (known and place == PARTS):
                damaged.append(file)
            elif known:
                superfluous.append(file)
            elif place == PARTS and all(i in sizes or i in unreadable for i in part_range(manifest, number)):
                whole[number] = file
            else:
                begun.setdefault(number, {}).update(dict.fromkeys(sizes, file))
    files = Parts(manifest, whole, begun, np.array(sorted(unreadable), np.int64))
    return Run(folder, identity, manifest, files, unreadable, tuple(sorted(damaged)), tuple(superfluous))


def part_range(manifest: Manifest, number: int) -> range:
    """The images of part `number`."""
    start = number * manifest.images_per_part
    return range(start, min(start + manifest.images_per_part, len(manifest.images)))


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


def checksum(identity: str, number: int, content: bytes) -> str:
    return hashlib.sha256(f"{identity} {number}\n".encode() + content).hexdigest()[:16]


def read_part(file: Path, identity: str, number: int) -> bytes | None:
    """The content of a part; None if it is not what was written."""
    try:
        content = file.read_bytes()
    except OSError:  # a bad sector is damage like any other
        return None
    return content if f"-{checksum(identity, number, content)}." in file.name else None


def _numbered(folder: Path) -> Iterator[tuple[Path, int]]:
    """The parts in a folder with the numbers in their names."""
    for file in sorted(folder.glob("*")):
        name = _PART_NAME.fullmatch(file.name)
        if name is not None:
            yield file, int(name[1])


def _relabelled(boxes: Detections, mask: Ints, to_dataset: tuple[int, ...] | None) -> tuple[Detections, Ints]:
    """Boxes with the dataset's labels, and the mask each came from; those of other classes are left out."""
    if to_dataset is None:
        return boxes, mask
    label = np.array(to_dataset, np.int64)[boxes.label]
    known = label >= 0
    return Detections(boxes.xyxy[known], boxes.score[known], label[known]), mask[known]


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:5])
    return f"{names} and {len(files) - 5} more" if len(files) > 5 else names
