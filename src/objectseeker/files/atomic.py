"""Writing files whole or not at all: the one writer of everything this package leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from objectseeker.errors import ObjectSeekerError

PARTIAL_SUFFIX = ".partial"  # ends the name of a file that is being written

_T = TypeVar("_T")


def write_atomic(file: Path, write: Callable[[BinaryIO], _T]) -> _T:
    """Write so that, whenever the process or the machine stops, the file is either whole or as it was before."""
    unfinished = file.with_name(file.name + PARTIAL_SUFFIX)
    try:
        with unfinished.open("wb") as stream:
            result = write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
        _sync_folder(file.parent)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)  # on a full disk it would keep what the rest needs
        raise ObjectSeekerError(f"cannot write {file}: {error.strerror}") from None
    return result


def save_text(file: Path, text: str) -> None:
    write_atomic(file, lambda stream: stream.write(text.encode()))


def save_json(file: Path, content: Any) -> None:
    save_text(file, json.dumps(content, indent=1) + "\n")


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk too."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
