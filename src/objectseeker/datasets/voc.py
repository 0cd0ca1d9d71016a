"""Pascal VOC: a VOCdevkit with ImageSets/Main/SPLIT.txt, Annotations/ID.xml and JPEGImages/ID.jpg.

VOC counts pixels from 1 and a box includes its last row and column. Here boxes are half-open and start at 0, so
(xmin, ymin, xmax, ymax) becomes (xmin - 1, ymin - 1, xmax, ymax).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from objectseeker.datasets.dataset import Box, Dataset, Record, build
from objectseeker.datasets.reading import images_by_stem, number, read_bytes, read_lines, require_folder
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size

FORM = "voc:VOCDIR:SPLIT"
NAMES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def read(spec: str, rest: str) -> Dataset:
    """Labels are the 20 VOC classes, or the sorted class names found if there is any other among them.

    Difficult objects are ignored. A devkit with several years gives the images of all that have the split.
    """
    directory, _, split = rest.rpartition(":")
    if not directory or not split:
        raise ObjectSeekerError(f"{spec!r} names no folder and split; give {FORM}")
    root = Path(directory).expanduser()
    require_folder(root, f"{spec!r}: {directory!r} is not a folder; give {FORM}")
    records = [record for year in _years(spec, root, split) for record in _records(year, split)]
    found = {box.name for record in records for box in record.boxes}
    return build(spec, NAMES if found <= set(NAMES) else sorted(found), records)


def _years(spec: str, root: Path, split: str) -> list[Path]:
    """The folders with the split: VOCDIR itself, or those in it, or those of the VOCdevkit in it."""
    places = [root, *_folders(root), *_folders(root / "VOCdevkit")]
    years = [place for place in places if (place / "ImageSets" / "Main" / f"{split}.txt").is_file()]
    if not years:
        lists = (path.stem for place in places for path in place.glob("ImageSets/Main/*.txt"))
        splits = sorted({name for name in lists if "_" not in name})  # aeroplane_val and the like are class lists
        known = f"it has {', '.join(splits)}" if splits else "it has no ImageSets/Main with lists of images"
        raise ObjectSeekerError(f"{spec!r}: there is no split {split!r} in {root}; {known}")
    return years


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


def _records(year: Path, split: str) -> Iterator[Record]:
    listing = year / "ImageSets" / "Main" / f"{split}.txt"
    folder = require_folder(year / "JPEGImages", f"{year} has no JPEGImages folder")
    others: dict[str, Path] | None = None
    for line, text in read_lines(listing):
        identity, *more = text.split()
        if more:
            raise ObjectSeekerError(f"{listing} line {line} is {text!r}, not one image name; class lists are no splits")
        path = folder / f"{identity}.jpg"
        if not path.is_file():
            others = images_by_stem(folder) if others is None else others
            path = others.get(identity, path)
        yield _record(identity, path, year / "Annotations" / f"{identity}.xml")


def _record(identity: str, path: Path, file: Path) -> Record:
    root = _parse(file)
    stated = root.find("size")
    size = image_size(path) if stated is None else (_pixels(stated, "width", file), _pixels(stated, "height", file))
    boxes = [_box(element, f"{file}, object {place}") for place, element in enumerate(root.findall("object"), start=1)]
    return Record(identity, path, size, boxes)


def _box(element: Element, source: str) -> Box:
    frame = element.find("bndbox")
    if frame is None:
        raise ObjectSeekerError(f"{source} has no <bndbox>")
    left, top, right, bottom = (
        number(_text(frame, tag, source), tag, source) for tag in ("xmin", "ymin", "xmax", "ymax")
    )
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ObjectSeekerError(f"{source} has <difficult> {difficult!r}; it must be 0 or 1")
    return Box(_text(element, "name", source), (left - 1, top - 1, right, bottom), source, ignore=difficult == "1")


def _pixels(element: Element, tag: str, file: Path) -> int:
    value = number(_text(element, tag, str(file)), tag, str(file))
    if value < 1 or value != int(value):
        raise ObjectSeekerError(f"{file} has <{tag}> {value:g}; it must be a whole number of pixels above 0")
    return int(value)


def _text(element: Element, tag: str, source: str) -> str:
    text = (element.findtext(tag) or "").strip()
    if not text:
        raise ObjectSeekerError(f"{source} has no <{tag}>")
    return text


def _parse(file: Path) -> Element:
    """The file's root element. A document type is refused: entities can blow a small file up to gigabytes."""

    def refuse(*_: object) -> None:
        raise ObjectSeekerError(f"{file} declares a document type, which annotations do not need; remove it")

    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(file), True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, ObjectSeekerError):
            raise
        raise ObjectSeekerError(f"{file} is not valid XML: {error}") from None
    return builder.close()
