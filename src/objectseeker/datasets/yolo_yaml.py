"""The little YAML that YOLO datasets use, read without a YAML library.

After a key at the margin: one value, a list, or a mapping of numbers to values; in brackets (over several lines if
need be) or one item a line. Anything else is refused, not guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from objectseeker.datasets.reading import read_lines
from objectseeker.datasets.shown import shown
from objectseeker.errors import ObjectSeekerError

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
