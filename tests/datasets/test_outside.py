"""Annotations that name files outside the folder the user gave: rejected unless that is allowed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import PIL.Image
import pytest

from objectseeker.datasets import Dataset, open_dataset
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import Url


def make_image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (40, 30)).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("images/in.png", "images/sub/deep.png", "secret/out.png", "images-2/out.png"):
        make_image(tmp_path / name)
    return tmp_path


def coco(root: Path, name: str, images: object = None, **options: bool) -> Dataset:
    image = {"id": 1, "file_name": name, "width": 40, "height": 30}
    content = {"images": [image], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (root / "a.json").write_text(json.dumps(content))
    return open_dataset(f"coco:{root / 'a.json'}:{images or root / 'images'}", **options)


def test_names_that_lead_out_are_refused_and_can_be_allowed(root: Path) -> None:
    for name in ("../secret/out.png", "sub/../../secret/out.png", str(root / "secret/out.png"), "../images-2/out.png"):
        with pytest.raises(ObjectSeekerError, match=r"\(id 1\) names .*, which is outside .*images") as caught:
            coco(root, name)
        assert "allow outside paths" in str(caught.value)
        assert coco(root, name, allow_outside_paths=True).images[0].load().shape == (30, 40, 3)


def test_detours_and_absolute_names_inside_the_folder_are_allowed(root: Path) -> None:
    for name in ("../images/in.png", "sub/../in.png", "./in.png", str(root / "images/in.png")):
        assert coco(root, name).images[0].path == root / "images" / "in.png"
    assert coco(root, "sub/deep.png").images[0].path == root / "images" / "sub" / "deep.png"


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links(root: Path) -> None:
    (root / "link").symlink_to(root / "images")
    (root / "images" / "own").symlink_to(root / "secret")
    for name in (root / "images/in.png", root / "link/in.png"):
        for images in (root / "images", root / "link"):
            assert coco(root, str(name), images).images[0].load().shape == (30, 40, 3)
    assert coco(root, "own/out.png").objects == 0  # the user's own link
    make_image(root / "other.png")
    with pytest.raises(ObjectSeekerError, match="has no file"):  # not next to what the link leads to
        coco(root, "own/../other.png")


def test_a_relative_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "images")
    assert str(coco(root, "in.png", ".").images[0].path) == "in.png"
    with pytest.raises(ObjectSeekerError, match="is outside"):
        coco(root, "../secret/out.png", ".")


def test_addresses(root: Path) -> None:
    assert coco(root, "sub/a.png", "s3://bucket/val").images[0].path == Url("s3://bucket/val/sub/a.png")
    for name in ("../private/a.png", "a/../../b.png", "a.png::file:///etc"):
        with pytest.raises(ObjectSeekerError, match="is outside s3://bucket/val"):
            coco(root, name, "s3://bucket/val")


def test_voc_lists_stay_inside(root: Path) -> None:
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / "voc" / name).mkdir(parents=True)
    (root / "voc" / "ImageSets" / "Main" / "val.txt").write_text("../../secret/out\n")
    with pytest.raises(ObjectSeekerError, match=r"val\.txt line 1 names '\.\./\.\./secret/out\.jpg', which is outside"):
        open_dataset(f"voc:{root / 'voc'}:val")


def test_lists_name_files_on_purpose(root: Path) -> None:
    (root / "images" / "list.txt").write_text("../secret/out.png\n")
    assert open_dataset(f"list:{root / 'images' / 'list.txt'}").images[0].load().shape == (30, 40, 3)
