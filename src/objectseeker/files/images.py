"""Images from disk or from any place that fsspec reads, as a viewer shows them.

That is: turned upright, on a white page, eight bits a channel, first frame.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import PIL
import PIL.Image

from objectseeker.core.image import Image
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import Url, is_url, read_url

AnyPath = str | os.PathLike[str]

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # nothing that starts another program, as EPS does
LARGEST_IMAGE = 200_000_000  # pixels; a small file can claim any size, so this is checked before decoding

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

_pillow = threading.Lock()  # Pillow's pixel limit and Python's warning filters are process-wide


class UnreachableError(ObjectSeekerError):
    """The file is not there, or the place it lies at does not answer: it says nothing about the image itself."""


def location(path: AnyPath) -> Path | Url:
    """What to keep of a path: an absolute path, or an address as it is."""
    text = os.fspath(path)
    return Url(text) if is_url(text) else Path(text).absolute()


def load_image(path: AnyPath) -> Image:
    """The image as an H x W x 3 uint8 RGB array.

    EXIF orientation is applied, transparency is laid on white, 16-bit values keep their upper eight bits, floating
    point values are taken to run from 0 to 1, and of an animation the first frame is read. Colour profiles are not
    applied. A damaged or incomplete file is an error, never a partly grey image.
    """
    with _opened(path) as (image, _):
        return _as_rgb(_decoded_upright(image), path)


def image_size(path: AnyPath) -> tuple[int, int]:
    """Width and height of what `load_image` returns; JPEG and PNG files are not decoded for it."""
    with _opened(path) as (image, file):
        if image.format in ("JPEG", "MPO"):
            turned = _orientation(image) in (5, 6, 7, 8)
            return (image.height, image.width) if turned else image.size
        if image.format == "PNG":  # its orientation may come after the pixels, so look through the whole file
            file.seek(0)
            content = file.read()
            if not any(mark in content for mark in _PNG_ORIENTATION_MARKS):
                return image.size
        return _decoded_upright(image).size


def find_images(paths: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """The image files that `paths` name, each once, in the order given.

    A folder stands for the images in it and below it, sorted by path and told by their suffix; hidden files and
    folders are left out. A file is taken whatever it is called.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ObjectSeekerError("no images given: name at least one image file or folder")
    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            inside = list(walk_images(path))
            if not inside:
                raise ObjectSeekerError(no_image_in(path))
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ObjectSeekerError(f"there is no file or folder {path}")
    return list(dict.fromkeys(found))


def walk_images(folder: Path) -> Iterator[Path]:
    """The images in and below a folder, sorted by path, one after the other: one folder's names are in memory."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError as error:  # to leave a folder out would make another dataset of it
        raise ObjectSeekerError(f"cannot list folder {folder}: {error.strerror}") from None
    for name, is_folder in inside:
        if name.startswith("."):
            continue
        if is_folder:
            yield from walk_images(folder / name)
        elif looks_like_image(name) and (folder / name).is_file():
            yield folder / name


def looks_like_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122  # a Path takes ten times as long


def no_image_in(folder: object) -> str:
    return f"there is no image in folder {folder}: looked for {' '.join(sorted(SUFFIXES))}"


@contextmanager
def _opened(path: AnyPath) -> Iterator[tuple[PIL.Image.Image, BinaryIO]]:
    """The image with only its header read, and its file; whatever goes wrong inside the block becomes one sentence."""
    with _opened_file(path) as file, _only_our_limit():
        try:
            image = PIL.Image.open(file, formats=IMAGE_FORMATS)
            _refuse_huge(image, path)
            yield image, file
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
    try:
        if is_url(text):
            return io.BytesIO(read_url(text))
        if stat.S_ISREG(Path(text).stat().st_mode):  # opening a pipe would wait for ever
            return Path(text).open("rb")
        reason = "it is a folder" if Path(text).is_dir() else "it is not a regular file"
    except ObjectSeekerError as error:
        raise UnreachableError(f"cannot read image {path}: {error}") from None
    except FileNotFoundError:
        reason = "there is no such file"
    except PermissionError:
        raise ObjectSeekerError(f"cannot read image {path}: permission denied") from None
    except (OSError, ValueError) as error:  # a name the system cannot have
        raise ObjectSeekerError(f"cannot read image {path}: {error}") from None
    raise UnreachableError(f"cannot read image {path}: {reason}")


@contextmanager
def _only_our_limit() -> Iterator[None]:
    """Replaces Pillow's own pixel limit, which warns far below ours and names no size, by ours; no warnings."""
    with _pillow, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        limit, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            PIL.Image.MAX_IMAGE_PIXELS = limit


def _refuse_huge(image: PIL.Image.Image, path: AnyPath) -> None:
    pixels = image.width * image.height
    if pixels > LARGEST_IMAGE:
        raise ObjectSeekerError(
            f"cannot read image {path}: its {image.width}x{image.height} pixels are {pixels / 1e6:.1f} million, "
            f"more than the limit of {LARGEST_IMAGE // 1_000_000} million"
        )


def _orientation(image: PIL.Image.Image) -> Any:
    """The EXIF orientation, 1 to 8 in a sound file."""
    return image.getexif().get(_ORIENTATION)


def _decoded_upright(image: PIL.Image.Image) -> PIL.Image.Image:
    # Not ImageOps.exif_transpose: it writes the EXIF block anew, and fails where a tag nobody needs is damaged.
    image.load()  # first, because Pillow itself turns a TIFF upright here and then drops the tag
    turn = _TO_UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _as_rgb(image: PIL.Image.Image, path: AnyPath) -> Image:
    if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow opens 16-bit files in either
        values = np.asarray(image)
        _refuse_range(values, 0, 65535, path)
        return _grey_as_rgb((values >> 8).astype(np.uint8))
    if image.mode == "F":
        values = np.asarray(image)
        _refuse_range(values, 0, 1, path)
        return _grey_as_rgb(np.rint(values * 255).astype(np.uint8))
    if image.has_transparency_data:
        page = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(page, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _refuse_range(values: npt.NDArray[Any], low: int, high: int, path: AnyPath) -> None:
    smallest, largest = values.min(), values.max()
    if not (low <= smallest and largest <= high):  # also true of NaN
        raise ObjectSeekerError(
            f"cannot read image {path}: its pixel values run from {smallest} to {largest} where {low} to {high} "
            "is understood, so convert it to 8 bits a channel"
        )


def _grey_as_rgb(grey: Image) -> Image:
    return np.repeat(grey[..., None], 3, axis=2)
