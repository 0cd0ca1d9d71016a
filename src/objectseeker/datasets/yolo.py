"""YOLO: images and text files of the same name, and the class names in a YAML file or classes.txt.

A label line is `class cx cy w h`, center and size as fractions of the image, or `class x1 y1 x2 y2 x3 y3 ...`, the
corners of a polygon, of which the bounding box is taken. An image without a label file has no objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, Xyxy, build_dataset
from objectseeker.datasets.parsing import exists, images_by_stem, parse_digits, parse_number, read_lines, require_folder
from objectseeker.datasets.skip_log import NO_AREA, InvalidAnnotationError, SkipLog, SkipReason, below
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import image_size, looks_like_image
from objectseeker.text import plain, shown, writable

# The little YAML that YOLO datasets use, read without a YAML library.
#
# After a key at the margin: one value, a list, or a mapping of numbers to values; in brackets (over several lines if
# need be) or one item a line. Anything else is refused, not guessed at.


NAME_FORMS = "write them as names: [a, b] or as lines like '0: a'"

SPACE = r"(?:\s(?:\#[^\n]*+)?+)*+"  # blanks and the comments that follow blanks; never only part of a comment
KEY = r"""(?P<key>["']?\d+["']?\s*:\s)?\s*"""
QUOTED = r"""'(?P<single>(?:[^'\n]|'')*)'|"(?P<double>[^"\\\n]*)\""""
START = r"""[^\s,\[\]{}\#&*!|>'"%@`?]"""  # what a name without quotes may begin with
PLAIN = rf"(?P<plain>{START}(?:[^\n\#]|(?<=\S)\#)*)"
BLOCK_ITEM = re.compile(rf"(?P<dash>-\s)?\s*{KEY}(?:{QUOTED}|{PLAIN}){SPACE}")
FLOW_ITEM = re.compile(rf"{SPACE}{KEY}(?:{QUOTED}|(?P<plain>{START}[^\n,\[\]{{}}\#]*)){SPACE}")
SCALAR = re.compile(rf"(?:{QUOTED}|{PLAIN}){SPACE}")
FLOW_END = re.compile(rf"{SPACE}[\]}}]")
NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class YamlItem:
    """One item of a list or mapping; a mapping's have the digits of their key."""

    key: str | None
    value: str


def read_text(file: Path) -> str:
    return "\n".join(line for _, line in read_lines(file))


def items(text: str, key: str, file: Path) -> list[YamlItem] | None:
    """The list or mapping under `key`; None if the file has no such key."""
    rest = _after(text, key)
    if rest is None:
        return None
    bracket = re.match(rf"{SPACE}([\[{{])", rest)
    matches = _flow_items(rest, bracket.end(), key, file) if bracket else _block_items(rest, key, file)
    return [_item(item, key, file) for item in matches]


def values(text: str, key: str, file: Path) -> list[str]:
    """The one value or the list of values under `key`; none if there is no such key or nothing after it."""
    rest = _after(text, key)
    if rest is None:
        return []
    line = rest.partition("\n")[0].strip()
    if not line or line.startswith(("#", "[")):
        return [item.value for item in items(text, key, file) or []]
    if line in NULLS:
        return []
    scalar = SCALAR.fullmatch(line)
    following = next((more for more in rest.split("\n")[1:] if more.strip() and not more.strip().startswith("#")), "x")
    if scalar is None or following[0] in " \t":
        raise ObjectSeekerError(f"{file} has {key}: {shown(line)}, which cannot be read; write one path or a list")
    return [_value(scalar, key, file)]


def number_of(text: str, key: str) -> str | None:
    """The digits after `key`, if digits follow it."""
    digits = re.search(rf"^{key}[ \t]*:[ \t]*(\d+)", text, re.MULTILINE)
    return digits[1] if digits else None


def has_key(text: str, key: str) -> bool:
    return _after(text, key) is not None


def _after(text: str, key: str) -> str | None:
    start = re.search(rf"^{key}[ \t]*:(?=\s|$)", text, re.MULTILINE)
    return text[start.end() :] if start else None


def _flow_items(text: str, start: int, key: str, file: Path) -> list[re.Match[str]]:
    """The items between brackets; `start` is just behind the opening one."""
    matches: list[re.Match[str]] = []
    while not FLOW_END.match(text, start):
        item = FLOW_ITEM.match(text, start)
        if item is None or (text[item.end() :][:1] != "," and not FLOW_END.match(text, item.end())):
            raise ObjectSeekerError(f"{file} has {key} that cannot be read after item {len(matches)}; {_hint(key)}")
        matches.append(item)
        start = item.end() + (text[item.end()] == ",")
    return matches


def _block_items(text: str, key: str, file: Path) -> list[re.Match[str]]:
    """The items on lines of their own: all up to the next key, each as far in as the first."""
    matches: list[re.Match[str]] = []
    margin = ""
    for line in text.split("\n"):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if line[0] not in " \t-":
            break
        indent = line[: len(line) - len(line.lstrip())]
        margin = margin if matches else indent
        item = BLOCK_ITEM.fullmatch(content)
        if item is None or bool(item["dash"]) == bool(item["key"]) or indent != margin:
            raise _unreadable(content, key, file)
        matches.append(item)
    return matches


def _item(item: re.Match[str], key: str, file: Path) -> YamlItem:
    return YamlItem(re.sub(r"\D", "", item["key"]) if item["key"] else None, _value(item, key, file))


def _value(item: re.Match[str], key: str, file: Path) -> str:
    if item["single"] is not None:
        return item["single"].replace("''", "'")
    if item["double"] is not None:
        return item["double"]
    value = item["plain"].strip()
    if ": " in value or value.endswith(":"):
        raise _unreadable(value, key, file)
    return value


def _unreadable(value: str, key: str, file: Path) -> ObjectSeekerError:
    what = "the name" if key == "names" else f"under {key}"
    return ObjectSeekerError(f"{file} has {what} {shown(value)}, which cannot be read; {_hint(key)}")


def _hint(key: str) -> str:
    return NAME_FORMS if key == "names" else "write one path or a list of paths"


# The class names of a YOLO dataset, from its YAML file or classes.txt.


NAMES_FILE = "classes.txt"


def find_names(root: Path) -> tuple[str, ...]:
    """The class names of the dataset in `root`: from its YAML file or classes.txt, else from the folder above."""
    for folder in (root, root / "labels", root.parent):
        yaml = yaml_file(folder)
        if yaml is not None:
            return names_in(yaml)
        if (folder / NAMES_FILE).is_file():
            return _from_lines(folder / NAMES_FILE)
    raise ObjectSeekerError(f"{root} has neither a data.yaml with names nor a {NAMES_FILE}; add one")


def yaml_file(folder: Path) -> Path | None:
    """data.yaml, else the only YAML file that has names."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    usual = [file for file in files if file.stem == "data"]
    others = [file for file in files if has_key(read_text(file), "names")]
    return usual[0] if usual else others[0] if len(others) == 1 else None


def _from_lines(file: Path) -> tuple[str, ...]:
    lines = read_lines(file)
    for place, (line, _) in enumerate(lines, start=1):
        if place != line:
            raise ObjectSeekerError(f"{file} line {place} is empty, which would shift the classes after it; remove it")
    return _checked([name.strip() for _, name in lines], file)


def names_in(file: Path) -> tuple[str, ...]:
    """The class names that a YAML file states: after `names:` a list, or a mapping of numbers to names."""
    text = read_text(file)
    if (listed := items(text, "names", file)) is None:
        raise ObjectSeekerError(f"{file} has no names; {NAME_FORMS}")
    names = _checked(_in_order(listed, file), file)
    count = number_of(text, "nc")
    if count is not None and parse_digits(count) != len(names):
        raise ObjectSeekerError(f"{file} says nc: {count[:20]} but has {len(names)} names; correct one of them")
    return names


def _in_order(listed: list[YamlItem], file: Path) -> list[str]:
    """The names by their number; numbers must run from 0 without a gap, and all items must be of one form."""
    keys = [parse_digits(item.key) for item in listed if item.key is not None]
    if not keys:
        return [item.value for item in listed]
    if set(keys) != set(range(len(listed))) or len(keys) != len(listed):
        raise ObjectSeekerError(f"{file} must number its names from 0 to {len(listed) - 1}, each once")
    order = {key: item.value for key, item in zip(keys, listed, strict=True)}
    return [order[place] for place in range(len(listed))]


def _checked(names: list[str], file: Path) -> tuple[str, ...]:
    if not names or not all(names):
        raise ObjectSeekerError(f"{file} has {'an empty class name' if names else 'no class names'}; {NAME_FORMS}")
    return tuple(names)


# Where the images and label files of a YOLO dataset lie: images/ and labels/, Roboflow's folders, or a data.yaml.


SPLITS = ("train", "val", "test")
SAME = {"val": ("val", "valid"), "valid": ("valid", "val")}  # Roboflow's folder and Ultralytics' key
NO_FOLDER = SkipReason("split without its folder left out", "splits without their folders left out")
NO_IMAGE = SkipReason("text file without an image left out", "text files without an image left out", "at")


@dataclass(frozen=True, slots=True)
class Labeled:
    """One image and where its label file would be."""

    id: str
    image: Path
    label: Path


def find_images_and_labels(spec: str, root: Path, split: str, notes: SkipLog) -> list[Labeled]:
    """`root` is the folder or the YAML file that the user named; `split` is empty where none is."""
    if root.is_file():
        return _of_yaml(spec, root, split, notes)
    images, labels = root / "images" / split, root / "labels" / split
    if not images.is_dir():
        if parts := _roboflow(root, split):
            return _joined([(name, _in_folder(part / "images", part / "labels", notes)) for name, part in parts])
        file = yaml_file(root)
        if file is not None and any(values(read_text(file), key, file) for key in SPLITS):
            return _of_yaml(spec, file, split, notes)
        if not split and _has_labels_beside(root):
            return _in_folder(root, root, notes)
        raise ObjectSeekerError(f"{spec!r}: there is no folder {images}")
    return _in_folder(images, require_folder(labels, f"{spec!r}: there is no folder {labels}"), notes)


def _roboflow(root: Path, split: str) -> list[tuple[str, Path]]:
    """The folders train, valid and test that hold images and labels; of a named split, only its own."""
    names = SAME.get(split, (split,)) if split else ("train", "valid", "val", "test")
    return [(name, root / name) for name in names if all((root / name / sub).is_dir() for sub in ("images", "labels"))]


def _joined(parts: list[tuple[str, list[Labeled]]]) -> list[Labeled]:
    """All images; where there are several parts, each id begins with that of its part."""
    if len(parts) == 1:
        return parts[0][1]
    return [Labeled(f"{name}/{one.id}", one.image, one.label) for name, part in parts for one in part]


def _in_folder(images: Path, labels: Path, notes: SkipLog) -> list[Labeled]:
    paths = images_by_stem(images, notes)
    for file in filter(lambda file: writable(str(file)), sorted(labels.rglob("*.txt"))):
        if file.name != NAMES_FILE and file.relative_to(labels).with_suffix("").as_posix() not in paths:
            refusal = f"{file} has no image of the same name in {images}"
            if images != labels:  # beside images there are other text files: lists of images, a readme
                raise ObjectSeekerError(refusal)
            notes.note(NO_IMAGE, str(file), refusal)
    return [Labeled(stem, path, labels / f"{stem}.txt") for stem, path in paths.items()]


def _has_labels_beside(folder: Path) -> bool:
    return any(looks_like_image(path.name) and path.with_suffix(".txt").is_file() for path in folder.iterdir())


def _of_yaml(spec: str, file: Path, split: str, notes: SkipLog) -> list[Labeled]:
    text = read_text(file)
    stated = {key: values(text, key, file) for key in SPLITS}
    keys = [key for key in (SAME.get(split, (split,)) if split else SPLITS) if stated.get(key)]
    if not keys:
        known = ", ".join(key for key in SPLITS if stated[key]) or "none of train, val and test"
        raise ObjectSeekerError(f"{spec!r}: {file} has no images for {split or 'any split'}; it has {known}")
    base = file.parent.joinpath(*values(text, "path", file)[:1])
    parts: list[tuple[str, list[Labeled]]] = []
    seen: set[Path] = set()
    for key, value in [(one, each) for one in keys for each in stated[one]]:
        place = _place(value, base, file, notes)
        if place is None:
            source = f"{file}, {key}: {plain(value)}"
            refusal = f"{source} is neither a folder nor a list of images; correct it"
            if split:
                raise ObjectSeekerError(refusal)
            notes.note(NO_FOLDER, source, refusal)
        elif place.resolve() not in seen:  # some files name one folder for several splits
            seen.add(place.resolve())
            name = key if len(stated[key]) == 1 else f"{key}/{value.strip('./')}"
            parts.append((name, _in_place(place, file, notes)))
    if not parts:
        raise ObjectSeekerError(f"{spec!r}: none of the folders that {file} names is there; correct its path")
    return _joined(parts)


def _place(value: str, base: Path, file: Path, notes: SkipLog) -> Path | None:
    """The folder or list that a YAML file names; None if there is nothing.

    Roboflow writes ../train/images for train/images beside the file, and a `path` is often that of another machine.
    """
    names = (value, value.removeprefix("../"))
    there = [path for folder in (base, file.parent) for path in (folder / name for name in names) if exists(path)]
    inside = [path for path in (below(file.parent, path) for path in there) if path is not None]
    if inside or not there:
        return inside[0] if inside else None
    if notes.outside:
        return there[0]
    raise ObjectSeekerError(
        f"{file} names {shown(value)}, which lies outside {file.parent}; put the file beside its images, or allow it "
        "with outside"
    )


def _in_place(place: Path, file: Path, notes: SkipLog) -> list[Labeled]:
    if place.is_dir():
        return _in_folder(place, _labels_of(place), notes)
    return list(_in_list(place, file.parent, notes))


def _in_list(listing: Path, root: Path, notes: SkipLog) -> Iterator[Labeled]:
    """The images of a text file, one path a line, relative to the file."""
    for line, text in read_lines(listing):
        source, name = f"{listing} line {line}", text.strip()
        path = listing.parent / name
        if not notes.outside:
            path = Path(notes.inside(root, str(path.absolute()), source))
        yield Labeled(Path(name).with_suffix("").as_posix(), path, _labels_of(path.parent) / f"{path.stem}.txt")


def _labels_of(images: Path) -> Path:
    """labels where the path has images; beside the images if there is no such folder."""
    parts = list(images.parts)
    if "images" not in parts:
        return images
    parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts) if Path(*parts).is_dir() else images


FORM = "yolo:DIR, yolo:DATA.yaml, or either with :SPLIT"
ROUNDING = 1e-3  # how far above 1 a fraction may come out of a converter's rounding
POLYGON = SkipReason("polygon read as its bounding box", "polygons read as their bounding boxes")


def read(spec: str, rest: str, notes: SkipLog) -> Dataset:
    """Labels are the class numbers of the files. With :SPLIT one split is read, else all."""
    root, split = _split(spec, rest)
    labeled = find_images_and_labels(spec, root, split, notes)
    _refuse_key_points(root)
    names = names_in(root) if root.is_file() else find_names(root)
    records = []
    for one in labeled:
        size = image_size(one.image)
        records.append(ImageRecord(one.id, one.image, size, _boxes(one.label, names, size, notes)))
    parts = sorted({one.id.partition("/")[0] for one in labeled if "/" in one.id})
    warnings = []
    if len(parts) > 1 and not split:
        warnings.append(f"all of {', '.join(parts)} are read; {spec}:{parts[-1]} would read one of them")
    return build_dataset(spec, names, records, notes, warnings)


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


def _boxes(file: Path, names: tuple[str, ...], size: tuple[int, int], notes: SkipLog) -> list[Annotation]:
    boxes = []
    for line, text in read_lines(file) if file.exists() else ():
        with notes:
            boxes.append(_box(text.split(), names, size, f"{file} line {line}", notes))
    return boxes


def _box(columns: list[str], names: tuple[str, ...], size: tuple[int, int], source: str, notes: SkipLog) -> Annotation:
    polygon = len(columns) >= 7 and len(columns) % 2 == 1
    refusal = f"{source} has {len(columns)} columns; a box has 5: class cx cy w h"
    if len(columns) != 5 and not polygon:
        raise ObjectSeekerError(refusal)
    label = parse_digits(columns[0])
    if label is None or label >= len(names):
        raise ObjectSeekerError(f"{source} has the class {shown(columns[0])}; it must be one of 0 to {len(names) - 1}")
    xyxy = _around(columns[1:], source) if polygon else _centerd(columns[1:], source)
    if polygon:
        notes.note(POLYGON, source, refusal)
    width, height = size
    return Annotation(names[label], (xyxy[0] * width, xyxy[1] * height, xyxy[2] * width, xyxy[3] * height), source)


def _centerd(columns: list[str], source: str) -> Xyxy:
    named = list(zip(columns, ("cx", "cy", "w", "h"), strict=True))
    cx, cy, w, h = (_fraction(text, name, source) for text, name in named)
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _around(columns: list[str], source: str) -> Xyxy:
    corners = [_fraction(text, "a corner", source) for text in columns]
    return min(corners[::2]), min(corners[1::2]), max(corners[::2]), max(corners[1::2])


def _fraction(text: str, name: str, source: str) -> float:
    value = parse_number(text, name, source)
    if not 0 <= value <= 1 + ROUNDING:
        sentence = f"{source} has {plain(text)}; center and size are fractions of the image, 0 to 1"
        if name in ("w", "h") and -1 <= value < 0:
            raise InvalidAnnotationError(NO_AREA, source, sentence)
        raise ObjectSeekerError(sentence)
    return value
