"""The record that `detect` keeps of finished images, so that it can be stopped at any moment and go on.

One line of JSON an image, appended and on the disk before the next image is begun. Every line carries a checksum of
itself: one that was cut off or damaged does not count, and its image is looked at again. The first line says what all
others are about; a record that is about something else is refused. An image is known by its pixels, not by its name or
date.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError

FILE = "progress.jsonl"
FORMAT = 1
LONGEST = 200  # characters of a setting that a message shows
CHECK = 16  # hexadecimal digits of a line's checksum

_LINE = re.compile(rb'\{"check": "([0-9a-f]+)", (.*)\n', re.DOTALL)


def pixels_sha256(image: Image) -> str:
    """What an image is known by: everything that is found follows from it."""
    digest = hashlib.sha256(f"{image.shape[1]}x{image.shape[0]} ".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


class Journal:
    """Lines by the sha256 they name; `images` are the names under which images were finished.

    A line with `drawn` says of which image the picture of that name is, one with `same` that an image is like another.
    """

    def __init__(self, file: Path, reader: BinaryIO, writer: FileIO) -> None:
        self._file, self._reader, self._writer = file, reader, writer
        self._place: dict[str, int] = {}
        self._drawn: dict[str, str] = {}
        self.images: set[str] = set()

    def get(self, sha256: str) -> dict[str, Any] | None:
        """The line of an image."""
        if sha256 not in self._place:
            return None
        self._reader.seek(self._place[sha256])
        return _content(self._reader.readline())

    def drawn(self, picture: str) -> str | None:
        """The image that a picture was drawn of."""
        return self._drawn.get(picture)

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line, and put it on the disk."""
        body = json.dumps(line)[1:]
        check = hashlib.sha256(body.encode()).hexdigest()[:CHECK]
        place = self._writer.seek(0, os.SEEK_END)
        self._write(f'{{"check": "{check}", {body}\n'.encode())
        self._note(line, place)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Write the first line, or compare it with the one there and take note of the others."""
        about = json.loads(json.dumps({"format": FORMAT, **about}))  # as it will be read back
        first = self._reader.readline()
        if not first.endswith(b"\n"):  # nothing was finished
            self._writer.truncate(0)
            self.add(about)
            return
        before = _content(first)
        if before is None or before.get("format") != FORMAT:
            raise ObjectSeekerError(
                f"{self._file} is damaged or from another version: remove it, or use another folder"
            )
        if before != about:
            what = "of another defense" if before["defense"] != about["defense"] else "certified otherwise"
            raise ObjectSeekerError(
                f"{self._file.parent} holds results {what} ({'; '.join(differences(before, about))}): use what it "
                "was begun with, or another folder"
            )
        self._read_on(len(first))

    def _read_on(self, place: int) -> None:
        raw = b"\n"
        for raw in self._reader:
            line = _content(raw)
            if line is not None:
                self._note(line, place)
            place += len(raw)
        if not raw.endswith(b"\n"):  # a line that was cut off: the next must not be joined to it
            self._write(b"\n")

    def _note(self, line: Mapping[str, Any], place: int) -> None:
        if "drawn" in line:
            self._drawn[line["drawn"]] = line["sha256"]
        elif "image" in line:
            self.images.add(line["image"])
            if "sha256" in line:
                self._place[line["sha256"]] = place

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[self._writer.write(content) :]
            os.fsync(self._writer.fileno())
        except OSError as error:
            raise ObjectSeekerError(f"cannot write {self._file}: {error.strerror}") from None


@contextmanager
def journal_in(folder: Path, about: Mapping[str, Any]) -> Iterator[Journal]:
    """The record in a folder, new or to be continued, locked against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    with ExitStack() as opened:
        try:
            writer = opened.enter_context(FileIO(file, "a"))  # without a buffer: what failed is not tried again
            reader = opened.enter_context(file.open("rb"))
        except OSError as error:
            raise ObjectSeekerError(f"cannot write {file}: {error.strerror}") from None
        _lock(writer, folder)
        journal = Journal(file, reader, writer)
        journal.begin(about)
        yield journal


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Every setting that is not what it was, in a few words; settings inside settings by their own names."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old != new:
            if isinstance(old, dict) and isinstance(new, dict):
                yield from differences(old, new)
            else:
                yield f"{name} was {_shown(old)}, now {_shown(new)}"


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else repr(value)
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"  # hashes come last


def _content(raw: bytes) -> dict[str, Any] | None:
    """What `Journal.add` was given, if that is what the line holds."""
    match = _LINE.fullmatch(raw)
    if match is None or hashlib.sha256(match[2]).hexdigest()[:CHECK] != match[1].decode():
        return None
    content: dict[str, Any] = json.loads(b"{" + match[2])
    return content


def _lock(stream: FileIO, folder: Path) -> None:
    """The system lets go of the lock when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nothing keeps two writers apart there
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ObjectSeekerError(f"another process is writing {folder}: wait for it or use another folder") from None
