"""Another run or another defense of the same images beside the one that a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.settings import EvaluationSettings


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """What a report compares with: its name, and what was observed and how it is measured."""

    name: str
    images: Sequence[ObservedImage]
    vocabulary: LabelMap
    settings: EvaluationSettings

    def beside(self, images: Sequence[ObservedImage], vocabulary: LabelMap, settings: EvaluationSettings) -> Baseline:
        """This with exactly the objects of `images`, in their order; refused where that would compare unlike things."""
        ours, other = type(settings.rule), type(self.settings.rule)
        if ours is not other:
            raise ObjectSeekerError(
                f"the baseline's rule is a {other.__name__}, the report's a {ours.__name__}: they certify different "
                "things, compare rules of one kind"
            )
        if vocabulary.dataset_names != self.vocabulary.dataset_names:
            raise ObjectSeekerError("the baseline has other classes of objects: observe both on the same dataset")
        known = {image.id: image for image in self.images}
        return replace(self, images=[self._of(image, known) for image in images])

    def _of(self, image: ObservedImage, known: dict[str, ObservedImage]) -> ObservedImage:
        before = known.get(image.id)
        if before is None:
            raise ObjectSeekerError(f"the baseline has no image {image.id}: observe both on the same images")
        same = np.array_equal(before.truth.xyxy, image.truth.xyxy) and np.array_equal(
            before.truth.label, image.truth.label
        )
        seen, now = before.observation, image.observation
        if not same or (seen.width, seen.height) != (now.width, now.height):
            raise ObjectSeekerError(
                f"the baseline has another image {image.id}, or other objects in it: observe both on the same dataset"
            )
        return replace(before, ignore=image.ignore, crowd=image.crowd)
