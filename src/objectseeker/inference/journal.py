"""The journal of finished images, so that `detect` can be interrupted at any time and resumed.

It has one line of JSON per image, appended and synced to disk before the next image starts. Every line has its own
checksum: a truncated or damaged line is ignored, and its image is processed again. The first line holds the settings; a
journal with other settings is rejected. An image is identified by its pixels, not by its name or date.
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
from objectseeker.files.atomic import lock_file

FILE = "progress.jsonl"
FORMAT = 1
MAX_VALUE_LENGTH = 200  # characters of a setting in a message
CHECKSUM_DIGITS = 16  # hexadecimal

_LINE = re.compile(rb'\{"check": "([0-9a-f]+)", (.*)\n', re.DOTALL)


def pixels_sha256(image: Image) -> str:
    """Return the hash that identifies an image: its result follows from its pixels."""
    digest = hashlib.sha256(f"{image.shape[1]}x{image.shape[0]} ".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


class ProgressJournal:
    """Lines by the hash of their image.

    `images` are the names of finished images, and `annotated` has the hash of the image that each annotated image was
    drawn from. A line with `same` says that an image equals another.
    """

    def __init__(self, file: Path, reader: BinaryIO, writer: FileIO) -> None:
        self._file, self._reader, self._writer = file, reader, writer
        self._offsets: dict[str, int] = {}
        self.annotated: dict[str, str] = {}
        self.images: set[str] = set()

    def get(self, sha256: str) -> dict[str, Any] | None:
        """Return the line of an image, if it is finished."""
        if sha256 not in self._offsets:
            return None
        self._reader.seek(self._offsets[sha256])
        return _parse_line(self._reader.readline())

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line and sync it to disk."""
        body = json.dumps(line)[1:]
        check = hashlib.sha256(body.encode()).hexdigest()[:CHECKSUM_DIGITS]
        offset = self._writer.seek(0, os.SEEK_END)
        self._write(f'{{"check": "{check}", {body}\n'.encode())
        self._index(line, offset)

    def write_header(self, settings: Mapping[str, Any]) -> None:
        """Write the first line; if there is one, require the same settings and index the other lines."""
        settings = json.loads(json.dumps({"format": FORMAT, **settings}))  # in the form in which it is read back
        first = self._reader.readline()
        if not first.endswith(b"\n"):  # nothing was finished
            self._writer.truncate(0)
            self.add(settings)
            return
        previous = _parse_line(first)
        if previous is None or previous.get("format") != FORMAT:
            raise ObjectSeekerError(
                f"{self._file} is damaged or from another version: remove it, or use another folder"
            )
        if previous != settings:
            cause = "of another defense" if previous["defense"] != settings["defense"] else "with other certificates"
            raise ObjectSeekerError(
                f"{self._file.parent} holds results {cause} ({'; '.join(journal_differences(previous, settings))}): "
                "use the previous settings, or another folder"
            )
        self._read_lines(len(first))

    def _read_lines(self, offset: int) -> None:
        raw = b"\n"
        for raw in self._reader:
            line = _parse_line(raw)
            if line is not None:
                self._index(line, offset)
            offset += len(raw)
        if not raw.endswith(b"\n"):  # a truncated line: the next must not be joined to it
            self._write(b"\n")

    def _index(self, line: Mapping[str, Any], offset: int) -> None:
        if "annotated" in line:
            self.annotated[line["annotated"]] = line["sha256"]
        elif "image" in line:
            self.images.add(line["image"])
            if "sha256" in line:
                self._offsets[line["sha256"]] = offset

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[self._writer.write(content) :]
            os.fsync(self._writer.fileno())
        except OSError as error:
            raise ObjectSeekerError(f"cannot write {self._file}: {error.strerror}") from None


@contextmanager
def open_journal(folder: Path, settings: Mapping[str, Any]) -> Iterator[ProgressJournal]:
    """Open the journal in a folder, new or to be resumed, locked against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    with ExitStack() as stack:
        try:
            writer = stack.enter_context(FileIO(file, "a"))  # unbuffered: a failed write is not tried again
            reader = stack.enter_context(file.open("rb"))
        except OSError as error:
            raise ObjectSeekerError(f"cannot write {file}: {error.strerror}") from None
        lock_file(writer, folder)
        journal = ProgressJournal(file, reader, writer)
        journal.write_header(settings)
        yield journal


def journal_differences(previous: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Describe every setting that changed; nested settings by their own names."""
    for name in sorted(previous.keys() | current.keys()):
        old, new = previous.get(name), current.get(name)
        if old != new:
            if isinstance(old, dict) and isinstance(new, dict):
                yield from journal_differences(old, new)
            else:
                yield f"{name} was {_format(old)}, now {_format(new)}"


def _format(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else repr(value)
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_format(item)}" for name, item in value.items())
    half = MAX_VALUE_LENGTH // 2
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:half]} ... {text[-half:]}"  # hashes come last


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    """Return what `ProgressJournal.add` wrote; None if the line is damaged."""
    match = _LINE.fullmatch(raw)
    if match is None or hashlib.sha256(match[2]).hexdigest()[:CHECKSUM_DIGITS] != match[1].decode():
        return None
    content: dict[str, Any] = json.loads(b"{" + match[2])
    return content
