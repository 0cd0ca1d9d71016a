"""Whether the images are still those that were observed, without reading all of them again.

With its boxes a run keeps a hash of every image's file. A file that changed since its boxes were written, or shortly
before, by what the file system says, is read again and must have that hash; so must a few others, spread over the run,
in case a whole folder took the place of another. Images at addresses are not asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path

from objectseeker.datasets import Entry
from objectseeker.files.images import UnreachableError, hash_of
from objectseeker.files.remote import Url
from objectseeker.runs.run import Run

SHORTLY = 3600.0  # seconds: for the time between reading and writing, and for clocks that disagree
SPREAD = 32  # images that are read again in any case


def first_replaced(run: Run, entries: Iterable[Entry]) -> Path | None:
    """The first image that is not what was observed; `entries` are the images of the run, from where they lie now."""
    if not run.parts:
        return None
    step = max(len(run.manifest.images) // SPREAD, 1)
    size = run.manifest.images_per_part
    numbered = enumerate(islice(entries, len(run.manifest.images)))
    for number, part in groupby(numbered, key=lambda pair: pair[0] // size):
        if number not in run.parts.whole and number not in run.parts.begun:
            continue
        written = {file: file.stat().st_mtime for file in run.parts.files_of(number)}
        suspects = [
            (index, path)
            for index, path, file in _finished(run, number, part)
            if index % step == 0 or _changed(path) > written[file] - SHORTLY
        ]
        hashes = run.hashes(number) if suspects else {}
        for index, path in suspects:
            if _differs(path, hashes[index]):
                return path
    return None


def _finished(run: Run, number: int, part: Iterable[tuple[int, Entry]]) -> Iterator[tuple[int, Path, Path]]:
    """The finished images of a part that lie on a disk, each with the file that its boxes are in."""
    finished = set(run.parts.images_of(number))
    for index, entry in part:
        if index in finished and not isinstance(entry.path, Url):
            yield index, entry.path, run.parts.file_of(number, index)


def _changed(path: Path) -> float:
    """When the file was last written, renamed or put in place of another; 0 if it is not there to be asked."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def _differs(path: Path, known: str) -> bool:
    try:
        return bool(known) and hash_of(path) != known
    except UnreachableError:  # what is not there is not mixed with anything
        return False
