"""Opening datasets by spec, plain folders, fingerprints, and the checks every format shares."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from objectseeker.datasets import Dataset, open_dataset
from objectseeker.datasets.dataset import Annotation, ImageRecord, build_dataset
from objectseeker.errors import ObjectSeekerError


def make_image(path: Path, size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", size, "red").save(path)
    return path


def one_image(path: Path, *boxes: Annotation, size: tuple[int, int] | None = (40, 30)) -> Dataset:
    return build_dataset("test", ("cat", "dog"), [ImageRecord("1", path, size, list(boxes))])


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path / "1.png")


def test_folder_has_every_image_and_no_truth(tmp_path: Path) -> None:
    make_image(tmp_path / "b.png")
    make_image(tmp_path / "a" / "c.jpg")
    (tmp_path / "notes.txt").write_text("no image")
    dataset = open_dataset(str(tmp_path))
    assert [entry.id for entry in dataset.images] == ["a/c.jpg", "b.png"]
    assert dataset.names == ()
    assert not dataset.has_ground_truth
    assert dataset.objects == 0
    assert all(len(entry.ground_truth) == len(entry.ignore) == 0 for entry in dataset.images)
    assert dataset.images[0].load().shape == (30, 40, 3)
    assert len(dataset) == 2


def test_one_image_file_is_a_dataset(image: Path) -> None:
    assert [entry.id for entry in open_dataset(image).images] == ["1.png"]


@pytest.mark.parametrize(
    "spec", ["", "nowhere", "coco", "kitti:", "cocoo:a.json:b", "C:\\nowhere", "~no_such_user_here/images", "x" * 9000]
)
def test_bad_spec_is_one_clear_sentence(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ObjectSeekerError, match="dataset") as caught:
        open_dataset(spec)
    assert repr(spec)[:200] in str(caught.value)
    assert len(str(caught.value)) < 1100


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ObjectSeekerError, match="no image"):
        open_dataset(str(tmp_path))


def test_identity_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    def fingerprint(
        place: str, name: str = "1", box: Annotation | None = None, names: tuple[str, ...] = ("cat", "dog")
    ) -> str:
        path = make_image(tmp_path / place / "1.png")
        record = ImageRecord(name, path, (40, 30), [box or Annotation("cat", (1, 2, 3, 4), "here")])
        return build_dataset(f"spec of {place}", names, [record]).fingerprint

    first = fingerprint("a")
    assert len(first) == 64
    assert fingerprint("b") == first
    others = {
        fingerprint("a", name="2"),
        fingerprint("a", box=Annotation("dog", (1, 2, 3, 4), "here")),
        fingerprint("a", box=Annotation("cat", (1, 2, 3, 4.0000001), "here")),
        fingerprint("a", box=Annotation("cat", (1, 2, 3, 4), "here", ignore=True)),
        fingerprint("a", box=Annotation("cat", (1, 2, 3, 4), "here", crowd=True)),
        fingerprint("a", names=("cat", "dogs")),
    }
    assert len(others) == 6
    assert first not in others


def test_identity_changes_with_the_image_file(image: Path) -> None:
    before = one_image(image).fingerprint
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)).save(image)
    assert one_image(image).fingerprint != before


def test_truth_flags_and_counts(image: Path) -> None:
    dataset = one_image(
        image,
        Annotation("dog", (0, 0, 4, 4), "a"),
        Annotation("cat", (1, 1, 5, 5), "b", ignore=True),
        Annotation("cat", (2, 2, 6, 6), "c", crowd=True),
    )
    (entry,) = dataset.images
    assert entry.ground_truth.label.tolist() == [1, 0, 0]
    assert entry.ground_truth.score.tolist() == [1, 1, 1]
    assert entry.ignore.tolist() == [False, True, True]
    assert entry.crowd.tolist() == [False, False, True]
    assert dataset.objects == 1
    with pytest.raises(ValueError, match="read-only"):
        entry.ignore[0] = True


@pytest.mark.parametrize(
    ("xyxy", "words"),
    [
        ((5, 5, 5, 9), "0 x 4"),
        ((5, 5, 9, 5), "4 x 0"),
        ((5, 5, 1, 9), "-4 x 4"),
        ((40, 0, 50, 10), "entirely outside its 40x30 image"),
        ((0, 30, 9, 50), "entirely outside"),
        ((-9, 0, 0, 10), "entirely outside"),
        ((0, -9, 9, 0), "entirely outside"),
        ((0, 0, float("nan"), 9), "impossible coordinate"),
        ((0, 0, float("inf"), 9), "impossible coordinate"),
        ((0, 0, 1e9, 9), "impossible coordinate"),
    ],
)
def test_bad_box_is_refused_with_its_place(image: Path, xyxy: tuple[float, float, float, float], words: str) -> None:
    with pytest.raises(ObjectSeekerError, match=words) as caught:
        one_image(image, Annotation("cat", xyxy, "labels.txt line 7"))
    assert "labels.txt line 7" in str(caught.value)


def test_box_that_reaches_outside_is_kept_and_named(image: Path) -> None:
    near, far = Annotation("cat", (-1, 0, 41, 31), "near"), Annotation("cat", (5, 5, 47, 20), "far")
    assert one_image(image, near).warnings == ()
    dataset = one_image(image, near, far)
    assert dataset.images[0].ground_truth.xyxy.tolist() == [[-1, 0, 41, 31], [5, 5, 47, 20]]
    (warning,) = dataset.warnings
    assert "kept as annotated: 1, " in warning
    assert "7.0 pixels (far)" in warning


def test_missing_image_repeated_id_repeated_name_and_nothing(image: Path, tmp_path: Path) -> None:
    record = ImageRecord("1", image, None, [])
    with pytest.raises(ObjectSeekerError, match=r"image '2' has no file at .*gone\.png"):
        build_dataset("test", (), [record, ImageRecord("2", tmp_path / "gone.png", None, [])])
    with pytest.raises(ObjectSeekerError, match="no file"):
        build_dataset("test", (), [ImageRecord("2", tmp_path / ("long" * 100), None, [])])
    with pytest.raises(ObjectSeekerError, match="lists the image '1' twice"):
        build_dataset("{test}", (), [record, record])
    with pytest.raises(ObjectSeekerError, match="names the class 'cat' twice"):
        build_dataset("test", ("cat", "dog", "cat"), [record])
    with pytest.raises(ObjectSeekerError, match="holds no images"):
        build_dataset("test", (), [])


def test_image_of_another_size_than_annotated_is_refused_on_loading(image: Path) -> None:
    assert one_image(image).images[0].load().shape == (30, 40, 3)
    with pytest.raises(ObjectSeekerError, match=r"1\.png is 40x30 pixels .* says 30x40"):
        one_image(image, size=(30, 40)).images[0].load()


@pytest.mark.skipif(os.name == "nt", reason="no file name may hold a colon there")
def test_paths_with_a_colon(tmp_path: Path) -> None:
    root = tmp_path / "C:data"
    make_image(root / "images" / "1.png")
    (root / "labels").mkdir()
    (root / "classes.txt").write_text("cat\n")
    content = {"images": [{"id": 1, "file_name": "1.png"}], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (root / "a.json").write_text(json.dumps(content))
    assert len(open_dataset(f"yolo:{root}")) == 1
    assert len(open_dataset(f"coco:{root}/a.json:{root}/images")) == 1
