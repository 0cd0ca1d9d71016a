"""Pascal VOC: a VOCdevkit with ImageSets/Main/SPLIT.txt, Annotations/ID.xml and JPEGImages/ID.jpg.

Without a split: the two folders alone, or one folder with XML files beside their images.

VOC counts pixels from 1 and a box includes its last row and column. Here boxes are half-open and start at 0, so
(xmin, ymin, xmax, ymax) becomes (xmin - 1, ymin - 1, xmax, ymax).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from objectseeker.core.boxes import LARGEST_COORDINATE
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import exists, images_by_stem, parse_number, read_bytes, read_lines, require_folder
from objectseeker.datasets.skip_log import SkipLog, SkipReason
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import shown, writable

# The XML of a VOC or CVAT annotation, read without what can harm.


ROOT = "annotation"


def parse(file: Path, root_tag: str = ROOT, kind: str = "VOC") -> Element:
    """The file's root element, a `root_tag` as files of that kind have it.

    A document type is refused: entities can blow a small file up to gigabytes.
    """

    def refuse(name: str, *_: object) -> None:
        if name.lower() == "html":
            raise ObjectSeekerError(f"{file} is an HTML page, not an annotation; fetch the file again")
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
    root = builder.close()
    if root.tag != root_tag:
        raise ObjectSeekerError(
            f"{file} holds {shown(root.tag)} where a {kind} file holds {root_tag!r}; correct or remove it"
        )
    return root


FORM = "voc:VOCDIR:SPLIT, or voc:DIR for a folder without splits"
XML_FOLDERS, IMAGE_FOLDERS = ("Annotations", "annotations"), ("JPEGImages", "images")
NO_XML = SkipReason("image without an XML file left out", "images without an XML file left out", "at")
NAMES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def read(spec: str, rest: str, notes: SkipLog) -> Dataset:
    """Labels are the 20 VOC classes, or the sorted class names found if there is any other among them.

    Difficult objects are ignored. A devkit with several years gives the images of all that have the split.
    """
    if rest and Path(rest).expanduser().is_dir():
        records = list(_flat(spec, Path(rest).expanduser(), notes))
    else:
        root, split = _split(spec, rest)
        records = [record for year in _years(spec, root, split) for record in _records(year, split, notes)]
    occurring = {box.name for record in records for box in record.boxes}
    return build_dataset(spec, NAMES if occurring <= set(NAMES) else sorted(occurring), records, notes)


def _split(spec: str, rest: str) -> tuple[Path, str]:
    directory, _, split = rest.rpartition(":")
    if not directory or not split:
        raise ObjectSeekerError(f"{spec!r} names no folder and split; give {FORM}")
    root = Path(directory).expanduser()
    return require_folder(root, f"{spec!r}: {directory!r} is not a folder; give {FORM}"), split


def _flat(spec: str, root: Path, notes: SkipLog) -> Iterator[ImageRecord]:
    """Every image with an XML file; one without may just not be annotated yet, which is not the same as empty."""
    if splits := _splits(_places(root)):
        raise ObjectSeekerError(f"{spec!r} names no split; it has {', '.join(splits)}; give {FORM}")
    annotations, folder = (
        next((root / name for name in names if (root / name).is_dir()), root) for names in (XML_FOLDERS, IMAGE_FOLDERS)
    )
    files = {
        file.relative_to(annotations).with_suffix("").as_posix(): file
        for file in sorted(annotations.rglob("*.xml"))
        if writable(str(file))
    }
    if not files:
        raise ObjectSeekerError(f"{spec!r}: there is no XML file in {annotations}; give {FORM}")
    images = images_by_stem(folder, notes)
    for stem in sorted(images.keys() - files.keys()):
        notes.note(NO_XML, str(images[stem]), f"{images[stem]} has no XML file in {annotations}")
    for stem, file in files.items():
        yield _record(stem, images.get(stem, folder / f"{stem}.jpg"), file, notes)


def _years(spec: str, root: Path, split: str) -> list[Path]:
    """The folders with the split: VOCDIR itself, or those in it, or those of the VOCdevkit in it."""
    places = _places(root)
    years = [place for place in places if (place / "ImageSets" / "Main" / f"{split}.txt").is_file()]
    if not years:
        splits = _splits(places)
        known = f"it has {', '.join(splits)}" if splits else "it has no ImageSets/Main with lists of images"
        raise ObjectSeekerError(f"{spec!r}: there is no split {split!r} in {root}; {known}")
    return years


def _places(root: Path) -> list[Path]:
    return [root, *_folders(root), *_folders(root / "VOCdevkit")]


def _splits(places: list[Path]) -> list[str]:
    lists = (path.stem for place in places for path in place.glob("ImageSets/Main/*.txt"))
    return sorted({name for name in lists if "_" not in name})  # aeroplane_val and the like are class lists


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


def _records(year: Path, split: str, notes: SkipLog) -> Iterator[ImageRecord]:
    listing = year / "ImageSets" / "Main" / f"{split}.txt"
    folder = require_folder(year / "JPEGImages", f"{year} has no JPEGImages folder")
    others: dict[str, Path] | None = None
    for line, text in read_lines(listing):
        source = f"{listing} line {line}"
        identity, *more = text.split()
        if more:
            raise ObjectSeekerError(f"{source} is {shown(text)}, not one image name; class lists are no splits")
        path = Path(notes.inside(folder, f"{identity}.jpg", source))
        if not exists(path):
            others = images_by_stem(folder, notes) if others is None else others
            path = others.get(identity, path)
        yield _record(identity, path, Path(notes.inside(year / "Annotations", f"{identity}.xml", source)), notes)


def _record(identity: str, path: Path, file: Path, notes: SkipLog) -> ImageRecord:
    root = parse(file)
    stated = root.find("size")
    size = image_size(path) if stated is None else (_pixels(stated, "width", file), _pixels(stated, "height", file))
    boxes = []
    for place, element in enumerate(root.findall("object"), start=1):
        with notes:
            boxes.append(_box(element, f"{file}, object {place}"))
    return ImageRecord(identity, path, size, boxes)


def _box(element: Element, source: str) -> Annotation:
    frame = element.find("bndbox")
    if frame is None:
        raise ObjectSeekerError(f"{source} has no <bndbox>")
    left, top, right, bottom = (
        parse_number(_text(frame, tag, source), tag, source) for tag in ("xmin", "ymin", "xmax", "ymax")
    )
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ObjectSeekerError(f"{source} has <difficult> {shown(difficult)}; it must be 0 or 1")
    return Annotation(
        _text(element, "name", source), (left - 1, top - 1, right, bottom), source, ignore=difficult == "1"
    )


def _pixels(element: Element, tag: str, file: Path) -> int:
    value = parse_number(_text(element, tag, str(file)), tag, str(file))
    if not 1 <= value <= LARGEST_COORDINATE or value != int(value):
        raise ObjectSeekerError(f"{file} has <{tag}> {value:g}; it must be a whole number of pixels above 0")
    return int(value)


def _text(element: Element, tag: str, source: str) -> str:
    text = (element.findtext(tag) or "").strip()
    if not text:
        raise ObjectSeekerError(f"{source} has no <{tag}>")
    return text
