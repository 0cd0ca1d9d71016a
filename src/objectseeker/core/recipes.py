"""Mask recipes: how the masks of any image size are made. A recipe is what is deployed, stored and compared.

    Halves(30)                  halves:30                  both sides of 30 lines an axis, for a patch of any size
    Pairs(10)                   pairs:10                   all pairs of the half masks of 10 lines, for two patches
    Bands(0.01)                 bands:0.01                 strips that a patch of at most 1 % of the image fits into
    Halves(10) + Bands(0.01)    halves:10+bands:0.01       the masks of both
    Rolling(Halves(30), 8)      rolling:8:halves:30        those of Halves(30), spread over 8 frames (`rolling`)

Every recipe writes itself as such a text, and `parse` reads it back.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from typing import ClassVar

import numpy as np

from objectseeker.core.masks import MaskPairs, Masks, MaskSet, keeps_nothing, strips
from objectseeker.core.threats import Patch, parse_area
from objectseeker.errors import ObjectSeekerError, require_count, require_number

SIZES = 1000  # image sizes whose masks are kept at a time
MOST_MASKS = 2**15 - 1  # of one image; the store numbers them in 16 bits


class Recipe:
    """What every mask recipe can do. Recipes are equal if they make the same masks for the same reasons."""

    __slots__ = ()

    def masks(self, width: int, height: int) -> Masks:
        """The masks of an image of that size; images of one size share theirs."""
        return _masks_of(self, require_count(width, "width"), require_count(height, "height"))

    def passes(self, width: int, height: int) -> int:
        """The budget: forward passes for an image of that size, one for the image and one for every mask."""
        return 1 + len(self.masks(width, height))

    def _make(self, width: int, height: int) -> Masks:
        raise NotImplementedError

    def __add__(self, other: Recipe) -> Recipe:
        return Sum((*_parts(self), *_parts(other)))


@dataclass(frozen=True, slots=True)
class Halves(Recipe):
    """The half masks of `lines` vertical and `lines` horizontal lines, both sides of each: 4 * lines masks.

    Line t of an axis of length n lies at ceil(t * n / (lines + 1)), each axis on its own. On an axis of at most
    `lines` pixels lines coincide or fall on the border; each is kept once, and only if it lies inside.
    """

    lines: int = 30
    name: ClassVar[str] = "halves"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", _require_lines(self.lines, MOST_MASKS // 4))

    def _make(self, width: int, height: int) -> MaskSet:
        columns, rows = line_positions(width, self.lines), line_positions(height, self.lines)
        lefts, rights = [(0, x) for x in columns], [(x, width) for x in columns]
        tops, bottoms = [(0, y) for y in rows], [(y, height) for y in rows]
        before, after = strips(width, height, lefts, tops), strips(width, height, rights, bottoms)
        return MaskSet(width, height, np.concatenate([before.removed, after.removed]))

    def __str__(self) -> str:
        return f"{self.name}:{self.lines}"


@dataclass(frozen=True, slots=True)
class Pairs(Recipe):
    """The pairs of half masks of `lines` lines per axis: the half masks alone, then two at a time.

    4k half masks have 2k(4k + 1) unordered pairs, a half mask with itself included. Every region that pairs of them
    remove is kept once, and none that leaves nothing to see: 4k half masks alone, k(k - 1) opposite ones with a gap
    between them, 4k^2 of a vertical and a horizontal line, 5k^2 + 3k in all. What is dropped could certify nothing
    more. Two half masks of one side remove what the larger of them removes alone, so the same pixels are shown and
    the same patches removed. Opposite halves that meet show nothing of the image: no box seen there says anything
    about it. And certificates hold for whatever set of masks was used, as long as inference used the same.
    """

    lines: int = 10
    name: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        most = max(k for k in range(1, 100) if pair_counts(k)[1] <= MOST_MASKS)
        object.__setattr__(self, "lines", _require_lines(self.lines, most))

    def _make(self, width: int, height: int) -> MaskPairs:
        single = Halves(self.lines)._make(width, height)
        a, b = np.triu_indices(len(single), 1)
        distinct = (single.side[a] != single.side[b]) & ~keeps_nothing(single, a, b)
        alone = np.arange(len(single))
        together = np.stack([a[distinct], b[distinct]], axis=1)
        return MaskPairs(single, np.concatenate([np.stack([alone, alone], axis=1), together]))

    def __str__(self) -> str:
        return f"{self.name}:{self.lines}"


@dataclass(frozen=True, slots=True)
class Bands(Recipe):
    """Strips that remove every position of a patch of at most `area` (a share of the image) and `aspect`.

    For a patch of w x h pixels and a step of s = spacing * w (whole pixels, at least 1), column bands have width
    w + s - 1 and begin every s pixels: band t removes the positions from t * s to t * s + s - 1, so together they
    remove all. The first reaches the left border and the last the right one, so they also remove what hangs over.
    Row bands likewise. An axis on which a single band would remove everything has none: the other one must do.

    A larger patch is simply not certified where it fits into no band: verdicts stay exact for every size.
    """

    area: float = 0.01
    aspect: float = 1.0
    spacing: float = 1.0
    name: ClassVar[str] = "bands"

    def __post_init__(self) -> None:
        patch = Patch(self.area, self.aspect)  # refuses what is no patch
        checked = {"area": patch.area, "aspect": patch.aspect, "spacing": require_number(self.spacing, "spacing")}
        for name, value in checked.items():  # as floats: equal recipes are then written alike
            object.__setattr__(self, name, value)
        if self.spacing <= 0:
            raise ObjectSeekerError(f"spacing must be above 0, got {self.spacing!r}")

    def _make(self, width: int, height: int) -> MaskSet:
        sides = Patch(self.area, self.aspect).size(width, height)
        columns, rows = (
            band_positions(limit, side, max(1, math.floor(min(self.spacing * side, limit))))
            for limit, side in zip((width, height), sides, strict=True)
        )
        return strips(width, height, columns, rows)

    def __str__(self) -> str:
        more = "".join(f",{key}={getattr(self, key)!r}" for key in ("aspect", "spacing") if getattr(self, key) != 1)
        return f"{self.name}:{'100%' if self.area == 1 else repr(self.area)}{more}"


@dataclass(frozen=True, slots=True)
class Sum(Recipe):
    """The masks of several recipes, in their order; a strip that several of them make is kept once."""

    parts: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            if not isinstance(part, Halves | Bands):
                raise ObjectSeekerError(f"halves and bands can be added up, got {part}")

    def _make(self, width: int, height: int) -> Masks:
        every = np.concatenate([part.masks(width, height).removed for part in self.parts])
        _, first = np.unique(every, axis=0, return_index=True)
        return MaskSet(width, height, every[np.sort(first)])

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def within(recipe: Recipe) -> list[Recipe]:
    """All recipes that make only masks of `recipe`, at every image size: what one run of it can speak of.

    Line t of j on an axis of n pixels lies at ceil(t * n / (j + 1)). If j + 1 divides k + 1, m times, that is
    ceil(t * m * n / (k + 1)): line t * m of k. Bands of another spacing have another width, so none is among others.
    """
    choices = [[None, *_thinner(part)] for part in _parts(recipe)]
    chosen = [[part for part in parts if part is not None] for parts in product(*choices)]
    return [parts[0] if len(parts) == 1 else Sum(tuple(parts)) for parts in chosen if parts]


def _thinner(part: Recipe) -> list[Recipe]:
    """The recipes of the same kind that make only masks of `part`."""
    if isinstance(part, Halves | Pairs):
        return [type(part)(lines) for lines in range(1, part.lines + 1) if (part.lines + 1) % (lines + 1) == 0]
    return [part]


def halves(width: int, height: int, lines: int = 30) -> MaskSet:
    """`Halves(lines).masks(width, height)`."""
    masks = Halves(lines).masks(width, height)
    assert isinstance(masks, MaskSet)
    return masks


def parse(text: str) -> Recipe:
    """The recipe that a text such as halves:30, pairs:10, bands:1%,spacing=0.5 or halves:10+bands:1% stands for."""
    if str(text).startswith(("rolling:", "share:")):
        from objectseeker.core.rolling import parse_rolling  # made of recipes itself

        return parse_rolling(str(text))
    parts = [_parse_one(part.strip(), text) for part in re.split(r"(?<![0-9]e)\+", str(text))]
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def require_recipe(masks: Recipe) -> Recipe:
    """`masks`, checked to be a recipe."""
    if not isinstance(masks, Recipe):
        raise ObjectSeekerError(f"masks must be a recipe such as Halves(30), got {masks!r}")
    return masks


def pair_counts(lines: int) -> tuple[int, int]:
    """How many unordered pairs the half masks of `lines` lines per axis have, and how many masks `Pairs` makes."""
    k = require_count(lines, "lines")
    return 2 * k * (4 * k + 1), 5 * k * k + 3 * k


def line_positions(length: int, lines: int) -> list[int]:
    """Where the lines of one axis lie, ascending."""
    return sorted({-(-t * length // (lines + 1)) for t in range(1, lines + 1)} - {length})


def band_positions(length: int, side: int, step: int) -> list[tuple[int, int]]:
    """Start and end of the bands along one axis; none if one band would be all of it."""
    wide = side + step - 1
    if wide >= length:
        return []
    last = -(-(length - wide) // step)  # the first band that reaches the border
    return [(t * step, min(t * step + wide, length)) for t in range(last + 1)]


@lru_cache(maxsize=SIZES)
def _masks_of(recipe: Recipe, width: int, height: int) -> Masks:
    masks = recipe._make(width, height)
    if len(masks) > MOST_MASKS:
        raise ObjectSeekerError(
            f"{recipe} makes {len(masks):,} masks of a {width}x{height} image, more than {MOST_MASKS:,}: take fewer"
        )
    return masks


def _parts(recipe: Recipe) -> tuple[Recipe, ...]:
    return recipe.parts if isinstance(recipe, Sum) else (recipe,)


def _require_lines(lines: int, most: int) -> int:
    count = require_count(lines, "lines")
    if count > most:
        raise ObjectSeekerError(f"lines must be at most {most}, got {lines}")
    return count


def _parse_one(text: str, whole: str) -> Recipe:
    name, _, rest = text.partition(":")
    known: dict[str, type[Halves | Pairs | Bands]] = {kind.name: kind for kind in (Halves, Pairs, Bands)}
    try:
        kind = known[name]
        first, *others = rest.split(",")
        keys = [field.name for field in fields(kind)]
        given = ({keys[0]: first} if first else {}) | dict(other.split("=", 1) for other in others)
        if not given.keys() <= set(keys):
            raise ValueError
        if kind is Bands:
            return Bands(**{key: parse_area(value) if key == "area" else float(value) for key, value in given.items()})
        return kind(**{key: int(value) for key, value in given.items()})
    except ObjectSeekerError:
        raise
    except (KeyError, ValueError):
        raise ObjectSeekerError(
            f"cannot read the masks {whole!r}: write halves:30, pairs:10, bands:1%,spacing=0.5 or halves:10+bands:1%"
        ) from None
