"""The files that come with the package: sample images, their objects and their attribution."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from objectseeker.demo import samples as package
from objectseeker.demo.samples import Sample, samples
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.files.images import image_size, load_image

FOLDER = Path(package.__file__).parent


def test_samples_and_image_files_correspond() -> None:
    found = samples()
    assert {sample.path for sample in found} == set(FOLDER.glob("*.jpg"))
    assert len({sample.name for sample in found}) == len(found) == 6
    assert [sample.name for sample in found] == [sample.name for sample in samples()]


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_a_sample_has_objects_inside_its_image(sample: Sample) -> None:
    image = load_image(sample.path)
    height, width = image.shape[:2]
    assert max(width, height) <= 640
    assert image_size(sample.path) == (width, height)
    assert len(sample.ground_truth) == len(sample.crowd) > 0
    assert not sample.crowd.all()
    x1, y1, x2, y2 = sample.ground_truth.xyxy.T
    assert (x1 >= 0).all()
    assert (y1 >= 0).all()
    assert (x2 <= width).all()
    assert (y2 <= height).all()
    assert (x2 - x1 > 0).all()
    assert (y2 - y1 > 0).all()
    assert ((sample.ground_truth.label >= 0) & (sample.ground_truth.label < len(VOC_20))).all()
    assert not PIL.Image.open(sample.path).getexif()  # nothing about where or by whom it was taken is left behind


def test_the_objects_of_one_image() -> None:
    crossing = next(sample for sample in samples() if sample.name == "crossing")
    names = [VOC_20[label] for label in crossing.ground_truth.label]
    assert sorted(names) == ["car"] * 6 + ["person"]
    person = crossing.ground_truth.xyxy[names.index("person")]
    assert np.allclose(person, [94.3, 193.67, 154.04, 337.42])
    assert sum(sample.crowd.sum() for sample in samples()) == 3


def test_the_annotations_are_sound_coco() -> None:
    content = json.loads((FOLDER / "annotations.json").read_text(encoding="utf-8"))
    assert [category["name"] for category in content["categories"]] == list(VOC_20)
    for image in content["images"]:
        assert image_size(FOLDER / image["file_name"]) == (image["width"], image["height"])
        assert image["license"] == content["licenses"][0]["id"]
    ids = [item["id"] for item in content["annotations"]]
    assert len(set(ids)) == len(ids)


def test_the_attribution_names_every_image_its_source_and_its_license() -> None:
    text = (FOLDER / "ATTRIBUTION.md").read_text(encoding="utf-8")
    content = json.loads((FOLDER / "annotations.json").read_text(encoding="utf-8"))
    rows = {row.split("|")[1].strip(): row for row in text.splitlines() if re.match(r"\| \S+\.jpg ", row)}
    assert rows.keys() == {sample.path.name for sample in samples()}
    for image in content["images"]:
        row = rows[image["file_name"]]
        assert image["coco_url"] in row
        assert image["flickr_url"] in row
        assert "/val2017/" in image["coco_url"]
    assert "https://creativecommons.org/licenses/by/2.0/" in text
    assert "recompressed" in text


def test_the_samples_stay_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) < 1_000_000
