"""YOLO: images/ and labels/ with the same tree below them, and the class names in a YAML file or classes.txt.

A label line is `class cx cy w h`, centre and size as fractions of the image. An image without a label file has no
objects.
"""

from __future__ import annotations

from pathlib import Path

from objectseeker.datasets.dataset import Box, Dataset, Record, Xyxy, build
from objectseeker.datasets.reading import images_by_stem, number, read_lines, require_folder
from objectseeker.datasets.yolo_names import NAMES_FILE, find_names
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size

FORM = "yolo:DIR or yolo:DIR:SPLIT"
ROUNDING = 1e-3  # how far above 1 a fraction may come out of a converter's rounding


def read(spec: str, rest: str) -> Dataset:
    """Labels are the class numbers of the files. DIR:SPLIT reads images/SPLIT and labels/SPLIT only."""
    root, split = _split(spec, rest)
    images = require_folder(root / "images" / split, f"{spec!r}: there is no folder {root / 'images' / split}")
    labels = require_folder(root / "labels" / split, f"{spec!r}: there is no folder {root / 'labels' / split}")
    names = find_names(root)
    paths = images_by_stem(images)
    for file in sorted(labels.rglob("*.txt")):
        if file.name != NAMES_FILE and file.relative_to(labels).with_suffix("").as_posix() not in paths:
            raise ObjectSeekerError(f"{file} has no image of the same name in {images}")
    records = []
    for stem, path in paths.items():
        size = image_size(path)
        records.append(Record(stem, path, size, _boxes(labels / f"{stem}.txt", names, size)))
    parts = sorted({stem.partition("/")[0] for stem in paths if "/" in stem})
    warnings = []
    if len(parts) > 1:
        warnings.append(f"all of {', '.join(parts)} are read; {spec}:{parts[-1]} would read one of them")
    return build(spec, names, records, warnings)


def _split(spec: str, rest: str) -> tuple[Path, str]:
    """DIR and SPLIT (empty where none is named); a path may hold a colon itself, so the folder that exists decides."""
    if rest and Path(rest).expanduser().is_dir():
        return Path(rest).expanduser(), ""
    directory, _, split = rest.rpartition(":")
    if directory and split and Path(directory).expanduser().is_dir():
        return Path(directory).expanduser(), split
    raise ObjectSeekerError(f"{spec!r}: there is no folder at that path; give {FORM}")


def _boxes(file: Path, names: tuple[str, ...], size: tuple[int, int]) -> list[Box]:
    if not file.exists():
        return []
    boxes = []
    for line, text in read_lines(file):
        source = f"{file} line {line}"
        columns = text.split()
        if len(columns) != 5:
            raise ObjectSeekerError(f"{source} has {len(columns)} columns; a box has 5: class cx cy w h")
        if not (columns[0].isascii() and columns[0].isdigit() and int(columns[0]) < len(names)):
            raise ObjectSeekerError(f"{source} has the class {columns[0]!r}; it must be one of 0 to {len(names) - 1}")
        boxes.append(Box(names[int(columns[0])], _xyxy(columns[1:], size, source), source))
    return boxes


def _xyxy(columns: list[str], size: tuple[int, int], source: str) -> Xyxy:
    fractions = [number(text, name, source) for text, name in zip(columns, ("cx", "cy", "w", "h"), strict=True)]
    for text, value in zip(columns, fractions, strict=True):
        if not 0 <= value <= 1 + ROUNDING:
            raise ObjectSeekerError(f"{source} has {text}; centre and size are fractions of the image, 0 to 1")
    cx, cy, w, h = fractions
    width, height = size
    return (cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height
