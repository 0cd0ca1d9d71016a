"""Rolling masks: every frame of a stream shows only its share of a recipe's masks, a window of frames all of them.

    Rolling(Halves(30), 8)          rolling:8:halves:30       frame t shows share t % 8 of the masks of Halves(30)
    Share(Halves(30), 3, 8)         share:3:8:halves:30       share 3 of 8: a recipe like any other

Which share a frame shows depends on its number in its source (`of_frame`, for runs and streams alike) and on nothing
that is seen: frames that are lost, or that come before the first one shown, count. `windows` says what is certified.
Runs keep the text alone, so another order of the shares would need another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.masks import MaskSet
from objectseeker.core.recipes import Bands, Halves, Recipe, Sum, parse, require_recipe
from objectseeker.core.threats import Patch, parse_area
from objectseeker.errors import ObjectSeekerError, require_count

MOST_FRAMES = 1000  # of a window
USUAL_AREA = 0.01  # of a patch, a share of the image


@dataclass(frozen=True, slots=True)
class Share(Recipe):
    """Every `parts`-th mask of `recipe`: share `part` of 0 to `parts` - 1, which together are its masks, once each.

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
            raise ObjectSeekerError(f"part must be a whole number from 0 to {self.parts - 1}, got {self.part!r}")

    def _make(self, width: int, height: int) -> MaskSet:
        whole = self.recipe.masks(width, height)
        assert isinstance(whole, MaskSet)
        places = _places(self.recipe, width, height, Patch(self.area).size(width, height))
        return whole.subset(np.flatnonzero(places % self.parts == self._begin()))

    def _begin(self) -> int:
        bits = (self.parts - 1).bit_length()
        return sorted(range(self.parts), key=lambda number: _reversed(number, bits))[self.part]

    def __str__(self) -> str:
        return f"{self.name}:{self.part}:{self.parts}{_of_patch(self.area)}:{self.recipe}"


@dataclass(frozen=True, slots=True)
class Rolling(Recipe):
    """The masks of `recipe` spread over a window of `frames` frames: for streams and sequences, not for single images.

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

    def of_frame(self, number: int) -> Share:
        """The recipe of frame `number` of a stream, counted from 0."""
        return Share(self.recipe, int(number) % self.frames, self.frames, self.area)

    def passes(self, width: int, height: int) -> int:
        """The largest number of forward passes that a frame of that size takes."""
        return max(self.of_frame(number).passes(width, height) for number in range(self.frames))

    def _make(self, width: int, height: int) -> MaskSet:
        raise ObjectSeekerError(
            f"{self} shows a single image only its share of the masks, which certifies little: give it the frames of a "
            f"stream or a sequence, or take {self.recipe}"
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.frames}{_of_patch(self.area)}:{self.recipe}"


def turn_of(number: int, stride: int) -> int:
    """What `of_frame` is asked for frame `number` of a source of which every `stride`-th frame is taken.

    It grows by one from each frame that is taken to the next, so that all shares are shown. Without a stride it is the
    number itself, as in runs; with one it is not what a run of all frames is about.
    """
    return number // stride


def of_frame(recipe: Recipe, number: int | None) -> Recipe:
    """The recipe that frame `number` of its source is shown; None: a single image, which is no frame."""
    return recipe.of_frame(number) if isinstance(recipe, Rolling) and number is not None else recipe


def parse_rolling(text: str) -> Recipe:
    """What a text such as rolling:8:halves:30, rolling:8,patch=2%:halves:30 or share:3:8:halves:30 stands for."""
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
    recipe = parse(":".join(rest[counts:]))
    made_for = parse_area(area["patch"]) if area else USUAL_AREA
    if name == Rolling.name:
        return Rolling(recipe, numbers[0], made_for)
    return Share(recipe, numbers[0], numbers[1], made_for)


def _of_patch(area: float) -> str:
    return "" if area == USUAL_AREA else f",patch={'100%' if area == 1 else repr(area)}"


def _places(recipe: Recipe, width: int, height: int, patch: tuple[int, int]) -> Ints:
    """Where each mask of `recipe` stands in its row: its axis and kind, of one recipe of a sum."""
    parts = recipe.parts if isinstance(recipe, Sum) else (recipe,)
    every = [part.masks(width, height).strips for part in parts]
    places = [
        _of_lines(masks, patch) if isinstance(part, Halves) else _in_row(masks, masks.start)
        for masks, part in zip(every, parts, strict=True)
    ]
    removed = np.concatenate([masks.removed for masks in every])
    _, first = np.unique(removed, axis=0, return_index=True)  # as `Sum` keeps them
    return np.asarray(np.concatenate(places)[np.sort(first)])


def _of_lines(masks: MaskSet, patch: tuple[int, int]) -> Ints:
    """The number of each line; of right and bottom masks that of the line which lies a patch further on."""
    places = _in_row(masks, masks.line)
    for axis in (0, 1):
        lines = np.unique(masks.line[masks.axis == axis])
        places[masks.side == axis + 2] += _lines_of(lines, patch[axis])
    return places


def _lines_of(lines: Ints, side: int) -> int:
    """How many lines apart two lines are of which one mask or the other removes the patch wherever it lies.

    Left of a and right of b do iff a - b >= side - 1 (`certification.largest_square`). Lines lie at whole pixels, so of
    those that are so many apart some may and others may not: the fewest at which some do, as these see most.
    """
    for apart in range(len(lines)):
        if (lines[apart:] - lines[: len(lines) - apart] >= side - 1).any():
            return apart
    return 0


def _in_row(masks: MaskSet, key: Ints) -> Ints:
    places = np.zeros(len(masks), dtype=np.int64)
    for axis in (0, 1):
        of_axis = masks.axis == axis
        places[of_axis] = np.unique(key[of_axis], return_inverse=True)[1]
    return places


def _reversed(number: int, bits: int) -> int:
    return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0


def _require_shared(recipe: Recipe) -> None:
    if not isinstance(require_recipe(recipe), Halves | Bands | Sum):
        raise ObjectSeekerError(f"halves, bands and their sums can be spread over frames, not {recipe}")


def _require_frames(frames: int, name: str) -> int:
    count = require_count(frames, name)
    if count > MOST_FRAMES:
        raise ObjectSeekerError(f"{name} must be at most {MOST_FRAMES}, got {frames}")
    return count
