"""Which files beside an ONNX graph hold its weights: the graph says so, tensor by tensor.

An ONNX file is a protocol buffer: fields of a number and a wire type, one after the other, messages within messages.
Only the fields that lead to a tensor's location are looked into; everything else is skipped by its length.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from objectseeker.errors import ObjectSeekerError

VARINT, FIXED64, LENGTH, START, END, FIXED32 = 0, 1, 2, 3, 4, 5
LOCATION = 13  # of a tensor: pairs of a key (1) and a value (2)

# By kind of message: which fields hold messages that may hold a tensor, and of what kind these are.
INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


def external_files(path: Path) -> list[Path]:
    """The files that hold weights of the ONNX graph `path`, each once, by name; refuses one outside its folder."""
    with path.open("rb") as file:
        try:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            locations = sorted(set(_locations(content, "model")))
        except (ValueError, IndexError, RecursionError):  # what cannot be read to its end may have weights elsewhere
            raise ObjectSeekerError(f"{path} is no ONNX file that can be read: export it again") from None
    for location in locations:
        parts = PurePosixPath(location.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise ObjectSeekerError(f"{path} keeps weights outside its folder, in {location!r}: save them beside it")
    return [path.parent / location for location in locations]


def _locations(message: memoryview, kind: str) -> Iterator[str]:
    for number, content in _fields(message):
        if kind == "tensor":
            if number == LOCATION:
                pair = dict(_fields(content))
                if bytes(pair.get(1, b"")) == b"location":
                    yield bytes(pair.get(2, b"")).decode("utf-8", "replace")
        elif number in INSIDE[kind]:
            yield from _locations(content, INSIDE[kind][number])


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The number and content of every field that has a length."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        wire = tag & 7
        if wire == VARINT:
            _, place = _varint(message, place)
        elif wire in (FIXED64, FIXED32):
            place += 8 if wire == FIXED64 else 4
        elif wire == LENGTH:
            length, place = _varint(message, place)
            if place + length > len(message):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[place : place + length]
            place += length
        elif wire not in (START, END):  # what is in a group is looked at as if it were beside it: rather too much
            raise ValueError(f"unknown wire type {wire}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
