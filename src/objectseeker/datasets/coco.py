"""COCO: a JSON file with images, annotations (x, y, width, height) and categories, and a folder.

The folder may be an address such as s3://bucket/val2017; its files are then not checked before they are observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from objectseeker.core.boxes import LARGEST_COORDINATE
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset
from objectseeker.datasets.parsing import SkipLog, folder_of, read_json
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size
from objectseeker.files.remote import Url, is_url
from objectseeker.text import is_utf8, quote, quote_plain

FORM = "coco:ANNOTATIONS.json:IMAGES, or coco:ROOT or coco:ROOT:SPLIT with annotations/instances_SPLIT.json in ROOT"
ANNOTATIONS, PREFIX = "annotations", "instances_"  # of COCO's own folder of annotation files, and of their names

JsonObject = dict[str, Any]


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read a COCO file: labels are its categories in file order, and crowds are ignored.

    Images without objects are kept. The dataset's spec names the file and the folder, also where `path_spec` names
    only a root folder.
    """
    file, images = _find_files(spec, path_spec)
    content = read_json(file)
    names = {key: _text(item, "name", source) for key, item, source in _items(content, "categories", file)}
    if not names:
        raise ObjectSeekerError(f"{file} has no categories, so its objects have no names. Add them.")
    records = {
        key: _record(key, item, skip_log.resolve_inside(images, _text(item, "file_name", source), source), source)
        for key, item, source in _items(content, "images", file)
    }
    for _, item, source in _items(content, "annotations", file):
        key = _id(item, "image_id", source)
        if key not in records:
            raise ObjectSeekerError(f"{source} is for image {quote_plain(key)}, which the file does not list. Add it.")
        records[key].boxes.append(_box(item, names, source))
    return build_dataset(f"coco:{file}:{images}", tuple(names.values()), records.values(), skip_log)


def _find_files(spec: str, path_spec: str) -> tuple[Path, Path | Url]:
    """Return annotation file and image folder; paths may contain colons, so what exists decides."""
    parts = path_spec.rstrip(":").split(":")
    for count in range(1, len(parts) + 1):
        path, images = Path(":".join(parts[:count])).expanduser(), ":".join(parts[count:])
        if path.is_file():
            if not images:
                raise ObjectSeekerError(f"{spec!r} names no image folder. Give {FORM}.")
            return path, Url(images.rstrip("/")) if is_url(images) else folder_of(images, spec, FORM)
    directory, _, split = path_spec.rpartition(":")
    for text, name in ((path_spec, ""), (directory, split)):
        if text and (root := Path(text).expanduser()).is_dir():
            return _find_in_root(spec, root, name)
    raise ObjectSeekerError(f"{spec!r}: there is no annotation file or folder at that path. Give {FORM}.")


def _find_in_root(spec: str, root: Path, split: str) -> tuple[Path, Path]:
    """Return annotation file and image folder of the one split that has both, or of the named split."""
    files = sorted((root / ANNOTATIONS).glob(f"{PREFIX}*.json"))
    splits = {file.stem.removeprefix(PREFIX): file for file in files}
    if not splits:
        raise ObjectSeekerError(f"{spec!r}: there is no {root / ANNOTATIONS / PREFIX}SPLIT.json. Give {FORM}.")
    if split and split not in splits:
        known = ", ".join(splits)
        raise ObjectSeekerError(f"{spec!r}: there is no split {split!r} in {root}; it has {known}. Give one of them.")
    complete: dict[str, Path] = {}
    for name in [split] if split else splits:
        folders = (root / name, root / "images" / name, root / "images")
        if folder := next(filter(Path.is_dir, folders), None):
            complete[name] = folder
    if not complete:
        raise ObjectSeekerError(
            f"{spec!r}: {splits[name]} has no image folder {' or '.join(map(str, folders))}. Add it, or give "
            "coco:ANNOTATIONS.json:IMAGES."
        )
    if len(complete) > 1:
        raise ObjectSeekerError(f"{spec!r} names no split; it has {', '.join(splits)}. Give {spec}:{[*complete][-1]}.")
    ((name, folder),) = complete.items()
    return splits[name], folder


def _items(content: JsonObject, key: str, file: Path) -> Iterator[tuple[str, JsonObject, str]]:
    """Yield the id, the item and its place (for messages) of one of the file's lists; ids are unique."""
    items = content.get(key)
    if not isinstance(items, list):
        raise ObjectSeekerError(f"{file} is not a COCO annotation file: it has no list {key!r}. Name another file.")
    seen: set[str] = set()
    for position, item in enumerate(items):
        source = f"{file}, {key}[{position}]"
        if not isinstance(item, dict):
            raise ObjectSeekerError(f"{source} must be an object with keys: got {quote(item)}")
        # Evaluation never uses an annotation's id, and some tools omit it.
        item_id = source if key == "annotations" and "id" not in item else _id(item, "id", source)
        if item_id in seen:
            raise ObjectSeekerError(f"{source} has the id {quote_plain(item_id)} of an earlier one. Give each its own.")
        seen.add(item_id)
        yield item_id, item, source if item_id is source else f"{source} (id {quote_plain(item_id)})"


def _record(key: str, item: JsonObject, path: Path | Url, source: str) -> ImageRecord:
    if "width" not in item or "height" not in item:
        return ImageRecord(key, path, image_size(path), [])
    size = item["width"], item["height"]
    if not all(type(side) is int and 0 < side <= LARGEST_COORDINATE for side in size):
        stated = f"{quote(size[0])} x {quote(size[1])}"
        raise ObjectSeekerError(f"{source} must have a width and height in whole pixels: got {stated}")
    return ImageRecord(key, path, size, [])


def _box(item: JsonObject, names: dict[str, str], source: str) -> Annotation:
    category = _id(item, "category_id", source)
    if category not in names:
        raise ObjectSeekerError(
            f"{source} is of category {quote_plain(category)}, which the file does not list. Add it."
        )
    x, y, width, height = _bbox(item, source)
    crowd = item.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise ObjectSeekerError(f"{source} has iscrowd {quote(crowd)}; it must be 0 or 1")
    return Annotation(names[category], (x, y, x + width, y + height), source, crowd=bool(crowd))


def _bbox(item: JsonObject, source: str) -> list[float]:
    bbox = item.get("bbox")
    try:
        if isinstance(bbox, list) and len(bbox) == 4 and all(type(value) in (int, float) for value in bbox):
            return [float(value) for value in bbox]
    except OverflowError:  # an integer beyond any float
        pass
    raise ObjectSeekerError(f"{source} must have a bbox of four numbers: got {quote(bbox)}")


def _id(item: JsonObject, key: str, source: str) -> str:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str) or not is_utf8(str(value)):
        raise ObjectSeekerError(f"{source} must have {key!r} as a whole number or text: got {quote(value)}")
    return str(value)


def _text(item: JsonObject, key: str, source: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value or not is_utf8(value):
        raise ObjectSeekerError(f"{source} must have {key!r} as text: got {quote(value)}")
    return value
