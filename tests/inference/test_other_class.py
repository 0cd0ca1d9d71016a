"""A class-agnostic certificate promises a box of any class, and the files must hold it, whatever class it has."""

import csv
import json
import sys

import numpy as np
import PIL.Image
import pytest

from objectseeker import Defense, Halves, Rule
from objectseeker.datasets import open_dataset
from objectseeker.inference import detect
from objectseeker.inference.results import Categories

# A pure function of each image. A cyan pixel makes it see only a ghost over all, a magenta one nothing.
DETECTOR = """
import numpy as np
from objectseeker import Detections
names = ("red", "ghost")
fingerprint = "ghosts-1"
def one(image):
    if (image == (0, 255, 255)).all(2).any():
        return Detections([[0, 0, image.shape[1], image.shape[0]]], [1.0], [1])
    ys, xs = np.nonzero((image == (230, 20, 20)).all(2))
    if (image == (255, 0, 255)).all(2).any() or len(ys) < 12:
        return Detections.empty()
    return Detections([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], [0.9], [0])
def detect(images):
    return [one(image) for image in images]
"""
OBJECT = (20, 15, 60, 45)
GHOST, HIDE = (0, 255, 255), (255, 0, 255)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the detector, an unmodified image, and the image under patches of 1 % at several positions."""
    (tmp_path / "ghosts.py").write_text(DETECTOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    clean = np.full((60, 80, 3), 110, np.uint8)
    x1, y1, x2, y2 = OBJECT
    clean[y1:y2, x1:x2] = (230, 20, 20)
    images = {"clean": clean}
    for name, color in (("ghost", GHOST), ("hide", HIDE)):
        for x, y in ((0, 0), (30, 20), (36, 27), (53, 38), (73, 53), (0, 53), (18, 13)):
            images[f"{name}-{x}-{y}"] = clean.copy()
            images[f"{name}-{x}-{y}"][y : y + 7, x : x + 7] = color
    (tmp_path / "images").mkdir()
    for name, image in images.items():
        PIL.Image.fromarray(image).save(tmp_path / "images" / f"{name}.png")
    listed = [
        {"id": number, "file_name": f"{name}.png", "width": 80, "height": 60} for number, name in enumerate(images)
    ]
    box = {"id": 1, "image_id": 0, "category_id": 5, "bbox": [20, 15, 40, 30], "area": 1200, "iscrowd": 0}
    content = {"images": listed, "categories": [{"id": 5, "name": "red"}], "annotations": [box]}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    yield tmp_path
    sys.modules.pop("ghosts", None)


def defense(*, classwise: bool) -> Defense:
    rule = Rule(mask_threshold=0.7, classwise=classwise)
    return Defense(detector="python:ghosts:detect", rule=rule, masks=Halves(10))


def run(place, out, *, classwise):
    return detect("coco:truth.json:images", defense(classwise=classwise), certify=True, out=place / out, annotate=False)


def covers(row) -> bool:
    x, y, width, height = row["bbox"]
    return min(x + width, OBJECT[2]) > max(x, OBJECT[0]) and min(y + height, OBJECT[3]) > max(y, OBJECT[1])


def test_the_files_hold_the_box_that_a_class_agnostic_certificate_promises(place):
    totals = run(place, "found", classwise=False).finish()
    rows = json.loads((place / "found" / "detections.json").read_text())
    images = json.loads((place / "found" / "images.json").read_text())
    alerts = json.loads((place / "found" / "alerts.json").read_text())
    assert [row["anywhere"] for row in rows if row["image"] == "clean.png"] == [True]
    for image, alert in zip(images["images"], alerts, strict=True):
        own = [row for row in rows if row["image_id"] == image["id"]]
        assert any(map(covers, own)), image["file_name"]  # robust prediction
        assert alert["recovered_boxes"] == sum(row["origin"] == "recovered" for row in own)
        assert alert["alert"] or any(covers(row) for row in own if row["origin"] == "base")  # attack detection
    ghosts = [row for row in rows if row["score"] == 1]
    assert len(ghosts) == 7
    assert {(row["category_id"], row["category_name"]) for row in ghosts} == {(6, "other class")}
    assert images["categories"] == [{"id": 5, "name": "red"}, {"id": 6, "name": "other class"}]
    with (place / "found" / "boxes.csv").open() as stream:
        assert sum(row["class"] == "other class" for row in csv.DictReader(stream)) == 7
    certificates = json.loads((place / "found" / "certificates.json").read_text())
    assert certificates["boxes"] == totals.boxes == len(rows)
    assert totals.other_class == {"ghost": 7}
    assert totals.to_dict()["other_class_boxes"] == {"ghost": 7}
    assert totals.to_dict()["skipped_boxes"] == {}
    assert 'listed as "other class", of classes that the dataset does not have: ghost 7' in "\n".join(totals.notes())
    assert open_dataset("coco:found/images.json:images").names == ("red", "other class")


def test_readers_of_coco_take_the_files(place):
    coco = pytest.importorskip("pycocotools.coco")
    run(place, "found", classwise=False).finish()
    loaded = coco.COCO("found/images.json").loadRes("found/detections.json")
    assert len(loaded.getAnnIds(catIds=[6])) == 7
    truth = coco.COCO("truth.json")  # whose categories lack it: not evaluated
    evaluation = pytest.importorskip("pycocotools.cocoeval").COCOeval(
        truth, truth.loadRes("found/detections.json"), "bbox"
    )
    evaluation.params.imgIds = [0]
    evaluation.evaluate(), evaluation.accumulate(), evaluation.summarize()
    assert evaluation.stats[1] == pytest.approx(1)


def test_resumed_files_hold_it_too(place):
    run(place, "whole", classwise=False).finish()
    for _, result in zip(range(4), run(place, "found", classwise=False), strict=False):
        assert not result.error
    run(place, "found", classwise=False).finish()
    for name in ("detections.json", "images.json", "boxes.csv", "alerts.json", "certificates.json"):
        assert (place / "found" / name).read_bytes() == (place / "whole" / name).read_bytes()


def test_a_classwise_certificate_needs_no_other_class(place):
    totals = run(place, "found", classwise=True).finish()
    rows = json.loads((place / "found" / "detections.json").read_text())
    for image in json.loads((place / "found" / "images.json").read_text())["images"]:
        own = [row for row in rows if row["image_id"] == image["id"]]
        assert any(map(covers, own)), image["file_name"]
    assert {row["category_name"] for row in rows} == {"red"}
    assert totals.skipped["ghost"] >= 7
    assert totals.other_class == {}


def test_other_class_takes_no_id_or_name_of_the_dataset():
    categories = Categories(("a", "b"), (7, "12", -3), ("x", "other class", "y"), (0, -1), class_agnostic=True)
    assert categories.find(0) == (7, "x")
    assert categories.find(1) == categories.find(9) == categories.find(-1) == (13, "(other class)")
    assert categories.to_coco_categories({0})[-1] == {"id": -3, "name": "y"}
    assert categories.to_coco_categories({0, 1, 9})[-1] == {"id": 13, "name": "(other class)"}
