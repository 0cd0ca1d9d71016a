"""The images of a run, gathered in a few flat arrays: one row per object and per base box, over all images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints
from objectseeker.core.observation import ObservedImage
from objectseeker.errors import ObjectSeekerError

NO_IMAGES = "there are no images to evaluate; observe some first"


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Boxes of many images, image by image; `image` says which one each belongs to."""

    detections: Detections
    image: Ints

    @classmethod
    def gather(cls, parts: Sequence[Detections]) -> Boxes:
        return cls(Detections.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.image)

    def select(self, index: Ints | Bools) -> Boxes:
        return Boxes(self.detections[index], self.image[index])

    def followed_by(self, other: Boxes) -> Boxes:
        """Both, these first; no longer image by image."""
        return Boxes(
            Detections.concatenate([self.detections, other.detections]), np.concatenate([self.image, other.image])
        )


@dataclass(frozen=True, slots=True, eq=False)
class Census:
    """How many objects of each class count."""

    objects_per_class: Ints

    def macro(self, per_class: Floats) -> Floats:
        """The mean over the classes that have objects; classes are the last axis."""
        return np.asarray(per_class[..., self.objects_per_class > 0].mean(axis=-1))


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A run's images with everything that does not depend on the settings. Labels are indices into `names`."""

    images: tuple[ObservedImage, ...]
    names: tuple[str, ...]
    width: Ints  # per image
    height: Ints
    base: Boxes
    truth: Boxes
    ignore: Bools  # per object
    crowd: Bools

    @classmethod
    def of(cls, images: Sequence[ObservedImage], names: Sequence[str]) -> Scene:
        scene = cls.part(images, names)
        if not len(scene.counted):
            raise ObjectSeekerError(nothing_counts(len(scene.images)))
        return scene

    @classmethod
    def part(cls, images: Sequence[ObservedImage], names: Sequence[str]) -> Scene:
        """The scene of some of many images: it may have no objects."""
        images = tuple(images)  # those of a stored run are read anew whenever they are gone through
        if not images:
            raise ObjectSeekerError(NO_IMAGES)
        scene = cls(
            images=images,
            names=tuple(names),
            width=np.array([image.observation.width for image in images]),
            height=np.array([image.observation.height for image in images]),
            base=Boxes.gather([image.observation.base for image in images]),
            truth=Boxes.gather([image.truth for image in images]),
            ignore=np.concatenate([np.asarray(image.ignore, dtype=np.bool_) for image in images]),
            crowd=np.concatenate([np.asarray(image.crowd, dtype=np.bool_) for image in images]),
        )
        _check(scene)
        return scene

    @property
    def counted(self) -> Ints:
        """The objects that count: all but the ignored ones."""
        return np.flatnonzero(~self.ignore)

    @property
    def objects_per_class(self) -> Ints:
        return np.bincount(self.truth.detections.label[self.counted], minlength=len(self.names))

    def macro(self, per_class: Floats) -> Floats:
        """The mean over the classes that have objects; classes are the last axis."""
        return Census(self.objects_per_class).macro(per_class)

    def subset(self, index: Sequence[int] | Ints) -> Scene:
        """The scene of some of the images."""
        return Scene.of([self.images[int(i)] for i in index], self.names)


def nothing_counts(images: int) -> str:
    return f"none of the {images} images has an object that counts, so there is nothing to measure"


def _check(scene: Scene) -> None:
    if len(scene.ignore) != len(scene.truth) or len(scene.crowd) != len(scene.truth):
        raise ObjectSeekerError(
            f"ignore and crowd must have one entry per object, {len(scene.truth)} in all, "
            f"got {len(scene.ignore)} and {len(scene.crowd)}"
        )
    known = len(scene.names)
    everything = [(image.id, image.truth.label) for image in scene.images]
    everything += [(image.id, image.observation.base.label) for image in scene.images]
    everything += [(image.id, image.observation.boxes.label) for image in scene.images]
    for image, label in everything:
        if len(label) and not 0 <= label.min() <= label.max() < known:
            raise ObjectSeekerError(
                f"image {image!r} has labels from {label.min()} to {label.max()} but there are {known} class names"
            )
