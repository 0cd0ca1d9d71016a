"""Masks: which pixels a view of the image does not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Ints
from objectseeker.errors import ObjectSeekerError, require_count

Image = npt.NDArray[np.uint8]  # H x W x 3, RGB

SIDES = ("left", "top", "right", "bottom")  # the order of a certificate's four lines XL, YT, XR, YB
GREY = 114  # what a removed pixel is filled with, unless told otherwise

MaskChoice = Literal["halves", "pairs"]  # against one patch, against two


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

    @property
    def halves(self) -> MaskSet:
        """The half masks that masks are made of: for half masks, themselves."""
        return self

    @property
    def members(self) -> Ints:
        """Which of `halves` each mask is made of: (M, 1)."""
        return np.arange(len(self))[:, None]

    def subset(self, index: Ints | slice) -> MaskSet:
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

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class MaskPairs:
    """Masks that remove two halves of the image each, for two patches at two places.

    Mask i removes the half masks `members[i]` = (a, b) of `halves`, a <= b, and nothing else; a == b is one half mask
    alone. `removed[i]` holds the two rectangles. No mask removes the whole image.

    A patch whose visible pixels a mask (a, b) removes lies wholly in a or wholly in b. Its visible pixels form a
    rectangle, and there are three cases. Same side: one half contains the other. Left of l and right of r: columns l
    to r - 1 are kept, at least one since not everything is removed, so a rectangle that reaches from one half into
    the other would contain a kept column. Left or right, and top or bottom: if the rectangle had a column outside a
    and a row outside b, the pixel where they cross would be kept. So a mask removes two patches iff each of them lies
    in a or in b. Lines lie strictly inside the image: what of a patch hangs over the border changes nothing.
    """

    halves: MaskSet
    members: Ints
    removed: Ints = field(init=False)

    def __post_init__(self) -> None:
        members = np.array(self.members, dtype=np.int64).reshape(-1, 2)
        a, b = members.T
        wrong = (a < 0) | (a > b) | (b >= len(self.halves))
        if wrong.any():
            bad = members[np.argmax(wrong)].tolist()
            raise ObjectSeekerError(f"pair {bad} must be two ascending indices below {len(self.halves)}")
        nothing = _keeps_nothing(self.halves, a, b)
        if nothing.any():
            raise ObjectSeekerError(f"pair {members[np.argmax(nothing)].tolist()} removes the whole image")
        removed = self.halves.removed[members]
        for name, value in (("members", members), ("removed", removed)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        return self.halves.width

    @property
    def height(self) -> int:
        return self.halves.height

    def subset(self, index: Ints | slice) -> MaskPairs:
        """Some of the masks."""
        return MaskPairs(self.halves, self.members[index])

    def __len__(self) -> int:
        return len(self.members)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MaskPairs) and self.halves == other.halves and np.array_equal(self.members, other.members)
        )

    __hash__ = None  # type: ignore[assignment]


Masks = MaskSet | MaskPairs


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


def pairs(width: int, height: int, lines: int = 10) -> MaskPairs:
    """The pairs of half masks of `lines` lines per axis: the half masks alone, then two at a time.

    4k half masks have 2k(4k + 1) unordered pairs, a half mask with itself included. Every region that pairs of them
    remove is kept once, and none that leaves nothing to see: 4k half masks alone, k(k - 1) opposite ones with a gap
    between them, 4k^2 of a vertical and a horizontal line, 5k^2 + 3k in all. What is dropped could certify nothing
    more. Two half masks of one side remove what the larger of them removes alone, so the same pixels are shown and
    the same patches removed. Opposite halves that meet show nothing of the image: no box seen there says anything
    about it. And certificates hold for whatever set of masks was used, as long as inference used the same.
    """
    single = halves(width, height, lines)
    a, b = np.triu_indices(len(single), 1)
    distinct = (single.side[a] != single.side[b]) & ~_keeps_nothing(single, a, b)
    alone = np.arange(len(single))
    return MaskPairs(
        single, np.concatenate([np.stack([alone, alone], axis=1), np.stack([a[distinct], b[distinct]], axis=1)])
    )


def pair_counts(lines: int) -> tuple[int, int]:
    """How many unordered pairs the half masks of `lines` lines per axis have, and how many masks `pairs` makes."""
    k = require_count(lines, "lines")
    return 2 * k * (4 * k + 1), 5 * k * k + 3 * k


def make_masks(choice: MaskChoice, width: int, height: int, lines: int) -> Masks:
    """The masks of the chosen kind for an image of that size."""
    return halves(width, height, lines) if require_choice(choice) == "halves" else pairs(width, height, lines)


def require_choice(choice: MaskChoice) -> MaskChoice:
    """`choice`, checked to be one there is."""
    if choice not in get_args(MaskChoice):
        raise ObjectSeekerError(f"masks must be one of {', '.join(get_args(MaskChoice))}, got {choice!r}")
    return choice


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


def _keeps_nothing(single: MaskSet, a: Ints, b: Ints) -> Bools:
    """Whether half masks a and b together remove the whole image: opposite sides that meet or overlap."""
    sides, lines = single.side, single.line
    a, b = np.where(sides[a] < sides[b], a, b), np.where(sides[a] < sides[b], b, a)  # left or top first
    return np.asarray((sides[b] == sides[a] + 2) & (lines[a] >= lines[b]))
