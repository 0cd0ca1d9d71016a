"""Writing a run: what is finished stays finished, whenever the process or the machine stops.

A file appears under its name only when it is whole and on the disk. A part is written once all of its images are done,
from what came in and from the pending files, which then go: its bytes follow from the boxes alone, whatever the order
they came in.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import PARTIAL_SUFFIX, write_atomic
from objectseeker.runs.image_index import ImageIndex, IndexSummary, hash_of, write_image_index
from objectseeker.runs.manifest import GROWN, LISTING, Manifest, encode
from objectseeker.runs.resume import resumed_manifest
from objectseeker.runs.run import BROKEN, LOCK, MANIFEST, PARTS, PENDING, Run, checksum, open_run, part_range, read_part
from objectseeker.runs.stored_boxes import StoredBoxes
from objectseeker.runs.stored_boxes import decode as decode_part
from objectseeker.runs.stored_boxes import encode as encode_part

FLUSH_INTERVAL = 1.0  # seconds for which what was found may be held back, so that cheap images share a file
MOST_WAITING = 8  # parts that wait for the disk: it takes longer to be sure of a file than a GPU to look at an image


class RunWriter:
    """Adds what was found to a run. `run` is the run as it was when the writer began."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._left: dict[int, set[int]] = {}  # of the parts begun, the images that are to come
        self._held: dict[int, list[StoredBoxes]] = {}  # by part: what is not on the disk yet
        self._pending: dict[int, list[Path]] = {}
        self._written = time.monotonic()
        self._disk = ThreadPoolExecutor(1)
        self._waiting: deque[Future[Path]] = deque()  # parts on their way to the disk
        for number in run.parts.begun:
            self._pending[number] = run.parts.files_of(number)
            if not self._left_of(number):  # stopped just before the part was made of them
                self._finish(number)

    def add(self, findings: StoredBoxes) -> None:
        """Images of one part. They are on the disk within `HOLD` seconds, or as soon as it has done what came before.

        A disk that fails is noticed by a later call, at the latest by `flush`.
        """
        (number,) = {index // self.run.manifest.images_per_part for index in findings.images}
        left = self._left_of(number)
        for index, reason in findings.broken.items():
            content = json.dumps({"image": index, "reason": reason}).encode() + b"\n"
            self._write(BROKEN, index, content, "json")
        if findings.sizes:
            self._held.setdefault(number, []).append(findings)
        left.difference_update(findings.images)
        if not left:
            self._finish(number)
        elif time.monotonic() - self._written > FLUSH_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Put everything on the disk."""
        for number, findings in self._held.items():
            file = self._write(PENDING, number, encode_part(StoredBoxes.join(findings)), "parquet")
            self._pending.setdefault(number, []).append(file)
        self._held.clear()
        self._wait(0)
        self._written = time.monotonic()

    def _left_of(self, number: int) -> set[int]:
        if number not in self._left:
            run = self.run
            done = run.parts.begun.get(number, {})
            self._left[number] = {
                index for index in part_range(run.manifest, number) if index not in done and index not in run.unreadable
            }
        return self._left[number]

    def _finish(self, number: int) -> None:
        findings = self._held.pop(number, [])
        pending = self._pending.pop(number, [])
        for file in pending:
            content = read_part(file, self.run.identity, number)
            if content is None:
                raise ObjectSeekerError(f"{file} was damaged while it was in use: run observe again")
            findings.append(decode_part(content))
        if findings:  # else none of its images could be read
            self._waiting.append(self._disk.submit(self._write_part, number, findings))
        self._wait(0 if pending else MOST_WAITING)  # what a part is made of goes when the part is there
        for file in pending:
            file.unlink()
        del self._left[number]

    def _wait(self, most: int) -> None:
        """Until no more than so many parts wait for the disk."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _write_part(self, number: int, findings: list[StoredBoxes]) -> Path:
        return self._write(PARTS, number, encode_part(StoredBoxes.join(findings)), "parquet")

    def _write(self, folder: str, number: int, content: bytes, suffix: str) -> Path:
        name = f"{number:06d}-{checksum(self.run.identity, number, content)}.{suffix}"
        (self.run.folder / folder).mkdir(exist_ok=True)
        file = self.run.folder / folder / name
        write_atomic(file, lambda stream: stream.write(content))
        return file


@contextmanager
def open_writer(folder: str | Path, manifest: Manifest) -> Iterator[RunWriter]:
    """The run in `folder`, new or begun with the same settings, locked against other writers; it may grow by images.

    Parts that are damaged are removed, so that their images count as not finished; the writer's run lists them.
    """
    folder = Path(folder)
    with _locked(folder):
        for place in (MANIFEST, LISTING, GROWN, f"{PARTS}/*", f"{PENDING}/*", f"{BROKEN}/*"):
            for leftover in folder.glob(place + PARTIAL_SUFFIX):
                leftover.unlink()
        for name in (PARTS, BROKEN):
            (folder / name).mkdir(exist_ok=True)
        if not (folder / MANIFEST).exists():
            _write_manifest(folder, replace(manifest, detector_trusted=False), LISTING)
        _finish_growth(folder)
        run = open_run(folder)
        becomes = resumed_manifest(run, manifest)
        if becomes is not run.manifest:
            _write_manifest(folder, becomes, GROWN)
            _finish_growth(folder)
            run = open_run(folder)
        for file in (*run.damaged, *run.orphaned):
            file.unlink()
        writer = RunWriter(_reopen_incomplete_parts(run))
        try:
            yield writer
        finally:
            writer.flush()


def _write_manifest(folder: Path, manifest: Manifest, name: str) -> None:
    """Write run.json, after the listing of its images under this name, unless that is there already."""
    if isinstance(manifest.images, ImageIndex):
        listing = IndexSummary(len(manifest.images), hash_of(manifest.images.file))
    else:
        listing = write_atomic(folder / name, lambda stream: write_image_index(manifest.images, stream))
    content, _ = encode(manifest, listing)
    write_atomic(folder / MANIFEST, lambda stream: stream.write(content))


def _finish_growth(folder: Path) -> None:
    """Give a longer listing its name, if run.json speaks of it; else the run was stopped before it had grown."""
    grown = folder / GROWN
    if grown.exists():
        images = open_run(folder).manifest.images
        if isinstance(images, ImageIndex) and images.file == grown:
            grown.replace(folder / LISTING)
        else:
            grown.unlink()


def _reopen_incomplete_parts(run: Run) -> Run:
    """The run with parts that lack an image, because the word that it is broken got lost, made pending again."""
    lacking = [file for files in run.parts.begun.values() for file in set(files.values()) if file.parent.name == PARTS]
    if not lacking:
        return run
    (run.folder / PENDING).mkdir(exist_ok=True)
    for file in lacking:
        file.rename(run.folder / PENDING / file.name)
    return replace(open_run(run.folder), damaged=run.damaged)


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
    ours = {PARTS, BROKEN, LOCK, LISTING, LISTING + PARTIAL_SUFFIX, MANIFEST + PARTIAL_SUFFIX}
    strange = sorted({file.name for file in folder.iterdir()} - ours)
    if strange:
        raise ObjectSeekerError(f"{folder} holds {strange[0]!r} but no run: use another folder")
