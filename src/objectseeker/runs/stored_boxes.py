"""What a detector found on some images, and the Parquet bytes it is stored as."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from objectseeker.core.boxes import Detections, Ints
from objectseeker.errors import ObjectSeekerError

COORDINATES = ("x1", "y1", "x2", "y2")
LARGEST_STORED_LABEL = 2**15 - 1
SCHEMA = pa.schema(
    [("image", pa.int32()), ("mask", pa.int16())]
    + [(name, pa.float64()) for name in (*COORDINATES, "score")]
    + [("label", pa.int16())]
)
IMAGES = b"images"  # the key of the file's metadata: number, width, height and file hash of every image in it


@dataclass(frozen=True, slots=True, eq=False)
class StoredBoxes:
    """The boxes of some images, ascending by image and, within one, by mask (-1: untouched).

    `sizes` has width and height of every image that was looked at, boxes or not, and `hashes` the hash of its file;
    `broken` says of the others why they could not be read.
    """

    image: Ints
    mask: Ints
    boxes: Detections
    sizes: Mapping[int, tuple[int, int]]
    hashes: Mapping[int, str]
    broken: Mapping[int, str]

    @classmethod
    def of_image(
        cls, index: int, size: tuple[int, int], file: str, views: Sequence[Detections], floors: tuple[float, float]
    ) -> StoredBoxes:
        """What was found on one image, whose file has the hash `file`: on the untouched one, then under each mask.

        `floors` are the lowest scores that are kept of the untouched one and of the others.
        """
        boxes = Detections.concatenate(views)
        mask = np.repeat(np.arange(-1, len(views) - 1), [len(view) for view in views])
        keep = boxes.score >= np.where(mask < 0, *floors)
        mask, boxes = mask[keep], boxes[keep]
        return cls(np.full(len(boxes), index), mask, boxes, {index: size}, {index: file}, {})

    @classmethod
    def unreadable(cls, index: int, reason: str) -> StoredBoxes:
        nothing = np.empty(0, np.int64)
        return cls(nothing, nothing, Detections.empty(), {}, {}, {index: reason})

    @classmethod
    def join(cls, findings: Sequence[StoredBoxes]) -> StoredBoxes:
        """All of them; no image may be in two. The outcome does not depend on the order in which they are given."""
        if len(findings) == 1:
            return findings[0]
        image = np.concatenate([one.image for one in findings])
        order = np.argsort(image, kind="stable")  # all boxes of an image come from one of them, in their order
        sizes = {index: size for one in findings for index, size in one.sizes.items()}
        hashes = {index: file for one in findings for index, file in one.hashes.items()}
        broken = {index: reason for one in findings for index, reason in one.broken.items()}
        return cls(
            image=image[order],
            mask=np.concatenate([one.mask for one in findings])[order],
            boxes=Detections.concatenate([one.boxes for one in findings])[order],
            sizes=dict(sorted(sizes.items())),
            hashes=dict(sorted(hashes.items())),
            broken=dict(sorted(broken.items())),
        )

    @property
    def images(self) -> list[int]:
        """All images it says something about."""
        return [*self.sizes, *self.broken]

    def of(self, index: int) -> tuple[Detections, Ints]:
        """The boxes of one image, and the mask each came from."""
        start, end = np.searchsorted(self.image, [index, index + 1]).tolist()
        return self.boxes[start:end], self.mask[start:end]


def encode(findings: StoredBoxes) -> bytes:
    """Always the same bytes for the same boxes. Splitting floats by byte makes them smaller, not different."""
    floats = [*COORDINATES, "score"]
    boxes = findings.boxes
    columns = [findings.image, findings.mask, *boxes.xyxy.T, boxes.score, boxes.label]
    table = pa.Table.from_arrays(
        [
            pa.array(np.ascontiguousarray(values), type=field.type)
            for values, field in zip(columns, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )
    images = [[index, *size, findings.hashes[index]] for index, size in sorted(findings.sizes.items())]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        use_dictionary=[name for name in SCHEMA.names if name not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(table), 1))
        writer.add_key_value_metadata({IMAGES: json.dumps(images, separators=(",", ":")).encode()})
    return bytes(sink.getvalue())


def images_in(content: bytes) -> tuple[dict[int, tuple[int, int]], dict[int, str]]:
    """Which images a part holds: their sizes, and the hashes of their files."""
    stated = json.loads(pq.read_metadata(pa.BufferReader(content)).metadata[IMAGES])
    return {row[0]: (row[1], row[2]) for row in stated}, {row[0]: row[3] for row in stated}


def decode(content: bytes) -> StoredBoxes:
    """What `encode` wrote."""
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    column: dict[str, Any] = {name: table.column(name).to_numpy() for name in SCHEMA.names}
    boxes = Detections(np.stack([column[name] for name in COORDINATES], axis=1), column["score"], column["label"])
    return StoredBoxes(
        column["image"].astype(np.int64), column["mask"].astype(np.int64), boxes, *images_in(content), {}
    )


def check_labels(labels: Ints, names: Sequence[str]) -> None:
    """Refuse at the first image what could not be translated when the run is read."""
    most = len(names) - 1 if names else LARGEST_STORED_LABEL
    if len(labels) and not 0 <= labels.min() <= labels.max() <= most:
        raise ObjectSeekerError(
            f"the detector returned the labels {labels.min()} to {labels.max()}; they must lie within 0 to {most}"
            + (", one for each of its class names" if names else "")
        )
