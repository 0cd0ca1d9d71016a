"""Atomic writes, the one writer of every file this package leaves behind, and locks on folders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from objectseeker.errors import ObjectSeekerError

PARTIAL_SUFFIX = ".partial"  # of a file's name while it is written


def write_atomic(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically: whenever the process or machine stops, it is complete or unchanged."""
    partial = file.with_name(file.name + PARTIAL_SUFFIX)
    try:
        with partial.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
        _sync_folder(file.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # on a full disk it would take the space that others need
        raise ObjectSeekerError(f"cannot write {file}: {error.strerror}. Make room or choose another folder.") from None


def save_text(file: Path, text: str) -> None:
    """Write a string to a file atomically, in UTF-8."""
    write_atomic(file, lambda stream: stream.write(text.encode()))


def save_json(file: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    save_text(file, json.dumps(content, indent=1) + "\n")


def lock_file(stream: IO[Any], folder: Path) -> None:
    """Lock a file against other writers of the folder; the system unlocks it when the process ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nothing keeps two writers apart there
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ObjectSeekerError(f"another process is writing {folder}: wait for it or use another folder") from None


def _sync_folder(folder: Path) -> None:
    """Flush the new name to disk, too."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
