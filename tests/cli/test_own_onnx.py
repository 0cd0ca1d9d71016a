"""Your own ONNX graph and annotations, from the first command to the report, through the real command line."""

import json

import numpy as np
import PIL.Image
import pytest
from blobs_graph import NAMES, SIDE, write_graph
from pycocotools.coco import COCO

CATEGORIES = {7: "Mensch", 21: "Pkw", 900: "Rad"}  # ids and names that are not the graph's
CLASS_MAP = "car=Pkw,bicycle=Rad,person=Mensch"
LABEL_OF = {21: 0, 900: 1, 7: 2}


def write_data(folder):
    """Six images with one or two blobs and one without, and annotations that name them in their own way."""
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for image_id in (7, 21, 900, 3, 22, 901, 902):
        image = np.full((SIDE, SIDE, 3), 60, np.uint8)
        categories = [] if image_id == 902 else rng.choice(list(CATEGORIES), rng.integers(1, 3), replace=False).tolist()
        for place, category in enumerate(categories):
            x, y = rng.integers(2, 12, 2) + np.array([0, 30 * place])
            width, height = rng.integers(14, 24, 2)
            image[y : y + height, x : x + width] = 0
            image[y : y + height, x : x + width, LABEL_OF[category]] = 255
            box = [int(x), int(y), int(width), int(height)]
            annotations.append(
                {"id": len(annotations) + 50, "image_id": image_id, "category_id": category, "bbox": box}
            )
        PIL.Image.fromarray(image).save(folder / "images" / f"{image_id}.png")
        images.append({"id": image_id, "file_name": f"{image_id}.png", "width": SIDE, "height": SIDE})
    annotations.append({"id": 1, "image_id": 7, "category_id": 21, "bbox": [3, 3, 5, 0]})
    for annotation in annotations:
        annotation |= {"iscrowd": 0, "area": annotation["bbox"][2] * annotation["bbox"][3]}
    categories = [{"id": key, "name": name} for key, name in CATEGORIES.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "own.json").write_text(json.dumps(content))
    return annotations[:-1]


def test_from_check_detector_to_report(tmp_path, call):
    write_graph(tmp_path / "blobs.onnx")
    truth = write_data(tmp_path)
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    graph = ("onnx:blobs.onnx", "--set", "class_names=@names.txt")
    data, masks = "coco:own.json:images", ("--masks", "halves:6")

    checked = json.loads(call("check", "onnx:blobs.onnx", "images/7.png", *graph[1:], "--json")[0])
    assert checked["passed"]

    observe = ("observe", data, "--detector", *graph, *masks, "--out", "run")
    assert "knows none of the dataset's classes" in call(*observe, code=2)[1]
    noted = call(*observe, "--class-map", CLASS_MAP)[1]
    assert "boxes without area skipped: 1" in noted

    few = ("--set", "filter_ioa=0.6", "--set", "edge_factor=1", "--set", "cluster_distance=0.1")
    call("tune", "run", "--max-ap-loss", "1", *few, "--out", "tuned")
    tuned = ("--defense", "tuned/defense.json")
    answer = json.loads(call("evaluate", "run", *tuned, "--json")[0])
    assert (answer["images"], answer["objects"]) == (7, len(truth))
    assert {row["class"] for row in answer["per_class"]} == set(CATEGORIES.values())
    assert answer["undefended"]["ap50"] == answer["defended"]["ap50"] == pytest.approx(100)
    assert answer["defended"]["certified_recall"]["far"] > 90

    call("evaluate", "run", *tuned, "--objects", "certificates.json")
    rows = json.loads((tmp_path / "certificates.json").read_text())["objects"]
    assert sorted({row["class"] for row in rows}) == sorted(CATEGORIES.values())

    call("detect", data, *tuned, "--class-map", CLASS_MAP, "--certify", "--out", "found")
    boxes = json.loads((tmp_path / "found" / "detections.json").read_text())
    assert placed(boxes) == placed(truth)
    # This detector finds every object exactly: its boxes have the certificates of the objects.
    assert proven((row["category_name"], row) for row in boxes) == proven((row["class"], row) for row in rows)
    assert len(COCO("own.json").loadRes("found/detections.json").getAnnIds()) == len(truth)

    call("report", "run", *tuned, "--out", "report.html")
    assert "Mensch" in (tmp_path / "report.html").read_text()


def proven(rows):
    return sorted((name, row["far"], row["close"], row["over"]) for name, row in rows)


def placed(rows):
    return sorted((row["image_id"], row["category_id"], *np.rint(row["bbox"]).astype(int).tolist()) for row in rows)
