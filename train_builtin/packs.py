"""Data packs: many small compressed images in a few files, and their boxes.

A pack is an index (`.npz`) and one or more parts (`.bin`) that, joined in order, are the image files one by one.
The index holds, for n images and m boxes:

    off   n+1    where each image file starts, in bytes; the last entry is the end
    wh    n,4    original width and height (0 where not known), stored width and height
    src   n      the dataset an image comes from, such as "voc" or "coco"
    name  n      the image's file name
    bx    m,6    label, x1, y1, x2, y2 in stored pixels, flag (0 normal, 1 crowd, 2 difficult, 3 doubtful)
    bi    m      the image each box belongs to
    crc          CRC-32 of all parts, joined (older packs have none: parts in a wrong order are not noticed)

A doubtful box says that no one knows whether an object of that label is there: training takes it neither for an object
nor for background.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import zlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from objectseeker.files.images import looks_like_image

NORMAL, CROWD, DIFFICULT, DOUBTFUL = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Compressed images with their boxes. `files[i]` are the bytes of image i, `boxes[i]` its rows of `bx`."""

    files: list[bytes]
    names: list[str]
    sizes: npt.NDArray[np.int64]  # n,2: stored width and height
    boxes: list[npt.NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """Decoded images in sequence: image i is rows starts[i] to starts[i+1] of `values`."""

    values: npt.NDArray[np.uint8]  # pixels,3
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # n,2: width and height

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        width, height = self.sizes[index]
        return self.values[self.starts[index] : self.starts[index + 1]].reshape(height, width, 3)


def read_pack(
    index: Path, parts: Sequence[Path], *, sources: Sequence[str] | None = None, limit: int | None = None
) -> Pack:
    """Read a pack's images in order: those from one of `sources` (all if None), at most `limit`."""
    missing = [str(file) for file in (index, *parts) if not file.is_file()]
    if missing:
        raise SystemExit(f"a pack has no file at {missing[0]}: name its index (.npz) first, then its parts (.bin)")
    with np.load(index) as stored:
        table = dict(stored)
    joined = b"".join(part.read_bytes() for part in parts)
    if len(joined) != int(table["off"][-1]):
        raise SystemExit(f"{index} describes {int(table['off'][-1])} bytes of images, its parts hold {len(joined)}")
    if "crc" in table and zlib.crc32(joined) != int(table["crc"]):
        raise SystemExit(
            f"the parts given for {index} are others, or in another order: {parts[0]} first, {parts[-1]} last"
        )
    known = np.ones(len(table["name"]), bool) if sources is None else np.isin(table["src"], list(sources))
    chosen = np.flatnonzero(known)[:limit]
    by_image = np.argsort(table["bi"], kind="stable")
    first, end = (np.searchsorted(table["bi"], chosen, side, sorter=by_image) for side in ("left", "right"))
    return Pack(
        files=[joined[table["off"][i] : table["off"][i + 1]] for i in chosen],
        names=[str(table["name"][i]) for i in chosen],
        sizes=table["wh"][chosen, 2:].astype(np.int64),
        boxes=[table["bx"][by_image[a:b]] for a, b in zip(first, end, strict=True)],
    )


def write_pack(pack: Pack, index: Path, part: Path, *, source: str, part_size: int | None = None) -> list[Path]:
    """Write a pack for `read_pack`: an index and its parts, which are returned.

    With `part_size` no part has more bytes than that; `train.bin` becomes `train_1.bin`, `train_2.bin` and so on, from
    ten parts on `train_01.bin`: sorted by name they are in order.
    """
    joined = b"".join(pack.files)
    pieces = [joined] if part_size is None else [joined[i : i + part_size] for i in range(0, len(joined), part_size)]
    numbers = [f"_{number:0{len(str(len(pieces)))}}" for number in range(1, len(pieces) + 1)]
    parts = [part] if part_size is None else [part.with_stem(part.stem + number) for number in numbers]
    for path, piece in zip(parts, pieces, strict=True):
        path.write_bytes(piece)
    np.savez_compressed(
        index,
        off=np.cumsum([0] + [len(file) for file in pack.files]),
        wh=np.concatenate([np.zeros_like(pack.sizes), pack.sizes], axis=1),
        src=np.full(len(pack), source),
        name=np.array(pack.names),
        crc=zlib.crc32(joined),
        **_box_columns(pack.boxes),
    )
    return parts


def write_relabeled(index: Path, boxes: Sequence[npt.NDArray[np.float32]], out: Path) -> None:
    """Write an index of the same images and parts, with these boxes instead."""
    with np.load(index) as stored:
        np.savez_compressed(out, **(dict(stored) | _box_columns(boxes)))


def _box_columns(boxes: Sequence[npt.NDArray[np.float32]]) -> dict[str, Any]:
    return {"bx": np.concatenate(boxes), "bi": np.repeat(np.arange(len(boxes)), [len(rows) for rows in boxes])}


def names_in(index: Path) -> list[str]:
    """Return the names of all images of a pack."""
    with np.load(index) as stored:
        return [str(name) for name in stored["name"]]


def plain(name: str) -> str:
    """Strip an image file's extension, so that ids and file names compare equal."""
    name = name.strip()
    return os.path.splitext(name)[0] if looks_like_image(name) else name  # noqa: PTH122  # an id is not a path


def digest_of(pack: Pack, repeats: Iterable[int]) -> str:
    """Hash images, names, boxes and repetitions."""
    digest = hashlib.sha256()
    for name, file, boxes, repeat in zip(pack.names, pack.files, pack.boxes, repeats, strict=True):
        digest.update(repr((name, len(file), len(boxes), int(repeat))).encode())
        digest.update(file)
        digest.update(boxes.tobytes())
    return digest.hexdigest()[:16]


def without(pack: Pack, names: Container[str]) -> Pack:
    """Drop the images of a pack that have one of these plain names."""
    kept = [number for number, name in enumerate(pack.names) if plain(name) not in names]
    return Pack(
        files=[pack.files[number] for number in kept],
        names=[pack.names[number] for number in kept],
        sizes=pack.sizes[kept],
        boxes=[pack.boxes[number] for number in kept],
    )


def join(packs: Sequence[Pack]) -> Pack:
    """Concatenate packs."""
    return Pack(
        files=[file for pack in packs for file in pack.files],
        names=[name for pack in packs for name in pack.names],
        sizes=np.concatenate([pack.sizes for pack in packs]),
        boxes=[boxes for pack in packs for boxes in pack.boxes],
    )


def decode(pack: Pack, *, processes: int) -> Pixels:
    """Decode every image with forked processes into shared memory; call this before CUDA is first used."""
    pixels = _allocate(pack.sizes)
    with get_context("fork").Pool(processes, _remember, (pack, pixels)) as pool:
        pool.map(_decode_one, range(len(pack)), chunksize=16)
    return pixels


def halve(full: Pixels, *, processes: int) -> Pixels:
    """Halve every image, averaging four pixels; an odd last row or column is dropped."""
    half = _allocate(full.sizes // 2)
    with get_context("fork").Pool(processes, _remember, (full, half)) as pool:
        pool.map(_halve_one, range(len(full.sizes)), chunksize=16)
    return half


def _allocate(sizes: npt.NDArray[np.int64]) -> Pixels:
    starts = np.concatenate([[0], np.cumsum(sizes.prod(1))])
    return Pixels(np.frombuffer(mmap.mmap(-1, int(starts[-1]) * 3), np.uint8).reshape(-1, 3), starts, sizes)


_job: tuple[Any, Pixels]  # what a worker process reads and where it writes, inherited through the fork


def _remember(source: Pack | Pixels, target: Pixels) -> None:
    global _job
    _job = source, target


def _decode_one(index: int) -> None:
    pack, target = _job
    with Image.open(io.BytesIO(pack.files[index])) as file:
        image = np.asarray(file.convert("RGB"))
    width, height = pack.sizes[index]
    if image.shape != (height, width, 3):
        raise ValueError(f"{pack.names[index]} is {image.shape}, its index says {height}x{width}")
    target.image(index)[:] = image


def _halve_one(index: int) -> None:
    full, target = _job
    width, height = target.sizes[index]
    squares = full.image(index)[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3)
    target.image(index)[:] = np.rint(squares.mean((1, 3), dtype=np.float32))
