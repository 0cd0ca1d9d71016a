"""Images from disk or from any storage that fsspec reads, as a viewer shows them.

That is: upright, on a white page, eight bits per channel, first frame. Guards against decompression bombs: a small file
may claim any size, so sizes, scans and headers are limited before anything is decoded.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
import PIL.Image

from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import Url, is_url, read_url, reject_credentials

AnyPath = str | os.PathLike[str]

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # nothing that starts another program, as EPS does
MAX_IMAGE_PIXELS = 100_000_000  # against decompression bombs, checked before decoding
MAX_MEGAPIXELS_ENV = (
    "OBJECTSEEKER_MAX_MEGAPIXELS"  # environment variable that sets another limit, in millions of pixels
)
MAX_JPEG_SCANS = 100  # each decodes all pixels for a few bytes; a progressive image has about ten
MAX_JPEG_MARKERS = 10_000  # searched for scans
MAX_HEADER_READS = 100_000  # of a header, which Pillow may read a byte at a time
STRIP_PIXELS = 1_000_000  # converted at a time, so that conversions take next to no memory

_ORIENTATION = 0x0112  # the EXIF tag
_TO_UPRIGHT = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
_PNG_ORIENTATION_MARKS = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)  # stuffed bytes, restarts and fill bytes are none
_START, _END, _SCAN, _FIRST_WITH_LENGTH = 0xD8, 0xD9, 0xDA, 0xC0


class ImageUnavailableError(ObjectSeekerError):
    """The file is missing, or its storage does not answer: nothing is known about the image itself."""


def resolve_path(path: AnyPath) -> Path | Url:
    """Return the path to record: absolute, or an address unchanged."""
    text = os.fspath(path)
    return Url(text) if is_url(text) else Path(text).absolute()


def load_image(path: AnyPath) -> Image:
    """Load an image as detectors take it.

    EXIF orientation is applied, transparency is laid on white, 16-bit values keep their upper eight bits, floating
    point values are taken to run from 0 to 1, and of an animation the first frame is read. Color profiles are not
    applied. A damaged or incomplete file is an error, never a partly gray image.

    Args:
        path: File on disk, or address such as `s3://bucket/image.jpg` (with the extra `cloud`).

    Returns:
        The pixels, an (H, W, 3) uint8 array in RGB.

    Raises:
        ImageUnavailableError: The file does not exist, or its storage does not answer.
        ObjectSeekerError: The file is damaged, not an image, or larger than OBJECTSEEKER_MAX_MEGAPIXELS allows.

    Example:
        >>> from importlib.resources import files
        >>> load_image(files("objectseeker.demo") / "samples" / "crossing.jpg").shape
        (480, 640, 3)
    """
    return load_with_hash(path)[0]


def load_with_hash(path: AnyPath) -> tuple[Image, str]:
    """Load an image, and return the hash (as `hash_of`) of exactly the file that was decoded with it."""
    with _opened_file(path) as file:
        digest = _hash(file, path)
        file.seek(0)
        with _decoding(file, path) as image:
            return _as_rgb(_decoded_upright(image, file, path), path), digest


def decode_image(content: bytes, name: str) -> Image:
    """Decode an image from the bytes of a file, as `load_image`; messages call it `name`."""
    file = io.BytesIO(content)
    with _decoding(file, name) as image:
        return _as_rgb(_decoded_upright(image, file, name), name)


def header_size(content: bytes, name: str) -> tuple[int, int]:
    """Return the width and height that an image file claims, without decoding it; they may be any."""
    try:
        with _pillow_limit:
            return PIL.Image.open(_Header(content, name), formats=IMAGE_FORMATS).size
    except ObjectSeekerError:
        raise
    except Exception:  # Pillow raises almost any type on a damaged file
        reason = f"it is damaged or not one of {', '.join(IMAGE_FORMATS)}" if content else "it is empty"
        raise ObjectSeekerError(f"cannot read image {name}: {reason}") from None


class _Header(io.BytesIO):
    """The bytes of a file, with a limit on how often Pillow may read while it parses the header."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._left, self._name = MAX_HEADER_READS, name

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ObjectSeekerError(f"cannot read image {self._name}: its header has too many parts. Save it again.")
        return super().read(size)


def hash_of(path: AnyPath) -> str:
    """Return the first 32 hexadecimal digits of the file's SHA-256."""
    with _opened_file(path) as file:
        return _hash(file, path)


def load_sized(path: AnyPath, size: tuple[int, int] | None) -> Image:
    """Load an image; raise an error if its size is not the one that its annotation states, if any."""
    image = load_image(path)
    require_size(image, path, size)
    return image


def require_size(image: Image, path: AnyPath, size: tuple[int, int] | None) -> None:
    """Reject an image whose size is not the one that its annotation states, if it states one."""
    height, width = image.shape[:2]
    if size is not None and (width, height) != size:
        raise ObjectSeekerError(
            f"{path} is {width}x{height} pixels when upright but its annotation says {size[0]}x{size[1]}. Correct one "
            "of them."
        )


def image_size(path: AnyPath) -> tuple[int, int]:
    """Return width and height of an image; JPEG and most PNG files are not decoded for it."""
    with _opened_file(path) as file, _decoding(file, path) as image:
        if image.format in ("JPEG", "MPO"):
            turned = _orientation(image) in (5, 6, 7, 8)
            return (image.height, image.width) if turned else image.size
        if image.format == "PNG":  # its orientation may come after the pixels, so look through the whole file
            file.seek(0)
            content = file.read()
            if not any(mark in content for mark in _PNG_ORIENTATION_MARKS):
                return image.size
        return _decoded_upright(image, file, path).size


def expand_image_paths(path: AnyPath) -> list[Path]:
    """Return the image files that `path` names: one of any name, or the images in and below a folder.

    These are known by their suffix and sorted by path, without hidden files and folders.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise ObjectSeekerError(f"there is no file or folder {path}. Check the path.")
        return [path]
    images = list(walk_images(path))
    if not images:
        raise ObjectSeekerError(no_image_in(path))
    return images


def walk_images(folder: Path) -> Iterator[Path]:
    """Yield the images in and below a folder, sorted by path, with one folder's names in memory at a time."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError as error:  # skipping it would make it another dataset
        raise ObjectSeekerError(f"cannot list folder {folder}: {error.strerror}") from None
    for name, is_folder in inside:
        if name.startswith("."):
            continue
        if is_folder:
            yield from walk_images(folder / name)
        elif looks_like_image(name) and (folder / name).is_file():
            yield folder / name


def looks_like_image(name: str) -> bool:
    """Return whether the name has the suffix of an image file."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122  # a Path takes ten times as long


def no_image_in(folder: object) -> str:
    """Return the message for a folder without images."""
    return f"there is no image in folder {folder}: looked for {' '.join(sorted(IMAGE_SUFFIXES))}"


@contextmanager
def _decoding(file: BinaryIO, path: AnyPath) -> Iterator[PIL.Image.Image]:
    """Open an image, reading only its header; any failure inside the block becomes a one-line error."""
    with _pillow_limit:
        try:
            image = PIL.Image.open(file, formats=IMAGE_FORMATS)
            reject_oversized(image.width, image.height, path)
            yield image
        except ObjectSeekerError:
            raise
        except PIL.UnidentifiedImageError:
            empty = file.seek(0, io.SEEK_END) == 0
            reason = "it is empty" if empty else f"it is damaged or not one of {', '.join(IMAGE_FORMATS)}"
            raise ObjectSeekerError(f"cannot read image {path}: {reason}") from None
        except Exception as error:  # Pillow raises almost any type on a damaged file
            raise ObjectSeekerError(f"cannot read image {path}: it is damaged or incomplete ({error})") from None


def _opened_file(path: AnyPath) -> BinaryIO:
    text = os.fspath(path)
    if is_url(text):
        reject_credentials(text)  # before any message repeats them
    try:
        if is_url(text):
            return io.BytesIO(read_url(text))
        if stat.S_ISREG(Path(text).stat().st_mode):  # opening a pipe would wait for ever
            return Path(text).open("rb")
        reason = "it is a folder" if Path(text).is_dir() else "it is not a regular file"
    except ObjectSeekerError as error:
        raise ImageUnavailableError(f"cannot read image {path}: {error}") from None
    except FileNotFoundError:
        reason = "there is no such file"
    except PermissionError:
        raise ObjectSeekerError(f"cannot read image {path}: permission denied") from None
    except (OSError, ValueError) as error:  # a name the system cannot have
        raise ObjectSeekerError(f"cannot read image {path}: {error}") from None
    raise ImageUnavailableError(f"cannot read image {path}: {reason}")


def _hash(file: BinaryIO, path: AnyPath) -> str:
    try:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]  # type: ignore[arg-type]  # it can be read
    except OSError as error:  # the disk fails, not the image
        raise ImageUnavailableError(f"cannot read image {path}: {error.strerror}") from None


class _PillowLimit:
    """Context without Pillow's pixel limit and warnings, which are far below ours and name no size.

    Both are process-wide: the first thread to enter sets them, the last to leave restores them. No thread waits for
    another one's image.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._undo = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._undo.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", module="PIL")
                self._undo.callback(setattr, PIL.Image, "MAX_IMAGE_PIXELS", PIL.Image.MAX_IMAGE_PIXELS)
                PIL.Image.MAX_IMAGE_PIXELS = None
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._undo.close()


_pillow_limit = _PillowLimit()


def reject_oversized(width: int, height: int, path: AnyPath) -> None:
    """Reject a decompression bomb: an image with more pixels than the limit, before it is decoded."""
    pixels, limit = width * height, _max_pixels(path)
    if pixels > limit:
        raise ObjectSeekerError(
            f"cannot read image {path}: its {width}x{height} pixels are {pixels / 1e6:.1f} million, "
            f"more than the limit of {limit / 1e6:g} million. Make it smaller, "
            f"or set {MAX_MEGAPIXELS_ENV} to a higher limit."
        )


def _max_pixels(path: AnyPath) -> float:
    """Return the limit: ours, or the one that the user sets if there is memory for it."""
    stated = os.environ.get(MAX_MEGAPIXELS_ENV)
    if stated is None:
        return MAX_IMAGE_PIXELS
    try:
        millions = float(stated)
        if 0 < millions < math.inf:
            return millions * 1e6
    except ValueError:
        pass
    raise ImageUnavailableError(
        f"cannot read image {path}: {MAX_MEGAPIXELS_ENV} must be a number of millions of pixels above 0: "
        f"got {stated[:80]!r}"
    )


def _orientation(image: PIL.Image.Image) -> Any:
    return image.getexif().get(_ORIENTATION)


def _reject_many_scans(file: BinaryIO, path: AnyPath) -> None:
    """Reject a JPEG that takes hours to decode, before it is decoded."""
    file.seek(0)
    content = file.read()
    if _scans(content) > MAX_JPEG_SCANS and content.count(b"\xff\xda") > MAX_JPEG_SCANS:  # the second may overcount
        raise ObjectSeekerError(
            f"cannot read image {path}: it is a JPEG of more than {MAX_JPEG_SCANS} scans, which takes too long to "
            "decode. Save it again with fewer."
        )


def _scans(content: bytes) -> int:
    """Count the scans of a JPEG: never fewer than libjpeg decodes, which finds markers by the same bytes."""
    count, position = 0, 0
    for _ in range(MAX_JPEG_MARKERS):
        match = _JPEG_MARKER.search(content, position)
        marker = _END if match is None else content[match.end() - 1]
        if match is None or marker == _END:
            return count
        count, position = count + (marker == _SCAN), match.end()
        if marker >= _FIRST_WITH_LENGTH and marker != _START:  # libjpeg looks on right behind the others
            position += max(int.from_bytes(content[position : position + 2], "big"), 2)
    return MAX_JPEG_MARKERS


def _decoded_upright(image: PIL.Image.Image, file: BinaryIO, path: AnyPath) -> PIL.Image.Image:
    if image.format in ("JPEG", "MPO"):
        _reject_many_scans(file, path)
    # Not ImageOps.exif_transpose: it rewrites the EXIF block, and fails where a tag that is not used is damaged.
    image.load()  # first, because Pillow itself turns a TIFF upright here and then drops the tag
    turn = _TO_UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _as_rgb(image: PIL.Image.Image, path: AnyPath) -> Image:
    if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow opens 16-bit files in either
        _reject_range(image, 0, 65535, path)
    elif image.mode == "F":
        _reject_range(image, 0, 1, path)
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    for rows, strip in _strips(image):
        rgb[rows] = _strip_as_rgb(strip)
    return rgb


def _strips(image: PIL.Image.Image) -> Iterator[tuple[slice, PIL.Image.Image]]:
    """Yield the image in strips, from the top down, each with its rows."""
    height = max(STRIP_PIXELS // image.width, 1)
    for top in range(0, image.height, height):
        bottom = min(top + height, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _strip_as_rgb(image: PIL.Image.Image) -> Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        pixels = np.asarray(image)
        gray = np.rint(pixels * 255) if image.mode == "F" else pixels >> 8
        return np.repeat(gray.astype(np.uint8)[..., None], 3, axis=2)
    if image.has_transparency_data:
        page = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(page, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _reject_range(image: PIL.Image.Image, low: int, high: int, path: AnyPath) -> None:
    extremes = [(values.min(), values.max()) for _, strip in _strips(image) for values in (np.asarray(strip),)]
    smallest, largest = np.min(extremes), np.max(extremes)
    if not (low <= smallest and largest <= high):  # also true of NaN
        raise ObjectSeekerError(
            f"cannot read image {path}: its pixel values run from {smallest} to {largest} where {low} to {high} "
            "is understood. Convert it to 8 bits per channel."
        )
