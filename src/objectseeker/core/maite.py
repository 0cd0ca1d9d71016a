"""MAITE's object detection protocol: Models of defended detectors, and detectors of Models.

The protocol is structural, so nothing here imports maite. A MAITE image is an array of C x H x W; a target has `boxes`
(x1, y1, x2, y2 in pixels), `labels` and `scores`; a model is called with a batch of images and has `metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Floats, Ints
from objectseeker.core.certification import Certificates
from objectseeker.core.class_matching import match_classes
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError, require_number

__all__ = [
    "MaiteDetector",
    "MaiteModel",
    "MaiteTarget",
    "from_maite_image",
    "has_maite_metadata",
    "label_names",
    "to_maite_image",
]


@dataclass(frozen=True, slots=True, eq=False)
class MaiteTarget:
    """The boxes of one image as MAITE's ObjectDetectionTarget, with what they were made from.

    `recovered` marks the boxes that only masking found. `observation` is what the detector returned for every view, in
    its own labels: a metric certifies objects from it. `certificates`, if patches were given, are about these boxes.
    """

    boxes: Floats
    labels: Ints
    scores: Floats
    recovered: np.ndarray[Any, np.dtype[np.bool_]] = field(default_factory=lambda: np.zeros(0, np.bool_))
    observation: Observation | None = None
    certificates: Certificates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MaiteModel:
    """A defended detector as MAITE's object detection Model: `maite.tasks.predict` and `evaluate` take it.

    The certificates of its targets are those of `ObjectSeeker.certify`, with its guarantee: this only changes the form
    of images and boxes.
    """

    seeker: ObjectSeeker
    metadata: dict[str, Any]
    label_map: LabelMap
    labels: tuple[int, ...]  # the label that is returned for each dataset class of the label map
    patches: tuple[Patch, ...]
    white: float

    def __call__(self, batch: Sequence[Any]) -> list[MaiteTarget]:
        """Detect in a batch of images, C x H x W."""
        return [self._target(from_maite_image(image, white=self.white)) for image in batch]

    def _target(self, image: Image) -> MaiteTarget:
        defended = self.seeker.defend(image)
        found, base = defended.detections, len(defended.base)
        index = self.label_map.dataset_labels[found.label]
        kept = np.flatnonzero(index >= 0)
        certificates = None
        if self.patches:
            certificates = self.seeker.certify(defended.observation, found[kept], self.patches)
        labels = np.array(self.labels, np.int64)
        return MaiteTarget(
            boxes=found.xyxy[kept].copy(),
            labels=labels[index[kept]],
            scores=found.score[kept].copy(),
            recovered=kept >= base,
            observation=defended.observation,
            certificates=certificates,
        )


def to_maite_model(
    seeker: ObjectSeeker,
    *,
    index2label: Mapping[int, str] | None,
    class_map: Mapping[str, str] | None,
    patches: Patch | Sequence[Patch],
    white: float,
) -> MaiteModel:
    """Return the defended detector as a MAITE Model; `ObjectSeeker.as_maite` documents the arguments."""
    names = tuple(getattr(seeker.detector, "names", ()))
    if not names:
        raise ObjectSeekerError(
            "a MAITE model needs class names: got a detector without names. Give the detector an attribute names."
        )
    if index2label is None:
        labels, label_map = dict(enumerate(names)), LabelMap.from_names(names)
    else:
        labels = {int(label): name for label, name in index2label.items()}
        matched = match_classes(tuple(labels.values()), names, class_map=class_map)
        label_map = LabelMap(names, tuple(labels.values()), matched.dataset_labels)
        if matched.unmatched_detector and not seeker.rule.classwise:
            # Its certificates promise a box of any class, so no box may be dropped for its class.
            raise ObjectSeekerError(
                f"a class-agnostic rule needs every class of the detector: index2label lacks "
                f"{matched.unmatched_detector[0]!r}. Omit index2label."
            )
    metadata = {
        "id": f"objectseeker {getattr(seeker.detector, 'fingerprint', type(seeker.detector).__name__)}",
        "index2label": labels,
    }
    return MaiteModel(
        seeker=seeker,
        metadata=metadata,
        label_map=label_map,
        labels=tuple(labels),
        patches=(patches,) if isinstance(patches, Patch) else tuple(patches),
        white=require_number(white, "white"),
    )


def from_maite_image(image: Any, *, white: float = 1.0) -> Image:
    """Convert an image C x H x W to H x W x 3 bytes, RGB.

    Integers are 0 to 255; other numbers are 0 to `white`, and rounded to bytes. Every pixel is converted on its own, so
    a patch changes no pixel outside it. A value outside the range is an error, not a guess about the scale.
    """
    pixels = as_numpy(image)
    if pixels.ndim != 3 or pixels.shape[0] != 3 or not pixels.size or pixels.dtype.kind not in "uif":
        raise ObjectSeekerError(
            f"a MAITE image must have shape (3, H, W) and numbers, RGB: got {pixels.shape} of {pixels.dtype}. Convert "
            "it first."
        )
    limit = white if pixels.dtype.kind == "f" else 255
    if not (pixels.min() >= 0 and pixels.max() <= limit):  # NaN is neither
        raise ObjectSeekerError(
            f"the pixels of a MAITE image must lie within [0, {limit:g}]: got {pixels.min()} to {pixels.max()}. Clip "
            "them, or say what white is with as_maite(white=255)."
        )
    if pixels.dtype.kind == "f":
        pixels = np.rint(pixels * (255 / white))
    return np.ascontiguousarray(pixels.astype(np.uint8).transpose(1, 2, 0))


def to_maite_image(image: Image) -> Image:
    """Convert H x W x 3 bytes to C x H x W bytes."""
    return np.ascontiguousarray(image.transpose(2, 0, 1))


class MaiteDetector:
    """A MAITE object detection Model as a detector: it is given C x H x W arrays of uint8, RGB.

    Boxes are clipped to the image. Those with a value that is not finite, without area or without a score within [0, 1]
    are dropped, each on its own. Of scores per class, the highest counts. It has a `fingerprint` if the model has one.
    """

    def __init__(self, model: Any) -> None:
        names = label_names(model.metadata)
        self.model = model
        self.names = tuple(names.get(label, str(label)) for label in range(max(names, default=-1) + 1))
        self.__module__, self.__qualname__ = type(model).__module__, type(model).__qualname__
        if hasattr(model, "fingerprint"):
            self.fingerprint = model.fingerprint

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        targets = self.model([to_maite_image(image) for image in images])
        return [_from_target(target, image) for target, image in zip(targets, images, strict=True)]


def _from_target(target: Any, image: Image) -> Detections:
    xyxy = as_numpy(target.boxes).astype(np.float64).reshape(-1, 4)
    score = as_numpy(target.scores).astype(np.float64)
    score = score.max(axis=1, initial=0.0) if score.ndim == 2 else score
    height, width = image.shape[:2]
    good = np.isfinite(xyxy).all(axis=1) & (score >= 0) & (score <= 1)
    xyxy = np.clip(np.where(good[:, None], xyxy, 0.0), 0, [width, height, width, height])
    good &= (xyxy[:, 0] < xyxy[:, 2]) & (xyxy[:, 1] < xyxy[:, 3])
    return Detections(xyxy[good], score[good], as_numpy(target.labels)[good])


def has_maite_metadata(candidate: object) -> bool:
    """Return whether an object has the metadata that every MAITE component has: a mapping with an id."""
    metadata = getattr(candidate, "metadata", None)
    return isinstance(metadata, Mapping) and "id" in metadata


def label_names(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Return the class names by label of a MAITE component; empty if it names none."""
    return {int(label): str(name) for label, name in dict(metadata.get("index2label") or {}).items()}


def as_numpy(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Convert an array or a tensor on any device."""
    to_cpu: Callable[[], Any] | None = getattr(getattr(values, "detach", lambda: values)(), "cpu", None)
    return np.asarray(values if to_cpu is None else to_cpu())
