"""The whole way on an attacked image: a patch invents an object, and both certificates say what holds."""

import csv
import json
from pathlib import Path

import command
import numpy as np
import PIL.Image
import pytest

from objectseeker import Defense, Halves, Rule, detect
from objectseeker.core.boxes import Detections
from objectseeker.core.threats import ThreatModel

OBJECT, INVENTED = [60.0, 20.0, 90.0, 80.0], [10.0, 20.0, 40.0, 80.0]
PATCH = (slice(40, 50), slice(20, 30))  # on the box that it invents


def fooled(images):
    """Finds the white object, and a second one wherever it sees a red pixel."""
    found = []
    for image in images:
        ys, xs = np.nonzero((image == 255).all(axis=2))
        boxes = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]] if len(xs) > 400 else []
        labels = [0] * len(boxes)
        if (image == (255, 0, 0)).all(axis=2).any():
            boxes, labels = [*boxes, INVENTED], [*labels, 1]
        found.append(Detections(boxes, [0.9] * len(boxes), labels))
    return found


fooled.names = ("person", "car")  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path):
    scene = np.full((100, 100, 3), 60, np.uint8)
    scene[20:80, 60:90] = 255
    attacked = scene.copy()
    attacked[PATCH] = (255, 0, 0)
    for name, image in (("clean.png", scene), ("attacked.png", attacked)):
        PIL.Image.fromarray(image).save(tmp_path / name)
    return tmp_path


def run(folder, **options):
    # 0.15: an object of which a mask leaves a fifth still fits the whole by IoU
    rule = Rule(support_overlap=0.15, mask_threshold=0.5)
    defense = Defense(detector=fooled, rule=rule, masks=Halves(20))
    detection = detect([folder / "clean.png", folder / "attacked.png"], defense, annotate=False, **options)
    return {result.name: list(result.boxes(detection.categories)) for result in detection}, detection.totals


def test_a_fabricated_box_is_told_from_a_seen_one_on_the_attacked_image(folder):
    results, totals = run(folder, certify=ThreatModel(area=0.01))
    (clean,), attacked = results["clean.png"], results["attacked.png"]
    assert [row["class"] for row in attacked] == ["person", "car"]
    person, car = attacked
    assert clean["certified_not_fabricated_anywhere"]
    assert person["certified_not_fabricated_anywhere"]  # on the attacked image as well
    assert person["certified_score"] == 0.9
    assert not car["certified_not_fabricated_anywhere"]
    assert not car["certified_not_fabricated_over"]
    assert car["certified_score"] == 0
    assert totals.certificates is not None
    assert totals.certificates["certified_not_fabricated_anywhere"] == 2
    assert "attacked or not" in totals.certificates["about"]


def test_only_certified_leaves_the_fabricated_box_out(folder):
    results, totals = run(folder, only_certified=True)
    assert [row["class"] for rows in results.values() for row in rows] == ["person", "person"]
    assert totals.boxes == 2
    assert not any(
        row[key] for rows in results.values() for row in rows for key in ("far", "close", "over", "anywhere")
    )
    assert totals.certificates is not None
    assert "nothing is certified against hiding here" in totals.certificates["about"]


def test_the_command_writes_both_sides(folder):
    source = Path(__file__).read_text().partition("def fooled")[2].partition("\n\n\n@")[0]
    head = f"import numpy as np\nfrom objectseeker import Detections\nINVENTED = {INVENTED}\n"
    (folder / "tricked.py").write_text(f"{head}def fooled{source}")
    settings = ("masks=halves:20", "rule=paper", "alpha=0.5", "support_overlap=0.15")
    words = [word for one in settings for word in ("--set", one)]
    words = ["detect", "attacked.png", "-d", "python:tricked:fooled", *words]
    done = command.run(folder, *words, "--certify", "--out", "both")
    assert ["anywhere", "1", "1"] in [line.split() for line in done.stdout.splitlines()]
    rows = list(csv.DictReader((folder / "both" / "boxes.csv").open()))
    verdicts = [(row["class"], row["certified_not_fabricated_anywhere"]) for row in rows]
    assert verdicts == [("person", "True"), ("car", "False")]
    command.run(folder, *words, "--only-certified", "--out", "certain")
    (row,) = json.loads((folder / "certain" / "detections.json").read_text())
    assert (row["category_name"], row["certified_score"]) == ("person", 0.9)
