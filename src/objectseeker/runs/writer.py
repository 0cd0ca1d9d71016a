"""Writing a run: what is finished stays finished, whenever the process or the machine stops.

Every file is an atomic write: it appears under its name only when it is complete and on the disk. A part is written
when all of its images are done, from new boxes and from pending files, which are then removed: its bytes follow from
the boxes alone, in whatever order they came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import PARTIAL_SUFFIX, write_atomic
from objectseeker.runs.manifest import GROWN_INDEX, INDEX, Manifest, encode_manifest
from objectseeker.runs.resume import resumed_manifest
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
    IndexSummary,
    StoredBoxes,
    decode_boxes,
    encode_boxes,
    hash_of,
    write_image_index,
)

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
        for number in run.parts.partial_parts:
            self._pending[number] = run.parts.files_of(number)
            if not self._left_of(number):  # stopped just before the part was made of them
                self._finish(number)

    def add(self, stored: StoredBoxes) -> None:
        """Add images of one part.

        They are on the disk within `FLUSH_INTERVAL` seconds, or as soon as it has finished the files before. A disk
        that fails raises an error in a later call, at the latest in `flush`.
        """
        (number,) = {index // self.run.manifest.images_per_part for index in stored.images}
        left = self._left_of(number)
        for index, reason in stored.broken.items():
            self._write(BROKEN, index, encode_unreadable(index, reason), "json")
        if stored.sizes:
            self._held.setdefault(number, []).append(stored)
        left.difference_update(stored.images)
        if not left:
            self._finish(number)
        elif time.monotonic() - self._written > FLUSH_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Put everything on the disk."""
        for number, held in self._held.items():
            file = self._write(PENDING, number, encode_boxes(StoredBoxes.join(held)), "parquet")
            self._pending.setdefault(number, []).append(file)
        self._held.clear()
        self._wait(0)
        self._written = time.monotonic()

    def _left_of(self, number: int) -> set[int]:
        if number not in self._left:
            run = self.run
            done = run.parts.partial_parts.get(number, {})
            self._left[number] = {
                index for index in part_range(run.manifest, number) if index not in done and index not in run.unreadable
            }
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
            self._queued.append(self._disk.submit(self._write_part, number, pieces))
        self._wait(0 if pending else MAX_QUEUED_PARTS)  # pending files go when the part is on the disk
        for file in pending:
            file.unlink()
        del self._left[number]

    def _wait(self, max_count: int) -> None:
        """Wait until at most `max_count` parts are queued for the disk."""
        while len(self._queued) > max_count:
            self._queued.popleft().result()

    def _write_part(self, number: int, pieces: list[StoredBoxes]) -> Path:
        return self._write(PARTS, number, encode_boxes(StoredBoxes.join(pieces)), "parquet")

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
    if isinstance(manifest.images, ImageIndex):
        summary = IndexSummary(len(manifest.images), hash_of(manifest.images.file))
    else:
        summary = write_atomic(folder / index_name, lambda stream: write_image_index(manifest.images, stream))
    content, _ = encode_manifest(manifest, summary)
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
    every = [file for files in run.parts.partial_parts.values() for file in set(files.values())]
    incomplete = [file for file in every if file.parent.name == PARTS]
    if not incomplete:
        return run
    (run.folder / PENDING).mkdir(exist_ok=True)
    for file in incomplete:
        file.rename(run.folder / PENDING / file.name)
    return replace(open_run(run.folder), damaged=run.damaged)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The system releases it when the process ends, however it ends."""
    try:
        _require_run_folder(folder)
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


def _require_run_folder(folder: Path) -> None:
    """Reject a folder with other content; a run that was killed while it was created is fine."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return
    known = {PARTS, BROKEN, LOCK, "images", INDEX, INDEX + PARTIAL_SUFFIX, MANIFEST + PARTIAL_SUFFIX}
    unknown = sorted({file.name for file in folder.iterdir()} - known)
    if unknown:
        raise ObjectSeekerError(f"{folder} holds {unknown[0]!r} but no run: use another folder")
