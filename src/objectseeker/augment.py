"""Training for certification: half-plane masks as an augmentation for any training pipeline.

A detector that never saw half an image sees things in it, and the defence pays for that with precision. Trained on
images of which one side of a random line is removed, it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from objectseeker.boxes import Bools, Floats, area
from objectseeker.errors import ObjectSeekerError, require_fraction
from objectseeker.masks import GREY


def mask_half(
    image: npt.NDArray[Any],
    boxes: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    probability: float = 0.5,
    visible: float = 0.2,
    fill: float = GREY,
) -> tuple[npt.NDArray[Any], Floats, Bools]:
    """Remove, with this probability, one side of a random vertical or horizontal line from a training image.

    Returns the image (a copy where it is masked), the boxes that are still targets, and which of the given boxes
    those are, for everything else that belongs to an object:

        image, boxes, keep = mask_half(image, boxes, rng=rng)
        labels = labels[keep]

    An object of whose box less than the share `visible` remains is no target any more: nothing is left to recognise.
    Of the others the target is the visible part, as the masked views of the defence show nothing else. `image` is H x W
    or H x W x channels; `fill` is the value of a removed pixel, 114 for pixels in 0..255.
    """
    probability = require_fraction(probability, "probability")
    visible = require_fraction(visible, "visible")
    if image.ndim not in (2, 3) or min(image.shape[:2]) < 1:
        raise ObjectSeekerError(f"image must have shape (H, W) or (H, W, channels), got {image.shape}")
    targets = np.array(boxes, dtype=np.float64)
    targets = targets.reshape(0, 4) if targets.size == 0 else targets
    if targets.ndim != 2 or targets.shape[1] != 4:
        raise ObjectSeekerError(f"boxes must have shape (N, 4), got {targets.shape}")

    height, width = image.shape[:2]
    masked = rng.random() < probability
    vertical = rng.random() < 0.5
    length = width if vertical else height
    if not masked or length < 2:  # a line lies inside the image, so a single row or column has none
        return image, targets, np.ones(len(targets), np.bool_)
    line = int(rng.integers(1, length))
    removes_start = rng.random() < 0.5
    kept = slice(line, length) if removes_start else slice(0, line)

    result = np.full_like(image, fill)
    window = (slice(None), kept) if vertical else (kept, slice(None))
    result[window] = image[window]
    axis = 0 if vertical else 1
    seen = targets.copy()
    seen[:, [axis, axis + 2]] = seen[:, [axis, axis + 2]].clip(kept.start, kept.stop)
    seen_area = area(seen)
    keep = (seen_area > 0) & (seen_area >= visible * area(targets))
    return result, seen[keep], keep
