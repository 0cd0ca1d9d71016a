"""The layouts that tools write: data.yaml, Roboflow's folders, labels next to images, VOC without splits."""

from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest

from objectseeker.datasets import Dataset, open_dataset
from objectseeker.errors import ObjectSeekerError

BOX = "1 0.5 0.5 0.25 0.5"
NAMES = "names: [cat, dog]\n"
XML = (
    "<annotation><object><name>{name}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    "</object></annotation>"
)


def add(root: Path, image: str, label: str) -> None:
    for path in (root / image, root / label):
        path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (80, 20)).save(root / image)
    (root / label).write_text(XML.format(name="crane") if label.endswith(".xml") else BOX)


def yaml(root: Path, text: str, name: str = "data.yaml") -> Path:
    root.mkdir(exist_ok=True)
    (root / name).write_text(NAMES + text)
    return root / name


def ids(dataset: Dataset) -> list[str]:
    assert dataset.names == ("cat", "dog")
    assert all(entry.ground_truth.xyxy.tolist() == [[30, 5, 50, 15]] for entry in dataset.images)
    return [entry.id for entry in dataset.images]


@pytest.fixture
def roboflow(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for split in ("train", "valid", "test"):
        add(root, f"{split}/images/{split}1.jpg", f"{split}/labels/{split}1.txt")
    yaml(root, "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnc: 2\n")
    return root


def test_roboflow(roboflow: Path) -> None:
    for spec in (f"yolo:{roboflow}:valid", f"yolo:{roboflow}:val", f"yolo:{roboflow / 'valid'}"):
        assert ids(open_dataset(spec)) == ["valid1"]
    for split in ("val", "valid"):
        assert ids(open_dataset(f"yolo:{roboflow / 'data.yaml'}:{split}")) == ["valid1"]
    every = open_dataset(f"yolo:{roboflow}")
    assert ids(every) == ["train/train1", "valid/valid1", "test/test1"]
    assert every.warnings == (f"all of test, train, valid are read; yolo:{roboflow}:valid would read one of them",)
    assert ids(open_dataset(f"yolo:{roboflow / 'data.yaml'}")) == ["train/train1", "val/valid1", "test/test1"]


@pytest.mark.parametrize(
    "text",
    [
        "path: .\ntrain: images/train  # a comment\nval: 'images/val'\ntest:\n",
        'path: ""\nval: [images/val]\ntrain: "images/train"\ntest: null',
        "val:\n  - images/val\ntrain:\n- images/train\n",
        "path: /content/elsewhere\ntrain: images/train\nval: images/val",
        "path: ../set\ntrain: images/train\nval: ./images/val/\ntest: images/val",
    ],
)
def test_yaml_with_paths(tmp_path: Path, text: str) -> None:
    root = tmp_path / "set"
    add(root, "images/train/a.png", "labels/train/a.txt")
    add(root, "images/val/b/c.png", "labels/val/b/c.txt")
    file = yaml(root, text)
    assert ids(open_dataset(f"yolo:{file}:val")) == ["b/c"]
    every = open_dataset(f"yolo:{file}")
    assert ids(every) == ["train/a", "val/b/c"]
    assert every.warnings == (f"all of train, val are read; yolo:{file}:val would read one of them",)


def test_yaml_with_names_as_a_mapping_and_several_folders(tmp_path: Path) -> None:
    add(tmp_path, "one/images/a.png", "one/labels/a.txt")
    add(tmp_path, "two/a.png", "two/a.txt")
    (tmp_path / "my.yml").write_text("train: [one/images, two]\nval: gone\nnames:\n  0: cat\n  1: dog\n")
    dataset = open_dataset(f"yolo:{tmp_path / 'my.yml'}")
    assert ids(dataset) == ["train/one/images/a", "train/two/a"]
    assert dataset.warnings == (
        f"splits without their folders skipped: 1, the first: {tmp_path / 'my.yml'}, val: gone",
    )


def test_yaml_with_a_list_of_images(tmp_path: Path) -> None:
    add(tmp_path, "images/val/a.png", "labels/val/a.txt")
    add(tmp_path, "images/val/b.png", "labels/val/b.txt")
    (tmp_path / "val.txt").write_text("./images/val/b.png\n")
    file = yaml(tmp_path, "val: val.txt")
    assert ids(open_dataset(f"yolo:{file}")) == ["images/val/b"]
    (tmp_path / "val.txt").write_text("../images/val/b.png\n")
    with pytest.raises(ObjectSeekerError, match=r"val\.txt line 1 names .* is outside"):
        open_dataset(f"yolo:{file}")


def test_yaml_that_leads_out(tmp_path: Path) -> None:
    add(tmp_path, "images/a.png", "labels/a.txt")
    for text in ("path: ../\nval: images", "val: ../images", f"val: {tmp_path / 'images'}"):
        file = yaml(tmp_path / "set", text)
        with pytest.raises(
            ObjectSeekerError, match=r"data\.yaml names .*, which is outside .*set. .* allow outside paths"
        ):
            open_dataset(f"yolo:{file}")
        assert ids(open_dataset(f"yolo:{file}", allow_outside_paths=True)) == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no images for val; it has none of train, val and test"),
        ("train: images", "has no images for val; it has train"),
        ("val: gone", "val: gone is neither a folder nor a list of images"),
        ("val: *anchor", r"line 2 cannot be read as YAML: the alias \*anchor repeats a value; write the value"),
        ("val: a\n  b", "val: a b is neither a folder nor a list of images"),
        ("val: {a: b}", "has val: {'a': 'b'}. Write one path or a list of paths"),
        ("val: [a, [b]]", "has val: .*Write one path or a list of paths"),
        ("val:\n  key: images", "has val: .*Write one path or a list of paths"),
    ],
)
def test_yaml_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    add(tmp_path, "images/a.png", "labels/a.txt")
    with pytest.raises(ObjectSeekerError, match=words) as caught:
        open_dataset(f"yolo:{yaml(tmp_path, text)}:val")
    assert "\n" not in str(caught.value)


def test_labels_beside_images(tmp_path: Path) -> None:
    add(tmp_path, "a.png", "a.txt")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "readme.txt").write_text("made manually")
    dataset = open_dataset(f"yolo:{tmp_path}")
    assert ids(dataset) == ["a"]
    assert dataset.warnings == (f"text files without an image skipped: 1, the first: {tmp_path / 'readme.txt'}",)
    with pytest.raises(ObjectSeekerError, match="no image of the same name"):
        open_dataset(f"yolo:{tmp_path}", strict=True)


@pytest.mark.parametrize(
    ("image", "xml"),
    [("JPEGImages/a.jpg", "Annotations/a.xml"), ("images/a.png", "annotations/a.xml"), ("a.png", "a.xml")],
)
def test_voc_without_a_split(tmp_path: Path, image: str, xml: str) -> None:
    add(tmp_path, image, xml)
    dataset = open_dataset(f"voc:{tmp_path}")
    assert [entry.id for entry in dataset.images] == ["a"]
    assert dataset.names == ("crane",)
    assert dataset.images[0].ground_truth.xyxy.tolist() == [[0, 0, 9, 9]]
    assert dataset.images[0].path == tmp_path / image
    assert dataset.warnings == ()
    extra = (tmp_path / image).with_stem("b")
    PIL.Image.new("RGB", (80, 20)).save(extra)
    assert open_dataset(f"voc:{tmp_path}").warnings == (f"images without an XML file skipped: 1, the first: {extra}",)
    with pytest.raises(ObjectSeekerError, match="has no XML file"):
        open_dataset(f"voc:{tmp_path}", strict=True)
    extra.unlink()
    (tmp_path / xml).rename((tmp_path / xml).with_stem("c"))
    with pytest.raises(ObjectSeekerError, match=r"c\.jpg|image 'c' has no file"):
        open_dataset(f"voc:{tmp_path}")


def test_voc_without_a_split_where_there_are_some_or_nothing(tmp_path: Path) -> None:
    add(tmp_path, "JPEGImages/a.jpg", "Annotations/a.xml")
    add(tmp_path / "empty", "a.jpg", "a.txt")
    with pytest.raises(ObjectSeekerError, match=r"there is no XML file in .*empty"):
        open_dataset(f"voc:{tmp_path / 'empty'}")
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("a\n")
    with pytest.raises(ObjectSeekerError, match=r"names no split; it has val\. Give voc:VOCDIR:SPLIT"):
        open_dataset(f"voc:{tmp_path}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html><body>Sign in</body></html>", r"a\.xml has the root element 'html', but VOC files have 'annotation'"),
        ("<!DOCTYPE html><html></html>", r"a\.xml is an HTML page"),
        ("<annotations/>", r"a\.xml has the root element 'annotations'"),
    ],
)
def test_voc_file_that_is_something_else(tmp_path: Path, text: str, words: str) -> None:
    add(tmp_path, "a.png", "a.xml")
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(ObjectSeekerError, match=words):
        open_dataset(f"voc:{tmp_path}")


@pytest.mark.parametrize(
    ("file", "spec"),
    [("annotations/x.json", "coco:"), ("data.yaml", "yolo:"), ("training/label_2/0.txt", "kitti:")],
)
def test_a_folder_with_annotations_says_how_they_are_read(tmp_path, file, spec):
    """A plain folder of images is unlabeled, whatever else is in it: the user learns that, not a later command."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("")
    PIL.Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (warning,) = open_dataset(str(tmp_path)).warnings
    assert f"name it as {spec}{tmp_path}" in warning
    (tmp_path / "plain").mkdir()
    PIL.Image.new("RGB", (8, 8)).save(tmp_path / "plain" / "a.png")
    assert open_dataset(str(tmp_path / "plain")).warnings == ()
