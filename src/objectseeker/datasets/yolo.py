"""YOLO: images and text files of the same name, and the class names in a YAML file or classes.txt.

A label line is `class cx cy w h`, centre and size as fractions of the image, or `class x1 y1 x2 y2 x3 y3 ...`, the
corners of a polygon, of which the bounding box is taken. An image without a label file has no objects.
"""

from __future__ import annotations

from pathlib import Path

from objectseeker.datasets.dataset import Box, Dataset, Record, Xyxy, build
from objectseeker.datasets.notes import NO_AREA, Kind, Notes, UnusableError
from objectseeker.datasets.reading import number, read_lines, whole
from objectseeker.datasets.shown import plain, shown
from objectseeker.datasets.yolo_names import find_names, names_in, yaml_file
from objectseeker.datasets.yolo_splits import find_images_and_labels
from objectseeker.datasets.yolo_yaml import has_key, read_text
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size

FORM = "yolo:DIR, yolo:DATA.yaml, or either with :SPLIT"
ROUNDING = 1e-3  # how far above 1 a fraction may come out of a converter's rounding
POLYGON = Kind("polygon read as its bounding box", "polygons read as their bounding boxes")


def read(spec: str, rest: str, notes: Notes) -> Dataset:
    """Labels are the class numbers of the files. With :SPLIT one split is read, else all."""
    root, split = _split(spec, rest)
    labelled = find_images_and_labels(spec, root, split, notes)
    _refuse_key_points(root)
    names = names_in(root) if root.is_file() else find_names(root)
    records = []
    for one in labelled:
        size = image_size(one.image)
        records.append(Record(one.id, one.image, size, _boxes(one.label, names, size, notes)))
    parts = sorted({one.id.partition("/")[0] for one in labelled if "/" in one.id})
    warnings = []
    if len(parts) > 1 and not split:
        warnings.append(f"all of {', '.join(parts)} are read; {spec}:{parts[-1]} would read one of them")
    return build(spec, names, records, notes, warnings)


def _split(spec: str, rest: str) -> tuple[Path, str]:
    """DIR or YAML file, and SPLIT (empty where none is named); a path may hold a colon, so what exists decides."""
    directory, _, split = rest.rpartition(":")
    for text, part in ((rest, ""), (directory, split)):
        path = Path(text).expanduser()
        if text and (path.is_dir() or (path.is_file() and path.suffix in (".yaml", ".yml"))) and (part or text == rest):
            return path, part
    raise ObjectSeekerError(f"{spec!r}: there is no folder at that path; give {FORM}")


def _refuse_key_points(root: Path) -> None:
    """Lines of key points would pass for polygons."""
    file = root if root.is_file() else yaml_file(root)
    if file is not None and has_key(read_text(file), "kpt_shape"):
        raise ObjectSeekerError(f"{file} has kpt_shape: its labels hold key points, which are not read; give boxes")


def _boxes(file: Path, names: tuple[str, ...], size: tuple[int, int], notes: Notes) -> list[Box]:
    boxes = []
    for line, text in read_lines(file) if file.exists() else ():
        with notes:
            boxes.append(_box(text.split(), names, size, f"{file} line {line}", notes))
    return boxes


def _box(columns: list[str], names: tuple[str, ...], size: tuple[int, int], source: str, notes: Notes) -> Box:
    polygon = len(columns) >= 7 and len(columns) % 2 == 1
    refusal = f"{source} has {len(columns)} columns; a box has 5: class cx cy w h"
    if len(columns) != 5 and not polygon:
        raise ObjectSeekerError(refusal)
    label = whole(columns[0])
    if label is None or label >= len(names):
        raise ObjectSeekerError(f"{source} has the class {shown(columns[0])}; it must be one of 0 to {len(names) - 1}")
    xyxy = _around(columns[1:], source) if polygon else _centred(columns[1:], source)
    if polygon:
        notes.note(POLYGON, source, refusal)
    width, height = size
    return Box(names[label], (xyxy[0] * width, xyxy[1] * height, xyxy[2] * width, xyxy[3] * height), source)


def _centred(columns: list[str], source: str) -> Xyxy:
    named = list(zip(columns, ("cx", "cy", "w", "h"), strict=True))
    cx, cy, w, h = (_fraction(text, name, source) for text, name in named)
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _around(columns: list[str], source: str) -> Xyxy:
    corners = [_fraction(text, "a corner", source) for text in columns]
    return min(corners[::2]), min(corners[1::2]), max(corners[::2]), max(corners[1::2])


def _fraction(text: str, name: str, source: str) -> float:
    value = number(text, name, source)
    if not 0 <= value <= 1 + ROUNDING:
        sentence = f"{source} has {plain(text)}; centre and size are fractions of the image, 0 to 1"
        if name in ("w", "h") and -1 <= value < 0:
            raise UnusableError(NO_AREA, source, sentence)
        raise ObjectSeekerError(sentence)
    return value
