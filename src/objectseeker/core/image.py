"""Images: arrays of pixels, checked, and with some of them painted over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from objectseeker.core.boxes import Ints
from objectseeker.errors import ObjectSeekerError

Image = npt.NDArray[np.uint8]  # H x W x 3, RGB

GREY = 114  # what a removed pixel is filled with, unless told otherwise


def as_image(image: Image) -> Image:
    """`image`, checked to be H x W x 3 uint8 with at least one pixel."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise ObjectSeekerError(
            f"an image must be a non-empty H x W x 3 uint8 array, got {image.dtype} of shape {image.shape}"
        )
    return image


def require_grey(value: int, name: str = "fill") -> int:
    """`value` as a grey value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= 255:
        raise ObjectSeekerError(f"{name} must be a grey value within 0 to 255, got {value!r}")
    return int(value)


def fill(image: Image, removed: Sequence[int] | Sequence[Sequence[int]] | Ints, value: int = GREY) -> Image:
    """A copy of `image` whose pixels inside the rectangles `removed` (one, or R x 4) are `value`."""
    masked = image.copy()
    for x1, y1, x2, y2 in np.asarray(removed, np.int64).reshape(-1, 4).tolist():
        masked[y1:y2, x1:x2] = value
    return masked
