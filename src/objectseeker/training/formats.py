"""How pipelines write a box down."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from objectseeker.core.boxes import Floats
from objectseeker.errors import ObjectSeekerError

# Corners in pixels; corners, corner and size, centre and size as shares of the image; corner and size; centre and size.
Format = Literal["pascal_voc", "albumentations", "coco", "yolo", "cxcywh"]


def to_corners(boxes: Floats, form: Format, size: tuple[int, int]) -> Floats:
    """Boxes (N, 4) as x1, y1, x2, y2 in pixels of an image of `size`, its width and height."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if form in ("yolo", "albumentations"):
        first, second = first * size, second * size
    if form == "coco":
        second = first + second
    if form in ("yolo", "cxcywh"):
        first, second = first - second / 2, first + second / 2
    return np.concatenate([first, second], axis=1)


def from_corners(boxes: Floats, form: Format, size: tuple[int, int]) -> Floats:
    """The reverse of `to_corners`."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if form == "coco":
        second = second - first
    if form in ("yolo", "cxcywh"):
        first, second = (first + second) / 2, second - first
    if form in ("yolo", "albumentations"):
        first, second = first / size, second / size
    return np.concatenate([first, second], axis=1)


def require_format(form: str) -> Format:
    for known in get_args(Format):
        if form == known:
            return known  # type: ignore[no-any-return]
    raise ObjectSeekerError(f"box format must be one of {', '.join(get_args(Format))}, got {form!r}")
