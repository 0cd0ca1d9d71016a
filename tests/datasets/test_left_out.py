"""Annotations and files that cannot be used: skipped, counted and named in one line per kind; rejected when strict."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import PIL.Image
import pytest

from objectseeker.datasets import open_dataset
from objectseeker.errors import ObjectSeekerError

NAN = float("nan")


def make_image(path: Path, size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", size).save(path)
    return path


def coco(folder: Path, *boxes: Sequence[float], image_name: str = "1.png") -> str:
    """A first image with the boxes and a second one without; annotation ids count from 17."""
    make_image(folder / "images" / "1.png")
    make_image(folder / "images" / "2.png")
    sides = {"width": 40, "height": 30}
    content = {
        "images": [{"id": 1, "file_name": image_name, **sides}, {"id": 2, "file_name": "2.png", **sides}],
        "categories": [{"id": 7, "name": "cat"}],
        "annotations": [
            {"id": 17 + place, "image_id": 1, "category_id": 7, "bbox": box} for place, box in enumerate(boxes)
        ],
    }
    (folder / "a.json").write_text(json.dumps(content))
    return f"coco:{folder / 'a.json'}:{folder / 'images'}"


def test_coco_boxes_that_cannot_be_used(tmp_path: Path) -> None:
    good = [1, 2, 3, 4]
    spec = coco(tmp_path, [4, 4, 5, 0], good, [4, 4, -1, 3], [50, 2, 5, 5], [1, NAN, 5, 5], [1e12, 1, 1, 1])
    dataset = open_dataset(spec)
    file = tmp_path / "a.json"
    assert dataset.warnings == (
        f"boxes without area skipped: 2, the first: {file}, annotations[0] (id 17)",
        f"boxes entirely outside their images skipped: 1, the first: {file}, annotations[3] (id 20)",
        f"boxes with impossible coordinates skipped: 2, the first: {file}, annotations[4] (id 21)",
    )
    assert [entry.ground_truth.xyxy.tolist() for entry in dataset.images] == [[[1, 2, 4, 6]], []]
    assert dataset.fingerprint == open_dataset(coco(tmp_path, good)).fingerprint
    assert open_dataset(coco(tmp_path, good), strict=True).warnings == ()
    with pytest.raises(ObjectSeekerError, match=r"annotations\[1\] \(id 18\) has a box of 5 x 0 pixels"):
        open_dataset(coco(tmp_path, good, [4, 4, 5, 0], [4, 4, 0, 0]), strict=True)


def test_an_image_whose_objects_are_all_left_out_stays(tmp_path: Path) -> None:
    dataset = open_dataset(coco(tmp_path, [4, 4, 5, 0]))
    assert [entry.id for entry in dataset.images] == ["1", "2"]
    assert dataset.objects == 0
    assert dataset.has_ground_truth


def yolo(folder: Path, *lines: str) -> str:
    make_image(folder / "images" / "a.png")
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "labels" / "a.txt").write_text("\n".join(lines))
    (folder / "classes.txt").write_text("cat\ndog\n")
    return f"yolo:{folder}"


def test_yolo_lines_that_cannot_be_used(tmp_path: Path) -> None:
    lines = ("1 0.5 0.5 0 0.5", "0 0.5 0.5 0.5 0.5", "1 nan 0.5 0.5 0.5", "0 0.5 0.5 -0.1 0.5")
    dataset = open_dataset(yolo(tmp_path, *lines))
    file = tmp_path / "labels" / "a.txt"
    assert dataset.warnings == (
        f"boxes with impossible coordinates skipped: 1, the first: {file} line 3",
        f"boxes without area skipped: 2, the first: {file} line 4",
    )
    assert dataset.objects == 1


def test_yolo_polygons_are_read_as_their_bounding_boxes(tmp_path: Path) -> None:
    spec = yolo(tmp_path, "1 0.25 0.5 0.5 0.1 0.75 0.9", "0 0.5 0.5 0.5 0.5", "0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2")
    dataset = open_dataset(spec)
    assert dataset.warnings == (
        f"polygons read as their bounding boxes: 2, the first: {tmp_path / 'labels' / 'a.txt'} line 1",
    )
    first = dataset.images[0].ground_truth
    assert first.xyxy[0].tolist() == pytest.approx([10, 3, 30, 27])
    assert first.xyxy[2].tolist() == pytest.approx([4, 3, 8, 6])
    assert first.label.tolist() == [1, 0, 0]
    with pytest.raises(ObjectSeekerError, match="has 7 columns"):
        open_dataset(spec, strict=True)
    (tmp_path / "classes.txt").rename(tmp_path / "labels" / "classes.txt")
    (tmp_path / "data.yaml").write_text("names: [cat, dog]\nkpt_shape: [17, 2]\n")
    with pytest.raises(ObjectSeekerError, match=r"data\.yaml has kpt_shape"):
        open_dataset(spec)


def test_kitti_regions_are_counted_once(tmp_path: Path) -> None:
    make_image(tmp_path / "image_2" / "1.png")
    rest = "-1 -1 -1 -1000 -1000 -1000 -10"
    (tmp_path / "label_2").mkdir()
    label = tmp_path / "label_2" / "1.txt"
    label.write_text(f"DontCare 0 0 0 5 5 5 9 {rest}\nCar 0 0 0 5 5 nan 9 {rest}\nCar 0 0 0 1 1 9 9 {rest}\n")
    dataset = open_dataset(f"kitti:{tmp_path}")
    assert dataset.warnings == (
        f"boxes with impossible coordinates skipped: 1, the first: {label} line 2",
        f"boxes without area skipped: 1, the first: {label} line 1",
    )
    assert dataset.objects == 1


def test_voc_boxes_that_cannot_be_used(tmp_path: Path) -> None:
    def obj(*values: object) -> str:
        tags = zip(("xmin", "ymin", "xmax", "ymax"), values, strict=True)
        return f"<object><name>dog</name><bndbox>{''.join(f'<{t}>{v}</{t}>' for t, v in tags)}</bndbox></object>"

    make_image(tmp_path / "a.png")
    content = f"<annotation>{obj(1, 1, 9, 9)}{obj(5, 5, 4, 9)}{obj(1, 'nan', 9, 9)}</annotation>"
    (tmp_path / "a.xml").write_text(content)
    dataset = open_dataset(f"voc:{tmp_path}")
    assert dataset.warnings == (
        f"boxes with impossible coordinates skipped: 1, the first: {tmp_path / 'a.xml'}, object 3",
        f"boxes without area skipped: 1, the first: {tmp_path / 'a.xml'}, object 2",
    )
    assert dataset.objects == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hold no such names")
def test_a_file_name_that_is_not_utf8_is_left_out_alone(tmp_path: Path) -> None:
    def spoil(path: Path) -> None:
        make_image(path)
        path.rename(os.fsdecode(os.fsencode(path.parent) + b"/\xff.png"))

    said = (f"files whose names are not UTF-8 skipped: 1, the first: {tmp_path / 'plain'}/\\udcff.png",)
    make_image(tmp_path / "plain" / "a.png")
    spoil(tmp_path / "plain" / "b.png")
    dataset = open_dataset(tmp_path / "plain")
    assert [entry.id for entry in dataset.images] == ["a.png"]
    assert [entry.id for entry in dataset.images] == ["a.png"]
    assert dataset.warnings == said
    with pytest.raises(ObjectSeekerError, match=r"is not UTF-8\. Rename the file"):
        open_dataset(tmp_path / "plain", strict=True)
    spec = yolo(tmp_path / "yolo", "0 0.5 0.5 0.5 0.5")
    spoil(tmp_path / "yolo" / "images" / "b.png")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/yolo/labels/\xff.txt")).write_text("0 0.5 0.5 0.5 0.5")
    assert "not UTF-8" in open_dataset(spec).warnings[0]
    assert len(open_dataset(spec)) == 1
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))
    make_image(folder / "a.png")
    with pytest.raises(ObjectSeekerError, match=r"path .*\\udcfe.* is not UTF-8\. Rename its folder"):
        open_dataset(folder)


@pytest.mark.parametrize("long", ["9" * 5000, "0" * 5000 + "7"])
def test_numbers_of_5000_digits(tmp_path: Path, long: str) -> None:
    with pytest.raises(ObjectSeekerError, match=r"line 1 has the class .*it must be one of 0 to 1") as caught:
        open_dataset(yolo(tmp_path, f"{long} 0.5 0.5 0.5 0.5"))
    assert len(str(caught.value)) < 500
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.5 0.5")
    for text, words in (
        (f"names: [a, b]\nnc: {long}", "but 2 names"),
        (f"names:\n  {long}: a", "line 2 cannot be read as YAML"),
    ):
        (tmp_path / "data.yaml").write_text(text)
        with pytest.raises(ObjectSeekerError, match=words) as caught:
            open_dataset(f"yolo:{tmp_path}")
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["x" * 10_000, "line\nbreak.png", "half \ud800.png"])
def test_a_hostile_file_name_is_one_short_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ObjectSeekerError) as caught:
        open_dataset(coco(tmp_path, image_name=name))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    str(caught.value).encode()
