"""Which part of the network input each masked view shows: what is filled, and what is cut away.

By fill, a view is the whole network input with the removed pixels painted over. By crop, it is a window of that:
the smallest one, with sides and position in whole strides, that holds everything the view still shows of the image.
The network then works on fewer pixels at the same scale, and its grid cells lie where they lay before.

Guarantee: windows are a function of image size, network size and removed rectangles alone, never of a pixel. A cropped
view is a window of the filled one, so what `preprocess` proves of the filled view holds of it: no removed pixel
influences it. A box found at (x, y) in a window that begins at (u, v) lies at (x + u, y + v) of the network input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.detectors.network.preprocess import InputPlacement, Size

MaskMode = Literal["fill", "crop"]


@dataclass(frozen=True, slots=True, eq=False)
class ViewPlan:
    """Views of one image: view i shows `window[i]` of the network input with the rectangles `filled[i]` painted over.

    Both hold x1, y1, x2, y2 on the network input; `window` is N x 4 and `filled` N x R x 4.
    """

    window: Ints
    filled: Ints

    def __len__(self) -> int:
        return len(self.window)

    @property
    def whole(self) -> Bools:
        """Which views show the whole image: nothing is filled."""
        return np.asarray((self.filled[..., :2] >= self.filled[..., 2:]).any(axis=-1).all(axis=-1))

    def by_size(self) -> Iterator[tuple[Size, Ints]]:
        """Every window size with its views, in the order the sizes first appear."""
        sizes = self.window[:, 2:] - self.window[:, :2]
        for size in dict.fromkeys(map(tuple, sizes.tolist())):
            yield (size[0], size[1]), np.flatnonzero((sizes == size).all(axis=1))


@lru_cache(maxsize=256)  # the images of a camera have one size, those of a dataset few
def cached_view_plan(
    placement: InputPlacement, removed: bytes, shape: tuple[int, ...], mask_mode: MaskMode, stride: int, step: int
) -> ViewPlan:
    """`plan_views` of rectangles that are given by their bytes, so that one plan serves all images of a size."""
    rectangles = np.frombuffer(removed, np.int64).reshape(shape)
    views = plan_views(placement, rectangles, mask_mode, stride=stride, step=step)
    for array in (views.window, views.filled):
        array.setflags(write=False)
    return views


def plan_views(placement: InputPlacement, removed: Ints, mask_mode: MaskMode, *, stride: int, step: int) -> ViewPlan:
    """The views of an image at `placement` without the raw rectangles `removed`, N x R x 4.

    A window's position is a multiple of `stride`, its sides are multiples of `step` (a multiple of `stride`) or
    the whole side of the network input. A large step makes fewer different sizes.
    """
    filled = placement.covered_each(removed)
    whole = np.array([0, 0, *placement.size])
    if mask_mode == "fill":
        return ViewPlan(np.broadcast_to(whole, (len(removed), 4)), filled)
    kept = _kept(placement, filled)
    window = np.empty_like(kept)
    for axis in (0, 1):
        length = placement.size[axis]
        first, last = kept[:, axis] // stride * stride, -(-kept[:, axis + 2] // stride) * stride
        side = np.minimum(-(-(last - first) // step) * step, length)
        window[:, axis] = np.minimum(first, length - side)
        window[:, axis + 2] = window[:, axis] + side
    return ViewPlan(window, filled)


def _kept(placement: InputPlacement, filled: Ints) -> Ints:
    """For every view a rectangle that holds all it shows of the image; where it shows nothing, one pixel.

    A filled rectangle that spans the rectangle from side to side and reaches one of its ends cuts that end off. Taken
    in turns until nothing changes, this is the exact hull for half planes and pairs of them.
    """
    x, y = placement.x, placement.y
    image = [x.offset, y.offset, x.offset + x.resampling.resized, y.offset + y.resampling.resized]
    kept = np.tile(np.array(image), (len(filled), 1))
    while True:
        before = kept.copy()
        for rectangle in np.moveaxis(filled, 1, 0):
            for along, across in ((0, 1), (1, 0)):
                spans = (rectangle[:, across] <= kept[:, across]) & (rectangle[:, across + 2] >= kept[:, across + 2])
                low = spans & (rectangle[:, along] <= kept[:, along])
                high = spans & (rectangle[:, along + 2] >= kept[:, along + 2])
                kept[low, along] = np.maximum(kept[low, along], rectangle[low, along + 2])
                kept[high, along + 2] = np.minimum(kept[high, along + 2], rectangle[high, along])
        if np.array_equal(before, kept):
            break
    nothing = (kept[:, :2] >= kept[:, 2:]).any(axis=1)
    kept[nothing] = [image[0], image[1], image[0] + 1, image[1] + 1]
    return kept
