"""Masked views cut out of the image, which the detector resizes to its full input: mask mode "resize".

A mask that keeps one rectangle is shown as that rectangle, an image of its own; a small object in a window then has
more pixels on the network input than in the whole image. Boxes are moved to the rectangle's place. A band keeps two
parts, so its view is the whole image with the band filled.

Guarantee: the boxes of a view depend only on the pixels that its mask keeps, and on the image's size. Proof: the
rectangle that is cut out follows from the image's size and the removed rectangles alone, and what is removed within it
is filled before it is cut out, in raw pixels and before any resize. So the image that the detector is given has no
removed pixel, and the detector, a pure function of that image, is given nothing else. Every view is given alone: no
other view shares a batch with it. How a box is moved follows from the rectangle. QED.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import Image, as_image, fill_rectangles
from objectseeker.detectors.network import detect_each_view
from objectseeker.detectors.network.preprocess import shown_pixels

if TYPE_CHECKING:
    from objectseeker.detectors import LoadedDetector


@dataclass(frozen=True, slots=True, eq=False)
class ResizedViews:
    """A detector that is shown each masked view as the part of the image that is kept."""

    detector: LoadedDetector

    @property
    def names(self) -> tuple[str, ...]:
        return self.detector.names

    @property
    def fingerprint(self) -> str:
        return f"{self.detector.fingerprint} views=resize"

    def __call__(self, images: Sequence[Image]) -> Sequence[Detections]:
        return self.detector(images)

    def detect_views(self, image: Image, removed: Ints, value: int) -> Sequence[Detections]:
        """Return the boxes of every view without the rectangles `removed` (N x R x 4)."""
        image = as_image(image)
        height, width = image.shape[:2]

        def detect(view: int) -> Detections:
            x1, y1, x2, y2 = kept_part(removed[view], width, height)
            (boxes,) = self.detector([fill_rectangles(image, removed[view], value)[y1:y2, x1:x2].copy()])
            return Detections(boxes.xyxy + np.array([x1, y1, x1, y1]), boxes.score, boxes.label)

        return detect_each_view(len(removed), detect, Detections.empty())


def kept_part(removed: Ints, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the smallest rectangle with all that is not removed; the whole image if there is nothing."""
    kept = shown_pixels(removed, width, height)
    columns, rows = np.flatnonzero(kept.any(axis=0)), np.flatnonzero(kept.any(axis=1))
    if not len(columns):
        return 0, 0, width, height
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
