"""The photographs of a report, small enough to send around: a thumbnail and a view, or a word on why there is none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import PIL.Image

from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.masks import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import PATCH_LOCATIONS, Patch
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.metrics.certified import build_proof_table, certified_objects
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.settings import ThreatModel

THUMBNAIL, LARGE_VIEW = 240, 640  # longest side, pixels
THUMBNAIL_QUALITY, VIEW_QUALITY = 50, 60  # JPEG


@dataclass(frozen=True, slots=True)
class Photo:
    """Two JPEG files."""

    thumbnail: bytes
    view: bytes


def photo_of(image: ObservedImage) -> Photo | str:
    """The photograph behind an observed image; a sentence if it is gone, or no longer what was observed."""
    try:
        pixels = load_image(image.path)
    except ObjectSeekerError as error:
        return str(error)
    height, width = pixels.shape[:2]
    seen = image.observation.width, image.observation.height
    if (width, height) != seen:
        return f"{image.path} is {width}x{height} pixels now, it was {seen[0]}x{seen[1]} when it was observed"
    return photo_of_pixels(pixels)


def photo_of_pixels(pixels: Image) -> Photo:
    picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    view = _shrunk(picture, LARGE_VIEW)
    return Photo(_jpeg(_shrunk(view, THUMBNAIL), THUMBNAIL_QUALITY), _jpeg(view, VIEW_QUALITY))


def _shrunk(picture: PIL.Image.Image, longest: int) -> PIL.Image.Image:
    """A copy whose longest side is at most `longest`."""
    small = picture.copy()
    small.thumbnail((longest, longest), PIL.Image.Resampling.BICUBIC)
    return small


def _jpeg(picture: PIL.Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, optimize=True, progressive=True)
    return buffer.getvalue()


# The photograph that the report opens with: one that shows what a patch can do and what it cannot.


MOST_OBJECTS = 12  # more are no first picture
LOOKED_AT = 60  # images, spread over the run
RANKED = 5  # how many to fall back on where photographs are missing


def opening_images(scene: ImageSet, rule: AnyRule, threat: ThreatModel) -> list[int]:
    """Images to open with, best first: of objects certified over, only away from it, and not at all, most kinds.

    Among equals those with about four objects, then those whose largest object is large.
    """
    per_image = np.bincount(scene.truth.image[scene.counted], minlength=scene.image_count)
    chosen = np.flatnonzero((per_image > 0) & (per_image <= MOST_OBJECTS))
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, LOOKED_AT).astype(int))] if len(chosen) else chosen
    if not len(chosen):
        return list(range(min(scene.image_count, RANKED)))
    part = ImageSet.part([scene.images[i] for i in chosen.tolist()], scene.vocabulary)
    patches = [Patch(threat.area, threat.aspect, where) for where in PATCH_LOCATIONS]
    certified, vacuous = certified_objects(
        build_proof_table(part, rule, threat.bound), rule, patches, threshold=threat.threshold
    )
    shown = dict(zip(PATCH_LOCATIONS, certified & ~vacuous, strict=True))
    kind = np.where(shown["over"], 2, np.where(shown["far"] | shown["close"], 1, 0))

    def keys() -> Iterator[tuple[int, int, float, int]]:
        owner = part.truth.image[part.counted]
        box = part.truth.detections.xyxy[part.counted]
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        for i in range(part.image_count):
            mine = owner == i
            share = float(area[mine].max()) / float(part.width[i] * part.height[i])
            yield -len(set(kind[mine].tolist())), abs(int(mine.sum()) - 4), -min(share, 0.5), i

    return [int(chosen[i]) for *_, i in sorted(keys())[:RANKED]]
