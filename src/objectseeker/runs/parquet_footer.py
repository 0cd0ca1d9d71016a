"""The footer of an untrusted Parquet file: how many values it states, read without any native code.

pyarrow aborts the process if it reads the metadata of a column whose statistics contradict its schema. A footer
is one struct in the compact protocol of Thrift, so it is read here. What is not a footer is a ValueError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

MAGIC = b"PAR1"
MAX_DEPTH = 32  # of structs and lists in one another
# Fields of Parquet's metadata, by number.
NUM_ROWS, ROW_GROUPS, COLUMNS, COLUMN_METADATA, NUM_VALUES, UNCOMPRESSED_SIZE = 3, 4, 1, 3, 5, 6


def stated_sizes(file: Path) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of rows, and of every column of every row group its values and uncompressed bytes."""
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - 8, 0))
        length, magic = int.from_bytes(stream.read(4), "little"), stream.read(4)
        if magic != MAGIC or length + 8 > size:
            raise ValueError("it has no footer")
        stream.seek(size - 8 - length)
        footer = _Compact(stream.read(length)).read_struct()
    columns = [column[COLUMN_METADATA] for group in footer[ROW_GROUPS] for column in group[COLUMNS]]
    return int(footer[NUM_ROWS]), [(int(one[NUM_VALUES]), int(one[UNCOMPRESSED_SIZE])) for one in columns]


class _Compact:
    """The compact protocol of Thrift: structs as dicts by field number; the last of equal fields counts."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place, self._depth = content, 0, 0

    def read_struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while header := self._take(1)[0]:
            step, kind = header >> 4, header & 15
            number = number + step if step else self._zigzag()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):  # of lists: one byte
            return self._take(1)[0]
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._varint())
        if kind not in (9, 10, 12) or self._depth == MAX_DEPTH:  # no map is in a footer
            raise ValueError("it has another structure")
        self._depth += 1
        value = self.read_struct() if kind == 12 else self._list()
        self._depth -= 1
        return value

    def _list(self) -> list[Any]:
        header = self._take(1)[0]
        count, kind = header >> 4, header & 15
        count = self._varint() if count == 15 else count
        if count > len(self._content):
            raise ValueError("it has a list that is longer than the footer")
        return [self._value(kind) for _ in range(count)]

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("it has a number that is too long")

    def _take(self, count: int) -> bytes:
        self._place += count
        if self._place > len(self._content):
            raise ValueError("its footer is cut off")
        return self._content[self._place - count : self._place]
