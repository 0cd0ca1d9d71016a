"""Videos made by the tests themselves: one bright box that moves over dark ground."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker import Detections

SIZE = (64, 48)


def bright_box(images: Sequence[Any]) -> list[Detections]:
    """A tiny real detector: the bounding box of pixels brighter than 180, if there are enough of them."""
    found = []
    for image in images:
        ys, xs = np.nonzero(image[..., 0] > 180)
        boxes = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]] if len(xs) >= 20 else []
        found.append(Detections(boxes, [0.9] * len(boxes), [0] * len(boxes)))
    return found


def scene(x: int, y: int = 10, size: tuple[int, int] = SIZE) -> Any:
    """A bright box of 20 x 16 pixels at x, y."""
    image = np.full((size[1], size[0], 3), 30, np.uint8)
    image[y : y + 16, x : x + 20] = (255, 240, 230)
    return image


def moving(count: int, y: int = 10, size: tuple[int, int] = SIZE) -> list[Any]:
    """A frame after the other, in which the box moves two pixels to the right."""
    return [scene(2 * number, y, size) for number in range(count)]


def encode(
    file: Path,
    images: Sequence[Any],
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    times: Sequence[float] | None = None,
    rate: int = 25,
    given: str = "rgb24",
    size: tuple[int, int] | None = None,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
) -> Path:
    """A video file of the images."""
    import av

    with av.open(str(file), "w", options=container or {}) as opened:
        stream: Any = opened.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = size or images[0].shape[1::-1]
        stream.pix_fmt = pixels
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format=given)
            frame.pts = round(1000 * (number / rate if times is None else times[number]))
            frame.time_base = Fraction(1, 1000)
            opened.mux(stream.encode(frame))
        opened.mux(stream.encode(None))
    return file


def turned(file: Path, matrix: tuple[int, int, int, int]) -> Path:
    """The MP4 file with a, b, c, d of its display matrix set, as phones write it."""
    content = bytearray(file.read_bytes())
    at = content.index(b"tkhd") + 4 + 40
    a, b, c, d = (65536 * value for value in matrix)
    content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    file.write_bytes(content)
    return file
