"""The class names of a YOLO dataset, read without a YAML library.

Only the forms that datasets use are understood: after `names:` a list or a mapping of numbers to names, in brackets
(over several lines if need be) or one item a line. Anything else is refused, not guessed at.
"""

from __future__ import annotations

import re
from pathlib import Path

from objectseeker.datasets.reading import read_lines
from objectseeker.errors import ObjectSeekerError

NAMES_FILE = "classes.txt"
FORMS = "write them as names: [a, b] or as lines like '0: a'"

SPACE = r"(?:\s(?:\#[^\n]*+)?+)*+"  # blanks and the comments that follow blanks; never only part of a comment
KEY = r"""(?P<key>["']?\d+["']?\s*:\s)?\s*"""
QUOTED = r"""'(?P<single>(?:[^'\n]|'')*)'|"(?P<double>[^"\\\n]*)\""""
START = r"""[^\s,\[\]{}\#&*!|>'"%@`?]"""  # what a name without quotes may begin with
BLOCK_ITEM = re.compile(rf"(?P<dash>-\s)?\s*{KEY}(?:{QUOTED}|(?P<plain>{START}(?:[^\n\#]|(?<=\S)\#)*)){SPACE}")
FLOW_ITEM = re.compile(rf"{SPACE}{KEY}(?:{QUOTED}|(?P<plain>{START}[^\n,\[\]{{}}\#]*)){SPACE}")
NAMES_KEY = re.compile(r"^names[ \t]*:(?=\s|$)", re.MULTILINE)
FLOW_END = re.compile(rf"{SPACE}[\]}}]")


def find_names(root: Path) -> tuple[str, ...]:
    """The class names of the dataset in `root`: from its YAML file or classes.txt, else from the folder above."""
    for folder in (root, root / "labels", root.parent):
        yaml = _yaml_file(folder)
        if yaml is not None:
            return _from_yaml(yaml)
        if (folder / NAMES_FILE).is_file():
            return _from_lines(folder / NAMES_FILE)
    raise ObjectSeekerError(f"{root} has neither a data.yaml with names nor a {NAMES_FILE}; add one")


def _yaml_file(folder: Path) -> Path | None:
    """data.yaml, else the only YAML file that has names."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    usual = [file for file in files if file.stem == "data"]
    others = [file for file in files if NAMES_KEY.search(_text(file))]
    return usual[0] if usual else others[0] if len(others) == 1 else None


def _text(file: Path) -> str:
    return "\n".join(line for _, line in read_lines(file))


def _from_lines(file: Path) -> tuple[str, ...]:
    lines = read_lines(file)
    for place, (line, _) in enumerate(lines, start=1):
        if place != line:
            raise ObjectSeekerError(f"{file} line {place} is empty, which would shift the classes after it; remove it")
    return _checked([name.strip() for _, name in lines], file)


def _from_yaml(file: Path) -> tuple[str, ...]:
    text = _text(file)
    found = NAMES_KEY.search(text)
    if found is None:
        raise ObjectSeekerError(f"{file} has no names; {FORMS}")
    rest = text[found.end() :]
    bracket = re.match(rf"{SPACE}([\[{{])", rest)
    items = _flow_items(rest, bracket.end(), file) if bracket else _block_items(rest, file)
    names = _checked(_in_order(items, file), file)
    count = re.search(r"^nc[ \t]*:[ \t]*(\d+)", text, re.MULTILINE)
    if count and int(count[1]) != len(names):
        raise ObjectSeekerError(f"{file} says nc: {count[1]} but has {len(names)} names; correct one of them")
    return names


def _flow_items(text: str, start: int, file: Path) -> list[re.Match[str]]:
    """The items between brackets; `start` is just behind the opening one."""
    items: list[re.Match[str]] = []
    while not FLOW_END.match(text, start):
        item = FLOW_ITEM.match(text, start)
        if item is None or (text[item.end() :][:1] != "," and not FLOW_END.match(text, item.end())):
            raise ObjectSeekerError(f"{file} has names that cannot be read after item {len(items)}; {FORMS}")
        items.append(item)
        start = item.end() + (text[item.end()] == ",")
    return items


def _block_items(text: str, file: Path) -> list[re.Match[str]]:
    """The items on lines of their own: all up to the next key, each as far in as the first."""
    items: list[re.Match[str]] = []
    margin = ""
    for line in text.split("\n"):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if line[0] not in " \t-":
            break
        indent = line[: len(line) - len(line.lstrip())]
        margin = margin if items else indent
        item = BLOCK_ITEM.fullmatch(content)
        if item is None or bool(item["dash"]) == bool(item["key"]) or indent != margin:
            raise ObjectSeekerError(f"{file} has the name {content!r}, which cannot be read; {FORMS}")
        items.append(item)
    return items


def _in_order(items: list[re.Match[str]], file: Path) -> list[str]:
    """The names by their number; numbers must run from 0 without a gap, and all items must be of one form."""
    names = [_value(item, file) for item in items]
    keys = [int(re.sub(r"\D", "", item["key"])) for item in items if item["key"]]
    if not keys:
        return names
    if sorted(keys) != list(range(len(names))):
        raise ObjectSeekerError(f"{file} must number its names from 0 to {len(names) - 1}, each once")
    return [name for _, name in sorted(zip(keys, names, strict=True))]


def _value(item: re.Match[str], file: Path) -> str:
    if item["single"] is not None:
        return item["single"].replace("''", "'")
    if item["double"] is not None:
        return item["double"]
    value = item["plain"].strip()
    if ": " in value or value.endswith(":"):
        raise ObjectSeekerError(f"{file} has the name {value!r}, which cannot be read; {FORMS}")
    return value


def _checked(names: list[str], file: Path) -> tuple[str, ...]:
    if not names or not all(names):
        raise ObjectSeekerError(f"{file} has {'an empty class name' if names else 'no class names'}; {FORMS}")
    return tuple(names)
