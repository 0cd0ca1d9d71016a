"""Tags from CSV and COCO files, and the slices they make."""

import json

import pytest

from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.slices import read_tags

IDS, NAMES = ["1", "2", "3"], ["a.jpg", "b.jpg", "c.jpg"]


def slices(tags, asked):
    return {name: images.tolist() for name, images in tags.slices(asked).items()}


def test_a_csv_names_images_by_id_or_by_file(tmp_path):
    file = tmp_path / "tags.csv"
    file.write_text('\ufeffimage, weather,camera\n1,rain,"3"\nb.jpg,sun,3\n\n9,snow,1\n', encoding="utf-8")
    tags = read_tags(file, IDS, NAMES)
    assert slices(tags, "weather") == {"weather=rain": [0], "weather=sun": [1]}
    assert slices(tags, "camera=3") == {"camera=3": [0, 1]}
    assert tags.missing == 1
    with pytest.raises(ObjectSeekerError, match=r"did you mean weather\?"):
        tags.slices("wether")
    with pytest.raises(ObjectSeekerError, match=r"did you mean rain\?"):
        tags.slices("weather=rainy")


def test_a_file_name_that_two_images_have_names_neither(tmp_path):
    file = tmp_path / "tags.csv"
    file.write_text("image,weather\na.jpg,rain\n3,sun\n")
    assert slices(read_tags(file, IDS, ["a.jpg", "a.jpg", "c.jpg"]), "weather") == {"weather=sun": [2]}


def test_coco_images_have_their_own_fields(tmp_path):
    file = tmp_path / "truth.json"
    images = [
        {"id": 1, "file_name": "x", "width": 3, "height": 3, "night": True, "camera": 3, "gps": [1, 2]},
        {"id": 2, "file_name": "y", "width": 3, "height": 3, "night": False},
    ]
    file.write_text(json.dumps({"images": images}))
    tags = read_tags(file, IDS, NAMES)
    assert set(tags.columns) == {"night", "camera"}
    assert slices(tags, "night") == {"night=false": [1], "night=true": [0]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tags.csv", "", "must begin with a line such as image,weather,camera"),
        ("tags.csv", "frame,weather\n1,rain\n", "must begin with"),
        ("tags.csv", "image,weather,weather\n1,a,b\n", "every column once"),
        ("tags.csv", "image,weather\n1\n", "line 2 of"),
        ("tags.csv", "image,weather\n1,rain\n1,sun\n", "has image 1 twice"),
        ("tags.csv", "image,weather\n77,rain\n", "has none of the run's images"),
        ("tags.csv", "image,class\n1,rain\n", "cannot be called 'class'"),
        ("tags.json", "[]", "not a COCO annotation file"),
        ("tags.json", "{", "not a COCO annotation file"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ObjectSeekerError, match=message):
        read_tags(tmp_path / name, IDS, NAMES)
