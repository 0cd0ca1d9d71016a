"""Images from disk: every kind a user may have, and every way a file can be wrong."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from objectseeker.errors import ObjectSeekerError
from objectseeker.files import images
from objectseeker.files.images import (
    MAX_IMAGE_PIXELS,
    MAX_JPEG_MARKERS,
    MAX_JPEG_SCANS,
    MAX_MEGAPIXELS_ENV,
    ImageUnavailableError,
    expand_image_paths,
    hash_of,
    header_size,
    image_size,
    load_image,
    load_with_hash,
)

pytestmark = pytest.mark.filterwarnings("error")  # no Pillow warning may reach the user

HEIGHT, WIDTH = 24, 40


@pytest.fixture
def original() -> PIL.Image.Image:
    """Smooth enough to survive JPEG, different in all four corners."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pixels = np.stack([x * 6, y * 10, 255 - x * 3 - y * 4], axis=2)
    return PIL.Image.fromarray(pixels.astype(np.uint8))


def png(width: int, height: int, *, depth: int, kind: int, data: bytes, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + extra
        + chunk(b"IEND", b"")
    )


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def orientation(value: int) -> PIL.Image.Exif:
    exif = PIL.Image.Exif()
    exif[0x0112] = value
    return exif


def file_with(folder: Path, content: bytes, name: str = "image.png") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# What can be read


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "webp"])
def test_lossless_formats_come_back_exactly(tmp_path: Path, original: PIL.Image.Image, suffix: str) -> None:
    path = tmp_path / f"image.{suffix}"
    options: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    original.save(path, **options)
    image = load_image(path)
    assert image.dtype == np.uint8
    assert np.array_equal(image, np.asarray(original))
    assert image_size(path) == (WIDTH, HEIGHT)
    image[0, 0] = 7  # the caller's own, writable array


def test_jpeg_is_rgb(tmp_path: Path, original: PIL.Image.Image) -> None:
    original.save(tmp_path / "image.jpg", quality=95)
    difference = load_image(str(tmp_path / "image.jpg")).astype(int) - np.asarray(original)
    assert np.abs(difference).mean() < 3


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp"])
def test_orientation_is_applied(tmp_path: Path, original: PIL.Image.Image, suffix: str, value: int) -> None:
    turns = {  # EXIF 2.3, table 6: where the stored rows and columns belong
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }
    path = tmp_path / f"image.{suffix}"
    options: dict[str, dict[str, Any]] = {"jpg": {"quality": 95}, "webp": {"lossless": True}}
    original.save(path, exif=orientation(value), **options.get(suffix, {}))
    image, expected = load_image(path), turns[value](np.asarray(original))
    assert image.shape == expected.shape
    assert np.abs(image.astype(int) - expected).mean() < (3 if suffix == "jpg" else 1e-9)
    assert image_size(path) == (image.shape[1], image.shape[0])


def test_png_orientation_after_the_pixels(tmp_path: Path) -> None:
    exif = chunk(b"eXIf", orientation(6).tobytes().removeprefix(b"Exif\0\0"))
    path = file_with(tmp_path, png(3, 1, depth=8, kind=0, data=b"\0\x0a\x14\x1e", extra=exif))
    assert load_image(path)[:, :, 0].tolist() == [[10], [20], [30]]
    assert image_size(path) == (1, 3)


def test_damaged_exif_does_not_hide_the_image(tmp_path: Path, original: PIL.Image.Image) -> None:
    exif = orientation(6)
    exif[0x0132] = "2020:01:01 00:00:00"
    block = exif.tobytes()
    for position in range(6, len(block)):  # whichever byte is hit, and whatever that makes of the orientation
        damaged = block[:position] + b"\xff" + block[position + 1 :]
        path = tmp_path / "image.jpg"
        original.save(path, exif=damaged)
        assert load_image(path).shape[:2][::-1] == image_size(path)
    original.save(path, exif=b"Exif\0\0nothing of the kind")
    assert load_image(path).shape == (HEIGHT, WIDTH, 3)


def test_grayscale_and_one_bit(tmp_path: Path) -> None:
    gray = np.arange(6, dtype=np.uint8).reshape(2, 3) * 50
    PIL.Image.fromarray(gray).save(tmp_path / "gray.png")
    assert np.array_equal(load_image(tmp_path / "gray.png"), np.stack([gray] * 3, axis=2))
    PIL.Image.fromarray(gray > 100).save(tmp_path / "bits.png")
    assert np.array_equal(load_image(tmp_path / "bits.png")[..., 1], np.where(gray > 100, 255, 0))


def test_palette(tmp_path: Path) -> None:
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([1, 0])
    image.save(tmp_path / "palette.png")
    assert load_image(tmp_path / "palette.png").tolist() == [[[200, 100, 50], [10, 20, 30]]]
    image.save(tmp_path / "clear.png", transparency=bytes([0, 255]))
    assert load_image(tmp_path / "clear.png").tolist() == [[[200, 100, 50], [255, 255, 255]]]
    image.save(tmp_path / "clear.gif", transparency=0)
    assert load_image(tmp_path / "clear.gif").tolist() == [[[200, 100, 50], [255, 255, 255]]]


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    rgba = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    PIL.Image.fromarray(rgba).save(tmp_path / "rgba.png")
    expected = [[[200, 100, 0], [255, 255, 255], [244, 224, 204]]]
    assert load_image(tmp_path / "rgba.png").tolist() == expected
    PIL.Image.fromarray(rgba[..., [0, 3]]).save(tmp_path / "la.png")
    assert load_image(tmp_path / "la.png").tolist() == [[[v[0]] * 3 for v in expected[0]]]
    PIL.Image.fromarray(rgba[..., :3]).save(tmp_path / "key.png", transparency=(200, 100, 0))
    assert (load_image(tmp_path / "key.png") == 255).all()


def test_cmyk(tmp_path: Path) -> None:
    PIL.Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=95)
    PIL.Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "red.tiff")
    for name in ("red.jpg", "red.tiff"):
        red, green, blue = load_image(tmp_path / name)[8, 8].astype(int)
        assert red > 240
        assert max(green, blue) < 15


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 255, 256, 0x7FFF, 0x8000, 0xFFFF]], np.uint16)
    path = tmp_path / f"deep.{suffix}"
    if suffix == "pgm":
        path.write_bytes(b"P5 6 1 65535\n" + values.astype(">u2").tobytes())
    else:
        PIL.Image.fromarray(values).save(path)
    assert load_image(path)[0, :, 2].tolist() == [0, 0, 1, 127, 128, 255]


def test_sixteen_bit_color_and_big_endian(tmp_path: Path) -> None:
    row = b"\0" + struct.pack(">6H", 0x1234, 0xABCD, 0xFFFF, 0, 0x00FF, 0x8000)
    path = file_with(tmp_path, png(2, 1, depth=16, kind=2, data=row))
    assert load_image(path).tolist() == [[[0x12, 0xAB, 0xFF], [0, 0, 0x80]]]
    PIL.Image.frombytes("I;16B", (2, 1), struct.pack(">2H", 0x1234, 0xFF00)).save(tmp_path / "big.tiff")
    assert load_image(tmp_path / "big.tiff")[0, :, 0].tolist() == [0x12, 0xFF]


def test_wide_integers_and_floats_have_one_meaning(tmp_path: Path) -> None:
    path = tmp_path / "wide.tiff"
    PIL.Image.fromarray(np.array([[0, 0x1234, 65535]], np.int32)).save(path)
    assert load_image(path)[0, :, 0].tolist() == [0, 0x12, 255]
    PIL.Image.fromarray(np.array([[0, 0.5, 1]], np.float32)).save(path)
    assert load_image(path)[0, :, 0].tolist() == [0, 128, 255]
    for values in ([[-1, 5]], [[0, 70000]]):
        PIL.Image.fromarray(np.array(values, np.int32)).save(path)
        with pytest.raises(ObjectSeekerError, match="0 to 65535 is understood"):
            load_image(path)
    for row in ([0, 1.5], [0.5, float("nan")], [-0.1, 0]):
        PIL.Image.fromarray(np.array([row], np.float32)).save(path)
        with pytest.raises(ObjectSeekerError, match="Convert it to 8 bits"):
            load_image(path)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [PIL.Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    path = tmp_path / f"moving.{suffix}"
    options: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    assert (load_image(path) == [255, 0, 0]).all()


def test_one_pixel(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "dot.png")
    assert load_image(tmp_path / "dot.png").tolist() == [[[1, 2, 3]]]
    assert image_size(tmp_path / "dot.png") == (1, 1)


def test_the_suffix_does_not_matter(tmp_path: Path, original: PIL.Image.Image) -> None:
    original.save(tmp_path / "image.jpg", format="PNG")
    assert np.array_equal(load_image(tmp_path / "image.jpg"), np.asarray(original))


# What cannot be read


def check_rejected(path: Path | str, match: str) -> None:
    for read in (load_image, image_size):
        with pytest.raises(ObjectSeekerError, match=match) as caught:
            read(path)
        message = str(caught.value)
        assert str(path).replace("\0", "\\x00")[:300] in message
        assert "\n" not in message


def test_missing_folder_empty_text(tmp_path: Path) -> None:
    check_rejected(tmp_path / "nowhere.jpg", "there is no such file")
    check_rejected(tmp_path, "it is a folder")
    check_rejected(file_with(tmp_path, b"", "empty.jpg"), "it is empty")
    check_rejected(file_with(tmp_path, b"just some words\n" * 50, "words.jpg"), "not one of JPEG, PNG")
    check_rejected(str(tmp_path / ("x" * 5000)), "cannot read image")
    check_rejected("nul\0byte.jpg", "cannot read image")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    check_rejected(tmp_path / "pipe.jpg", "not a regular file")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may read everything")
def test_permission(tmp_path: Path, original: PIL.Image.Image) -> None:
    original.save(tmp_path / "secret.png")
    (tmp_path / "secret.png").chmod(0)
    check_rejected(tmp_path / "secret.png", "permission denied")


def test_permission_error_from_the_system(
    tmp_path: Path, original: PIL.Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sentence where the tests run as a user whom no permission stops."""
    original.save(tmp_path / "secret.png")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    check_rejected(tmp_path / "secret.png", "permission denied")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("BMP", {}),
        ("GIF", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {}),
        ("PPM", {}),
    ],
)
def test_cut_short_is_an_error_never_half_an_image(
    tmp_path: Path, original: PIL.Image.Image, kind: str, options: dict[str, object]
) -> None:
    buffer = io.BytesIO()
    original.save(buffer, format=kind, **options)
    content = buffer.getvalue()
    whole = load_image(file_with(tmp_path, content))
    refusals = 0
    for length in range(1, len(content), max(1, len(content) // 40)):
        path = file_with(tmp_path, content[:length])
        try:
            image = load_image(path)
        except ObjectSeekerError as error:
            refusals += "it is damaged" in str(error)
        else:
            assert np.array_equal(image, whole)  # only bytes after the pixels are missing
    assert refusals >= 38


def test_damaged_pixels(tmp_path: Path, original: PIL.Image.Image) -> None:
    buffer = io.BytesIO()
    original.save(buffer, format="PNG")
    content = bytearray(buffer.getvalue())
    middle = content.index(b"IDAT") + 20
    content[middle : middle + 8] = b"\xff" * 8
    with pytest.raises(ObjectSeekerError, match="damaged or incomplete"):
        load_image(file_with(tmp_path, bytes(content)))


def test_a_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    bomb = file_with(tmp_path, png(20_000, 20_000, depth=8, kind=2, data=b""))
    check_rejected(bomb, r"its 20000x20000 pixels are 400.0 million, more than the limit of 100 million")
    check_rejected(file_with(tmp_path, png(2**31 - 1, 2**31 - 1, depth=8, kind=2, data=b"")), "limit of 100 million")
    just_over = png(MAX_IMAGE_PIXELS // 10 + 1, 10, depth=8, kind=0, data=b"")
    check_rejected(file_with(tmp_path, just_over), "10000001x10 pixels")


def test_a_large_image_below_the_limit_is_no_bomb(tmp_path: Path) -> None:
    """Pillow itself would warn at 89 million pixels and raise at 179 million."""
    path = file_with(tmp_path, png(95_000, 1000, depth=1, kind=0, data=(b"\0" + bytes(11_875)) * 1000))
    assert image_size(path) == (95_000, 1000)


def jpeg_of_scans(count: int, between: bytes = b"") -> tuple[bytes, bytes]:
    """A progressive JPEG, and the same with its last scan once and again: a dozen bytes more for each."""
    buffer = io.BytesIO()
    PIL.Image.new("L", (64, 48), 128).save(buffer, format="JPEG", progressive=True)
    content = buffer.getvalue()
    last = between + content[content.rindex(b"\xff\xda") : -2]
    return content, content[:-2] + last * (count - content.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize(
    "between", [b"", b"\xff" * 3, b"\xff\0no marker\xff\xd0", b"\xff\x02\xf0\xf0", b"\xff\xfe\0\0", b"\xff\xfe\0\4no"]
)
def test_a_jpeg_of_thousands_of_scans_is_refused_before_decoding(tmp_path: Path, between: bytes) -> None:
    """Each scan goes over every pixel: 32 MB of them take hours."""
    plain, most = jpeg_of_scans(MAX_JPEG_SCANS)
    assert np.array_equal(load_image(file_with(tmp_path, most)), load_image(file_with(tmp_path, plain)))
    bomb = jpeg_of_scans(MAX_JPEG_SCANS + 1, between)[1]
    with pytest.raises(ObjectSeekerError, match="a JPEG of more than 100 scans, which takes too long to decode"):
        load_image(file_with(tmp_path, bomb))
    assert image_size(file_with(tmp_path, bomb)) == (64, 48)


def test_counting_the_scans_of_a_jpeg_has_an_end(tmp_path: Path) -> None:
    plain, _ = jpeg_of_scans(MAX_JPEG_SCANS)
    markers = plain[:-2] + b"\xff\xfe\0\2" * MAX_JPEG_MARKERS + b"\xff\xd9" + b"\xff\xda" * MAX_JPEG_SCANS
    with pytest.raises(ObjectSeekerError, match="more than 100 scans"):
        load_image(file_with(tmp_path, markers))


def test_bytes_that_are_no_scans_are_none(tmp_path: Path) -> None:
    """A film behind the image, as telephones write it, and other programs' notes in it."""
    plain, _ = jpeg_of_scans(10)
    film = b"\xff\xda" * 1000
    noted = plain[:2] + b"\xff\xee" + struct.pack(">H", len(film) + 2) + film + plain[2:] + film
    assert np.array_equal(load_image(file_with(tmp_path, noted)), load_image(file_with(tmp_path, plain)))


def test_a_header_has_an_end(original: PIL.Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte at a time, or a few: 32 MB of these took ten seconds, and hundreds of megabytes."""
    monkeypatch.setattr(images, "MAX_HEADER_READS", 1000)
    for kind, padding, at in (
        ("JPEG", b"\xff\xfe\0\2", 2),  # empty comments
        ("PNG", chunk(b"abCd", b""), 33),
        ("GIF", b"!\xfe\x01a\0", 13 + 3 * 256),
        ("PPM", b" ", 3),
    ):
        buffer = io.BytesIO()
        original.save(buffer, format=kind)
        content = buffer.getvalue()
        assert header_size(content[:at] + padding * 100 + content[at:], "sent") == original.size
        with pytest.raises(ObjectSeekerError, match="cannot read image sent: its header has too many parts"):
            header_size(content[:at] + padding * 1000 + content[at:], "sent")


def test_an_image_that_takes_long_holds_up_no_other(tmp_path: Path) -> None:
    path = file_with(tmp_path, png(3, 1, depth=8, kind=0, data=b"\0\x0a\x14\x1e"))
    limit = PIL.Image.MAX_IMAGE_PIXELS
    with ThreadPoolExecutor(1) as other:
        with path.open("rb") as file, images._decoding(file, path):
            assert other.submit(load_image, path).result(20).shape == (1, 3, 3)
            assert PIL.Image.MAX_IMAGE_PIXELS is None  # still ours alone
        assert limit == PIL.Image.MAX_IMAGE_PIXELS


def test_the_limit_can_be_set(tmp_path: Path, original: PIL.Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    original.save(tmp_path / "image.png")
    monkeypatch.setenv(MAX_MEGAPIXELS_ENV, "0.0009")
    check_rejected(
        tmp_path / "image.png",
        f"limit of 0.0009 million. Make it smaller, or set {MAX_MEGAPIXELS_ENV} to a higher limit",
    )
    monkeypatch.setenv(MAX_MEGAPIXELS_ENV, "0.00096")
    assert load_image(tmp_path / "image.png").shape == (HEIGHT, WIDTH, 3)
    for wrong in ("many", "-1", "0", "inf", "nan", ""):
        monkeypatch.setenv(MAX_MEGAPIXELS_ENV, wrong)
        check_rejected(
            tmp_path / "image.png",
            f"{MAX_MEGAPIXELS_ENV} must be a number of millions of pixels above 0: got '{wrong}'",
        )


def test_a_small_file_costs_no_more_memory_than_its_pixels(tmp_path: Path) -> None:
    """A GIF of 43 bytes: one pixel on a page of 16 million, with a transparent color."""
    page = struct.pack("<HHBBB", 4000, 4000, 0x80, 0, 0) + bytes([0, 0, 0, 255, 255, 255])
    frame = b"!\xf9\x04\x01\0\0\0\0," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\0;"
    bomb = file_with(tmp_path, b"GIF89a" + page + frame, "bomb.gif")
    program = (
        "import resource, sys, PIL.GifImagePlugin\n"
        "from objectseeker.files.images import load_image\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert load_image(sys.argv[1]).shape == (4000, 4000, 3)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, bomb], capture_output=True, text=True, timeout=100, check=True
    )
    assert int(done.stdout) * 1024 < 6 * 16e6  # three bytes of RGB and one of the palette, not the eleven of before


@pytest.mark.parametrize("mode", ["1", "L", "P", "PA", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "F"])
def test_strips_give_what_the_whole_gives(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
    numbers: dict[str, Any] = {
        "I;16": values[..., 0].astype(np.uint16) * 257,
        "F": values[..., 0].astype(np.float32) / 255,
    }
    colors = values if mode in ("RGBA", "LA", "PA") else values[..., :3]
    image = PIL.Image.fromarray(numbers.get(mode, colors)).convert(mode)
    monkeypatch.setattr(images, "STRIP_PIXELS", 10**9)
    whole = images._as_rgb(image, "x")
    monkeypatch.setattr(images, "STRIP_PIXELS", 5 * WIDTH)
    assert np.array_equal(images._as_rgb(image, "x"), whole)
    assert len(np.unique(whole)) > 1


def test_one_pixel_wide_and_very_long(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (1, 70_000), (9, 8, 7)).save(tmp_path / "long.png")
    PIL.Image.new("I;16", (70_000, 1), 300).save(tmp_path / "wide.png")
    assert load_image(tmp_path / "long.png").tolist() == [[[9, 8, 7]]] * 70_000
    assert load_image(tmp_path / "wide.png").shape == (1, 70_000, 3)


def test_the_hash_is_of_the_file_that_was_decoded(tmp_path: Path, original: PIL.Image.Image) -> None:
    file = tmp_path / "image.png"
    original.save(file)
    image, digest = load_with_hash(file)
    assert np.array_equal(image, load_image(file))
    assert digest == hash_of(file) == hashlib.sha256(file.read_bytes()).hexdigest()[:32]


def test_a_disk_that_fails_is_no_broken_image(
    tmp_path: Path, original: PIL.Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image may be whole: it must not be recorded as broken."""
    original.save(tmp_path / "image.png")

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(hashlib, "file_digest", failing)
    with pytest.raises(ImageUnavailableError, match=r"image\.png: Input/output error"):
        load_image(tmp_path / "image.png")


@pytest.mark.parametrize("suffix", ["png", "gif", "tiff", "webp"])
def test_no_check_of_pillow_comes_later(
    tmp_path: Path, original: PIL.Image.Image, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"image.{suffix}"
    original.save(path)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 10)  # in place of an image of a hundred million pixels
    assert load_image(path).shape == (HEIGHT, WIDTH, 3)
    assert image_size(path) == (WIDTH, HEIGHT)
    assert PIL.Image.MAX_IMAGE_PIXELS == 10


def test_the_callers_warning_filters_and_pillow_limit_survive(tmp_path: Path) -> None:
    before, limit = list(warnings.filters), PIL.Image.MAX_IMAGE_PIXELS
    check_rejected(file_with(tmp_path, png(20_000, 20_000, depth=8, kind=2, data=b"")), "400.0 million")
    assert (warnings.filters, PIL.Image.MAX_IMAGE_PIXELS) == (before, limit)


# Finding images


def test_find_images(tmp_path: Path) -> None:
    names = ["b.PNG", "a.jpg", "sub/deep/c.webp", "sub/a.tif", "notes.txt", ".hidden.jpg", ".cache/d.jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.jpg").mkdir()
    inside = [tmp_path / name for name in ("a.jpg", "b.PNG", "sub/a.tif", "sub/deep/c.webp")]
    assert expand_image_paths(str(tmp_path)) == inside
    assert expand_image_paths(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    assert expand_image_paths(tmp_path / ".cache") == [tmp_path / ".cache" / "d.jpg"]


def test_find_images_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectSeekerError, match=r"no image in folder .*empty"):
        expand_image_paths(tmp_path / "empty")
    with pytest.raises(ObjectSeekerError, match=r"no file or folder .*nowhere"):
        expand_image_paths(tmp_path / "nowhere")
