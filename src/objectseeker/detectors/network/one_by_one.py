"""A detector that is left alone with each image: it resizes, suppresses and maps boxes back by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image, as_image
from objectseeker.detectors.network.results import Found, count_broken, on_image, say_broken


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneByOneDetector:
    """Turns images into detections with `find`, which gives boxes in raw pixels and gets one image at a time.

    The libraries behind it pad the images of a batch to a common size, so that batch-mates would change the result.
    """

    one_by_one: ClassVar[bool] = True  # so the seeker makes no batches for it

    names: tuple[str, ...]
    identity: str
    find: Callable[[Image], Found]
    score_floor: float

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        images = [as_image(image) for image in images]
        found = [self.find(image) for image in images]
        say_broken(sum(count_broken(entry, floor=self.score_floor) for entry in found))
        return [on_image(entry, image, floor=self.score_floor) for entry, image in zip(found, images, strict=True)]
