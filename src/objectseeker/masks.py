"""Masks: which pixels a view of the image does not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from objectseeker.boxes import Ints
from objectseeker.errors import ObjectSeekerError, require_count

Image = npt.NDArray[np.uint8]  # H x W x 3, RGB

SIDES = ("left", "top", "right", "bottom")  # the order of a certificate's four lines XL, YT, XR, YB
GREY = 114  # what a removed pixel is filled with, unless told otherwise


@dataclass(frozen=True, slots=True, eq=False)
class MaskSet:
    """Half masks of one image size. Mask i removes the pixels [x1, x2) x [y1, y2) of `removed[i]`.

    `side[i]` says where the removed half lies (an index into SIDES) and `line[i]` is the line it ends at, so a left
    mask removes [0, line) and a right mask [line, width). Lines lie strictly inside the image: every mask removes
    something and keeps something.
    """

    width: int
    height: int
    removed: Ints
    side: Ints = field(init=False)
    line: Ints = field(init=False)

    def __post_init__(self) -> None:
        width, height = require_count(self.width, "width"), require_count(self.height, "height")
        removed = np.array(self.removed, dtype=np.int64).reshape(-1, 4)
        side = np.full(len(removed), -1, np.int64)
        line = np.zeros(len(removed), np.int64)
        left, top, right, bottom = removed.T
        full_x, full_y = (left == 0) & (right == width), (top == 0) & (bottom == height)
        for number, (matches, position) in enumerate(
            (
                (full_y & (left == 0) & (right > 0) & (right < width), right),
                (full_x & (top == 0) & (bottom > 0) & (bottom < height), bottom),
                (full_y & (right == width) & (left > 0) & (left < width), left),
                (full_x & (bottom == height) & (top > 0) & (top < height), top),
            )
        ):
            side[matches], line[matches] = number, position[matches]
        if (side < 0).any():
            bad = removed[np.argmax(side < 0)].tolist()
            raise ObjectSeekerError(f"removed rectangle {bad} is not one side of a {width}x{height} image")
        for name, value in (("removed", removed), ("side", side), ("line", line)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.removed)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MaskSet)
            and (self.width, self.height) == (other.width, other.height)
            and np.array_equal(self.removed, other.removed)
        )

    __hash__ = None  # type: ignore[assignment]


def halves(width: int, height: int, lines: int = 30) -> MaskSet:
    """The half masks of `lines` vertical and `lines` horizontal lines, both sides of each: 4 * lines masks.

    Line t of an axis of length n lies at ceil(t * n / (lines + 1)), each axis on its own. On an axis of at most
    `lines` pixels lines coincide or fall on the border; each is kept once, and only if it lies inside.
    """
    width, height = require_count(width, "width"), require_count(height, "height")
    columns, rows = line_positions(width, lines), line_positions(height, lines)
    return MaskSet(
        width,
        height,
        np.array(
            [(0, 0, x, height) for x in columns]
            + [(0, 0, width, y) for y in rows]
            + [(x, 0, width, height) for x in columns]
            + [(0, y, width, height) for y in rows],
            dtype=np.int64,
        ),
    )


def line_positions(length: int, lines: int) -> list[int]:
    """Where the lines of one axis lie, ascending."""
    lines = require_count(lines, "lines")
    return sorted({-(-t * length // (lines + 1)) for t in range(1, lines + 1)} - {length})


def fill(image: Image, removed: Sequence[int] | Sequence[Sequence[int]] | Ints, value: int = GREY) -> Image:
    """A copy of `image` whose pixels inside the rectangles `removed` (one, or R x 4) are `value`."""
    masked = image.copy()
    for x1, y1, x2, y2 in np.asarray(removed, np.int64).reshape(-1, 4).tolist():
        masked[y1:y2, x1:x2] = value
    return masked
