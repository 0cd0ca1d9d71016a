"""The photographs of a report, small enough to send around: a thumbnail and a view, or a word on why there is none."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import PIL.Image

from objectseeker.core.image import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image

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
