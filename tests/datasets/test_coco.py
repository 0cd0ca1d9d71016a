"""COCO annotation files, sound and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from objectseeker.datasets import Dataset, open_dataset
from objectseeker.errors import ObjectSeekerError


def content() -> dict[str, Any]:
    """Two images of 40x30, the second without objects; category ids neither contiguous nor sorted."""
    return {
        "images": [
            {"id": 139, "file_name": "b.png", "width": 40, "height": 30},
            {"id": 7, "file_name": "sub/a.png", "width": 40, "height": 30},
        ],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"id": 1, "image_id": 139, "category_id": 3, "bbox": [1.5, 2, 10, 20.25], "iscrowd": 0},
            {"id": 2, "image_id": 139, "category_id": 90, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        ],
    }


def open_content(tmp_path: Path, value: object, **options: bool) -> Dataset:
    for name in ("b.png", "sub/a.png"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", (40, 30)).save(path)
    file = tmp_path / "instances.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return open_dataset(f"coco:{file}:{tmp_path / 'images'}", **options)


def test_boxes_labels_crowd_and_empty_images(tmp_path: Path) -> None:
    dataset = open_content(tmp_path, content())
    first, second = dataset.images
    assert dataset.names == ("toothbrush", "car")
    assert (first.id, second.id) == ("139", "7")
    assert first.ground_truth.xyxy.tolist() == [[1.5, 2, 11.5, 22.25], [0, 0, 40, 30]]
    assert first.ground_truth.label.tolist() == [1, 0]
    assert first.ignore.tolist() == first.crowd.tolist() == [False, True]
    assert len(second.ground_truth) == 0
    assert first.size == second.size == (40, 30)
    assert second.load().shape == (30, 40, 3)
    assert dataset.objects == 1
    assert dataset.warnings == ()


def test_size_is_read_from_the_image_where_the_file_does_not_state_it(tmp_path: Path) -> None:
    value = content()
    for image in value["images"]:
        del image["width"]
    assert [entry.size for entry in open_content(tmp_path, value).images] == [(40, 30), (40, 30)]


def test_annotations_may_lack_id_and_iscrowd(tmp_path: Path) -> None:
    value = content()
    for annotation in value["annotations"]:
        del annotation["id"], annotation["iscrowd"]
    assert open_content(tmp_path, value).objects == 2


def change(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def apply(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return apply


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def apply(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        del value[path[-1]]

    return apply


FIRST = ("annotations", 0)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop("images"), "no list 'images'"),
        (drop("annotations"), "no list 'annotations'"),
        (change("categories", to={}), "no list 'categories'"),
        (change("categories", to=[]), "no categories"),
        (change("images", to=[]), "is for image 139, which the file does not list"),
        (change("images", 1, to=5), r"images\[1\] must be an object with keys: got 5"),
        (change("images", 1, "id", to=139), r"images\[1\] has the id 139 of an earlier one"),
        (change("images", 1, "id", to="139"), r"images\[1\] has the id 139 of an earlier one"),
        (change("images", 0, "id", to=1.5), "'id' as a whole number or text: got 1.5"),
        (drop("images", 0, "id"), "'id' as a whole number or text: got None"),
        (drop("images", 1, "file_name"), r"images\[1\] \(id 7\) must have 'file_name' as text"),
        (change("images", 1, "file_name", to="gone.png"), r"image '7' has no file at .*gone\.png"),
        (change("images", 1, "file_name", to="nul\0.png"), "image '7' has no file"),
        (change("images", 0, "width", to="40"), "width and height in whole pixels"),
        (change("images", 0, "height", to=0), "width and height in whole pixels"),
        (change("images", 0, "height", to=10**400), "width and height in whole pixels"),
        (change("categories", 1, "id", to=90), r"categories\[1\] has the id 90 of an earlier one"),
        (change("categories", 1, "name", to="toothbrush"), "class 'toothbrush' twice"),
        (change("categories", 1, "name", to=""), "'name' as text"),
        (change(*FIRST, "id", to=2), r"annotations\[1\] has the id 2 of an earlier one"),
        (change(*FIRST, "image_id", to=8), r"annotations\[0\] \(id 1\) is for image 8, which the file does not list"),
        (drop(*FIRST, "image_id"), "must have 'image_id'"),
        (change(*FIRST, "category_id", to=4), "is of category 4, which the file does not list"),
        (drop(*FIRST, "category_id"), "must have 'category_id'"),
        (drop(*FIRST, "bbox"), r"annotations\[0\] \(id 1\) must have a bbox of four numbers: got None"),
        (change(*FIRST, "bbox", to=[1, 2, 3]), "bbox of four numbers"),
        (change(*FIRST, "bbox", to=[1, 2, 3, "4"]), "bbox of four numbers"),
        (change(*FIRST, "bbox", to=[1, 2, 3, True]), "bbox of four numbers"),
        (change(*FIRST, "bbox", to=[1, 2, 3, 10**400]), "bbox of four numbers"),
        (change(*FIRST, "bbox", to=[1, 2, 3, float("nan")]), "impossible coordinate"),
        (change(*FIRST, "bbox", to=[1, 2, 0, 4]), r"\(id 1\) has a box of 0 x 4 pixels"),
        (change(*FIRST, "bbox", to=[1, 2, -3, 4]), "box of -3 x 4"),
        (change(*FIRST, "bbox", to=[41, 2, 3, 4]), "entirely outside its 40x30 image"),
        (change(*FIRST, "iscrowd", to=2), "iscrowd 2; it must be 0 or 1"),
    ],
)
def test_broken_annotation_is_one_sentence_with_file_and_place(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], words: str
) -> None:
    value = content()
    damage(value)
    with pytest.raises(ObjectSeekerError, match=words) as caught:
        open_content(tmp_path, value, strict=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"images": 1' + "0" * 5000 + "}", "\0\1\2"])
def test_not_json(tmp_path: Path, text: str) -> None:
    with pytest.raises(ObjectSeekerError, match=r"instances\.json is not valid JSON"):
        open_content(tmp_path, text)


def test_not_a_coco_file(tmp_path: Path) -> None:
    with pytest.raises(ObjectSeekerError, match="must hold a JSON object: got"):
        open_content(tmp_path, [{"image_id": 139, "bbox": [1, 2, 3, 4]}])


def test_bad_specs(tmp_path: Path) -> None:
    open_content(tmp_path, content())
    file = tmp_path / "instances.json"
    for spec in (f"coco:{file}", f"coco:{file}:"):
        with pytest.raises(ObjectSeekerError, match="names no image folder"):
            open_dataset(spec)
    with pytest.raises(ObjectSeekerError, match="'gone' is not a folder"):
        open_dataset(f"coco:{file}:gone")
    with pytest.raises(ObjectSeekerError, match="no annotation file"):
        open_dataset(f"coco:{tmp_path}/gone.json:{tmp_path}")


def coco_root(root: Path, *splits: str, images: str = "{split}") -> Path:
    for split in splits:
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content()))
        for name in ("b.png", "sub/a.png"):
            path = root / images.format(split=split) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.new("RGB", (40, 30)).save(path)
    return root


@pytest.mark.parametrize("images", ["{split}", "images/{split}", "images"])
def test_root_folder_with_one_split(tmp_path: Path, images: str) -> None:
    root = coco_root(tmp_path / "C:oco", "val2017", images=images)
    (root / "annotations" / "captions_val2017.json").write_text("{}")
    explicit = f"coco:{root}/annotations/instances_val2017.json:{root}/{images.format(split='val2017')}"
    for spec in (f"coco:{root}", f"coco:{root}:", f"coco:{root}:val2017", explicit):
        dataset = open_dataset(spec)
        assert dataset.spec == explicit
        assert dataset.objects == 1


def test_root_folder_with_several_splits(tmp_path: Path) -> None:
    root = coco_root(tmp_path, "train2017", "val2017")
    spec = f"coco:{root}"
    with pytest.raises(ObjectSeekerError, match=rf"names no split; it has train2017, val2017. Give {spec}:val2017"):
        open_dataset(spec)
    assert open_dataset(f"{spec}:train2017").spec == f"{spec}/annotations/instances_train2017.json:{root}/train2017"
    with pytest.raises(ObjectSeekerError, match=r"no split 'test' in .*; it has train2017, val2017"):
        open_dataset(f"{spec}:test")
    (root / "train2017").rename(root / "elsewhere")
    assert open_dataset(spec).spec.endswith("/val2017")  # COCO's annotations hold both splits, and one was downloaded
    with pytest.raises(
        ObjectSeekerError, match=r"instances_train2017.json has no image folder .*train2017 or .*images\. Add it"
    ):
        open_dataset(f"{spec}:train2017")


def test_root_folder_without_annotations(tmp_path: Path) -> None:
    with pytest.raises(ObjectSeekerError, match=r"there is no .*annotations/instances_SPLIT.json. Give coco:"):
        open_dataset(f"coco:{tmp_path}")
