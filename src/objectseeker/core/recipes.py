"""Mask recipes: the masks of any image size, as one object to deploy, store and compare.

    Halves(30)                  halves:30                  both sides of 30 lines an axis, for a patch of any size
    Pairs(10)                   pairs:10                   all pairs of the half masks of 10 lines, for two patches
    Bands(0.01)                 bands:0.01                 strips that a patch of at most 1 % of the image fits into
    Windows(1 / 2)              windows:1/2                keep a window of half of each axis, one every quarter
    Halves(10) + Bands(0.01)    halves:10+bands:0.01       the masks of both
    Rolling(Halves(30), 8)      rolling:8:halves:30        those of Halves(30), spread over 8 frames (`rolling`)

Every recipe writes itself as such a string, and `parse_recipe` reads it back.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import ClassVar

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.masks import Masks, keep, strips
from objectseeker.core.threats import Patch, parse_area
from objectseeker.errors import ObjectSeekerError, require_count, require_number

SIZES = 1000  # image sizes whose masks are kept at a time
MOST_MASKS = 2**15 - 1  # of one image; the store numbers them in 16 bits
MOST_PARTS = 16  # of a sum
LARGEST_DENOMINATOR = 1000  # of the share and the step of windows
_FRACTION = re.compile(r"\d{1,4}(/\d{1,4}|\.\d{1,4})?")


class Recipe:
    """A mask recipe. Recipes are equal if they make the same masks for the same reasons."""

    __slots__ = ()

    def masks(self, width: int, height: int) -> Masks:
        """The masks of an image of that size; images of one size share theirs."""
        return _masks_of(self, require_count(width, "width"), require_count(height, "height"))

    def forward_passes(self, width: int, height: int) -> int:
        """The budget: forward passes for an image of that size, one for the image and one for every mask."""
        return 1 + len(self.masks(width, height))

    def _make(self, width: int, height: int) -> Masks:
        raise NotImplementedError

    def __add__(self, other: Recipe) -> Recipe:
        return Sum((*_parts(self), *_parts(other)))


@dataclass(frozen=True, slots=True)
class Halves(Recipe):
    """Half masks of `lines` vertical and `lines` horizontal lines, both sides of each: 4 * lines masks.

    Line t of an axis of length n is at ceil(t * n / (lines + 1)), each axis on its own. On an axis of at most
    `lines` pixels lines coincide or fall on the border; each is kept once, and only if it lies inside.

    Example:
        >>> len(Halves(30).masks(640, 480))
        120
    """

    lines: int = 30
    name: ClassVar[str] = "halves"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", _require_lines(self.lines, MOST_MASKS // 4))

    def _make(self, width: int, height: int) -> Masks:
        columns, rows = line_positions(width, self.lines), line_positions(height, self.lines)
        kept = [(x, 0, width, height) for x in columns] + [(0, y, width, height) for y in rows]
        kept += [(0, 0, x, height) for x in columns] + [(0, 0, width, y) for y in rows]
        return keep(width, height, kept)

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

    Example:
        >>> len(Pairs(2).masks(640, 480)), len(Halves(2).masks(640, 480))
        (26, 8)
    """

    lines: int = 10
    name: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        most = max(k for k in range(1, 100) if pair_counts(k)[1] <= MOST_MASKS)
        object.__setattr__(self, "lines", _require_lines(self.lines, most))

    def _make(self, width: int, height: int) -> Masks:
        single = Halves(self.lines)._make(width, height).rectangle
        side = np.argmax(single != (0, 0, width, height), axis=1)  # at which each has its line
        a, b = np.triu_indices(len(single), 1)
        both = np.concatenate([np.maximum(single[a, :2], single[b, :2]), np.minimum(single[a, 2:], single[b, 2:])], 1)
        distinct = (side[a] != side[b]) & (both[:, :2] < both[:, 2:]).all(axis=1)
        return keep(width, height, np.concatenate([single, both[distinct]]))

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

    Example:
        >>> Bands(0.01).forward_passes(640, 480) < Halves(30).forward_passes(640, 480)
        True
    """

    area: float = 0.01
    aspect: float = 1.0
    spacing: float = 1.0
    name: ClassVar[str] = "bands"

    def __post_init__(self) -> None:
        patch = Patch(self.area, self.aspect)  # rejects an invalid patch
        checked = {"area": patch.area, "aspect": patch.aspect, "spacing": require_number(self.spacing, "spacing")}
        for name, value in checked.items():  # as floats: equal recipes are then written alike
            object.__setattr__(self, name, value)
        if self.spacing <= 0:
            raise ObjectSeekerError(f"spacing must be above 0: got {self.spacing!r}")

    def _make(self, width: int, height: int) -> Masks:
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
class Windows(Recipe):
    """Masks that keep one window of `share` of each axis, a window every `step` of the axis, along both.

    Window i of an axis of n pixels begins at i * step of it and ends `share` of it later; the last one ends at the
    border. Its first pixel is rounded down and its end up: floor(start * n) to ceil((start + share) * n). `share` and
    `step` are exact fractions: 1/3, "1/3" and Fraction(1, 3) are the same. `step` is half the share unless given.

    Against one patch windows add little to half masks. Against any number of patches they are what there is: whatever
    is outside of all windows that prove an object cannot hide it (`threats.Patch`, location "outside").

    Example:
        >>> Windows(share=1 / 2).masks(640, 480).kept[0].tolist()
        [0, 0, 320, 240]
    """

    share: Fraction | float = Fraction(1, 2)
    step: Fraction | float | None = None
    name: ClassVar[str] = "windows"

    def __post_init__(self) -> None:
        share = _fraction(self.share, "share")
        step = share / 2 if self.step is None else _fraction(self.step, "step")
        if not 0 < share < 1:
            raise ObjectSeekerError(f"the share of a window must be above 0 and below 1: got {self.share!s}")
        if not 0 < step <= 1:
            raise ObjectSeekerError(f"the step of windows must be above 0 and at most 1: got {self.step!s}")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "step", step)

    def _make(self, width: int, height: int) -> Masks:
        columns, rows = (self._along(limit) for limit in (width, height))
        if len(columns) * len(rows) > MOST_MASKS + 1:
            raise ObjectSeekerError(
                f"{self} makes {len(columns) * len(rows):,} masks, more than {MOST_MASKS:,}: take fewer"
            )
        kept = [(x1, y1, x2, y2) for y1, y2 in rows for x1, x2 in columns]
        return keep(width, height, [window for window in kept if window != (0, 0, width, height)])

    def _along(self, limit: int) -> list[tuple[int, int]]:
        """Return start and end of the windows along an axis, in pixels, ascending, each once."""
        share, step = self.exact()
        starts = [min(i * step, 1 - share) for i in range(math.ceil((1 - share) / step) + 1)]
        return sorted({(math.floor(at * limit), math.ceil((at + share) * limit)) for at in starts})

    def exact(self) -> tuple[Fraction, Fraction]:
        """Return share and step as fractions."""
        assert self.step is not None
        return Fraction(self.share), Fraction(self.step)

    def __str__(self) -> str:
        share, step = self.exact()
        return f"{self.name}:{share}" + (f",step={step}" if step != share / 2 else "")


@dataclass(frozen=True, slots=True)
class Sum(Recipe):
    """The masks of several recipes, in their order; a mask that several of them make is kept once."""

    parts: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        if len(self.parts) > MOST_PARTS:
            raise ObjectSeekerError(f"a sum must have at most {MOST_PARTS} recipes: got {len(self.parts)}")
        for part in self.parts:
            if not isinstance(part, Halves | Pairs | Bands | Windows):
                raise ObjectSeekerError(f"halves, pairs, bands and windows can be added up: got {part}")

    def _make(self, width: int, height: int) -> Masks:
        return Masks.concatenate([part.masks(width, height) for part in self.parts])

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def has_windows(recipe: Recipe) -> bool:
    """Return whether windows are among the masks: then certificates against "outside" are worth showing."""
    inner = recipe.recipe if isinstance(recipe, Rolling | Share) else recipe
    return any(isinstance(part, Windows) for part in _parts(inner))


def subrecipes(recipe: Recipe) -> list[Recipe]:
    """Return all recipes that make only masks of `recipe` at every image size: one run covers them.

    Line t of j on an axis of n pixels is at ceil(t * n / (j + 1)). If j + 1 divides k + 1, m times, that is
    ceil(t * m * n / (k + 1)): line t * m of k. Bands of another spacing have another width, so none is among others.
    Windows of the same share and m times the step begin where every m-th one does, and the last ends at the border.
    """
    choices = [[None, *_thinned_recipes(part)] for part in _parts(recipe)]
    chosen = [[part for part in parts if part is not None] for parts in product(*choices)]
    return [parts[0] if len(parts) == 1 else Sum(tuple(parts)) for parts in chosen if parts]


def _thinned_recipes(part: Recipe) -> list[Recipe]:
    """The recipes of the same kind that make only masks of `part`."""
    if isinstance(part, Halves | Pairs):
        return [type(part)(lines) for lines in range(1, part.lines + 1) if (part.lines + 1) % (lines + 1) == 0]
    if isinstance(part, Windows):
        share, step = part.exact()
        times = range(1, math.ceil((1 - share) / step) + 1)
        return [Windows(share, step * m) for m in times if step * m <= 1]
    return [part]


def parse_recipe(text: str) -> Recipe:
    """Parse a recipe: halves:30, bands:1%, windows:1/2, halves:10+bands:1% and the like."""
    text = str(text)
    if not text.isascii() or "_" in text:  # Python would read 1_0 and digits of other scripts as numbers
        raise _unreadable(text)
    if text.startswith(("rolling:", "share:")):
        return parse_rolling(text)
    return _parse_sum(text)


def _parse_sum(text: str) -> Recipe:
    parts = [_parse_one(part.strip(), text) for part in re.split(r"(?<![0-9]e)\+", text)]
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def require_recipe(masks: Recipe) -> Recipe:
    """`masks`, checked to be a recipe."""
    if not isinstance(masks, Recipe):
        raise ObjectSeekerError(f"masks must be a recipe such as Halves(30): got {masks!r}")
    return masks


def pair_counts(lines: int) -> tuple[int, int]:
    """Return the number of unordered pairs of half masks of `lines` lines per axis, and of `Pairs` masks."""
    k = require_count(lines, "lines")
    return 2 * k * (4 * k + 1), 5 * k * k + 3 * k


def line_positions(length: int, lines: int) -> list[int]:
    """Return the positions of the lines of one axis, ascending."""
    return sorted({-(-t * length // (lines + 1)) for t in range(1, lines + 1)} - {length})


def band_positions(length: int, side: int, step: int) -> list[tuple[int, int]]:
    """Start and end of the bands along one axis; none if one band would be all of it."""
    wide = side + step - 1
    if wide >= length:
        return []
    last = -(-(length - wide) // step)  # the first band that reaches the border
    if last >= MOST_MASKS:
        raise ObjectSeekerError(f"bands of {wide} pixels make {last + 1:,} masks, more than {MOST_MASKS:,}: take fewer")
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
        raise ObjectSeekerError(f"lines must be at most {most}: got {lines}")
    return count


def _parse_one(text: str, whole: str) -> Recipe:
    name, _, rest = text.partition(":")
    kinds = (Halves, Pairs, Bands, Windows)
    known: dict[str, type[Halves | Pairs | Bands | Windows]] = {kind.name: kind for kind in kinds}
    try:
        kind = known[name]
        first, *others = rest.split(",")
        keys = [field.name for field in fields(kind)]
        given = ({keys[0]: first} if first else {}) | dict(other.split("=", 1) for other in others)
        if not given.keys() <= set(keys):
            raise ValueError
        if kind is Bands:
            return Bands(**{key: parse_area(value) if key == "area" else float(value) for key, value in given.items()})
        if kind is Windows:
            return Windows(**{key: _fraction(value, key) for key, value in given.items()})
        return kind(**{key: int(value) for key, value in given.items()})
    except ObjectSeekerError:
        raise
    except (KeyError, ValueError):
        raise _unreadable(whole) from None


def _unreadable(text: str) -> ObjectSeekerError:
    return ObjectSeekerError(
        f"cannot read the masks {text[:80]!r}: write halves:30, pairs:10, bands:1%,spacing=0.5, windows:1/2,step=1/4 "
        "or a sum such as halves:10+bands:1%"
    )


def _fraction(value: object, name: str) -> Fraction:
    """Return a share of an axis exactly: the fraction of a small denominator that a float was meant as."""
    found = None
    if isinstance(value, str) and _FRACTION.fullmatch(value) and not value.endswith("/0"):
        found = Fraction(value)
    elif isinstance(value, int | float | Fraction) and not isinstance(value, bool) and math.isfinite(value):
        found = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
        found = found if abs(found - Fraction(value)) < 1e-9 else None
    if found is None or found.denominator > LARGEST_DENOMINATOR:
        raise ObjectSeekerError(
            f"{name} must be a fraction such as 1/3 or 0.25 with a denominator of at most {LARGEST_DENOMINATOR:,}: "
            f"got {value!r}"
        )
    return found


# Rolling masks: every frame of a stream shows only its share of a recipe's masks, a window of frames all of them.
#
#     Rolling(Halves(30), 8)          rolling:8:halves:30       frame t shows share t % 8 of the masks of Halves(30)
#     Share(Halves(30), 3, 8)         share:3:8:halves:30       share 3 of 8: a recipe like any other
#
# Which share a frame shows depends on its number in its source (`recipe_for_frame`, for runs and streams alike) and on
# nothing that is seen: frames that are lost, or that come before the first one shown, count. `temporal` defines the
# certificates. Runs keep the text alone, so another order of the shares would need another name.


MOST_FRAMES = 1000  # of a window
USUAL_AREA = 0.01  # of a patch, a share of the image


@dataclass(frozen=True, slots=True)
class Share(Recipe):
    """Every `parts`-th mask of `recipe`: shares 0 to `parts` - 1 together are its masks, once each.

    The lines of half masks are counted along each axis, and so are bands; the recipes of a sum each on their own. Share
    p begins at the place of p among the numbers below `parts` in the order of their reversed bits, so that frames after
    one another lie far apart and fill the gaps evenly.

    With the left mask of a line comes the right mask of the line that lies a patch of `area` (a square) before it, and
    with the top mask the bottom mask likewise: where both see the object it is found wherever such a patch lies. So
    what all masks certify by two of these, one share certifies alone, however the patch moves meanwhile. It is a matter
    of the order only: certificates are exact for every patch.
    """

    recipe: Recipe
    part: int
    parts: int
    area: float = USUAL_AREA
    name: ClassVar[str] = "share"

    def __post_init__(self) -> None:
        _require_shared(self.recipe)
        object.__setattr__(self, "parts", _require_frames(self.parts, "parts"))
        object.__setattr__(self, "area", Patch(self.area).area)
        if type(self.part) is not int or not 0 <= self.part < self.parts:
            raise ObjectSeekerError(f"part must be a whole number from 0 to {self.parts - 1}: got {self.part!r}")

    def _make(self, width: int, height: int) -> Masks:
        whole = self.recipe.masks(width, height)
        places = _mask_ranks(self.recipe, width, height, Patch(self.area).size(width, height))
        return whole.select_masks(np.flatnonzero(places % self.parts == self._begin()))

    def _begin(self) -> int:
        bits = (self.parts - 1).bit_length()
        return sorted(range(self.parts), key=lambda number: _reversed(number, bits))[self.part]

    def __str__(self) -> str:
        return f"{self.name}:{self.part}:{self.parts}{_of_patch(self.area)}:{self.recipe}"


@dataclass(frozen=True, slots=True)
class Rolling(Recipe):
    """The masks of `recipe` spread over a window of `frames` frames, for streams and sequences only.

    A window may begin at any frame: whichever `frames` frames follow one another, together they show every mask once.
    The order is made for a patch of `area` (`Share`).
    """

    recipe: Recipe
    frames: int
    area: float = USUAL_AREA
    name: ClassVar[str] = "rolling"

    def __post_init__(self) -> None:
        _require_shared(self.recipe)
        object.__setattr__(self, "frames", _require_frames(self.frames, "frames"))
        object.__setattr__(self, "area", Patch(self.area).area)

    def recipe_for_frame(self, number: int) -> Share:
        """The recipe of frame `number` of a stream, counted from 0."""
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise ObjectSeekerError(f"the number of a frame must be a whole number of at least 0: got {number!r}")
        return Share(self.recipe, int(number) % self.frames, self.frames, self.area)

    def forward_passes(self, width: int, height: int) -> int:
        """The largest number of forward passes that a frame of that size takes."""
        return max(self.recipe_for_frame(number).forward_passes(width, height) for number in range(self.frames))

    def _make(self, width: int, height: int) -> Masks:
        raise ObjectSeekerError(
            f"{self} shows a single image only its share of the masks, which certifies little: give it the frames of a "
            f"stream or a sequence, or take {self.recipe}"
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.frames}{_of_patch(self.area)}:{self.recipe}"


def rolling_index(number: int, stride: int) -> int:
    """Return the number for `recipe_for_frame` of frame `number` if every `stride`-th frame is taken.

    It grows by one from each frame that is taken to the next, so that all shares are shown. Without a stride it is the
    number itself, as in runs; with one it is not what a run of all frames is about.
    """
    return number // stride


def recipe_for_frame(recipe: Recipe, number: int | None) -> Recipe:
    """Return the recipe that frame `number` of its source is shown; None: a single image."""
    return recipe.recipe_for_frame(number) if isinstance(recipe, Rolling) and number is not None else recipe


def parse_rolling(text: str) -> Recipe:
    """Parse rolling:8:halves:30, rolling:8,patch=2%:halves:30, share:3:8:halves:30 and the like."""
    name, *rest = text.split(":")
    counts = 1 if name == Rolling.name else 2
    try:
        last, *others = rest[counts - 1].split(",")
        numbers = [int(number) for number in (*rest[: counts - 1], last)]
        area = dict(other.split("=", 1) for other in others)
        if len(rest) <= counts or not area.keys() <= {"patch"}:
            raise ValueError
    except (ValueError, IndexError):
        raise ObjectSeekerError(
            f"cannot read the masks {text[:80]!r}: write rolling:8:halves:30, the frames of a window and their masks"
        ) from None
    recipe = _parse_sum(":".join(rest[counts:]))
    made_for = parse_area(area["patch"]) if area else USUAL_AREA
    if name == Rolling.name:
        return Rolling(recipe, numbers[0], made_for)
    return Share(recipe, numbers[0], numbers[1], made_for)


def _of_patch(area: float) -> str:
    return "" if area == USUAL_AREA else f",patch={'100%' if area == 1 else repr(area)}"


def _mask_ranks(recipe: Recipe, width: int, height: int, patch: tuple[int, int]) -> Ints:
    """Return the rank of each mask of `recipe` in its row: its axis and kind, of one recipe of a sum."""
    parts = recipe.parts if isinstance(recipe, Sum) else (recipe,)
    ranks: dict[bytes, int] = {}
    for part in parts:
        masks = part.masks(width, height)
        if isinstance(part, Windows):
            places = np.arange(len(masks))
        else:
            places = _of_lines(masks, patch) if isinstance(part, Halves) else _in_row(masks, _removed_from(masks))
        for key, place in zip(masks.keys, places.tolist(), strict=True):
            ranks.setdefault(key, place)  # as `Sum` keeps them
    return np.array(list(ranks.values()), dtype=np.int64)


def _of_lines(masks: Masks, patch: tuple[int, int]) -> Ints:
    """The number of each line; of right and bottom masks that of the line which lies a patch further on."""
    line = masks.rectangle[masks.is_line]  # every half mask has one
    places, side = _in_row(masks, line), np.argmax(masks.is_line, axis=1)
    for axis in (0, 1):
        lines = np.unique(line[masks.along[:, axis]])
        places[side == axis + 2] += _line_gap(lines, patch[axis])
    return places


def _removed_from(masks: Masks) -> Ints:
    """The start, along its axis, of the strip that each mask removes."""
    return np.asarray(masks.removed[np.arange(len(masks)), 0, np.argmax(masks.along, axis=1)])


def _line_gap(lines: Ints, side: int) -> int:
    """Return how far apart two lines are, in lines, if one of their masks always removes the patch.

    Left of a and right of b do iff a - b >= side - 1 (`certification.largest_square`). Lines lie at whole pixels, so of
    those that are that many apart some may and others may not: the fewest at which some do, as these see most.
    """
    for apart in range(len(lines)):
        if (lines[apart:] - lines[: len(lines) - apart] >= side - 1).any():
            return apart
    return 0


def _in_row(masks: Masks, key: Ints) -> Ints:
    places = np.zeros(len(masks), dtype=np.int64)
    for axis in (0, 1):
        of_axis = masks.along[:, axis]
        places[of_axis] = np.unique(key[of_axis], return_inverse=True)[1]
    return places


def _reversed(number: int, bits: int) -> int:
    return int(f"{number:0{bits}b}"[::-1], 2)


def _require_shared(recipe: Recipe) -> None:
    if not all(isinstance(part, Halves | Bands | Windows) for part in _parts(require_recipe(recipe))):
        raise ObjectSeekerError(f"halves, bands, windows and their sums can be spread over frames, not {recipe}")


def _require_frames(frames: int, name: str) -> int:
    count = require_count(frames, name)
    if count > MOST_FRAMES:
        raise ObjectSeekerError(f"{name} must be at most {MOST_FRAMES}: got {frames}")
    return count
