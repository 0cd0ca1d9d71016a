"""YOLO: images, label files of the same name, and class names in data.yaml or classes.txt.

A label line is `class cx cy w h`, center and size as fractions of the image, or `class x1 y1 x2 y2 x3 y3 ...`, the
corners of a polygon, which is read as its bounding box. An image without a label file has no objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, Xyxy, build_dataset
from objectseeker.datasets.parsing import (
    NO_AREA,
    InvalidAnnotationError,
    SkipLog,
    YamlValue,
    images_by_stem,
    parse_digits,
    parse_number,
    path_below,
    path_exists,
    read_lines,
    read_text,
    read_yaml,
    require_folder,
)
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size, looks_like_image
from objectseeker.text import is_utf8, quote, quote_plain

FORM = "yolo:DIR, yolo:DATA.yaml, or either with :SPLIT"
NAMES_FORMS = "Write names: [a, b], or one line such as '0: a' per class."
PATHS_FORMS = "Write one path or a list of paths."
CLASSES_FILE = "classes.txt"
SPLITS = ("train", "val", "test")
SPLIT_ALIASES = {"val": ("val", "valid"), "valid": ("valid", "val")}  # Roboflow's folder and Ultralytics' key
YAML_NULLS = ("", "~", "null", "Null", "NULL")
ROUNDING = 1e-3  # a converter may round a fraction up to this much above 1


@dataclass(frozen=True, slots=True)
class LabeledImage:
    """An image and the path its label file has, if there is one."""

    id: str
    image: Path
    label: Path


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Read a YOLO dataset: one split, or all of them if the spec names none."""
    root, split = _parse_spec(spec, path_spec)
    labeled = _find_images(spec, root, split, skip_log)
    names = names_of_yaml(root) if root.is_file() else find_names(root)
    records = []
    for item in labeled:
        size = image_size(item.image)
        records.append(ImageRecord(item.id, item.image, size, _boxes(item.label, names, size, skip_log)))
    splits = sorted({item.id.partition("/")[0] for item in labeled if "/" in item.id})
    warnings = []
    if len(splits) > 1 and not split:
        warnings.append(f"all of {', '.join(splits)} are read; {spec}:{splits[-1]} would read one of them")
    return build_dataset(spec, names, records, skip_log, warnings)


def _parse_spec(spec: str, path_spec: str) -> tuple[Path, str]:
    """Split DIR or a YAML file from SPLIT (or empty); a path may contain a colon: what exists decides."""
    directory, _, split = path_spec.rpartition(":")
    for text, part in ((path_spec, ""), (directory, split)):
        path = Path(text).expanduser()
        is_source = path.is_dir() or (path.is_file() and path.suffix in (".yaml", ".yml"))
        if text and is_source and (part or text == path_spec):
            return path, part
    raise ObjectSeekerError(f"{spec!r}: there is no folder at that path. Give {FORM}.")


# Class names


def find_names(root: Path) -> tuple[str, ...]:
    """Return the class names of the dataset in `root`: from YAML, classes.txt or the folder above."""
    for folder in (root, root / "labels", root.parent):
        file = _find_yaml(folder)
        if file is not None:
            return names_of_yaml(file)
        if (folder / CLASSES_FILE).is_file():
            return _names_of_lines(folder / CLASSES_FILE)
    raise ObjectSeekerError(f"{root} has neither a data.yaml with names nor a {CLASSES_FILE}. Add one.")


def _find_yaml(folder: Path) -> Path | None:
    """Return data.yaml, else the only YAML file with a line `names:`."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    standard = [file for file in files if file.stem == "data"]
    with_names = [file for file in files if re.search(r"^names\s*:", read_text(file), re.MULTILINE)]
    return standard[0] if standard else with_names[0] if len(with_names) == 1 else None


def names_of_yaml(file: Path) -> tuple[str, ...]:
    """Return the class names in a YAML file, a list or a mapping of numbers to names."""
    content = read_yaml(file)
    if "kpt_shape" in content:  # lines of key points would pass for polygons
        raise ObjectSeekerError(f"{file} has kpt_shape: its labels are key points, which are not read. Give boxes.")
    match content.get("names"):
        case None:
            raise ObjectSeekerError(f"{file} has no names. {NAMES_FORMS}")
        case dict() as numbered:
            values = _in_order(numbered, file)
        case list() as values:
            pass
        case text if text in YAML_NULLS:
            values = []
        case text:
            raise ObjectSeekerError(f"{file} has names: {quote(text)}. {NAMES_FORMS}")
    names = _check_names(values, file)
    count = content.get("nc")
    if count is not None and (not isinstance(count, str) or parse_digits(count or "?") != len(names)):
        raise ObjectSeekerError(f"{file} has nc: {quote(count)} but {len(names)} names. Correct one of them.")
    return names


def _in_order(numbered: dict[str, YamlValue], file: Path) -> list[YamlValue]:
    """Return the values by their numbers, which must run from 0 without a gap."""
    by_number = {parse_digits(key or "?"): value for key, value in numbered.items()}
    if set(by_number) != set(range(len(numbered))):
        keys = ", ".join(list(numbered)[:5])
        raise ObjectSeekerError(
            f"{file} numbers its names {quote_plain(keys)}. Number them from 0 to {len(numbered) - 1}, each once."
        )
    return [by_number[number] for number in range(len(numbered))]


def _names_of_lines(file: Path) -> tuple[str, ...]:
    names = [line.strip() for line in read_text(file).rstrip().splitlines()]
    if "" in names:
        number = names.index("") + 1
        raise ObjectSeekerError(f"{file} line {number} is empty, which would shift the classes after it. Remove it.")
    return _check_names(names, file)


def _check_names(values: Sequence[YamlValue], file: Path) -> tuple[str, ...]:
    for number, value in enumerate(values):
        if not isinstance(value, str) or "\n" in value or not is_utf8(value):
            raise ObjectSeekerError(f"{file} has {quote(value)} as the name of class {number}. {NAMES_FORMS}")
        if not value:
            raise ObjectSeekerError(f"{file} has an empty name for class {number}. {NAMES_FORMS}")
    if not values:
        raise ObjectSeekerError(f"{file} has no class names. {NAMES_FORMS}")
    return tuple(map(str, values))


# Images and label files: images/ and labels/, Roboflow's folders, the paths in a YAML file, or all in one folder


def _find_images(spec: str, root: Path, split: str, skip_log: SkipLog) -> list[LabeledImage]:
    if root.is_file():
        return _images_of_yaml(spec, root, split, skip_log)
    images, labels = root / "images" / split, root / "labels" / split
    if images.is_dir():
        require_folder(labels, f"{spec!r}: there is no folder {labels}. Add it.")
        return _images_of_folder(images, labels, skip_log)
    names = SPLIT_ALIASES.get(split, (split,)) if split else ("train", "valid", "val", "test")
    folders = [
        (name, root / name) for name in names if all((root / name / sub).is_dir() for sub in ("images", "labels"))
    ]
    if folders:
        return _joined(
            [(name, _images_of_folder(path / "images", path / "labels", skip_log)) for name, path in folders]
        )
    file = _find_yaml(root)
    if file is not None and any(read_yaml(file).get(key) not in (None, *YAML_NULLS) for key in SPLITS):
        return _images_of_yaml(spec, file, split, skip_log)
    if not split and any(looks_like_image(path.name) and path.with_suffix(".txt").is_file() for path in root.iterdir()):
        return _images_of_folder(root, root, skip_log)
    raise ObjectSeekerError(f"{spec!r}: there is no folder {images}. Add it, or give {FORM}.")


def _joined(parts: list[tuple[str, list[LabeledImage]]]) -> list[LabeledImage]:
    """Join the images of several parts; each id then begins with the name of its part."""
    if len(parts) == 1:
        return parts[0][1]
    return [LabeledImage(f"{name}/{item.id}", item.image, item.label) for name, part in parts for item in part]


def _images_of_folder(images: Path, labels: Path, skip_log: SkipLog) -> list[LabeledImage]:
    paths = images_by_stem(images, skip_log)
    for file in filter(lambda file: is_utf8(str(file)), sorted(labels.rglob("*.txt"))):
        if file.name != CLASSES_FILE and file.relative_to(labels).with_suffix("").as_posix() not in paths:
            message = f"{file} has no image of the same name in {images}"
            if images != labels:  # next to images there are other text files: lists of images, a readme
                raise ObjectSeekerError(f"{message}. Add or remove one.")
            skip_log.record_skip("text files without an image skipped", str(file), message)
    return [LabeledImage(stem, path, labels / f"{stem}.txt") for stem, path in paths.items()]


def _images_of_yaml(spec: str, file: Path, split: str, skip_log: SkipLog) -> list[LabeledImage]:
    content = read_yaml(file)
    paths = {key: _paths(content.get(key), key, file) for key in SPLITS}
    keys = [key for key in (SPLIT_ALIASES.get(split, (split,)) if split else SPLITS) if paths.get(key)]
    if not keys:
        known = ", ".join(key for key in SPLITS if paths[key]) or "none of train, val and test"
        raise ObjectSeekerError(
            f"{spec!r}: {file} has no images for {split or 'any split'}; it has {known}. Name another."
        )
    base = file.parent.joinpath(*_paths(content.get("path"), "path", file)[:1])
    parts: list[tuple[str, list[LabeledImage]]] = []
    seen: set[Path] = set()
    for split_key, value in ((key, value) for key in keys for value in paths[key]):
        path = _resolve(value, base, file, skip_log)
        if path is None:
            source = f"{file}, {split_key}: {quote_plain(value)}"
            message = f"{source} is neither a folder nor a list of images. Correct it."
            if split:
                raise ObjectSeekerError(message)
            skip_log.record_skip("splits without their folders skipped", source, message)
        elif path.resolve() not in seen:  # some files name one folder for several splits
            seen.add(path.resolve())
            name = split_key if len(paths[split_key]) == 1 else f"{split_key}/{value.strip('./')}"
            if path.is_dir():
                parts.append((name, _images_of_folder(path, _labels_folder(path), skip_log)))
            else:
                parts.append((name, list(_images_of_list(path, file.parent, skip_log))))
    if not parts:
        raise ObjectSeekerError(f"{spec!r}: none of the folders that {file} names exists. Correct its path.")
    return _joined(parts)


def _paths(value: YamlValue | None, key: str, file: Path) -> list[str]:
    """Return the paths under a key: none, one or several."""
    match value:
        case None:
            return []
        case str():
            return [] if value in YAML_NULLS else [value]
        case list() if all(isinstance(item, str) and item for item in value):
            return [str(item) for item in value]
    raise ObjectSeekerError(f"{file} has {key}: {quote(value)}. {PATHS_FORMS}")


def _resolve(value: str, base: Path, file: Path, skip_log: SkipLog) -> Path | None:
    """Return the folder or list that a YAML file names; None if there is nothing. Rejects path traversal.

    Roboflow writes ../train/images for train/images next to the file, and `path` is often that of another machine.
    """
    names = (value, value.removeprefix("../"))
    candidates = [path for folder in (base, file.parent) for path in (folder / name for name in names)]
    existing = [path for path in candidates if path_exists(path)]
    inside = [path for path in (path_below(file.parent, path) for path in existing) if path is not None]
    if inside or not existing:
        return inside[0] if inside else None
    if skip_log.allow_outside_paths:
        return existing[0]
    raise ObjectSeekerError(
        f"{file} names {quote(value)}, which is outside {file.parent}. Move the file next to its images, or allow "
        "outside paths."
    )


def _images_of_list(listing: Path, root: Path, skip_log: SkipLog) -> Iterator[LabeledImage]:
    """Yield the images in a text file, one path per line, relative to that file."""
    for source, text in read_lines(listing):
        name = text.strip()
        path = listing.parent / name
        if not skip_log.allow_outside_paths:
            path = Path(skip_log.resolve_inside(root, str(path.absolute()), source))
        yield LabeledImage(
            Path(name).with_suffix("").as_posix(), path, _labels_folder(path.parent) / f"{path.stem}.txt"
        )


def _labels_folder(images: Path) -> Path:
    """Return the path with `labels` for `images` in it; the images' own folder if there is no such folder."""
    parts = list(images.parts)
    if "images" not in parts:
        return images
    parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts) if Path(*parts).is_dir() else images


# Label lines


def _boxes(file: Path, names: tuple[str, ...], size: tuple[int, int], skip_log: SkipLog) -> list[Annotation]:
    parse = partial(_box, names=names, size=size, skip_log=skip_log)
    return skip_log.parse_each(parse, read_lines(file) if file.exists() else ())


def _box(line: tuple[str, str], names: tuple[str, ...], size: tuple[int, int], skip_log: SkipLog) -> Annotation:
    source, text = line
    columns = text.split()
    is_polygon = len(columns) >= 7 and len(columns) % 2 == 1
    message = f"{source} has {len(columns)} columns; a box has 5: class cx cy w h"
    if len(columns) != 5 and not is_polygon:
        raise ObjectSeekerError(message)
    label = parse_digits(columns[0])
    if label is None or label >= len(names):
        raise ObjectSeekerError(f"{source} has the class {quote(columns[0])}; it must be one of 0 to {len(names) - 1}")
    xyxy = _polygon_bounds(columns[1:], source) if is_polygon else _corners(columns[1:], source)
    if is_polygon:
        skip_log.record_skip("polygons read as their bounding boxes", source, message)
    width, height = size
    return Annotation(names[label], (xyxy[0] * width, xyxy[1] * height, xyxy[2] * width, xyxy[3] * height), source)


def _corners(columns: list[str], source: str) -> Xyxy:
    named = zip(columns, ("cx", "cy", "w", "h"), strict=True)
    cx, cy, w, h = (_fraction(text, name, source) for text, name in named)
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _polygon_bounds(columns: list[str], source: str) -> Xyxy:
    corners = [_fraction(text, "a corner", source) for text in columns]
    return min(corners[::2]), min(corners[1::2]), max(corners[::2]), max(corners[1::2])


def _fraction(text: str, name: str, source: str) -> float:
    value = parse_number(text, name, source)
    if not 0 <= value <= 1 + ROUNDING:
        problem = f"has {quote_plain(text)}; center and size are fractions of the image, 0 to 1"
        if name in ("w", "h") and -1 <= value < 0:
            raise InvalidAnnotationError(NO_AREA, source, problem)
        raise ObjectSeekerError(f"{source} {problem}")
    return value
