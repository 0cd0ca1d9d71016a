"""Writing a run: what is finished stays finished, whenever the process or the machine stops.

Every file is an atomic write: it appears under its name only when it is complete and on the disk. A part is written
when all of its images are done, from new boxes and from pending files, which are then removed: its bytes follow from
the boxes alone, in whatever order they came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import groupby, islice, zip_longest
from pathlib import Path

from objectseeker.datasets import DatasetImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import PARTIAL_SUFFIX, lock_file, write_atomic
from objectseeker.files.images import ImageUnavailableError, hash_of
from objectseeker.files.remote import Url
from objectseeker.runs.manifest import GROWN_INDEX, INDEX, Manifest, ObservationSettings, encode_manifest
from objectseeker.runs.run import (
    BROKEN,
    LOCK,
    MANIFEST,
    PARTS,
    PENDING,
    Run,
    checksum,
    encode_unreadable,
    open_run,
    part_range,
    read_part,
)
from objectseeker.runs.tables import (
    ImageIndex,
    StoredBoxes,
    decode_boxes,
    encode_boxes,
    write_image_index,
)
from objectseeker.text import display_path

RECENT_SECONDS = 3600.0  # for the time between reading and writing, and for clocks that disagree
SPOT_CHECKS = 32  # images that are read again in any case
FLUSH_INTERVAL = 1.0  # seconds for which boxes may be held in memory, so that cheap images share a file
MAX_QUEUED_PARTS = 8  # waiting for the disk: making sure of a file takes longer than a GPU takes for an image


class RunWriter:
    """Adds boxes to a run. `run` is the run as it was when the writer was opened."""

    def __init__(self, run: Run, disk: Executor) -> None:
        self.run = run
        self._left: dict[int, set[int]] = {}  # of the partial parts, the images that are missing
        self._held: dict[int, list[StoredBoxes]] = {}  # by part: what is not on the disk yet
        self._pending: dict[int, list[Path]] = {}
        self._written = time.monotonic()
        self._disk = disk
        self._queued: deque[Future[Path]] = deque()  # parts on their way to the disk
        for number, files in run.files.items():
            if PENDING in (file.parent.name for file in files):
                self._pending[number] = [*files]
                if not self._left_of(number):  # stopped just before the part was made of them
                    self._finish(number)

    def add(self, stored: StoredBoxes) -> None:
        """Add images of one part.

        They are on the disk within `FLUSH_INTERVAL` seconds, or as soon as it has finished the files before. A disk
        that fails raises an error in a later call, at the latest in `flush`.
        """
        (number,) = {index // self.run.manifest.images_per_part for index in stored.indices}
        left = self._left_of(number)
        for index, reason in stored.broken.items():
            self._write(BROKEN, index, encode_unreadable(index, reason), "json")
        if stored.observed:
            self._held.setdefault(number, []).append(stored)
        left.difference_update(stored.indices)
        if not left:
            self._finish(number)
        elif time.monotonic() - self._written > FLUSH_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Put everything on the disk."""
        for number, held in self._held.items():
            self._pending.setdefault(number, []).append(self._write_boxes(PENDING, number, held))
        self._held.clear()
        self._wait(0)
        self._written = time.monotonic()

    def _left_of(self, number: int) -> set[int]:
        if number not in self._left:
            indices = part_range(self.run.manifest, number)
            self._left[number] = {index for index in indices if not self.run.is_finished(index)}
        return self._left[number]

    def _finish(self, number: int) -> None:
        pieces = self._held.pop(number, [])
        pending = self._pending.pop(number, [])
        for file in pending:
            content = read_part(file, self.run.fingerprint, number)
            if content is None:
                raise ObjectSeekerError(f"{file} was damaged while it was in use: run observe again")
            pieces.append(decode_boxes(content))
        if pieces:  # else none of its images could be read
            self._queued.append(self._disk.submit(self._write_boxes, PARTS, number, pieces))
        self._wait(0 if pending else MAX_QUEUED_PARTS)  # pending files go when the part is on the disk
        for file in pending:
            file.unlink()
        del self._left[number]

    def _wait(self, max_count: int) -> None:
        """Wait until at most `max_count` parts are queued for the disk."""
        while len(self._queued) > max_count:
            self._queued.popleft().result()

    def _write_boxes(self, folder: str, number: int, pieces: list[StoredBoxes]) -> Path:
        return self._write(folder, number, encode_boxes(StoredBoxes.join(pieces)), "parquet")

    def _write(self, folder: str, number: int, content: bytes, suffix: str) -> Path:
        name = f"{number:06d}-{checksum(self.run.fingerprint, number, content)}.{suffix}"
        (self.run.folder / folder).mkdir(exist_ok=True)
        file = self.run.folder / folder / name
        write_atomic(file, lambda stream: stream.write(content))
        return file


@contextmanager
def open_writer(folder: str | Path, manifest: Manifest) -> Iterator[RunWriter]:
    """Open the run in `folder`, new or with the same settings, and lock it against other writers.

    It may grow. Damaged parts are removed, so that their images count as not finished; the writer's run lists them.
    """
    folder = Path(folder)
    with _locked(folder):
        for pattern in (MANIFEST, INDEX, GROWN_INDEX, f"{PARTS}/*", f"{PENDING}/*", f"{BROKEN}/*"):
            for leftover in folder.glob(pattern + PARTIAL_SUFFIX):
                leftover.unlink()
        for name in (PARTS, BROKEN):
            (folder / name).mkdir(exist_ok=True)
        if not (folder / MANIFEST).exists():
            _write_manifest(folder, replace(manifest, detector_trusted=False), INDEX)
        _finish_growth(folder)
        run = open_run(folder)
        resumed = resumed_manifest(run, manifest)
        if resumed is not run.manifest:
            _write_manifest(folder, resumed, GROWN_INDEX)
            _finish_growth(folder)
            run = open_run(folder)
        for file in (*run.damaged, *run.orphaned):
            file.unlink()
        with ThreadPoolExecutor(1) as disk:  # the lock is held until nothing is being written any more
            writer = RunWriter(_reopen_incomplete_parts(run), disk)
            try:
                yield writer
            finally:
                writer.flush()


def _write_manifest(folder: Path, manifest: Manifest, index_name: str) -> None:
    """Write run.json, after the index of its images under this name, unless that exists already."""
    index = manifest.images.file if isinstance(manifest.images, ImageIndex) else folder / index_name
    if not isinstance(manifest.images, ImageIndex):
        write_atomic(index, lambda stream: write_image_index(manifest.images, stream))
    content = encode_manifest(manifest, index)
    write_atomic(folder / MANIFEST, lambda stream: stream.write(content))


def _finish_growth(folder: Path) -> None:
    """Rename a longer image index if run.json refers to it; else the run was stopped before it had grown."""
    grown = folder / GROWN_INDEX
    if grown.exists():
        images = open_run(folder).manifest.images
        if isinstance(images, ImageIndex) and images.file == grown:
            grown.replace(folder / INDEX)
        else:
            grown.unlink()


def _reopen_incomplete_parts(run: Run) -> Run:
    """Make parts pending again that lack an image, because the record that it is unreadable was lost."""
    incomplete = [
        file
        for number, files in run.files.items()
        if not all(map(run.is_finished, part_range(run.manifest, number)))
        for file in files
        if file.parent.name == PARTS
    ]
    if not incomplete:
        return run
    (run.folder / PENDING).mkdir(exist_ok=True)
    for file in incomplete:
        file.rename(run.folder / PENDING / file.name)
    return replace(open_run(run.folder), damaged=run.damaged)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock."""
    try:
        _require_run_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise ObjectSeekerError(f"cannot write into {folder}: {error.strerror}") from None
    with file:
        lock_file(file, folder)
        yield


def _require_run_folder(folder: Path) -> None:
    """Reject a folder with other content; a run that was killed while it was created is fine."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return
    known = {PARTS, BROKEN, LOCK, "images", INDEX, INDEX + PARTIAL_SUFFIX, MANIFEST + PARTIAL_SUFFIX}
    unknown = sorted({file.name for file in folder.iterdir()} - known)
    if unknown:
        raise ObjectSeekerError(f"{folder} holds {unknown[0]!r} but no run: use another folder")


# Resuming: may the requested settings continue a run, and what does it become?
#
# Whether the images are still those that were observed is decided without reading all of them again. A run stores a
# hash of every image's file with its boxes. A file that changed since its boxes were written, or shortly before,
# according to the file system, is read again and must have that hash; so must a few others, spread over the run, in
# case a whole folder was replaced. Images at addresses are not checked.


def resumed_manifest(run: Run, requested: Manifest) -> Manifest:
    """Return the manifest with which `run` resumes: its own, except for more images and more trust.

    Raises:
        ObjectSeekerError: Two detectors, two datasets or two ways of observing would be mixed in one run. The message
            names each difference.
    """
    existing, requested_count = len(run.manifest.images), len(requested.images)
    grows = requested_count > existing
    computes = grows or not run.complete
    differences = [*_setting_differences(run.manifest, requested), *_dataset_differences(run, requested)]
    if computes:
        differences += _software_differences(run.manifest, requested)
    if differences:
        raise ObjectSeekerError(
            f"{run.folder} holds another run ({'; '.join(differences)}): use the settings it was started with, or "
            "another folder"
        )
    if requested_count < existing:
        raise ObjectSeekerError(
            f"{run.folder} is a run of {existing:,} images, and {requested_count:,} are fewer: a run can only "
            "grow, so request as many or more, or use another folder"
        )
    if (path := first_changed_image(run, requested.images)) is not None:
        raise ObjectSeekerError(
            f"{display_path(path)} is another image than the one that was observed into {run.folder}: restore "
            "that one, or use another folder"
        )
    manifest = run.manifest
    unverified = requested.unverified_reason or manifest.unverified_reason
    if unverified and computes and run.finished:
        if not requested.detector_trusted:
            raise ObjectSeekerError(
                f"{run.folder} has {run.finished:,} finished images, and {unverified}; if this is the detector that "
                "they were observed with, confirm it with --trust-detector, else use another folder"
            )
        manifest = replace(manifest, detector_trusted=True)
    return replace(manifest, limit=requested.limit, images=requested.images) if grows else manifest


def first_changed_image(run: Run, entries: Iterable[DatasetImage]) -> Path | None:
    """Return the first image that is not the one observed; `entries` are the images as of now."""
    if not run.files:
        return None
    step = max(len(run.manifest.images) // SPOT_CHECKS, 1)
    size = run.manifest.images_per_part
    numbered = enumerate(islice(entries, len(run.manifest.images)))
    for number, part in groupby(numbered, key=lambda pair: pair[0] // size):
        if number not in run.files:
            continue
        recent = min(file.stat().st_mtime for file in run.files[number]) - RECENT_SECONDS
        observed = {*run.indices_in_part(number)}
        suspects = [
            (index, entry.path)
            for index, entry in part
            if index in observed and not isinstance(entry.path, Url)
            if index % step == 0 or _changed_at(entry.path) > recent
        ]
        hashes = run.hashes(number) if suspects else {}
        for index, path in suspects:
            if _differs(path, hashes[index]):
                return path
    return None


def _changed_at(path: Path) -> float:
    """Return when the file was last written, renamed or put in place of another; 0 if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def _differs(path: Path, known: str) -> bool:
    try:
        return bool(known) and hash_of(path) != known
    except ImageUnavailableError:  # a missing file cannot be mixed with another
        return False


def _setting_differences(old: Manifest, new: Manifest) -> Iterator[str]:
    """Name what makes `new` another run than `old`; all other settings follow or only inform."""

    def settings(manifest: Manifest) -> dict[str, object]:
        observed = {
            item.name.replace("_", " "): getattr(manifest.observation_settings, item.name)
            for item in fields(ObservationSettings)
        }
        order = "the dataset's" if manifest.seed is None else f"drawn with seed {manifest.seed}"
        return {"detector": manifest.detector_fingerprint, **observed, "order": order}

    for (name, expected), actual in zip(settings(old).items(), settings(new).values(), strict=True):
        if expected != actual:
            yield f"{name} was {_format(expected)}, now {_format(actual)}"
    if old.detector_names == new.detector_names and old.dataset_labels != new.dataset_labels:
        yield "the class map was another one"
    for label, (class_was, class_is) in enumerate(zip_longest(old.detector_names, new.detector_names)):
        if class_was != class_is:  # only the first: a detector may have hundreds of classes
            counts = f"{len(old.detector_names)} classes, now {len(new.detector_names)}"
            yield f"detector class {label} was {_format(class_was)}, now {_format(class_is)} ({counts})"
            break


def _software_differences(old: Manifest, new: Manifest) -> list[str]:
    """Name packages of another version than when the run began: rounding or bytes may differ.

    A package that only one side has installed was not used. Python itself computes nothing here.
    """
    shared = sorted((old.software.keys() & new.software.keys()) - {"python"})
    pairs = ((name, old.software[name], new.software[name]) for name in shared)
    return [f"{name} was {expected}, now {actual}" for name, expected, actual in pairs if expected != actual]


def _dataset_differences(run: Run, requested: Manifest) -> Iterator[str]:
    """Name how the dataset differs from the one that was observed, as far as that is known."""
    old = run.manifest
    if old.dataset_fingerprint == requested.dataset_fingerprint:
        return
    if old.dataset_names != requested.dataset_names:
        yield f"the dataset had {len(old.dataset_names)} classes, now {len(requested.dataset_names)} or others"
        return
    for number, (expected, actual) in enumerate(zip(old.images, requested.images, strict=False)):
        if expected.id != actual.id:
            yield f"image {number} of the dataset was {display_path(expected.id)}, now {display_path(actual.id)}"
            return
        if not _same_objects(expected, actual):
            yield f"the dataset has other objects for image {display_path(expected.id)}"
            return
    path = first_changed_image(run, requested.images)
    if path is not None:
        yield f"{display_path(path)} is another image now"
    elif old.limit is None and len(requested.images) != len(old.images):
        yield f"the dataset had {len(old.images):,} images, now {len(requested.images):,}"
    else:
        yield "annotations or image files of the dataset have changed, or there are others"


def _same_objects(first: DatasetImage, second: DatasetImage) -> bool:
    return (
        first.ground_truth == second.ground_truth
        and first.ignore.tolist() == second.ignore.tolist()
        and first.crowd.tolist() == second.crowd.tolist()
        and first.size == second.size
    )


def _format(value: object) -> str:
    return "none" if value is None else display_path(str(value))
