"""Observations on disk: a folder that `observe` writes, that survives being killed, and that everything else reads.

    run.json                         settings (see `manifest`)
    images.parquet                   images and ground truth (see `listing`)
    parts/000012-CHECKSUM.parquet    the boxes of part 12: image, mask (-1: untouched), x1, y1, x2, y2, score, label
    pending/000012-CHECKSUM.parquet  some images of part 12, until all of them are done
    broken/000012-CHECKSUM.json      why image 12 could not be read
    lock                             empty; held by the process that writes (see `writer`)

Part n holds the boxes of the images from n * images_per_part on: one image in a small run, many in a large one. Labels
are the detector's, coordinates and scores are kept to the last bit (float64: resized-back boxes do not fit float32),
and masks are not stored, since they follow from the image size, the mask recipe and, if it is rolling, the number of
the frame. The checksum is the start of a SHA-256 over the run's identity, the number and the file's content: a damaged
part, or one of another place or run, is told by its name. A run that grows keeps its identity and its parts.
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

from objectseeker.core.boxes import Ints
from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.binding import bind_defense, run_defense
from objectseeker.runs.manifest import Manifest, decode
from objectseeker.runs.stored_boxes import LARGEST_STORED_LABEL, StoredBoxes, images_in
from objectseeker.runs.stored_boxes import decode as decode_part

MANIFEST, PARTS, PENDING, BROKEN, LOCK = "run.json", "parts", "pending", "broken", "lock"

MOST_LOOKS = 20  # at a run that another process is writing

_PART_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.(?:parquet|json)")


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """An image that could not be read: it is left out, and so are its `objects` (those that would have counted)."""

    id: str
    path: Path
    reason: str
    objects: int


class PartIndex(Mapping[int, Path]):
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

    def file_of(self, number: int, index: int) -> Path:
        """The file that has this finished image of this part."""
        return self.begun[number][index] if number in self.begun else self.whole[number]

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
    parts: PartIndex
    unreadable: Mapping[int, str]
    damaged: tuple[Path, ...]
    orphaned: tuple[Path, ...]

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
        entries = ((self.manifest.images[index], reason) for index, reason in sorted(self.unreadable.items()))
        excluded = self.manifest.excluded_labels
        return tuple(
            BrokenImage(
                entry.id,
                cast(Path, entry.path),
                reason,
                int((~entry.ignore & ~np.isin(entry.truth.label, excluded)).sum()),
            )
            for entry, reason in entries
        )

    @property
    def labeled(self) -> bool:
        """Whether the dataset says where its objects are."""
        return self.manifest.to_dataset is not None

    @property
    def vocabulary(self) -> LabelMap:
        """The labels of the boxes and those of the objects; the same where the dataset has no classes."""
        names, to_dataset = self.manifest.detector_names, self.manifest.to_dataset
        if to_dataset is None:  # a detector without class names may use any label
            return LabelMap(names, names, np.arange(len(names) or LARGEST_STORED_LABEL + 1))
        return LabelMap(names, self.manifest.dataset_names, np.array(to_dataset, np.int64))

    def defense(self, rule: AnyRule | None = None, follow: ThresholdSchedule | None = None) -> Defense:
        """The defense with this rule that the run is about: its detector, its masks, its fill, its batches.

        Without a rule it is the default one of the detector, or that one's with scores that follow by `follow`.
        """
        return self.bind_defense(run_defense(self.manifest, rule, follow, self.folder))

    def bind_defense(self, defense: Defense) -> Defense:
        """`defense`, bound to the detector that was observed; one that is about anything else is refused.

        One that names no identity is compared by its SPEC and options; what is bound then refuses to run with a
        detector that is another one after all.
        """
        return bind_defense(self.manifest, defense, self.folder)

    def images(self) -> Sequence[ObservedImage]:
        """The finished images, in dataset order: boxes with the detector's labels, objects with the dataset's.

        Objects of classes the detector does not know are left out; boxes of classes the dataset lacks are kept, since
        the deployed detector has them, too.

        They are read when they are asked for, and only those of one part are kept.
        """
        if self.damaged:
            raise ObjectSeekerError(
                f"{self.folder} has damaged parts ({_listed(self.damaged)}): run observe again with the same settings, "
                "only those are computed again"
            )
        return StoredImages(self)

    def findings(self, number: int) -> StoredBoxes:
        """What is stored of the finished images of a part."""
        every = [decode_part(content) for content in self._contents(number)]
        joined = StoredBoxes.join(every)
        if len(joined.sizes) != sum(len(one.sizes) for one in every) or not joined.sizes.keys() >= {
            *self.parts.images_of(number)
        }:
            raise ObjectSeekerError(
                f"part {number} of {self.folder} was damaged while it was in use: run observe again"
            )
        return joined

    def hashes(self, number: int) -> dict[int, str]:
        """The hashes of the files of the finished images of a part, as they were observed."""
        every = (images_in(content)[1] for content in self._contents(number))
        return {index: file for some in every for index, file in some.items()}

    def _contents(self, number: int) -> list[bytes]:
        """What is in the files of a part, under whatever names a process that writes has given it meanwhile."""
        files = self.parts.files_of(number)
        for _ in range(MOST_LOOKS):
            try:
                return [self._content(file, number) for file in files]
            except FileNotFoundError:  # put together of what was pending, or pending again because the run grows
                there = ((self.folder / place).glob(f"{number:06d}-*.parquet") for place in (PARTS, PENDING))
                files = next(filter(None, map(sorted, there)), files)
        raise ObjectSeekerError(f"{files[0]} is gone: run observe again")

    def _content(self, file: Path, number: int) -> bytes:
        content = read_part(file, self.identity, number)
        if content is None:
            raise ObjectSeekerError(f"{file} was damaged while it was in use: run observe again")
        return content


class StoredImages(Sequence[ObservedImage]):
    """The images of a run. Going through them in order reads every part once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._number, self._findings = -1, StoredBoxes.join([StoredBoxes.unreadable(-1, "")])

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
        entry = manifest.images[index]
        number = index // manifest.images_per_part
        if number != self._number:
            self._findings, self._number = self._run.findings(number), number
        size = self._findings.sizes[index]
        boxes, mask = self._findings.of(index)
        masks = recipe_for_frame(manifest.observing.masks, entry.frame_number).masks(*size)
        ends = np.searchsorted(mask, np.arange(-1, len(masks)), side="right").tolist()
        base, *masked = (boxes[start:end] for start, end in zip([0, *ends], ends, strict=False))
        known = ~np.isin(entry.truth.label, manifest.excluded_labels)
        return ObservedImage(
            id=entry.id,
            path=cast(Path, entry.path),  # a Url has all that is asked of it: a name, and that it can be loaded
            observation=Observation(*size, masks, base, masked),
            truth=entry.truth[known],
            ignore=entry.ignore[known],
            crowd=entry.crowd[known],
            frame=entry.frame,
            track=entry.track if entry.frame is None else entry.track[known],
        )


def open_run(folder: str | Path) -> Run:
    """The run in `folder`, every part's checksum verified; it may be unfinished or have damaged parts."""
    for _ in range(MOST_LOOKS - 1):
        try:
            return _as_found(Path(folder))
        except FileNotFoundError:  # a process that writes it has just put pending files together: look again
            continue
    return _as_found(Path(folder))


def _as_found(folder: Path) -> Run:
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ObjectSeekerError(
            f"there is no run in {folder} ({error.strerror}): make one with objectseeker observe"
        ) from None
    try:
        manifest, identity = decode(content, folder / MANIFEST)
    except ObjectSeekerError:
        if (folder / MANIFEST).read_bytes() != content:  # it has just grown: look again
            raise FileNotFoundError(folder / MANIFEST) from None
        raise
    damaged: list[Path] = []
    superfluous: list[Path] = []
    unreadable: dict[int, str] = {}
    for file, index in _numbered(folder / BROKEN):
        word = read_part(file, identity, index)
        if word is None or index in unreadable:
            damaged.append(file)
        else:
            unreadable[index] = json.loads(word)["reason"]
    whole: dict[int, Path] = {}
    begun: dict[int, dict[int, Path]] = {}
    for place in (PARTS, PENDING):
        for file, number in _numbered(folder / place):
            content_of = read_part(file, identity, number)
            sizes = {} if content_of is None else images_in(content_of)[0]
            known = number in whole or not begun.get(number, {}).keys().isdisjoint(sizes)
            if content_of is None or not unreadable.keys().isdisjoint(sizes) or (known and place == PARTS):
                damaged.append(file)
            elif known:
                superfluous.append(file)
            elif place == PARTS and all(i in sizes or i in unreadable for i in part_range(manifest, number)):
                whole[number] = file
            else:
                begun.setdefault(number, {}).update(dict.fromkeys(sizes, file))
    files = PartIndex(manifest, whole, begun, np.array(sorted(unreadable), np.int64))
    return Run(folder, identity, manifest, files, unreadable, tuple(sorted(damaged)), tuple(superfluous))


def part_range(manifest: Manifest, number: int) -> range:
    """The images of part `number`."""
    start = number * manifest.images_per_part
    return range(start, min(start + manifest.images_per_part, len(manifest.images)))


def checksum(identity: str, number: int, content: bytes) -> str:
    return hashlib.sha256(f"{identity} {number}\n".encode() + content).hexdigest()[:16]


def read_part(file: Path, identity: str, number: int) -> bytes | None:
    """The content of a part; None if it is not what was written.

    A part that cannot be read now may be whole: the user may lack a permission, a network disk may be away. That is an
    error, never damage, since damaged parts are removed and computed again.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {file}: {error.strerror}; it was left as it is") from None
    return content if f"-{checksum(identity, number, content)}." in file.name else None


def _numbered(folder: Path) -> Iterator[tuple[Path, int]]:
    """The parts in a folder with the numbers in their names."""
    for file in sorted(folder.glob("*")):
        name = _PART_NAME.fullmatch(file.name)
        if name is not None:
            yield file, int(name[1])


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:5])
    return f"{names} and {len(files) - 5} more" if len(files) > 5 else names
