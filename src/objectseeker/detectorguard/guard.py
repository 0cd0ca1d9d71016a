"""The defended detector: base boxes, or an alert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image
from objectseeker.detectorguard.features import ObjectnessFeatures
from objectseeker.detectorguard.objectness import Grid, alert, objectness
from objectseeker.errors import ObjectSeekerError, require_fraction


@dataclass(frozen=True, slots=True)
class GuardedDetections:
    """What is output for one image: boxes, and none of them if there is an alert."""

    detections: Detections
    alert: bool


class DetectorGuard:
    """A detector behind DetectorGuard: `guard(images)` gives one `GuardedDetections` per image.

    `threshold` is a whole number of `objectness.FEATURE_STEP`; certificates hold at the threshold used here.
    """

    def __init__(
        self,
        detector: Callable[[Sequence[Image]], Sequence[Detections]],
        network: ObjectnessFeatures,
        *,
        base_threshold: float,
        threshold: int,
    ) -> None:
        if isinstance(threshold, bool) or int(threshold) != threshold or threshold < 0:
            raise ObjectSeekerError(f"threshold must be a whole number of at least 0, got {threshold!r}")
        self.detector, self.network = detector, network
        self.base_threshold = require_fraction(base_threshold, "base_threshold")
        self.threshold = int(threshold)

    def __call__(self, images: Sequence[Image]) -> list[GuardedDetections]:
        base = self.detector(images)
        return [
            self._guard(image, boxes.at_least(self.base_threshold)) for image, boxes in zip(images, base, strict=True)
        ]

    def _guard(self, image: Image, base: Detections) -> GuardedDetections:
        height, width = image.shape[:2]
        grid = Grid.of((width, height), self.network.input_size)
        if alert(grid, objectness(self.network(image), self.threshold), base):
            return GuardedDetections(Detections.empty(), True)
        return GuardedDetections(base, False)
