"""COCO: one JSON file with images, annotations (x, y, width, height) and categories, and a folder of images.

The folder may be an address such as s3://bucket/val2017: its files are then not looked at before they are observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from objectseeker.core.boxes import LARGEST_COORDINATE
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import SkipLog, read_json, require_folder
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.files.remote import Url, is_url
from objectseeker.text import plain, shown, writable

FORM = "coco:ANNOTATIONS.json:IMAGES"

JsonObject = dict[str, Any]


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Labels are the categories in file order; crowd annotations are ignored; images without objects are kept."""
    file, images = _split(spec, path_spec)
    content = read_json(file)
    names = {key: _text(item, "name", source) for key, item, source in _items(content, "categories", file)}
    if not names:
        raise ObjectSeekerError(f"{file} has no categories, so its objects have no names")
    records = {
        key: _record(key, item, skip_log.resolve_inside(images, _text(item, "file_name", source), source), source)
        for key, item, source in _items(content, "images", file)
    }
    for _, item, source in _items(content, "annotations", file):
        key = _id(item, "image_id", source)
        if key not in records:
            raise ObjectSeekerError(f"{source} is for image {plain(key)}, which the file does not list")
        records[key].boxes.append(_box(item, names, source))
    return build_dataset(spec, tuple(names.values()), records.values(), skip_log)


def _split(spec: str, path_spec: str) -> tuple[Path, Path | Url]:
    """Annotation file and image folder; paths may hold colons themselves, so the file that exists decides."""
    parts = path_spec.rstrip(":").split(":")
    if len(parts) < 2:
        raise ObjectSeekerError(f"{spec!r} names no image folder; give {FORM}")
    for place in range(1, len(parts)):
        file = Path(":".join(parts[:place])).expanduser()
        if file.is_file():
            named = ":".join(parts[place:])
            if is_url(named):
                return file, Url(named.rstrip("/"))
            images = Path(named).expanduser()
            return file, require_folder(images, f"{spec!r}: {str(images)!r} is not a folder; give {FORM}")
    raise ObjectSeekerError(f"{spec!r}: there is no annotation file at that path; give {FORM}")


def _items(content: JsonObject, key: str, file: Path) -> Iterator[tuple[str, JsonObject, str]]:
    """Each item of one of the file's lists with its id and, for messages, where it stands; no id may come twice."""
    items = content.get(key)
    if not isinstance(items, list):
        raise ObjectSeekerError(f"{file} is not a COCO annotation file: it has no list {key!r}")
    seen: set[str] = set()
    for place, item in enumerate(items):
        source = f"{file}, {key}[{place}]"
        if not isinstance(item, dict):
            raise ObjectSeekerError(f"{source} must be an object with keys, got {shown(item)}")
        # Evaluation never uses an annotation's id, and some tools leave it out.
        identity = source if key == "annotations" and "id" not in item else _id(item, "id", source)
        if identity in seen:
            raise ObjectSeekerError(f"{source} has the id {plain(identity)} of an earlier one; give each its own")
        seen.add(identity)
        yield identity, item, source if identity is source else f"{source} (id {plain(identity)})"


def _record(key: str, item: JsonObject, path: Path | Url, source: str) -> ImageRecord:
    if "width" not in item or "height" not in item:
        return ImageRecord(key, path, image_size(path), [])
    size = item["width"], item["height"]
    if not all(type(side) is int and 0 < side <= LARGEST_COORDINATE for side in size):
        stated = f"{shown(size[0])} x {shown(size[1])}"
        raise ObjectSeekerError(f"{source} must have a width and height in whole pixels, got {stated}")
    return ImageRecord(key, path, size, [])


def _box(item: JsonObject, names: dict[str, str], source: str) -> Annotation:
    category = _id(item, "category_id", source)
    if category not in names:
        raise ObjectSeekerError(f"{source} is of category {plain(category)}, which the file does not list")
    x, y, width, height = _bbox(item, source)
    crowd = item.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise ObjectSeekerError(f"{source} has iscrowd {shown(crowd)}; it must be 0 or 1")
    return Annotation(names[category], (x, y, x + width, y + height), source, crowd=bool(crowd))


def _bbox(item: JsonObject, source: str) -> list[float]:
    bbox = item.get("bbox")
    try:
        if isinstance(bbox, list) and len(bbox) == 4 and all(type(value) in (int, float) for value in bbox):
            return [float(value) for value in bbox]
    except OverflowError:  # a whole number beyond any float
        pass
    raise ObjectSeekerError(f"{source} must have a bbox of four numbers, got {shown(bbox)}")


def _id(item: JsonObject, key: str, source: str) -> str:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str) or not writable(str(value)):
        raise ObjectSeekerError(f"{source} must have {key!r} as a whole number or text, got {shown(value)}")
    return str(value)


def _text(item: JsonObject, key: str, source: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value or not writable(value):
        raise ObjectSeekerError(f"{source} must have {key!r} as text, got {shown(value)}")
    return value
