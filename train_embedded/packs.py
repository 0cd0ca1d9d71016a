"""Data packs: many small compressed images in a few files, and their boxes.

A pack is an index (`.npz`) and one or more parts (`.bin`) that, joined in order, are the image files one after another.
The index holds, for n images and m boxes:

    off   n+1    where each image file starts, in bytes; the last entry is the end
    wh    n,4    original width and height (0 where not known), stored width and height
    src   n      the data set an image comes from, such as "voc" or "coco"
    name  n      the image's file name
    bx    m,6    label, x1, y1, x2, y2 in stored pixels, flag (0 normal, 1 crowd, 2 difficult, 3 doubtful)
    bi    m      the image each box belongs to

A doubtful box says that nobody knows whether an object of that label is there: training takes it neither for an object
nor for background.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Container, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

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
    """Decoded images, one after another: image i is rows starts[i] to starts[i+1] of `values`, its lines in order."""

    values: npt.NDArray[np.uint8]  # pixels,3
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # n,2: width and height

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        width, height = self.sizes[index]
        return self.values[self.starts[index] : self.starts[index + 1]].reshape(height, width, 3)


def read_pack(
    index: Path, parts: Sequence[Path], *, sources: Sequence[str] | None = None, limit: int | None = None
) -> Pack:
    """The images of a pack, in order: those from one of `sources` (all if None), at most `limit` of them."""
    missing = [str(file) for file in (index, *parts) if not file.is_file()]
    if missing:
        raise SystemExit(f"a pack has no file at {missing[0]}: name its index (.npz) first, then its parts (.bin)")
    with np.load(index) as stored:
        table = dict(stored)
    joined = b"".join(part.read_bytes() for part in parts)
    if len(joined) != int(table["off"][-1]):
        raise SystemExit(f"{index} describes {int(table['off'][-1])} bytes of images, its parts hold {len(joined)}")
    wanted = np.ones(len(table["name"]), bool) if sources is None else np.isin(table["src"], list(sources))
    chosen = np.flatnonzero(wanted)[:limit]
    by_image = np.argsort(table["bi"], kind="stable")
    first, end = (np.searchsorted(table["bi"], chosen, side, sorter=by_image) for side in ("left", "right"))
    return Pack(
        files=[joined[table["off"][i] : table["off"][i + 1]] for i in chosen],
        names=[str(table["name"][i]) for i in chosen],
        sizes=table["wh"][chosen, 2:].astype(np.int64),
        boxes=[table["bx"][by_image[a:b]] for a, b in zip(first, end, strict=True)],
    )


def write_pack(pack: Pack, index: Path, part: Path, *, source: str, part_size: int | None = None) -> list[Path]:
    """A pack that `read_pack` reads: its index and its parts, which are returned.

    With `part_size` no part has more bytes than that; `train.bin` becomes `train_1.bin`, `train_2.bin` and so on.
    """
    joined = b"".join(pack.files)
    pieces = [joined] if part_size is None else [joined[i : i + part_size] for i in range(0, len(joined), part_size)]
    parts = [part] if part_size is None else [part.with_stem(f"{part.stem}_{n + 1}") for n in range(len(pieces))]
    for path, piece in zip(parts, pieces, strict=True):
        path.write_bytes(piece)
    np.savez_compressed(
        index,
        off=np.cumsum([0] + [len(file) for file in pack.files]),
        wh=np.concatenate([np.zeros_like(pack.sizes), pack.sizes], axis=1),
        src=np.full(len(pack), source),
        name=np.array(pack.names),
        **_box_columns(pack.boxes),
    )
    return parts


def write_relabelled(index: Path, boxes: Sequence[npt.NDArray[np.float32]], out: Path) -> None:
    """The index of the same images in the same parts, with these boxes instead of its own."""
    with np.load(index) as stored:
        np.savez_compressed(out, **(dict(stored) | _box_columns(boxes)))


def _box_columns(boxes: Sequence[npt.NDArray[np.float32]]) -> dict[str, Any]:
    return {"bx": np.concatenate(boxes), "bi": np.repeat(np.arange(len(boxes)), [len(rows) for rows in boxes])}


def without(pack: Pack, names: Container[str]) -> Pack:
    """The images of a pack that have none of these names."""
    kept = [number for number, name in enumerate(pack.names) if name not in names]
    return Pack(
        files=[pack.files[number] for number in kept],
        names=[pack.names[number] for number in kept],
        sizes=pack.sizes[kept],
        boxes=[pack.boxes[number] for number in kept],
    )


def join(packs: Sequence[Pack]) -> Pack:
    """Several packs as one, in order."""
    return Pack(
        files=[file for pack in packs for file in pack.files],
        names=[name for pack in packs for name in pack.names],
        sizes=np.concatenate([pack.sizes for pack in packs]),
        boxes=[boxes for pack in packs for boxes in pack.boxes],
    )


def decode(pack: Pack, *, processes: int) -> Pixels:
    """Every image, decoded by forked processes into shared memory: call this before CUDA is first used."""
    pixels = _allocate(pack.sizes)
    with get_context("fork").Pool(processes, _remember, (pack, pixels)) as pool:
        pool.map(_decode_one, range(len(pack)), chunksize=16)
    return pixels


def halve(full: Pixels, *, processes: int) -> Pixels:
    """Every image at half size, each pixel the mean of four; an odd last row or column is dropped."""
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
    with Image.open(io.BytesIO(pack.files[index])) as picture:
        image = np.asarray(picture.convert("RGB"))
    width, height = pack.sizes[index]
    if image.shape != (height, width, 3):
        raise ValueError(f"{pack.names[index]} is {image.shape}, its index says {height}x{width}")
    target.image(index)[:] = image


def _halve_one(index: int) -> None:
    full, target = _job
    width, height = target.sizes[index]
    squares = full.image(index)[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3)
    target.image(index)[:] = np.rint(squares.mean((1, 3), dtype=np.float32))
