"""Training images that are evaluation images in disguise are found, whatever was done to them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

pytest.importorskip("train_builtin", reason="the training program is not part of the package")

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import check_overlap

from train_builtin.packs import Pack, write_pack

SIZE = 160, 120


def make_image(seed: int) -> Image.Image:
    """Clouds of several sizes: as in images, most of the contrast is in low frequencies."""
    random = np.random.default_rng(seed)
    total = np.zeros((SIZE[1], SIZE[0], 3))
    for cells in (4, 8, 16, 32):
        clouds = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(clouds.resize(SIZE, Image.Resampling.BICUBIC), float) / cells
    return Image.fromarray(np.uint8(255 * total / total.max()))


def file_of(image: Image.Image, form: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, quality=quality)
    return buffer.getvalue()


PLANTED = {
    "compressed": lambda image: file_of(image, "JPEG", 20),
    "smaller": lambda image: file_of(image.resize((67, 50)), "WEBP", 60),
    "stretched": lambda image: file_of(image.resize((160, 160)), "JPEG", 80),
    "mirrored": lambda image: file_of(ImageOps.mirror(image).resize((96, 72)), "JPEG", 60),
    "upside down": lambda image: file_of(ImageOps.flip(image), "JPEG", 60),
    "half a turn": lambda image: file_of(image.rotate(180), "JPEG", 60),
    "a quarter": lambda image: file_of(image.rotate(90, expand=True), "JPEG", 60),
    "three, mirrored": lambda image: file_of(ImageOps.mirror(image.rotate(270, expand=True)), "JPEG", 60),
    "blurred": lambda image: file_of(image.filter(ImageFilter.GaussianBlur(1)), "JPEG", 80),
    "darker": lambda image: file_of(image.point(lambda value: value * 0.7), "JPEG", 80),
}


@pytest.fixture
def places(tmp_path):
    """A folder of twelve evaluation images, and a pack of training images: disguised ones, and unrelated ones."""
    held_out = tmp_path / "held"
    held_out.mkdir()
    for seed in range(12):
        make_image(seed).save(held_out / f"{seed}.png")
    files = [disguise(make_image(seed)) for seed, disguise in enumerate(PLANTED.values())]
    names = [*PLANTED, *(f"other {seed}" for seed in range(100, 140))]
    files += [file_of(make_image(seed), "JPEG", 90) for seed in range(100, 140)]
    pack = Pack(files, names, np.tile(SIZE, (len(names), 1)), [np.zeros((0, 6), np.float32)] * len(names))
    parts = write_pack(pack, tmp_path / "train.npz", tmp_path / "train.bin", source="mine", part_size=len(files[0]))
    assert len(parts) > 2
    return ["--train", str(tmp_path / "train.npz"), *map(str, parts), "--held-out", str(held_out)]


def test_disguised_images_are_found_and_no_others(places, tmp_path, monkeypatch, capsys):
    found = tmp_path / "found.txt"
    monkeypatch.setattr(
        sys, "argv", ["check_overlap.py", *places, "--processes", "1", "--show", "10", "--write", str(found)]
    )
    check_overlap.main()
    assert found.read_text().splitlines() == sorted(PLANTED)
    told = capsys.readouterr().out
    assert "train.npz (50) against" in told
    assert "10 within 40 bits" in told
    assert all(f"{name}  {seed}.png" in told for seed, name in enumerate(PLANTED))  # and each with its own


def test_comparing_nothing_is_no_proof(places, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_overlap.py", *places, "--sources", "others", "--processes", "1"])
    with pytest.raises(SystemExit, match="has no images of others"):
        check_overlap.main()
