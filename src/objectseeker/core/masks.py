"""Masks: the pixels that a view of the image does not show.

Every mask is made of strips: all of the image between two columns, or between two rows. A strip that reaches one border
is a half mask; one that reaches none is a band. `recipes` makes the masks of any image size.
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
            f"an image must be a non-empty H x W x 3 uint8 array, got {image.dtype} of shape {image.shape}"
        )
    return image


def require_gray(value: int, name: str = "fill") -> int:
    """`value` as a gray value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= 255:
        raise ObjectSeekerError(f"{name} must be a gray value within 0 to 255, got {value!r}")
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
SIDES: tuple[Side, ...] = get_args(Side)  # the order of a certificate's four lines XL, YT, XR, YB
NO_SIDE = -1  # of a band, which is at no border


@dataclass(frozen=True, slots=True, eq=False)
class MaskSet:
    """Strip masks of one image size; mask i removes the pixels [x1, x2) x [y1, y2) of `removed[i]`.

    Along its `axis[i]` (0: columns, 1: rows) strip i removes [start[i], end[i]), along the other axis everything. Every
    strip removes something and keeps something. `side[i]` says at which border a half mask lies (an index into SIDES)
    and `line[i]` is the line it ends at, so a left mask removes [0, line) and a right mask [line, width); a band has
    side NO_SIDE and line 0.
    """

    width: int
    height: int
    removed: Ints
    axis: Ints = field(init=False)
    start: Ints = field(init=False)
    end: Ints = field(init=False)
    side: Ints = field(init=False)
    line: Ints = field(init=False)

    def __post_init__(self) -> None:
        limit = np.array([require_count(self.width, "width"), require_count(self.height, "height")])
        removed = np.array(self.removed, dtype=np.int64).reshape(-1, 4)
        first, last = removed[:, :2], removed[:, 2:]
        whole = (first == 0) & (last == limit)
        part = (first >= 0) & (first < last) & (last <= limit) & ~whole
        strip = part & whole[:, ::-1]  # a part of one axis, all of the other
        if not strip.any(axis=1).all():
            bad = removed[np.argmin(strip.any(axis=1))].tolist()
            raise ObjectSeekerError(f"removed rectangle {bad} is not a strip across a {limit[0]}x{limit[1]} image")
        axis = np.argmax(strip, axis=1)
        rows = np.arange(len(removed))
        start, end = first[rows, axis], last[rows, axis]
        before, after = start == 0, end == limit[axis]
        side = np.select([before, after], [axis, axis + 2], NO_SIDE)
        line = np.select([before, after], [end, start], 0)
        made = {"removed": removed, "axis": axis, "start": start, "end": end, "side": side, "line": line}
        for name, value in made.items():
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def strips(self) -> MaskSet:
        """The strips that masks are made of: here, themselves."""
        return self

    @property
    def strip_indices(self) -> Ints:
        """The indices of the `strips` that each mask is made of: (M, 1)."""
        return np.arange(len(self))[:, None]

    @property
    def extent(self) -> Ints:
        """Width and height, by axis."""
        return np.array([self.width, self.height])

    @property
    def only_halves(self) -> bool:
        """Return whether there is no band among them."""
        return not (self.side == NO_SIDE).any()

    @property
    def lines(self) -> tuple[Bools, Ints]:
        """Return whether there is a line at the start and the end of each strip, and its place: (M, 2) each."""
        inside = np.stack([self.start > 0, self.end < self.extent[self.axis]], axis=1)
        return inside, np.stack([self.start, self.end], axis=1)

    def removes(self, axis: int, first: Ints, length: int) -> Bools:
        """Return the masks that remove a patch by its position on one axis: (len(first), M).

        The patch covers [first, first + length) there, the rest of it may be anywhere: this is the method's one
        predicate "this mask removes a patch here". Only visible pixels count, so a strip that reaches a border also
        removes what hangs over it: [max(first, 0), min(first + length, limit)) is within [start, end) iff

            (first >= start or start = 0) and (first + length <= end or end = limit).
        """
        begins = (first[:, None] >= self.start) | (self.start == 0)
        ends = (first[:, None] + length <= self.end) | (self.end == self.extent[axis])
        return np.asarray(begins & ends & (self.axis == axis))

    def breakpoints(self, axis: int, length: int) -> Ints:
        """Return the positions along one axis at which `removes` may change, ascending, from the first of all.

        A strip removes the positions from `start` to `end - length`: the set changes at these ends and nowhere else.
        """
        of_axis = self.axis == axis
        limit = int(self.extent[axis])
        found = np.concatenate([[1 - length], self.start[of_axis], self.end[of_axis] - length + 1])
        return np.unique(found[(found > -length) & (found < limit)])

    def select_masks(self, index: Ints | slice) -> MaskSet:
        """Some of the masks."""
        return MaskSet(self.width, self.height, self.removed[index])

    def __len__(self) -> int:
        return len(self.removed)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MaskSet)
            and (self.width, self.height) == (other.width, other.height)
            and np.array_equal(self.removed, other.removed)
        )

    def __hash__(self) -> int:
        return hash((self.width, self.height, self.removed.tobytes()))


@dataclass(frozen=True, slots=True, eq=False)
class MaskPairs:
    """Masks that remove two halves of the image each, for two patches at two places.

    Mask i removes the half masks `strip_indices[i]` = (a, b) of `strips`, a <= b, only; a == b is one half
    mask alone. `removed[i]` holds the two rectangles. No mask removes the whole image.

    A patch whose visible pixels a mask (a, b) removes lies wholly in a or wholly in b. Its visible pixels form a
    rectangle, and there are three cases. Same side: one half contains the other. Left of l and right of r: columns l
    to r - 1 are kept, at least one since not everything is removed, so a rectangle that reaches from one half into
    the other would contain a kept column. Left or right, and top or bottom: if the rectangle had a column outside a
    and a row outside b, the pixel where they cross would be kept. So a mask removes two patches iff each of them is
    in a or in b. Lines lie strictly inside the image: what of a patch hangs over the border changes nothing.
    """

    strips: MaskSet
    strip_indices: Ints
    removed: Ints = field(init=False)

    def __post_init__(self) -> None:
        if not self.strips.only_halves:
            raise ObjectSeekerError("pairs are made of half masks, not of bands")
        strip_indices = np.array(self.strip_indices, dtype=np.int64).reshape(-1, 2)
        a, b = strip_indices.T
        wrong = (a < 0) | (a > b) | (b >= len(self.strips))
        if wrong.any():
            bad = strip_indices[np.argmax(wrong)].tolist()
            raise ObjectSeekerError(f"pair {bad} must be two ascending indices below {len(self.strips)}")
        nothing = removes_everything(self.strips, a, b)
        if nothing.any():
            raise ObjectSeekerError(f"pair {strip_indices[np.argmax(nothing)].tolist()} removes the whole image")
        removed = self.strips.removed[strip_indices]
        for name, value in (("strip_indices", strip_indices), ("removed", removed)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        return self.strips.width

    @property
    def height(self) -> int:
        return self.strips.height

    @property
    def only_halves(self) -> bool:
        return True

    def removes(self, axis: int, first: Ints, length: int) -> Bools:
        """Return `MaskSet.removes` for pairs: whether one of the two half masks does, (len(first), M)."""
        return np.asarray(self.strips.removes(axis, first, length)[:, self.strip_indices].any(axis=2))

    def breakpoints(self, axis: int, length: int) -> Ints:
        """`MaskSet.breakpoints` of the half masks."""
        return self.strips.breakpoints(axis, length)

    def select_masks(self, index: Ints | slice) -> MaskPairs:
        """Some of the masks."""
        return MaskPairs(self.strips, self.strip_indices[index])

    def __len__(self) -> int:
        return len(self.strip_indices)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MaskPairs)
            and self.strips == other.strips
            and np.array_equal(self.strip_indices, other.strip_indices)
        )

    def __hash__(self) -> int:
        return hash((self.strips, self.strip_indices.tobytes()))


Masks = MaskSet | MaskPairs


def strips(width: int, height: int, columns: Iterable[tuple[int, int]], rows: Iterable[tuple[int, int]]) -> MaskSet:
    """The masks that remove the given columns, then those that remove the given rows; each start, end."""
    removed = [(start, 0, end, height) for start, end in columns] + [(0, start, width, end) for start, end in rows]
    return MaskSet(width, height, np.array(removed, dtype=np.int64))


def removes_everything(single: MaskSet, a: Ints, b: Ints) -> Bools:
    """Return whether half masks a and b remove the whole image: opposite sides that meet or overlap."""
    sides, lines = single.side, single.line
    a, b = np.where(sides[a] < sides[b], a, b), np.where(sides[a] < sides[b], b, a)  # left or top first
    return np.asarray((sides[b] == sides[a] + 2) & (lines[a] >= lines[b]))
