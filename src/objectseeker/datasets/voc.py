"""Pascal VOC: a VOCdevkit with ImageSets/Main/SPLIT.txt, Annotations/ID.xml and JPEGImages/ID.jpg.

Without a split: the two folders without ImageSets, or one folder with XML files next to their images.

VOC counts pixels from 1 and a box includes its last row and column. Here boxes are half-open and start at 0, so
(xmin, ymin, xmax, ymax) becomes (xmin - 1, ymin - 1, xmax, ymax).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from objectseeker.core.boxes import LARGEST_COORDINATE
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import (
    SkipLog,
    folder_of,
    images_by_stem,
    parse_number,
    path_exists,
    read_lines,
    read_xml,
    require_folder,
)
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.text import is_utf8, quote

FORM = "voc:VOCDIR:SPLIT, or voc:DIR for a folder without splits"
XML_FOLDERS, IMAGE_FOLDERS = ("Annotations", "annotations"), ("JPEGImages", "images")
NO_XML = "images without an XML file skipped"


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read a VOC dataset with the 20 VOC classes, or with the sorted names that occur if there are others.

    Difficult objects are ignored. The years of a devkit that have the split are joined.
    """
    if path_spec and Path(path_spec).expanduser().is_dir():
        records = list(_flat(spec, Path(path_spec).expanduser(), skip_log))
    else:
        directory, _, split = path_spec.rpartition(":")
        if not directory or not split:
            raise ObjectSeekerError(f"{spec!r} names no folder and split. Give {FORM}.")
        years = _years(spec, folder_of(directory, spec, FORM), split)
        records = [record for year in years for record in _records(year, split, skip_log)]
    occurring = {box.name for record in records for box in record.boxes}
    return build_dataset(spec, VOC_20 if occurring <= set(VOC_20) else sorted(occurring), records, skip_log)


def _flat(spec: str, root: Path, skip_log: SkipLog) -> Iterator[ImageRecord]:
    """Yield every image with an XML file; without one it may not be annotated yet, unlike empty."""
    if splits := _splits(_year_folders(root)):
        raise ObjectSeekerError(f"{spec!r} names no split; it has {', '.join(splits)}. Give {FORM}.")
    annotations, folder = (
        next((root / name for name in names if (root / name).is_dir()), root) for names in (XML_FOLDERS, IMAGE_FOLDERS)
    )
    files = {
        file.relative_to(annotations).with_suffix("").as_posix(): file
        for file in sorted(annotations.rglob("*.xml"))
        if is_utf8(str(file))
    }
    if not files:
        raise ObjectSeekerError(f"{spec!r}: there is no XML file in {annotations}. Give {FORM}.")
    images = images_by_stem(folder, skip_log)
    for stem in sorted(images.keys() - files.keys()):
        skip_log.record_skip(NO_XML, str(images[stem]), f"{images[stem]} has no XML file in {annotations}")
    for stem, file in files.items():
        yield _record(stem, images.get(stem, folder / f"{stem}.jpg"), file, skip_log)


def _years(spec: str, root: Path, split: str) -> list[Path]:
    """Return the folders with the split: VOCDIR, or those in it, or those of the VOCdevkit in it."""
    candidates = _year_folders(root)
    years = [folder for folder in candidates if (folder / "ImageSets" / "Main" / f"{split}.txt").is_file()]
    if not years:
        splits = _splits(candidates)
        known = f"it has {', '.join(splits)}" if splits else "it has no ImageSets/Main with lists of images"
        raise ObjectSeekerError(f"{spec!r}: there is no split {split!r} in {root}; {known}. Give {FORM}.")
    return years


def _year_folders(root: Path) -> list[Path]:
    return [root, *_folders(root), *_folders(root / "VOCdevkit")]


def _splits(candidates: list[Path]) -> list[str]:
    lists = (path.stem for folder in candidates for path in folder.glob("ImageSets/Main/*.txt"))
    return sorted({name for name in lists if "_" not in name})  # aeroplane_val and the like are class lists


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


def _records(year: Path, split: str, skip_log: SkipLog) -> Iterator[ImageRecord]:
    listing = year / "ImageSets" / "Main" / f"{split}.txt"
    folder = require_folder(year / "JPEGImages", f"{year} has no JPEGImages folder. Add it.")
    others: dict[str, Path] | None = None
    for source, text in read_lines(listing):
        image_id, *more = text.split()
        if more:
            raise ObjectSeekerError(
                f"{source} is {quote(text)}, not one image name; class lists are not splits. Name another split."
            )
        path = Path(skip_log.resolve_inside(folder, f"{image_id}.jpg", source))
        if not path_exists(path):
            others = images_by_stem(folder, skip_log) if others is None else others
            path = others.get(image_id, path)
        yield _record(
            image_id, path, Path(skip_log.resolve_inside(year / "Annotations", f"{image_id}.xml", source)), skip_log
        )


def _record(image_id: str, path: Path, file: Path, skip_log: SkipLog) -> ImageRecord:
    root = read_xml(file, "annotation", "VOC")
    stated = root.find("size")
    size = image_size(path) if stated is None else (_pixels(stated, "width", file), _pixels(stated, "height", file))
    objects = [(element, f"{file}, object {number}") for number, element in enumerate(root.findall("object"), start=1)]
    return ImageRecord(image_id, path, size, skip_log.parse_each(_box, objects))


def _box(item: tuple[Element, str]) -> Annotation:
    element, source = item
    frame = element.find("bndbox")
    if frame is None:
        raise ObjectSeekerError(f"{source} has no <bndbox>. Add it.")
    left, top, right, bottom = (
        parse_number(_text(frame, tag, source), tag, source) for tag in ("xmin", "ymin", "xmax", "ymax")
    )
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ObjectSeekerError(f"{source} has <difficult> {quote(difficult)}; it must be 0 or 1")
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
        raise ObjectSeekerError(f"{source} has no <{tag}>. Add it.")
    return text
