"""The images of a run in a few flat arrays: one row per object and per base box.

Images hold boxes in the detector's labels, in which they are pruned and certified. The flat arrays have the
dataset's labels, in which they are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe
from objectseeker.errors import ObjectSeekerError

NO_IMAGES = "there are no images to evaluate; observe some first"


@dataclass(frozen=True, slots=True, eq=False)
class BoxTable:
    """Boxes of many images, image by image; `image` says which one each belongs to."""

    detections: Detections
    image: Ints

    @classmethod
    def concatenate(cls, parts: Sequence[Detections]) -> BoxTable:
        return cls(Detections.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.image)

    def select(self, index: Ints | Bools) -> BoxTable:
        return BoxTable(self.detections[index], self.image[index])

    def in_dataset(self, vocabulary: LabelMap) -> BoxTable:
        """Return boxes with the dataset's labels, without those of classes that it does not have."""
        label = vocabulary.dataset_labels[self.detections.label] if len(self) else self.detections.label
        kept = label >= 0
        return BoxTable(vocabulary.map_to_dataset(self.detections), self.image[kept])

    def followed_by(self, other: BoxTable) -> BoxTable:
        """Both, these first; no longer image by image."""
        return BoxTable(
            Detections.concatenate([self.detections, other.detections]), np.concatenate([self.image, other.image])
        )


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """A run's images with everything that does not depend on the settings."""

    images: tuple[ObservedImage, ...]
    vocabulary: LabelMap
    width: Ints  # per image
    height: Ints
    base: BoxTable  # in the dataset's labels, like `truth`
    truth: BoxTable
    ignore: Bools  # per object
    crowd: Bools

    @classmethod
    def of(cls, images: Sequence[ObservedImage], vocabulary: LabelMap) -> ImageSet:
        scene = cls.part(images, vocabulary)
        if not len(scene.counted):
            raise ObjectSeekerError(nothing_counts(len(scene.images)))
        return scene

    @classmethod
    def part(cls, images: Sequence[ObservedImage], vocabulary: LabelMap) -> ImageSet:
        """The scene of some of many images: it may have no objects."""
        images = tuple(images)  # those of a stored run are read anew on every iteration
        if not images:
            raise ObjectSeekerError(NO_IMAGES)
        _check(images, vocabulary)
        return cls(
            images=images,
            vocabulary=vocabulary,
            width=np.array([image.observation.width for image in images]),
            height=np.array([image.observation.height for image in images]),
            base=BoxTable.concatenate([image.observation.base for image in images]).in_dataset(vocabulary),
            truth=BoxTable.concatenate([image.truth for image in images]),
            ignore=np.concatenate([np.asarray(image.ignore, dtype=np.bool_) for image in images]),
            crowd=np.concatenate([np.asarray(image.crowd, dtype=np.bool_) for image in images]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The classes of the dataset."""
        return self.vocabulary.dataset_names

    @property
    def image_count(self) -> int:
        return len(self.images)

    @property
    def counted(self) -> Ints:
        """The objects that count: all but the ignored ones."""
        return np.flatnonzero(~self.ignore)

    @property
    def objects_per_class(self) -> Ints:
        return np.bincount(self.truth.detections.label[self.counted], minlength=len(self.names))

    def subset(self, index: Sequence[int] | Ints) -> ImageSet:
        """The scene of some of the images."""
        return ImageSet.of([self.images[int(i)] for i in index], self.vocabulary)


def nothing_counts(images: int) -> str:
    return f"none of the {images} images has an object that counts, so there is nothing to measure"


def _check(images: Sequence[ObservedImage], vocabulary: LabelMap) -> None:
    for image in images:
        flags = len(image.ignore), len(image.crowd)
        if flags != (len(image.truth),) * 2:
            raise ObjectSeekerError(
                f"ignore and crowd must have one entry per object, {len(image.truth)} in image {image.id!r}, "
                f"got {flags[0]} and {flags[1]}"
            )
        seen = image.observation
        for boxes, known, whose in (
            (image.truth, len(vocabulary.dataset_names), "objects"),
            (seen.base, len(vocabulary.dataset_labels), "boxes"),
            (seen.all_masked, len(vocabulary.dataset_labels), "boxes"),
        ):
            label = boxes.label
            if len(label) and not 0 <= label.min() <= label.max() < known:
                raise ObjectSeekerError(
                    f"image {image.id!r} has {whose} with labels from {label.min()} to {label.max()} "
                    f"but there are {known} class names"
                )


def under(images: Iterable[ObservedImage], recipe: Recipe) -> list[ObservedImage]:
    """Restrict images to a recipe, as if observed with it only; its masks must have been observed.

    Results must say so: a detector may return other last bits if these views share batches with others.
    """
    views = [(image, image.observation) for image in images]
    return [
        replace(image, observation=seen.restricted_to(recipe.masks(seen.width, seen.height))) for image, seen in views
    ]
