"""Reading annotation files: what goes wrong becomes one sentence with the file's name."""

from __future__ import annotations

import math
from pathlib import Path

from objectseeker.datasets.skip_log import IMPOSSIBLE, InvalidAnnotationError, SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import expand_image_paths
from objectseeker.text import readable, shown


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ObjectSeekerError(f"cannot read {readable(path)}: {reason}") from None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines that hold anything, each with its number (from 1)."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ObjectSeekerError(f"{path} is not a text file in UTF-8") from None
    return [(place, line) for place, line in enumerate(text.splitlines(), start=1) if line.strip()]


def parse_number(text: str, name: str, source: str) -> float:
    """The finite number that `text` spells; `source` and `name` say where it stands, for the message."""
    sentence = f"{source} has {shown(text)} where {name} should be a number"
    try:
        value = float(text.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        raise ObjectSeekerError(sentence) from None
    if not math.isfinite(value):
        raise InvalidAnnotationError(IMPOSSIBLE, source, sentence)
    return value


def parse_digits(text: str) -> int | None:
    """The number that plain digits spell; None for anything else, and for one too long to count anything."""
    digits = text.lstrip("0") or text[-1:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name the system cannot have
        return False


def require_folder(path: Path, sentence: str) -> Path:
    if not path.is_dir():
        raise ObjectSeekerError(sentence)
    return path


def images_by_stem(folder: Path, notes: SkipLog) -> dict[str, Path]:
    """The images anywhere below `folder`, by their path relative to it without the ending, in order."""
    images: dict[str, Path] = {}
    for path in filter(notes.check_storable, expand_image_paths([folder])):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in images:
            raise ObjectSeekerError(f"{images[stem]} and {path} would share one annotation file; remove one")
        images[stem] = path
    return images
