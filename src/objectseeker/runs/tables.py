"""The Parquet files of a run: images.parquet (images and ground truth), and the parts (boxes).

images.parquet has one row per image: id, path, width and height (null if no annotation states them) and, with one entry
per object, ground_truth (x1, y1, x2, y2 of all of them in a row), label, ignore and crowd. Images of sequences also
have sequence, frame, fps (null if unknown) and, with one entry per object, track. It is written and read a few thousand
rows at a time.

A part has one row per box: image, mask (-1: unmasked), x1, y1, x2, y2, score, label. Its metadata states number, width,
height and file hash of every image in it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from objectseeker import codec
from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.observation import FrameIndex
from objectseeker.datasets import DatasetImage
from objectseeker.datasets.dataset import IndexedSequence
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import resolve_path

ROW_GROUP_SIZE = 4096  # images that are in memory at a time
INDEX_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("ground_truth", pa.list_(pa.float64())),
        ("label", pa.list_(pa.int32())),
        ("ignore", pa.list_(pa.bool_())),
        ("crowd", pa.list_(pa.bool_())),
    ]
)
FRAME_SCHEMA = pa.schema(
    [("sequence", pa.string()), ("frame", pa.int32()), ("fps", pa.float64()), ("track", pa.list_(pa.int64()))]
)

COORDINATES = ("x1", "y1", "x2", "y2")
MAX_STORED_LABEL = 2**15 - 1
PART_SCHEMA = pa.schema(
    [("image", pa.int32()), ("mask", pa.int16())]
    + [(name, pa.float64()) for name in (*COORDINATES, "score")]
    + [("label", pa.int16())]
)
IMAGES_KEY = b"images"  # of the metadata of a part
MAX_SMALL_FILE_VALUES = 2**20  # of a column of a small file; of a larger one, one per byte
MAX_NAME_LENGTH = 2**14  # bytes of an id or a path

_NO_TRACKS = np.zeros(0, np.int64)
_NO_TRACKS.setflags(write=False)


def write_image_index(entries: Iterable[DatasetImage], stream: BinaryIO) -> None:
    """Write all entries to `stream`; equal entries are written as equal bytes."""
    remaining = iter(entries)
    chunk = list(islice(remaining, ROW_GROUP_SIZE))
    is_sequence = bool(chunk) and chunk[0].frame is not None
    schema = pa.unify_schemas([INDEX_SCHEMA, FRAME_SCHEMA]) if is_sequence else INDEX_SCHEMA
    with pq.ParquetWriter(stream, schema, compression="zstd", write_statistics=False, store_schema=False) as writer:
        while chunk:
            writer.write_table(_to_table(chunk, schema), row_group_size=len(chunk))
            chunk = list(islice(remaining, ROW_GROUP_SIZE))


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class ImageIndex(IndexedSequence[DatasetImage]):
    """The entries of a file that `write_image_index` wrote, read on access, one row group at a time."""

    def __init__(self, file: Path) -> None:
        try:
            self.file, self._parquet = file, pq.ParquetFile(file)
        except UnicodeEncodeError:
            raise ObjectSeekerError(f"the path of a run must be UTF-8: got {file}. Choose another folder.") from None
        metadata = self._parquet.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts: list[int] = [0, *accumulate(rows)]
        self._group = -1
        self._entries: list[DatasetImage] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageIndex, (self.file,)  # another process opens the file itself

    def __len__(self) -> int:
        return self._starts[-1]

    def _item(self, position: int) -> DatasetImage:
        group = bisect_right(self._starts, position) - 1
        if group != self._group:
            try:
                self._entries = _from_table(self._parquet.read_row_group(group, use_threads=False))
            except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
                raise ObjectSeekerError(f"{self.file} is not a list of images ({error}): restore it") from None
            self._group = group
        return self._entries[position - self._starts[group]]

    def ids(self) -> Iterator[str]:
        """Iterate over the ids, which is much faster than over the entries."""
        for batch in self._parquet.iter_batches(ROW_GROUP_SIZE, columns=["id"], use_threads=False):
            yield from batch.column(0).to_pylist()


def _to_table(entries: Sequence[DatasetImage], schema: pa.Schema) -> pa.Table:
    widths, heights = zip(*(entry.size or (None, None) for entry in entries), strict=True)
    frames = [entry.frame for entry in entries if entry.frame is not None]  # of all entries or of none
    columns: dict[str, Any] = {
        "id": [entry.id for entry in entries],
        "path": [str(resolve_path(entry.path)) for entry in entries],
        "width": widths,
        "height": heights,
        "ground_truth": [entry.ground_truth.xyxy.ravel() for entry in entries],
        "label": [entry.ground_truth.label for entry in entries],
        "ignore": [entry.ignore for entry in entries],
        "crowd": [entry.crowd for entry in entries],
    }
    if frames:
        columns |= {
            "sequence": [frame.sequence for frame in frames],
            "frame": [frame.number for frame in frames],
            "fps": [frame.fps for frame in frames],
            "track": [entry.track for entry in entries],
        }
    return pa.table(columns, schema=schema)


def _from_table(table: pa.Table) -> list[DatasetImage]:
    column: dict[str, Any] = {name: table.column(name).combine_chunks() for name in table.column_names}
    ids, paths, widths, heights = (column[name].to_pylist() for name in ("id", "path", "width", "height"))
    objects, labels, ignores, crowds = (_lists(column[name]) for name in ("ground_truth", "label", "ignore", "crowd"))
    frames: list[FrameIndex | None] = [None] * len(ids)
    tracks = [_NO_TRACKS] * len(ids)
    if "frame" in column:
        values = (column[name].to_pylist() for name in ("sequence", "frame", "fps"))
        frames, tracks = [FrameIndex(*frame) for frame in zip(*values, strict=True)], _lists(column["track"])
    return [
        DatasetImage(
            id=ids[n],
            path=resolve_path(paths[n]),
            size=None if widths[n] is None else (widths[n], heights[n]),
            ground_truth=Detections(objects[n].reshape(-1, 4), np.ones(len(labels[n])), labels[n]),
            ignore=ignores[n],
            crowd=crowds[n],
            frame=frames[n],
            track=tracks[n],
        )
        for n in range(len(ids))
    ]


def _lists(column: Any) -> list[Any]:
    """Return the rows of a column of lists, as read-only arrays."""
    if isinstance(column, pa.ChunkedArray):  # a table without rows
        return []
    values = column.values.to_numpy(zero_copy_only=False)
    values.setflags(write=False)
    ends = column.offsets.to_numpy().tolist()
    return [values[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True, eq=False)
class StoredBoxes:
    """The boxes of some images, ascending by image and, within one, by mask (-1: unmasked).

    `observed` has width, height and file hash of every image that was observed, with or without boxes; `broken` states
    why the others could not be read.
    """

    image: Ints
    mask: Ints
    boxes: Detections
    observed: Mapping[int, tuple[int, int, str]]
    broken: Mapping[int, str]

    @classmethod
    def unreadable_image(cls, index: int, reason: str) -> StoredBoxes:
        nothing = np.empty(0, np.int64)
        return cls(nothing, nothing, Detections.empty(), {}, {index: reason})

    @classmethod
    def join(cls, pieces: Sequence[StoredBoxes]) -> StoredBoxes:
        """Join the boxes of different images; the result does not depend on the order of the pieces."""
        if len(pieces) == 1:
            return pieces[0]
        image = np.concatenate([piece.image for piece in pieces])
        order = np.argsort(image, kind="stable")  # all boxes of an image are in one piece, in their order
        observed = {index: entry for piece in pieces for index, entry in piece.observed.items()}
        broken = {index: reason for piece in pieces for index, reason in piece.broken.items()}
        return cls(
            image=image[order],
            mask=np.concatenate([piece.mask for piece in pieces])[order],
            boxes=Detections.concatenate([piece.boxes for piece in pieces])[order],
            observed=dict(sorted(observed.items())),
            broken=dict(sorted(broken.items())),
        )

    @property
    def indices(self) -> list[int]:
        """The numbers of all images that were observed or could not be read."""
        return [*self.observed, *self.broken]

    def of_image(self, index: int) -> tuple[Detections, Ints]:
        """Return the boxes of one image, and the mask of each."""
        start, end = np.searchsorted(self.image, [index, index + 1]).tolist()
        return self.boxes[start:end], self.mask[start:end]


def encode_boxes(stored: StoredBoxes) -> bytes:
    """Encode boxes as a part: equal boxes are equal bytes. Floats split by byte take less space."""
    floats = [*COORDINATES, "score"]
    boxes = stored.boxes
    columns = [stored.image, stored.mask, *boxes.xyxy.T, boxes.score, boxes.label]
    table = pa.table(dict(zip(PART_SCHEMA.names, map(np.ascontiguousarray, columns), strict=True)), schema=PART_SCHEMA)
    images = [(index, *entry) for index, entry in sorted(stored.observed.items())]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        PART_SCHEMA,
        compression="zstd",
        use_dictionary=[name for name in PART_SCHEMA.names if name not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(table), 1))
        writer.add_key_value_metadata({IMAGES_KEY: codec.write_json(images).encode()})
    return bytes(sink.getvalue())


def decode_boxes(content: bytes) -> StoredBoxes:
    """Decode what `encode_boxes` wrote.

    Raises:
        ObjectSeekerError: The content is not a part.
    """
    observed = images_in(content)
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _not_a_part(error) from None
    if table.schema.remove_metadata() != PART_SCHEMA or any(column.null_count for column in table.columns):
        raise _not_a_part("it has other columns")
    column: dict[str, Any] = {name: table.column(name).to_numpy() for name in PART_SCHEMA.names}
    image, mask = column["image"].astype(np.int64), column["mask"].astype(np.int64)
    ordered = (np.diff(image) > 0) | ((np.diff(image) == 0) & (np.diff(mask) >= 0))
    if not ordered.all() or not np.isin(image, list(observed)).all() or (mask < -1).any():
        raise _not_a_part("its boxes are out of order, or of images that it does not list")
    boxes = Detections(np.stack([column[name] for name in COORDINATES], axis=1), column["score"], column["label"])
    return StoredBoxes(image, mask, boxes, observed, broken={})


def images_in(content: bytes) -> dict[int, tuple[int, int, str]]:
    """Return width, height and file hash of the images in a part."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(content)).metadata[IMAGES_KEY]
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise _not_a_part(error) from None
    rows = codec.read_json(metadata, tuple[tuple[int, int, int, str], ...], "the image list of a part")
    return {index: (width, height, file_hash) for index, width, height, file_hash in rows}


def require_bounded(file: Path) -> None:
    """Reject a Parquet file that takes far more memory than disk: a decompression bomb.

    Few bytes may encode billions of equal values. None of its boxes or objects is decoded here.
    """
    try:
        rows, columns = stated_sizes(file)
        sizes = [max(values, size // 64) for values, size in columns]
        bounded = max([rows, *sizes]) <= max(MAX_SMALL_FILE_VALUES, file.stat().st_size) and min([rows, *sizes]) >= 0
        if bounded and (names := [name for name in ("id", "path", "sequence") if name in pq.read_schema(file).names]):
            table = pq.read_table(file, columns=names, read_dictionary=names, use_threads=False)
            values = (value for column in table.columns for chunk in column.chunks for value in chunk.dictionary)
            bounded = all(len(value.as_py() or "") <= MAX_NAME_LENGTH for value in values)
    except (pa.ArrowException, OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ObjectSeekerError(f"{file} is not a file of a run ({error}): restore it") from None
    if not bounded:
        raise ObjectSeekerError(f"{file} takes far more memory than disk: no run has that many equal boxes; restore it")


def _not_a_part(error: Exception | str) -> ObjectSeekerError:
    return ObjectSeekerError(f"a part of a run has the right checksum but is not a part ({error}): observe again")


# The footer of an untrusted Parquet file, read without any native code: pyarrow aborts the process if it reads the
# metadata of a column whose statistics contradict its schema. A footer is one struct in the compact protocol of Thrift.
# What is not a footer is a ValueError.

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
