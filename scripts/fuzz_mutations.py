"""Seeded ways to spoil bytes, strings, JSON values and folders (used by fuzz.py)."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator

STRINGS = (
    "", " ", "0", "1", "-1", "1.5", "nan", "inf", "-inf", "1e400", "1_0", "٣", "0x10", "9" * 5000,
    "99999999999999999999",
    "x" * 10_000, "a\nb", "a\rb\u2028c", "\x00", "\ud800", "\udcff", "\u202etxt.exe", "[/foo]", "[bold]", "<b>&amp;",
    "=1+1", "../../up.png", "/nowhere/a.png", "~unknown/a.png", "s3", "con:nul", "%s%n{0}", "'", '"', "cat", "dog",
    "person",
    "\x1b[31mred", "é" * 300, "null", "true", "{}", "[]", "<!DOCTYPE html>", "&", "#", ":", ",", "- ", "1.png", "é.png",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 0.5, -0.0, 1e-320, 1e8, 1e9, 1e308, float("nan"), float("inf"), 2**31, 2**53 + 1, 2**63, 2**64,
    10**400,
)  # fmt: skip
MARKS = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x00" * 4, b"\xef\xbb\xbf", b"\n\n")


def pick(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def spoiled_bytes(rng: Rng, content: bytes) -> bytes:
    """One to three things that happen to files: bits flip, parts are lost, doubled, moved or overwritten."""
    spoiled = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        start, end = sorted(int(place) for place in rng.integers(0, len(spoiled) + 1, 2))
        short = min(end, start + int(rng.integers(1, 40)))
        way = int(rng.integers(8))
        if way == 0 and spoiled:
            for place in rng.integers(0, len(spoiled), int(rng.integers(1, 9))).tolist():
                spoiled[place] ^= 1 << int(rng.integers(8))
        elif way == 1:
            del spoiled[start:]
        elif way == 2:
            del spoiled[start:short]
        elif way == 3:
            spoiled[start:start] = spoiled[start:short]
        elif way == 4:
            spoiled[start:short] = rng.bytes(short - start)
        elif way == 5:
            mark = pick(rng, MARKS)
            spoiled[start : start + len(mark)] = mark
        elif way == 6:
            spoiled[start:start] = pick(rng, MARKS) * int(rng.integers(1, 5))
        elif spoiled:  # a byte at the edge of what it can hold
            spoiled[int(rng.integers(len(spoiled)))] = pick(rng, (0, 1, 127, 128, 255))
    return bytes(spoiled)


def spoiled_text(rng: Rng, text: str) -> str:
    """Words replaced, added and lost; lines doubled and dropped."""
    lines = text.split("\n")
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(lines)))
        words = lines[place].split(" ")
        word, other = int(rng.integers(len(words))), spoiled_word(rng)
        way = int(rng.integers(6))
        if way <= 2:
            words[word] = other
        elif way == 3:
            words.insert(word, other)
        elif way == 4:
            del words[word]
        else:
            lines.insert(place, lines[place] if rng.random() < 0.5 else other)
            continue
        lines[place] = " ".join(words)
    return "\n".join(lines)


def spoiled_word(rng: Rng) -> str:
    return str(pick(rng, STRINGS)) if rng.random() < 0.7 else str(float(rng.normal(0, 10.0 ** rng.integers(-3, 12))))


def spoiled_value(rng: Rng) -> Any:
    """A value that is unexpected in a JSON file."""
    way = int(rng.integers(6))
    if way == 0:
        return pick(rng, (None, True, False, [], {}, [[]], [None], {"a": None}, [[1, 2], [3]]))
    if way == 1:
        deep: Any = 0
        for _ in range(int(rng.integers(1, 200))):
            deep = [deep]
        return deep
    return pick(rng, NUMBERS) if way < 4 else pick(rng, STRINGS)


def spoiled_json(rng: Rng, content: Any) -> bytes:
    """The document with a few of its values replaced, lost, doubled or renamed."""
    content = copy.deepcopy(content)
    for _ in range(int(rng.integers(1, 4))):
        holders = list(_holders(content))
        if not holders:
            break
        holder = pick(rng, holders)
        key = pick(rng, list(holder) if isinstance(holder, dict) else range(len(holder)))
        way = int(rng.integers(6))
        if way <= 2:
            holder[key] = spoiled_value(rng)
        elif way == 3:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif way == 4:
            holder[str(pick(rng, STRINGS))] = holder.pop(key)
        else:
            holder[key] = holder[pick(rng, list(holder))]
    return json.dumps(content).encode()


def _holders(content: Any) -> Any:
    """Every list and object of the document that holds anything; those the mutations made deep are not entered."""
    stack = [(content, 0)]
    while stack:
        value, depth = stack.pop()
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        if inner and depth < 20:
            yield value
            stack += [(item, depth + 1) for item in inner]


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Exactly these files below `folder`."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
