"""images.parquet: the images of a run and their ground truth, one row each, written and read a few thousand at a time.

Columns are id, path, width and height (null where no annotation states them) and, one entry per object, truth (x1, y1,
x2, y2 of all of them in a row), label, ignore and crowd. Of sequences also sequence, frame, fps (null where nobody
states it) and, one entry per object, track.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from objectseeker.core.boxes import Detections
from objectseeker.core.observation import FrameIndex
from objectseeker.datasets import DatasetImage
from objectseeker.files.images import resolve_path

ROWS = 4096  # images that are in memory at a time

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("truth", pa.list_(pa.float64())),
        ("label", pa.list_(pa.int32())),
        ("ignore", pa.list_(pa.bool_())),
        ("crowd", pa.list_(pa.bool_())),
    ]
)
OF_FRAMES = pa.schema(
    [("sequence", pa.string()), ("frame", pa.int32()), ("fps", pa.float64()), ("track", pa.list_(pa.int64()))]
)


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What became of a listing: how many images it holds and the SHA-256 of its bytes."""

    images: int
    sha256: str


def write_image_index(entries: Iterable[DatasetImage], stream: BinaryIO) -> IndexSummary:
    """Write all entries to `stream`; the same entries give the same bytes."""
    hashing = _Hashing(stream)
    count = 0
    remaining = iter(entries)
    some = list(islice(remaining, ROWS))
    schema = pa.unify_schemas([SCHEMA, OF_FRAMES]) if some and some[0].frame is not None else SCHEMA
    with pq.ParquetWriter(
        pa.PythonFile(hashing, mode="w"), schema, compression="zstd", write_statistics=False, store_schema=False
    ) as writer:
        while some:
            writer.write_table(_to_table(some, schema), row_group_size=len(some))
            count += len(some)
            some = list(islice(remaining, ROWS))
    return IndexSummary(count, hashing.digest.hexdigest())


def hash_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class ImageIndex(Sequence[DatasetImage]):
    """The entries of a file that `write_listing` wrote, read when they are asked for, a row group at a time."""

    def __init__(self, file: Path) -> None:
        self.file, self._parquet = file, pq.ParquetFile(file)
        metadata = self._parquet.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts: list[int] = [0, *accumulate(rows)]
        self._group = -1
        self._entries: list[DatasetImage] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageIndex, (self.file,)  # a process that is handed one opens the file itself

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> DatasetImage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DatasetImage]: ...
    def __getitem__(self, index: int | slice) -> DatasetImage | Sequence[DatasetImage]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= place < len(self):
            raise IndexError(f"there is no image {index} among {len(self)}")
        group = bisect_right(self._starts, place) - 1
        if group != self._group:
            self._entries = _from_table(self._parquet.read_row_group(group, use_threads=False))
            self._group = group
        return self._entries[place - self._starts[group]]

    def __iter__(self) -> Iterator[DatasetImage]:
        return (self[index] for index in range(len(self)))

    def ids(self) -> Iterator[str]:
        """The ids alone, which is much faster than the entries."""
        for batch in self._parquet.iter_batches(ROWS, columns=["id"], use_threads=False):
            yield from batch.column(0).to_pylist()


class _Hashing:
    """A stream that only grows, and hashes what passes."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.digest, self._place = stream, hashlib.sha256(), 0

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self._place += len(content)
        return self.stream.write(content)

    def tell(self) -> int:
        return self._place

    def flush(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        """The stream is its owner's to close."""


def _to_table(entries: Sequence[DatasetImage], schema: pa.Schema) -> pa.Table:
    widths, heights = zip(*(entry.size or (None, None) for entry in entries), strict=True)
    frames = [entry.frame for entry in entries if entry.frame is not None]  # all of them or none
    columns: list[Any] = [
        [entry.id for entry in entries],
        [str(resolve_path(entry.path)) for entry in entries],
        widths,
        heights,
        [entry.truth.xyxy.ravel() for entry in entries],
        [entry.truth.label for entry in entries],
        [entry.ignore for entry in entries],
        [entry.crowd for entry in entries],
    ]
    if frames:
        columns += [[getattr(frame, name) for frame in frames] for name in ("sequence", "number", "fps")]
        columns.append([entry.track for entry in entries])
    return pa.Table.from_arrays(
        [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _from_table(table: pa.Table) -> list[DatasetImage]:
    column: dict[str, Any] = {name: table.column(name).combine_chunks() for name in table.column_names}
    ids, paths, widths, heights = (column[name].to_pylist() for name in ("id", "path", "width", "height"))
    truths, labels, ignores, crowds = (_lists(column[name]) for name in ("truth", "label", "ignore", "crowd"))
    frames: list[FrameIndex | None] = [None] * len(ids)
    tracks = [_NO_TRACKS] * len(ids)
    if "frame" in column:
        stated = (column[name].to_pylist() for name in ("sequence", "frame", "fps"))
        frames, tracks = [FrameIndex(*frame) for frame in zip(*stated, strict=True)], _lists(column["track"])
    return [
        DatasetImage(
            id=ids[n],
            path=resolve_path(paths[n]),
            size=None if widths[n] is None else (widths[n], heights[n]),
            truth=Detections(truths[n].reshape(-1, 4), np.ones(len(labels[n])), labels[n]),
            ignore=ignores[n],
            crowd=crowds[n],
            frame=frames[n],
            track=tracks[n],
        )
        for n in range(len(ids))
    ]


_NO_TRACKS = np.zeros(0, np.int64)
_NO_TRACKS.setflags(write=False)


def _lists(column: Any) -> list[Any]:
    """The rows of a column of lists, as read-only arrays."""
    if isinstance(column, pa.ChunkedArray):  # of no rows at all
        return []
    values = column.values.to_numpy(zero_copy_only=False)
    values.setflags(write=False)
    ends = column.offsets.to_numpy().tolist()
    return [values[start:end] for start, end in pairwise(ends)]
