"""Masks: the pixels that a view of the image does not show.

Every mask keeps one rectangle of the image: a half mask, a pair of half masks or a window. Only a
band keeps two: it removes a strip across the image. `recipes` makes the masks of any image size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Ints
from objectseeker.errors import ObjectSeekerError, require_count

# Images: arrays of pixels, checked, and with some of them filled.


Image = npt.NDArray[np.uint8]  # H x W x 3, RGB

DEFAULT_FILL = 114  # what a removed pixel is filled with, unless told otherwise


def as_image(image: Image) -> Image:
    """`image`, checked to be H x W x 3 uint8 with at least one pixel."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise ObjectSeekerError(
            f"an image must be a non-empty H x W x 3 uint8 array: got {image.dtype} of shape {image.shape}"
        )
    return image


def require_gray(value: int, name: str = "fill") -> int:
    """`value` as a gray value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= 255:
        raise ObjectSeekerError(f"{name} must be a gray value within 0 to 255: got {value!r}")
    return int(value)


def fill_rectangles(
    image: Image, removed: Sequence[int] | Sequence[Sequence[int]] | Ints, value: int = DEFAULT_FILL
) -> Image:
    """A copy of `image` whose pixels inside the rectangles `removed` (one, or R x 4) are `value`."""
    masked = image.copy()
    for x1, y1, x2, y2 in np.asarray(removed, np.int64).reshape(-1, 4).tolist():
        masked[y1:y2, x1:x2] = value
    return masked


Side = Literal["left", "top", "right", "bottom"]
SIDES: tuple[Side, ...] = get_args(Side)  # the order of a rectangle's edges: XL, YT, XR, YB


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The masks of one image size; each keeps one rectangle, or is a band, which removes one.

    Mask i keeps the pixels [x1, x2) x [y1, y2) of `rectangle[i]` and removes all others; a half mask, a pair of half
    masks and a window differ only in how many borders of the image that rectangle reaches. A band (`is_band[i]`)
    removes the pixels of its rectangle and keeps all others: a strip from one border to the opposite one, with
    something left on both sides. A strip that reaches a third border is a half mask. Every mask removes something and
    keeps something.

    `removed` (M, R, 4) covers what each mask removes with R strips at most, empty ones last. `is_line` (M, 4) says
    which edges of the rectangle lie inside the image, and `along` (M, 2) across which axes there are any. `has_bands`:
    some mask is a band, about which the safe lines of a certificate say nothing. `has_one_axis`: every mask has lines
    across one axis only, so x alone or y alone decides whether it removes a patch.
    """

    width: int
    height: int
    rectangle: Ints
    is_band: Bools
    removed: Ints = field(init=False)
    is_line: Bools = field(init=False)
    along: Bools = field(init=False)
    has_bands: bool = field(init=False)
    has_one_axis: bool = field(init=False)

    def __post_init__(self) -> None:
        width, height = require_count(self.width, "width"), require_count(self.height, "height")
        whole = np.array([0, 0, width, height])
        rectangle = np.array(self.rectangle, dtype=np.int64).reshape(-1, 4)
        is_band = np.array(self.is_band, dtype=np.bool_).reshape(len(rectangle))
        inside = (rectangle >= np.tile(whole[:2], 2)) & (rectangle <= np.tile(whole[2:], 2))
        valid = inside.all(axis=1) & (rectangle[:, :2] < rectangle[:, 2:]).all(axis=1)
        is_line = rectangle != whole
        strip = is_line[:, [0, 1]] & is_line[:, [2, 3]] & ~is_line[:, [1, 0]] & ~is_line[:, [3, 2]]
        valid &= np.where(is_band, strip.any(axis=1), is_line.any(axis=1))
        if not valid.all():
            bad = int(np.argmin(valid))
            what = "is not a band across" if is_band[bad] else "is not a part of"
            raise ObjectSeekerError(
                f"a mask's rectangle {rectangle[bad].tolist()} {what} a {width}x{height} image. Change it."
            )
        along = is_line[:, :2] | is_line[:, 2:]
        removed = _removed_strips(rectangle, is_band, is_line, whole)
        made = {"rectangle": rectangle, "is_band": is_band, "removed": removed, "is_line": is_line, "along": along}
        for name, value in made.items():
            value.setflags(write=False)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "has_bands", bool(is_band.any()))
        object.__setattr__(self, "has_one_axis", not along.all(axis=1).any())

    @property
    def extent(self) -> Ints:
        """Width and height, by axis."""
        return np.array([self.width, self.height])

    @property
    def kept(self) -> Ints:
        """The smallest rectangle with all that each mask keeps: (M, 4); of a band the whole image."""
        return np.where(self.is_band[:, None], [0, 0, self.width, self.height], self.rectangle)

    def removes(self, axis: int, first: Ints, length: int) -> Bools:
        """Return the masks that remove a patch by its position on one axis: (len(first), M).

        The patch covers [first, first + length) there, the rest of it may be anywhere: this is the method's one
        predicate "this mask removes a patch here". A mask removes a patch iff it removes it along either axis.

        Proof: only visible pixels count, [max(first, 0), min(first + length, limit)) along each axis, a rectangle that
        is not empty, as every patch position touches the image. A mask that keeps a rectangle removes it iff the two
        have no pixel in common, that is iff they are apart along some axis: first + length <= start or first >= end.
        (Since start < limit and end > 0 this is the same for the visible part and for all of the patch; and where
        start is 0 or end is the limit, no visible patch satisfies it.) A band, which is as long as the image across,
        removes it iff start <= first and first + length <= end along its own axis: since 0 < start and end < limit,
        no patch that hangs over the border there satisfies it, and its visible part does not. QED.
        """
        first = first[:, None]
        start, end = self.rectangle[:, axis::2].T
        apart = (first + length <= start) | (first >= end)
        inside = (first >= start) & (first + length <= end) & self.along[:, axis]
        return np.asarray(np.where(self.is_band, inside, apart))

    def touching_positions(self, axis: int, length: int) -> tuple[Ints, Ints]:
        """Return the positions on one axis at which masks begin and cease to remove a patch.

        At each of them the mask still removes it, and the patch touches a line of the mask.
        """
        (start, end), (has_start, has_end) = self.rectangle[:, axis::2].T, self.is_line[:, axis::2].T
        begins = np.concatenate([start[self.is_band & has_start], end[~self.is_band & has_end]])
        ceases = np.concatenate([end[self.is_band & has_end], start[~self.is_band & has_start]]) - length
        return begins, ceases

    def breakpoints(self, axis: int, length: int) -> Ints:
        """Return the positions along one axis at which `removes` may change, ascending, from the first of all.

        It changes at a mask's line and nowhere else. The positions at which the patch begins to hang over a border are
        listed, too: so the middle of a class, where a patch is drawn, is not pushed towards the border.
        """
        limit = int(self.extent[axis])
        begins, ceases = self.touching_positions(axis, length)
        borders = [0, limit - length + 1] if len(begins) or len(ceases) else []
        found = np.concatenate([[1 - length], borders, begins, ceases + 1]).astype(np.int64)
        return np.unique(found[found < limit])

    def select_masks(self, index: Ints | slice) -> Masks:
        """Some of the masks."""
        return Masks(self.width, self.height, self.rectangle[index], self.is_band[index])

    @classmethod
    def concatenate(cls, parts: Sequence[Masks]) -> Masks:
        """Return the masks of several sets for one image size, in order; equal masks are kept once, the first."""
        first_part, *_ = parts
        rectangle = np.concatenate([part.rectangle for part in parts])
        is_band = np.concatenate([part.is_band for part in parts])
        _, first = np.unique(np.column_stack([rectangle, is_band]), axis=0, return_index=True)
        kept = np.sort(first)
        return cls(first_part.width, first_part.height, rectangle[kept], is_band[kept])

    @property
    def keys(self) -> list[bytes]:
        """The key of each mask, equal for equal masks of one image size."""
        return [row.tobytes() for row in np.column_stack([self.rectangle, self.is_band])]

    def __len__(self) -> int:
        return len(self.rectangle)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Masks)
            and (self.width, self.height) == (other.width, other.height)
            and np.array_equal(self.rectangle, other.rectangle)
            and np.array_equal(self.is_band, other.is_band)
        )

    def __hash__(self) -> int:
        return hash((self.width, self.height, self.rectangle.tobytes(), self.is_band.tobytes()))


def _removed_strips(rectangle: Ints, is_band: Bools, is_line: Bools, whole: Ints) -> Ints:
    """Return what masks remove: a band itself, or what lies left, above, right and below."""
    strips = np.tile(whole, (len(rectangle), len(SIDES), 1))
    for side in range(len(SIDES)):
        strips[:, side, (side + 2) % 4] = rectangle[:, side]
        strips[~is_line[:, side], side] = 0
    strips[is_band] = 0
    strips[is_band, 0] = rectangle[is_band]
    full = strips.any(axis=2)
    order = np.argsort(~full, axis=1, kind="stable")  # empty ones last
    columns = int(full.sum(axis=1).max(initial=1))
    return np.take_along_axis(strips, order[..., None], axis=1)[:, :columns]


def keep(width: int, height: int, rectangle: npt.ArrayLike) -> Masks:
    """Return the masks that keep one rectangle x1, y1, x2, y2 each."""
    kept = np.asarray(rectangle, np.int64).reshape(-1, 4)
    return Masks(width, height, kept, np.zeros(len(kept), np.bool_))


def strips(width: int, height: int, columns: Iterable[tuple[int, int]], rows: Iterable[tuple[int, int]]) -> Masks:
    """Return the masks that remove columns, then those that remove rows; each start, end."""
    removed = [(start, 0, end, height) for start, end in columns] + [(0, start, width, end) for start, end in rows]
    rectangle, is_band = np.array(removed, dtype=np.int64).reshape(-1, 4), np.ones(len(removed), np.bool_)
    for n, (x1, y1, x2, y2) in enumerate(removed):
        for axis, (start, end, limit) in enumerate(((x1, x2, width), (y1, y2, height))):
            if (start == 0) != (end == limit):  # a half mask: it keeps the rest of the axis
                rectangle[n, [axis, axis + 2]] = (end, limit) if start == 0 else (0, start)
                is_band[n] = False
    return Masks(width, height, rectangle, is_band)
