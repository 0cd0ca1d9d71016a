"""A detector that is left alone with each image: it resizes, suppresses and maps boxes back by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image, as_image
from objectseeker.detectors.network.results import Found, on_image


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneByOneDetector:
    """Turns images into detections with `find`, which gives boxes in raw pixels and gets one image at a time.

    The libraries behind it pad the images of a batch to a common size, so that batch-mates would change the result.
    """

    names: tuple[str, ...]
    identity: str
    find: Callable[[Image], Found]
    score_floor: float

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        return [on_image(self.find(image), image, floor=self.score_floor) for image in map(as_image, images)]
