"""Reading annotation files: what goes wrong becomes one sentence with the file's name."""

from __future__ import annotations

import math
from pathlib import Path

from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import find_images


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ObjectSeekerError(f"cannot read {path}: {reason}") from None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines that hold anything, each with its number (from 1)."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ObjectSeekerError(f"{path} is not a text file in UTF-8") from None
    return [(place, line) for place, line in enumerate(text.splitlines(), start=1) if line.strip()]


def number(text: str, name: str, source: str) -> float:
    """The finite number that `text` spells; `source` and `name` say where it stands, for the message."""
    try:
        value = float(text.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ObjectSeekerError(f"{source} has {text!r} where {name} should be a number")
    return value


def require_folder(path: Path, sentence: str) -> Path:
    if not path.is_dir():
        raise ObjectSeekerError(sentence)
    return path


def images_by_stem(folder: Path) -> dict[str, Path]:
    """The images anywhere below `folder`, by their path relative to it without the ending, in order."""
    found: dict[str, Path] = {}
    for path in find_images([folder]):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            raise ObjectSeekerError(f"{found[stem]} and {path} would share one annotation file; remove one")
        found[stem] = path
    return found
