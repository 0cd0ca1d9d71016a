"""From raw image to network input and back, and masked views of the network input, with proofs.

Resizing is separable, bilinear and antialiased: pixel (i, j) of the resized image is

    sum over (r, c) of  row_weight[i, r] * column_weight[j, c] * raw[r, c]

where row_weight[i] is zero outside the raw rows [first[i], last[i]) of the vertical axis, its support, and likewise for
columns. Images are resized with exactly these tables, not with a library whose internals we would have to trust.

Guarantee (fill): take a removed rectangle of raw pixels and fill, on the network input, every pixel whose row support
and column support both meet it (`InputPlacement.leaking_extent`). Then no removed raw pixel influences the masked
input. Proof: an unfilled network pixel belongs to the padding, a constant, or is the sum above, and one of its supports
misses the rectangle. Say the column support does. The rows are resized first, each raw column on its own; then the
pixel adds up those columns with column_weight[j], which is zero on every removed column. A zero weight times a finite
number adds exactly zero in floating point, so the pixel keeps its bits whatever the removed pixels show. If instead the
row support misses the rectangle, the same holds for the first pass. Rounding, channel order and normalization are done
pixel by pixel. QED. A view without a union of rectangles is filled for each of them: an unfilled pixel misses every
one, so by the same proof none influences it.

In mask mode "fill", a view is the whole network input with the removed pixels filled. In mask mode "crop", it is a
window of that: the smallest one, with sides and position in whole strides, that holds everything the view still shows
of the image. The network then works on fewer pixels at the same scale, and its grid cells keep their positions.

Guarantee (crop): windows are a function of image size, network size and removed rectangles alone, never of a pixel. A
cropped view is a window of the filled one, so the guarantee above holds for it: no removed pixel influences it. A box
found at (x, y) in a window that begins at (u, v) is at (x + u, y + v) of the network input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.masks import Image, fill_rectangles
from objectseeker.errors import ObjectSeekerError

MAX_CACHED_SIDE = 10_000  # pixels; tables of longer sides are not cached: 256 of this size take 60 MB
STRIP = 16  # network rows that are resized together, so that the working set fits into a CPU cache

Singles = npt.NDArray[np.float32]
Size = tuple[int, int]  # width, height
# Three letterboxes that keep the aspect ratio ("max-area" chooses its own sides), and one fit that does not.
Fit = Literal["top-left", "center", "max-area", "stretch"]


@dataclass(frozen=True, slots=True, eq=False)
class Resampling:
    """Weights that turn `raw` pixels into `resized` ones along one axis.

    Resized pixel j is the sum of weight[j, k] * raw pixel tap[j, k]; only raw pixels [first[j], last[j]) have a weight
    other than zero. Both ends of that interval never fall as j rises.
    """

    raw: int
    resized: int
    tap: Ints
    weight: Singles
    first: Ints
    last: Ints

    def matrix(self) -> Singles:
        """Return the weights as a matrix, resized x raw."""
        dense = np.zeros((self.resized, self.raw), np.float32)
        np.add.at(dense, (np.arange(self.resized)[:, None], self.tap), self.weight)
        return dense


def resampling(raw: int, resized: int) -> Resampling:
    """Compute bilinear weights from `raw` to `resized` pixels; when shrinking, every raw pixel counts."""
    return (_cached_tables if max(raw, resized) <= MAX_CACHED_SIDE else _tables)(raw, resized)


def _tables(raw: int, resized: int) -> Resampling:
    scale = raw / resized
    reach = max(scale, 1.0)
    center = (np.arange(resized) + 0.5) * scale
    start = np.floor(center - reach).astype(np.int64)
    tap = start[:, None] + np.arange(int(np.ceil(2 * reach)) + 2)
    weight = np.maximum(1 - np.abs(tap + 0.5 - center[:, None]) / reach, 0)
    weight[(tap < 0) | (tap >= raw)] = 0
    weight = (weight / weight.sum(axis=1, keepdims=True)).astype(np.float32)
    tap = np.clip(tap, 0, raw - 1)
    used = weight > 0
    first = np.where(used, tap, raw).min(axis=1)
    last = np.where(used, tap, -1).max(axis=1) + 1
    # Rounding could in principle give a neighbor a support that begins earlier or ends later. A wider interval
    # is still right and keeps both ends sorted, which `leaking_extent` relies on.
    first = np.minimum.accumulate(first[::-1])[::-1]
    last = np.maximum.accumulate(last)
    busy = used.any(axis=0)
    tap, weight = np.ascontiguousarray(tap[:, busy]), np.ascontiguousarray(weight[:, busy])
    for array in (tap, weight, first, last):
        array.setflags(write=False)
    return Resampling(raw, resized, tap, weight, first, last)


_cached_tables = lru_cache(maxsize=256)(_tables)  # a dataset has few image sizes


@dataclass(frozen=True, slots=True)
class Axis:
    """Placement of the image along one axis of the network input, which is `length` pixels long."""

    resampling: Resampling
    offset: int
    length: int

    def leaking_extent(self, start: npt.ArrayLike, stop: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Return the intervals of network pixels whose support meets the raw pixels [start, stop)."""
        low = np.searchsorted(self.resampling.last, start, side="right")
        high = np.searchsorted(self.resampling.first, stop, side="left")
        return self.offset + low, self.offset + np.maximum(low, high)

    def to_raw(self, positions: Floats) -> Floats:
        """Convert network coordinates to raw ones, clipped to the image."""
        raw = (positions - self.offset) * (self.resampling.raw / self.resampling.resized)
        return np.asarray(np.clip(raw, 0, self.resampling.raw))


@dataclass(frozen=True, slots=True)
class InputPlacement:
    """Position of an image of one size on the network input."""

    x: Axis
    y: Axis

    @property
    def size(self) -> Size:
        """Width and height of the network input."""
        return self.x.length, self.y.length

    def leaking_extent(self, removed: npt.ArrayLike) -> Ints:
        """Return the network rectangles to fill so that the raw pixels `removed` (..., 4) influence nothing.

        They are (..., 4), too; that of an empty one is empty.
        """
        x1, y1, x2, y2 = np.moveaxis(np.asarray(removed, np.int64), -1, 0)
        (left, right), (top, bottom) = self.x.leaking_extent(x1, x2), self.y.leaking_extent(y1, y2)
        covered = np.stack([left, top, right, bottom], axis=-1)
        return np.where(((x1 < x2) & (y1 < y2))[..., None], covered, 0)

    def to_raw(self, boxes: Floats) -> Floats:
        """Convert boxes on the network input to boxes on the raw image, clipped to it."""
        raw = np.empty_like(boxes)
        raw[:, 0::2], raw[:, 1::2] = self.x.to_raw(boxes[:, 0::2]), self.y.to_raw(boxes[:, 1::2])
        return raw


def place(image: Size, network: Size, fit: Fit, *, stride: int | None = None) -> InputPlacement:
    """Place an image of `image` = width, height on a network input of `network` = width, height.

    With `stride`, the network input of a letterbox is cut down to the smallest multiple of it that holds the image. Fit
    "max-area" needs a stride: it scales the image as far as an input with the same number of pixels allows, whatever
    its sides. The result follows from the two sizes, never from a pixel.
    """
    if fit not in get_args(Fit):
        raise ObjectSeekerError(f"fit must be one of {', '.join(get_args(Fit))}: got {fit!r}")
    if fit == "max-area":
        network = _max_area_sides(image, network, stride or 1)
    scale = min(network[0] / image[0], network[1] / image[1])
    axes = []
    for raw, length in zip(image, network, strict=True):
        resized = length if fit == "stretch" else min(max(round(raw * scale), 1), length)
        length = length if stride is None else min(length, -(-resized // stride) * stride)
        offset = (length - resized) // 2 if fit == "center" else 0
        axes.append(Axis(resampling(raw, resized), offset, length))
    return InputPlacement(*axes)


@lru_cache(maxsize=256)
def _max_area_sides(image: Size, network: Size, stride: int) -> Size:
    """Return the sides in whole strides, with no more pixels than `network`, that show the image largest."""
    cells = max((network[0] // stride) * (network[1] // stride), 1)
    sides = [(columns * stride, cells // columns * stride) for columns in range(1, cells + 1)]
    return max(sides, key=lambda side: min(side[0] / image[0], side[1] / image[1]))


def prepare(image: Image, placement: InputPlacement, *, pad: int) -> Image:
    """Return the network input as 8-bit pixels: `image` resized, `pad` around it."""
    x, y = placement.x, placement.y
    canvas = np.full((y.length, x.length, 3), pad, np.uint8)
    drawn = canvas[y.offset : y.offset + y.resampling.resized, x.offset : x.offset + x.resampling.resized]
    for top in range(0, len(drawn), STRIP):
        tap, weight = y.resampling.tap[top : top + STRIP], y.resampling.weight[top : top + STRIP]
        first = int(tap.min())
        raw = image[first : int(tap.max()) + 1].astype(np.float32)
        rows = _resample(raw.reshape(len(raw), -1), tap - first, weight).reshape(len(tap), -1, 3)
        transposed = np.empty((rows.shape[1], len(tap), 3), np.float32)
        for channel in range(3):  # much faster than transposing all three at once
            transposed[..., channel] = rows[..., channel].T
        columns = _resample(transposed.reshape(len(transposed), -1), x.resampling.tap, x.resampling.weight)
        levels = np.rint(np.clip(columns, 0, 255)).astype(np.uint8)
        drawn[top : top + STRIP] = levels.reshape(-1, len(tap), 3).transpose(1, 0, 2)
    return canvas


def _resample(pixels: Singles, tap: Ints, weight: Singles) -> Singles:
    """Blend the rows of a matrix: row j of the result is the sum of weight[j, k] times row tap[j, k]."""
    total = np.zeros((len(tap), pixels.shape[1]), np.float32)
    part = np.empty_like(total)
    for taps, weights in zip(tap.T, weight.T, strict=True):
        np.take(pixels, taps, axis=0, out=part, mode="clip")  # in another mode NumPy would make one more copy
        part *= weights[:, None]
        total += part
    return total


def shown_pixels(removed: Ints, width: int, height: int) -> Bools:
    """Return which raw pixels (height, width) are in none of the rectangles `removed`."""
    return fill_rectangles(np.ones((height, width), np.uint8), removed, 0).astype(np.bool_)


MaskMode = Literal["fill", "crop"]


@dataclass(frozen=True, slots=True, eq=False)
class ViewPlan:
    """Views of one image on the network input.

    View i shows `window[i]` with the rectangles `filled[i]` filled. Both hold x1, y1, x2, y2 on the network input;
    `window` is N x 4 and `filled` N x R x 4.
    """

    window: Ints
    filled: Ints

    def __len__(self) -> int:
        return len(self.window)

    @property
    def shows_all(self) -> Bools:
        """Mask of the views that show the whole image: nothing is filled."""
        return np.asarray((self.filled[..., :2] >= self.filled[..., 2:]).any(axis=-1).all(axis=-1))

    def by_size(self) -> Iterator[tuple[Size, Ints]]:
        """Yield every window size with its views, in the order in which the sizes first appear."""
        sizes = self.window[:, 2:] - self.window[:, :2]
        for size in dict.fromkeys(map(tuple, sizes.tolist())):
            yield (size[0], size[1]), np.flatnonzero((sizes == size).all(axis=1))


@lru_cache(maxsize=256)  # the images of a camera have one size, those of a dataset few
def cached_view_plan(
    placement: InputPlacement, removed: bytes, shape: tuple[int, ...], mask_mode: MaskMode, stride: int, step: int
) -> ViewPlan:
    """Plan views for rectangles passed as bytes, so that all images of one size share one plan object."""
    rectangles = np.frombuffer(removed, np.int64).reshape(shape)
    views = plan_views(placement, rectangles, mask_mode, stride=stride, step=step)
    for array in (views.window, views.filled):
        array.setflags(write=False)
    return views


def plan_views(placement: InputPlacement, removed: Ints, mask_mode: MaskMode, *, stride: int, step: int) -> ViewPlan:
    """Plan the views of an image at `placement` without the raw rectangles `removed`, N x R x 4.

    The position of a window is a multiple of `stride`. Its sides are multiples of `step` (a multiple of `stride`), or
    the whole side of the network input. A larger step makes fewer different sizes.
    """
    filled = placement.leaking_extent(removed)
    whole = np.array([0, 0, *placement.size])
    if mask_mode == "fill":
        return ViewPlan(np.broadcast_to(whole, (len(removed), 4)), filled)
    kept = _visible_rectangles(placement, filled)
    window = np.empty_like(kept)
    for axis in (0, 1):
        length = placement.size[axis]
        first, last = kept[:, axis] // stride * stride, -(-kept[:, axis + 2] // stride) * stride
        side = np.minimum(-(-(last - first) // step) * step, length)
        window[:, axis] = np.minimum(first, length - side)
        window[:, axis + 2] = window[:, axis] + side
    return ViewPlan(window, filled)


def _visible_rectangles(placement: InputPlacement, filled: Ints) -> Ints:
    """Return for every view a rectangle with all it shows of the image; one pixel if it shows nothing.

    A filled rectangle that spans that rectangle from side to side and reaches one of its ends cuts that end off.
    Applied until nothing changes, this is the exact hull for half planes and pairs of them.
    """
    x, y = placement.x, placement.y
    image = [x.offset, y.offset, x.offset + x.resampling.resized, y.offset + y.resampling.resized]
    kept = np.tile(np.array(image), (len(filled), 1))
    while True:
        previous = kept.copy()
        for rectangle in np.moveaxis(filled, 1, 0):
            for along, across in ((0, 1), (1, 0)):
                spans = (rectangle[:, across] <= kept[:, across]) & (rectangle[:, across + 2] >= kept[:, across + 2])
                low = spans & (rectangle[:, along] <= kept[:, along])
                high = spans & (rectangle[:, along + 2] >= kept[:, along + 2])
                kept[low, along] = np.maximum(kept[low, along], rectangle[low, along + 2])
                kept[high, along + 2] = np.minimum(kept[high, along + 2], rectangle[high, along])
        if np.array_equal(previous, kept):
            break
    nothing = (kept[:, :2] >= kept[:, 2:]).any(axis=1)
    kept[nothing] = [image[0], image[1], image[0] + 1, image[1] + 1]
    return kept
