"""The images of a report, small enough to send around, and the choice of the image that it opens with."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import PIL.Image

from objectseeker.core.masks import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import PATCH_LOCATIONS, Patch, ThreatModel
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.metrics.certified import build_proof_table, certified_objects
from objectseeker.metrics.image_set import ImageSet

MAX_THUMBNAIL_SIDE, MAX_VIEW_SIDE = 240, 640  # pixels
THUMBNAIL_QUALITY, VIEW_QUALITY = 50, 60  # JPEG

MAX_COVER_OBJECTS = 12  # an image with more is too crowded to come first
MAX_COVER_CANDIDATES = 60  # spread evenly over the run
MAX_COVERS = 5  # ranked, in case the first images are missing


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Two JPEG files of one image: a thumbnail and a larger view."""

    thumbnail: bytes
    view: bytes


def load_image_pair(image: ObservedImage) -> ImagePair | str:
    """Load an observed image; return a message if it is missing or no longer has the observed size."""
    try:
        pixels = load_image(image.path)
    except ObjectSeekerError as error:
        return str(error)
    height, width = pixels.shape[:2]
    observed = image.observation.width, image.observation.height
    if (width, height) != observed:
        return f"{image.path} has {width}x{height} pixels, but {observed[0]}x{observed[1]} when it was observed"
    return image_pair_of(pixels)


def image_pair_of(pixels: Image) -> ImagePair:
    """Recompress an image as a thumbnail and a view."""
    whole = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    view = _shrink(whole, MAX_VIEW_SIDE)
    return ImagePair(_jpeg(_shrink(view, MAX_THUMBNAIL_SIDE), THUMBNAIL_QUALITY), _jpeg(view, VIEW_QUALITY))


def _shrink(image: PIL.Image.Image, max_side: int) -> PIL.Image.Image:
    small = image.copy()
    small.thumbnail((max_side, max_side), PIL.Image.Resampling.BICUBIC)
    return small


def _jpeg(image: PIL.Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True, progressive=True)
    return buffer.getvalue()


def cover_images(image_set: ImageSet, rule: PruningRule, threat: ThreatModel) -> list[int]:
    """Rank images to open with: those whose objects differ most in where they are certified.

    Objects are of three kinds: certified over, certified only for patches away from the object, and not certified.
    More kinds rank first; among equals an image with about four objects, then one with a large object.
    """
    per_image = np.bincount(image_set.truth.image[image_set.counted], minlength=image_set.image_count)
    chosen = np.flatnonzero((per_image > 0) & (per_image <= MAX_COVER_OBJECTS))
    if not len(chosen):
        return list(range(min(image_set.image_count, MAX_COVERS)))
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, MAX_COVER_CANDIDATES).astype(int))]
    part = ImageSet.part([image_set.images[i] for i in chosen.tolist()], image_set.vocabulary)
    patches = [Patch(threat.area, threat.aspect, location) for location in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(
        build_proof_table(part, rule, threat.bound),
        rule,
        patches,
        certification_threshold=threat.certification_threshold,
    )
    proven = dict(zip(PATCH_LOCATIONS, certified & ~vacuous, strict=True))
    kind = np.where(proven["over"], 2, np.where(proven["far"] | proven["close"], 1, 0))

    def keys() -> Iterator[tuple[int, int, float, int]]:
        owner = part.truth.image[part.counted]
        box = part.truth.detections.xyxy[part.counted]
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        for i in range(part.image_count):
            objects = owner == i
            share = float(area[objects].max()) / float(part.width[i] * part.height[i])
            yield -len(set(kind[objects].tolist())), abs(int(objects.sum()) - 4), -min(share, 0.5), i

    return [int(chosen[i]) for *_, i in sorted(keys())[:MAX_COVERS]]
