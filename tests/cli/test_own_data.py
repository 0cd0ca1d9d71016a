"""Own classes and odd annotations, from the first command to the report."""

import json

import numpy as np
import PIL.Image
from command import DETECTOR, run


def test_own_names_and_odd_annotations_get_through(tmp_path):
    """Ids that are not counters, classes named otherwise, a box without height: skipped and named."""
    (tmp_path / "mine.py").write_text(DETECTOR)
    (tmp_path / "images").mkdir()
    (tmp_path / "names.txt").write_text("hell\n")
    images, annotations = [], []
    for number in (7, 21, 900):
        image = np.full((60, 90, 3), 30, np.uint8)
        image[20:40, 30:60] = 255
        PIL.Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 90, "height": 60})
        annotations.append({"id": number, "image_id": number, "category_id": 44, "bbox": [30, 20, 30, 20]})
    annotations.append({"id": 1, "image_id": 7, "category_id": 44, "bbox": [3, 3, 5, 0], "iscrowd": 0})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 44, "name": "bright"}]}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    detector = ["-d", "python:mine:detect", "--set", "class_names=@names.txt", "--masks", "halves:6"]
    done = run(tmp_path, "observe", "coco:truth.json:images", *detector, "--out", "run", code=2)
    assert "the detector knows none of the dataset's classes" in done.stderr
    arguments = ["observe", "coco:truth.json:images", *detector, "--class-map", "hell=bright", "--out", "run"]
    assert "strict" not in run(tmp_path, *arguments).stdout
    assert "boxes without area skipped: 1" in run(tmp_path, *arguments).stderr
    assert run(tmp_path, *arguments, "--strict", code=2).stderr.startswith("error: ")
    done = run(
        tmp_path, "observe", "coco:truth.json:images", *detector, "--class-map", "hell=dark", "--out", "x", code=2
    )
    assert "dark" in done.stderr
    answer = json.loads(run(tmp_path, "evaluate", "run", "--json").stdout)
    assert (answer["objects"], answer["per_class"][0]["class"]) == (3, "bright")
    assert answer["defense"]["class_names"] == ["hell"]
    run(tmp_path, "report", "run", "--out", "r.html")
