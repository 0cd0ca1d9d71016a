"""The class names of a YOLO dataset, from its YAML file or classes.txt."""

from __future__ import annotations

from pathlib import Path

from objectseeker.datasets.reading import read_lines, whole
from objectseeker.datasets.yolo_yaml import NAME_FORMS, YamlItem, has_key, items, number_of, read_text
from objectseeker.errors import ObjectSeekerError

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
    if count is not None and whole(count) != len(names):
        raise ObjectSeekerError(f"{file} says nc: {count[:20]} but has {len(names)} names; correct one of them")
    return names


def _in_order(listed: list[YamlItem], file: Path) -> list[str]:
    """The names by their number; numbers must run from 0 without a gap, and all items must be of one form."""
    keys = [whole(item.key) for item in listed if item.key is not None]
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
