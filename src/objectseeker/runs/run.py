"""Runs on disk: folders that `observe` writes, and resumes after an interrupt, and all else reads.

    run.json                         settings (see `manifest`)
    images.parquet                   images and ground truth (see `tables`)
    parts/000012-CHECKSUM.parquet    the boxes of part 12 (see `tables`)
    pending/000012-CHECKSUM.parquet  some images of part 12, until all of them are done
    broken/000012-CHECKSUM.json      why image 12 could not be read
    lock                             empty; held by the process that writes (see `writer`)

Part n holds the boxes of the images from n * images_per_part on: one image in a small run, many in a large one. Labels
are the detector's, coordinates and scores are bit-identical (float64: resized boxes do not fit float32), and masks are
not stored, since they follow from the image size, the mask recipe and, if it is rolling, the number of the frame. The
checksum is the start of a SHA-256 over the run's fingerprint, the number and the file's content: its name tells a part
that is damaged, or belongs to another number or run. A run that grows keeps its fingerprint and its parts.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from objectseeker import codec
from objectseeker.core.boxes import Bools
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.core.rules import PruningRule
from objectseeker.core.seeker import Detector
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.datasets.dataset import IndexedSequence
from objectseeker.defense import BATCH, Defense, spec_resolved_from, spec_without_path
from objectseeker.detectors import OPTIONS, require_spec
from objectseeker.detectors.network.fingerprint import hash_files
from objectseeker.detectors.onnx import external_files
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.manifest import Manifest, ObservationSettings, decode_manifest
from objectseeker.runs.tables import MAX_STORED_LABEL, StoredBoxes, decode_boxes, images_in

MANIFEST, PARTS, PENDING, BROKEN, LOCK = "run.json", "parts", "pending", "broken", "lock"
MAX_ATTEMPTS = 20  # to read a run that another process is writing

_PART_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.(?:parquet|json)", re.ASCII)


@dataclass(frozen=True, slots=True)
class UnreadableImage:
    """The file in broken/: the number of an image, and why it could not be read."""

    image: int
    reason: str


def encode_unreadable(image: int, reason: str) -> bytes:
    return codec.write_json(UnreadableImage(image, reason)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """An image that could not be read. `objects` is the number of objects that would have counted."""

    id: str
    path: Path
    reason: str
    objects: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run on disk; `observe` and `open_run` return one.

    `files` are the intact files of each part, `has_boxes` tells for each image whether its boxes are in one of them,
    and `unreadable` states why images could not be read, by number. `damaged` are the files that are not intact, and
    `orphaned` pending files whose images are in a part already: the run was stopped just after that was written.

    Example:
        >>> from objectseeker import open_run
        >>> run = open_run("run")  # doctest: +SKIP
        >>> len(run.images()), run.defense().masks  # doctest: +SKIP
        (24, Halves(lines=30))
    """

    folder: Path
    fingerprint: str
    manifest: Manifest
    files: Mapping[int, Sequence[Path]]
    has_boxes: Bools
    unreadable: Mapping[int, str]
    damaged: tuple[Path, ...]
    orphaned: tuple[Path, ...]
    detector: Detector | None = None  # in memory, if no SPEC names it

    @property
    def has_detector(self) -> bool:
        """Return whether the detector can be loaded again: a SPEC names it, or it is in memory."""
        return self.manifest.detector_spec is not None or self.detector is not None

    @property
    def indices(self) -> list[int]:
        """The numbers of the observed images, ascending."""
        return np.flatnonzero(self.has_boxes).tolist()

    @property
    def finished(self) -> int:
        """The number of images that are done, unreadable ones included."""
        return int(self.has_boxes.sum()) + len(self.unreadable)

    @property
    def complete(self) -> bool:
        return self.finished == len(self.manifest.images)

    def is_finished(self, index: int) -> bool:
        return bool(self.has_boxes[index]) or index in self.unreadable

    def indices_in_part(self, number: int) -> list[int]:
        """Return the numbers of the observed images of a part, ascending."""
        return [index for index in part_range(self.manifest, number) if self.has_boxes[index]]

    @property
    def broken(self) -> tuple[BrokenImage, ...]:
        """The images that could not be read."""
        entries = ((self.manifest.images[index], reason) for index, reason in sorted(self.unreadable.items()))
        unmatched = self.manifest.unmatched_labels
        return tuple(
            BrokenImage(
                entry.id,
                cast(Path, entry.path),
                reason,
                int((~entry.ignore & ~np.isin(entry.ground_truth.label, unmatched)).sum()),
            )
            for entry, reason in entries
        )

    @property
    def has_labels(self) -> bool:
        """Return whether the dataset has ground truth."""
        return self.manifest.dataset_labels is not None

    @property
    def label_map(self) -> LabelMap:
        """The labels of boxes and those of objects; equal if the dataset has no classes."""
        names, labels = self.manifest.detector_names, self.manifest.dataset_labels
        if labels is None:  # a detector without class names may use any label
            return LabelMap(names, names, np.arange(len(names) or MAX_STORED_LABEL + 1))
        return LabelMap(names, self.manifest.dataset_names, np.array(labels, np.int64))

    def defense(self, rule: PruningRule | None = None, threshold_schedule: ThresholdSchedule | None = None) -> Defense:
        """Return the defense that was observed: the run's detector, masks, fill and batch size, with a rule.

        The default rule is that of the detector, with thresholds by `threshold_schedule` if that is given.
        """
        manifest, settings = self.manifest, self.manifest.observation_settings
        if not self.has_detector:
            raise ObjectSeekerError(
                f"the run does not state how its detector {manifest.detector_fingerprint} is loaded, so it has no "
                "defense: open it with open_run(FOLDER, detector=...), observe with a detector named by its SPEC, or "
                "pass a defense"
            )
        spec = manifest.detector_spec
        assert spec is not None or self.detector is not None
        options = dict(manifest.detector_options)
        if settings.batch_size not in (None, BATCH):
            options["batch_size"] = settings.batch_size
        default = Defense.for_detector(
            self.detector if spec is None else spec_resolved_from(spec, self.folder),  # type: ignore[arg-type]
            masks=settings.masks,
            fill=settings.fill,
            fingerprint=manifest.detector_fingerprint,
            **options,
        )
        if rule is None and threshold_schedule is not None:
            rule = threshold_schedule.rule(default.rule, default.rule.base_threshold)
        return self.bind_defense(
            default if rule is None else replace(default, rule=rule, threshold_schedule=threshold_schedule)
        )

    def require_scores(self, *, lowest_base: float | None = None, lowest_masked: float | None = None) -> None:
        """Reject thresholds below the scores that the run stores: boxes would be missing there.

        Args:
            lowest_base: Lowest score of a base box that is used; None: no base box is used.
            lowest_masked: Lowest score of a masked box that is used; None: no masked box is used.

        Raises:
            ObjectSeekerError: The run stores no boxes with such low scores.
        """
        settings = self.manifest.observation_settings
        if missing := settings.missing_scores(lowest_base=lowest_base, lowest_masked=lowest_masked):
            raise ObjectSeekerError(f"{self.folder}: {'; '.join(missing)}")

    def bind_defense(self, defense: Defense) -> Defense:
        """Return `defense` with the fingerprint of the detector that was observed.

        A defense without fingerprint is compared by its SPEC and options; what is returned then rejects a detector that
        is another one after all.

        Raises:
            ObjectSeekerError: The defense has another detector, masks, fill or batch size, or a threshold below the
                scores that the run stores. The message names each difference.
        """
        settings, rule = self.manifest.observation_settings, defense.rule
        if defense.fingerprint is None and not isinstance(defense.detector, str):
            defense = defense.with_fingerprint(defense.load_detector().fingerprint)
        differences = [
            *_detector_differences(self.manifest, defense),
            *_observation_differences(settings, defense),
            *settings.missing_scores(lowest_base=rule.base_threshold, lowest_masked=rule.min_mask_score),
        ]
        if differences:
            raise ObjectSeekerError(
                f"the defense is not that of the run in {self.folder} ({'; '.join(differences)}): tune one on this "
                "run, or observe with that one"
            )
        return defense.with_fingerprint(self.manifest.detector_fingerprint)

    def images(self) -> Sequence[ObservedImage]:
        """Return the finished images in dataset order: detector labels on boxes, dataset labels on objects.

        Objects of classes the detector does not know are omitted; boxes of classes the dataset lacks are kept, since
        the deployed detector has them, too. Images are read on access, and only those of one part are kept.

        Raises:
            ObjectSeekerError: The run has damaged parts.
        """
        if self.damaged:
            raise ObjectSeekerError(
                f"{self.folder} has damaged parts ({_list(self.damaged)}): run observe again with the same settings, "
                "which computes only those again"
            )
        return StoredImages(replace(self, detector=None))  # other processes read images, too

    def boxes_of_part(self, number: int) -> StoredBoxes:
        """Return the stored boxes of the finished images of a part."""
        pieces = [decode_boxes(content) for content in self._contents(number)]
        joined = StoredBoxes.join(pieces)
        missing = {*self.indices_in_part(number)} - joined.observed.keys()
        if missing or len(joined.observed) != sum(len(piece.observed) for piece in pieces):
            raise ObjectSeekerError(
                f"part {number} of {self.folder} was damaged while it was in use: run observe again"
            )
        return joined

    def hashes(self, number: int) -> dict[int, str]:
        """Return the hashes of the files of the finished images of a part, as they were observed."""
        every = (images_in(content) for content in self._contents(number))
        return {index: file_hash for images in every for index, (_, _, file_hash) in images.items()}

    def file_hashes(self) -> list[str]:
        """Return the hash of the file of every image of `images()`, in their order."""
        known: dict[int, str] = {}
        for number in sorted({index // self.manifest.images_per_part for index in self.indices}):
            known |= self.hashes(number)
        return [known[index] for index in self.indices]

    def tuned_images(self, defense: Defense) -> int:
        """Return how many of the images chose this defense, by the content of their files."""
        return 0 if defense.tuned_on is None else defense.count_tuned(self.file_hashes())

    def to_dict(self) -> dict[str, Any]:
        """Summarize the run as plain values."""
        return {
            "run": str(self.folder),
            "fingerprint": self.fingerprint,
            "images": len(self.indices),
            "complete": self.complete,
            "unreadable": {str(image.path): image.reason for image in self.broken},
            "dataset": self.manifest.dataset,
            "detector_fingerprint": self.manifest.detector_fingerprint,
            "observation_settings": codec.to_plain(self.manifest.observation_settings),
        }

    def _repr_html_(self) -> str:
        settings = self.manifest.observation_settings
        rows = {
            "folder": self.folder,
            "dataset": self.manifest.dataset,
            "images": f"{len(self.indices):,} of {len(self.manifest.images):,}, {len(self.unreadable):,} unreadable",
            "detector": self.manifest.detector_fingerprint,
            "masks": f"{settings.masks}, fill {settings.fill}",
            "scores stored from": f"{settings.base_floor} (unmasked), {settings.mask_floor} (masked)",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(str(value))}</td></tr>" for name, value in rows.items())
        return f"<table>{cells}</table>"

    def _contents(self, number: int) -> list[bytes]:
        """Read the files of a part, under whatever names a process that writes has given them meanwhile."""
        files = self.files[number]
        for _ in range(MAX_ATTEMPTS):
            try:
                return [self._content(file, number) for file in files]
            except FileNotFoundError:  # made of what was pending, or pending again because the run grows
                renamed = ((self.folder / name).glob(f"{number:06d}-*.parquet") for name in (PARTS, PENDING))
                files = next(filter(None, map(sorted, renamed)), files)
        raise ObjectSeekerError(f"{files[0]} is gone: run observe again")

    def _content(self, file: Path, number: int) -> bytes:
        content = read_part(file, self.fingerprint, number)
        if content is None:
            raise ObjectSeekerError(f"{file} was damaged while it was in use: run observe again")
        return content


class StoredImages(IndexedSequence[ObservedImage]):
    """The images of a run. Iterating over them reads every part once."""

    def __init__(self, run: Run) -> None:
        self._run, self._indices = run, np.flatnonzero(run.has_boxes)
        self._number, self._stored = -1, StoredBoxes.unreadable_image(-1, "")

    def __len__(self) -> int:
        return len(self._indices)

    def _item(self, position: int) -> ObservedImage:
        index = int(self._indices[position])
        manifest = self._run.manifest
        entry = manifest.images[index]
        number = index // manifest.images_per_part
        if number != self._number:
            self._stored, self._number = self._run.boxes_of_part(number), number
        size = self._stored.observed[index][:2]
        boxes, mask = self._stored.of_image(index)
        masks = recipe_for_frame(manifest.observation_settings.masks, entry.frame_number).masks(*size)
        ends = np.searchsorted(mask, np.arange(-1, len(masks)), side="right").tolist()
        base, *masked = (boxes[start:end] for start, end in zip([0, *ends], ends, strict=False))
        known = ~np.isin(entry.ground_truth.label, manifest.unmatched_labels)
        return ObservedImage(
            id=entry.id,
            path=cast(Path, entry.path),  # a Url has what is needed: a name, and it can be loaded
            observation=Observation(*size, masks, base, masked),
            ground_truth=entry.ground_truth[known],
            ignore=entry.ignore[known],
            crowd=entry.crowd[known],
            frame=entry.frame,
            track=entry.track if entry.frame is None else entry.track[known],
        )


def open_run(folder: str | Path, *, detector: Detector | None = None) -> Run:
    """Open the run in `folder` and verify its checksums; it may be unfinished or have damaged parts.

    Args:
        folder: What `observe` wrote.
        detector: The detector in memory that was observed, if no SPEC names it: its defenses can then be built.

    Returns:
        The run.

    Raises:
        ObjectSeekerError: There is no run in `folder`, its settings or its images are damaged, or the detector is
            another one.

    Example:
        >>> from objectseeker import open_run
        >>> open_run("runs/voc").complete  # doctest: +SKIP
        True
    """
    run = _try_to_read(Path(folder))
    if detector is None:
        return run
    run = replace(run, detector=detector)
    run.bind_defense(replace(run.defense(), detector=detector, fingerprint=None))  # rejects another detector
    return run


def _try_to_read(folder: Path) -> Run:
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return _read_run(folder)
        except FileNotFoundError:  # a process that writes it has just joined pending files: try again
            continue
    return _read_run(folder)


def _read_run(folder: Path) -> Run:
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ObjectSeekerError(
            f"there is no run in {folder} ({error.strerror}): make one with objectseeker observe"
        ) from None
    try:
        manifest, fingerprint = decode_manifest(content, folder / MANIFEST)
    except ObjectSeekerError:
        if (folder / MANIFEST).read_bytes() != content:  # it has just grown: try again
            raise FileNotFoundError(folder / MANIFEST) from None
        raise
    damaged: list[Path] = []
    orphaned: list[Path] = []
    unreadable: dict[int, str] = {}
    for file, index in numbered_files(folder / BROKEN):
        record = read_part(file, fingerprint, index)
        if record is None or index in unreadable:
            damaged.append(file)
        else:
            unreadable[index] = codec.read_json(record, UnreadableImage, str(file)).reason
    files: dict[int, list[Path]] = {}
    has_boxes = np.zeros(len(manifest.images), np.bool_)
    for name in (PARTS, PENDING):
        for file, number in numbered_files(folder / name):
            part = read_part(file, fingerprint, number)
            stored = {} if part is None else images_in(part)
            indices = [index for index in part_range(manifest, number) if index in stored]  # it may just have grown
            known = has_boxes[indices].any()
            if part is None or not unreadable.keys().isdisjoint(indices) or (known and name == PARTS):
                damaged.append(file)
            elif known:
                orphaned.append(file)
            else:
                has_boxes[indices] = True
                files.setdefault(number, []).append(file)
    return Run(folder, fingerprint, manifest, files, has_boxes, unreadable, tuple(sorted(damaged)), tuple(orphaned))


def part_range(manifest: Manifest, number: int) -> range:
    """Return the images of part `number`."""
    start = number * manifest.images_per_part
    return range(start, min(start + manifest.images_per_part, len(manifest.images)))


def checksum(fingerprint: str, number: int, content: bytes) -> str:
    return hashlib.sha256(f"{fingerprint} {number}\n".encode() + content).hexdigest()[:16]


def read_part(file: Path, fingerprint: str, number: int) -> bytes | None:
    """Return the content of a part; None if it is not what was written.

    A part that cannot be read now may be intact: the user may lack a permission, a network disk may be offline. That is
    an error, never damage, since damaged parts are removed and computed again.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ObjectSeekerError(f"cannot read {file}: {error.strerror}; it was left unchanged") from None
    return content if f"-{checksum(fingerprint, number, content)}." in file.name else None


def numbered_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Iterate over the parts in a folder with the numbers in their names."""
    for file in sorted(folder.glob("*")):
        name = _PART_NAME.fullmatch(file.name)
        if name is not None:
            yield file, int(name[1])


def _list(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:5])
    return f"{names} and {len(files) - 5} more" if len(files) > 5 else names


# Whether a defense is that of a run: the certified defense must be the deployed one.


def _detector_differences(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """Name how the detectors differ. A fingerprint covers everything: weights, mask mode, batches, device."""
    options = manifest.detector_options
    if defense.fingerprint is not None:
        if defense.fingerprint != manifest.detector_fingerprint:
            yield f"its detector is {defense.fingerprint}, the run's {manifest.detector_fingerprint}"
    elif manifest.detector_spec is None or spec_without_path(defense.detector_name) != spec_without_path(
        manifest.detector_spec
    ):
        observed = manifest.detector_spec or manifest.detector_fingerprint
        yield f"its detector is {defense.detector_name}, the run's {observed}"
    else:
        yield from _file_difference(manifest, defense)
        for option in OPTIONS:
            expected, actual = options.get(option), getattr(defense, option)
            if actual != expected and option not in ("batch_size", "class_names"):
                yield f"its {option} is {_format(actual)}, the run's {_format(expected)}"
        if manifest.observation_settings.batch_size is None and defense.batch_size != options.get("batch_size"):
            yield f"its batch size is {_format(defense.batch_size)}, the run's {_format(options.get('batch_size'))}"
    if defense.class_names not in (options.get("class_names"), manifest.detector_names):
        yield "its class names are not the run's"


def _file_difference(manifest: Manifest, defense: Defense) -> Iterator[str]:
    """Compare the ONNX file that the defense names, if it exists here, with the one that was observed."""
    if not isinstance(defense.detector, str):
        return
    kind, name = require_spec(defense.detector)
    if kind == "onnx" and Path(name).is_file():
        file = Path(name)
        if not manifest.detector_fingerprint.endswith(hash_files(file, *external_files(file))):
            yield f"its detector {defense.detector} is another file than the run's {manifest.detector_fingerprint}"


def _observation_differences(settings: ObservationSettings, defense: Defense) -> Iterator[str]:
    """Name how the views that were observed differ from those of the defense."""
    expected = ObservationSettings.from_defense(defense)
    for name in ("masks", "fill", "batch_size"):
        ours, theirs = getattr(settings, name), getattr(expected, name)
        if ours != theirs and not (name == "batch_size" and ours is None):
            yield f"its {name.replace('_', ' ')} {'are' if name == 'masks' else 'is'} {theirs}, the run's {ours}"


def _format(value: object) -> str:
    return "the detector's default" if value is None else str(value)
