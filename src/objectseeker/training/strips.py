"""Drawing a mask: a strip of the image, all between two columns or between two rows.

A strip that reaches a border is a half mask, one that reaches none a band, as in `core.masks`. How a strip is drawn
from random numbers (`strip_of`) is written once, with operations that plain numbers, arrays and tensors share:
`masked_batches` calls it for whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number

PROBABILITY = 0.5
BANDS = 0.0
BAND_WIDTHS = 0.1, 0.3  # bands for a square patch of 1 %: a fifth of the axis, 15 % at half the spacing

Rectangle = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Strip:
    """The columns (`axis` 0) or the rows (`axis` 1) from `start` up to `end`, which are removed."""

    axis: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.axis not in (0, 1):
            raise ObjectSeekerError(f"axis must be 0 for columns or 1 for rows, got {self.axis!r}")
        require_count(self.end, "the end of a strip")
        require_count(self.end - self.start, "the width of a strip")
        if self.start < 0:
            raise ObjectSeekerError(f"the start of a strip must be at least 0, got {self.start!r}")

    def removed(self, width: int, height: int) -> Rectangle:
        """What is removed from an image, as x1, y1, x2, y2."""
        length = (width, height)[self.axis]
        if self.end > length:
            raise ObjectSeekerError(f"a strip up to {self.end} does not fit an image of {width}x{height} pixels")
        if self.end - self.start == length:
            raise ObjectSeekerError(f"a strip of {length} leaves nothing of an image of {width}x{height} pixels")
        return (self.start, 0, self.end, height) if self.axis == 0 else (0, self.start, width, self.end)

    def kept(self, width: int, height: int) -> tuple[Rectangle, Rectangle]:
        """What is left of an image before and behind the strip; at a border one of them has no area."""
        x1, y1, x2, y2 = self.removed(width, height)
        if self.axis == 0:
            return (0, 0, x1, height), (x2, 0, width, height)
        return (0, 0, width, y1), (0, y2, width, height)

    def window(self, width: int, height: int) -> Rectangle:
        """What is shown by crop: what is left, where that is one rectangle; around a band the whole image."""
        before, behind = self.kept(width, height)
        if self.start == 0:
            return behind
        return before if self.end == (width, height)[self.axis] else (0, 0, width, height)


def draw_strip(
    width: int,
    height: int,
    rng: Any,
    *,
    probability: float = PROBABILITY,
    bands: float = BANDS,
    band_widths: tuple[float, float] = BAND_WIDTHS,
) -> Strip | None:
    """With this probability a mask of an image: of the masks, the share `bands` are bands and the others half masks.

    Both axes are as likely. Of half masks both sides are as likely, and so is every line inside the image. The width of
    bands is drawn from `band_widths`, the narrowest and the widest as shares of the axis; every place is as likely.

    `rng` is a NumPy generator, a torch generator on any device, or None for torch's global one. Four numbers are drawn
    from it whatever comes of them, so an image's mask does not depend on what happened to the images before it.
    """
    masked, axis, start, end = strip_of(
        _uniform(rng), width, height, probability=probability, bands=bands, band_widths=band_widths
    )
    return Strip(int(axis), int(start), int(end)) if masked else None


def strip_of(
    numbers: Any, width: int, height: int, *, probability: float, bands: float, band_widths: tuple[float, float]
) -> tuple[Any, Any, Any, Any]:
    """What four random numbers from [0, 1) stand for: is there a mask, its axis, its start and its end.

    The numbers are single ones, or four arrays or tensors, and so is what is returned.
    """
    require_fraction(probability, "probability")
    require_fraction(bands, "bands")
    narrowest, widest = require_band_widths(band_widths)
    chance, direction, place, kind = numbers
    axis = direction >= 0.5
    length = width + (height - width) * axis
    masked = (chance < probability) & (length > 1)  # something is left: of a single row or column nothing would be
    # The first number also says whether it is a band; the last one which side of its line a half mask removes, or how
    # wide a band is. So four numbers do for both, and half masks are the same ones with bands among them.
    band, half = chance < probability * bands, chance >= probability * bands
    line, behind = 1 + place * (length - 1) // 1, kind >= 0.5
    wide = 1 + (narrowest + (widest - narrowest) * kind) * (length - 1) // 1
    first = place * (length - wide + 1) // 1
    start = line * behind * half + first * band
    end = (line + (length - line) * behind) * half + (first + wide) * band
    return masked, axis, start, end


def require_band_widths(widths: Any) -> tuple[float, float]:
    """The narrowest and the widest band, as shares of the axis."""
    try:
        narrowest, widest = (require_number(width, "a width of bands") for width in widths)
    except (TypeError, ValueError):
        narrowest, widest = 1.0, 0.0
    if not 0 <= narrowest <= widest < 1:
        raise ObjectSeekerError(f"band_widths must be two shares of the axis, ascending and below 1, got {widths!r}")
    return narrowest, widest


def _uniform(rng: Any) -> list[float]:
    if isinstance(rng, np.random.Generator):
        return [float(number) for number in rng.random(4)]
    import torch

    device = "cpu" if rng is None else rng.device
    return [float(number) for number in torch.rand(4, generator=rng, device=device, dtype=torch.float32).tolist()]
