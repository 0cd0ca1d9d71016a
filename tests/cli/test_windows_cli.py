"""Windows on the command line: from a run to certificates against everything outside an object's grown box."""

import csv
import json

import pytest
from command import run, write_dataset

MASKS = "windows:1/2+halves:3"
OPTIONS = ("-d", "python:mine:detect", "--set", f"masks={MASKS}")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Four images with one bright box each: of the middle ones a window is inside the grown box."""
    corners = [(2, 2), (28, 20), (28, 22), (60, 40)]
    folder = write_dataset(tmp_path_factory.mktemp("windows"), [(*corner, 44, 34) for corner in corners])
    run(folder, "observe", "coco:truth.json:images", "-d", "python:mine:detect", "--masks", MASKS, "--out", "run")
    run(
        folder, "observe", "coco:truth.json:images", "-d", "python:mine:detect", "--masks", "halves:3", "--out", "plain"
    )
    return folder


def test_evaluate_shows_outside_where_there_are_windows(workplace):
    found = json.loads(run(workplace, "evaluate", "run", "--json").stdout)
    assert list(found["defended"]["certified_recall"]) == ["far", "close", "over", "anywhere", "outside"]
    assert 0 < found["defended"]["certified_recall"]["outside"] < 100
    assert "defended.certified_recall.outside" in found["intervals"]
    assert "certified outside" in run(workplace, "evaluate", "run").stdout
    plain = json.loads(run(workplace, "evaluate", "plain", "--json").stdout)
    assert list(plain["defended"]["certified_recall"]) == ["far", "close", "over", "anywhere"]
    run(workplace, "evaluate", "run", "--objects", "objects.csv")
    rows = list(csv.DictReader((workplace / "objects.csv").open()))
    share = 100 * sum(row["outside"] == "True" for row in rows) / len(rows)
    assert share == found["defended"]["certified_recall"]["outside"]


def test_detect_certifies_boxes_against_the_outside(workplace):
    run(workplace, "detect", "images", *OPTIONS, "--out", "found", "--certify")
    rows = list(csv.DictReader((workplace / "found" / "boxes.csv").open()))
    assert {row["outside"] for row in rows} == {"True", "False"}
    assert {row["certified_not_fabricated_outside"] for row in rows} <= {"True", "False"}
    totals = json.loads((workplace / "found" / "certificates.json").read_text())
    assert totals["outside"] == sum(row["outside"] == "True" for row in rows)
    run(workplace, "detect", "images", *OPTIONS[:2], "--set", "masks=halves:3", "--out", "without", "--certify")
    assert "outside" not in (workplace / "without" / "boxes.csv").read_text()


def test_a_release_can_be_gated_on_the_outside(workplace):
    (workplace / "policy.toml").write_text(
        'format = 1\n\n[[require]]\nmetric = "certified_recall"\nlocation = "outside"\nat_least = "1 %"\n'
    )
    run(workplace, "defense", "new", "python:mine:detect", *OPTIONS[2:], "--out", "defense.json")
    arguments = (
        "gate",
        "run",
        "--policy",
        "policy.toml",
        "--defense",
        "defense.json",
        "--out",
        "gate",
        "--json",
        "--allow-undecided",
    )
    (requirement,) = json.loads(run(workplace, *arguments).stdout)["requirements"]
    assert requirement["outcome"] in ("pass", "undecided")
    assert "outside" in json.dumps(requirement)


def test_the_whole_outside_is_attacked(workplace):
    attack = ("attack", "images/1.png", *OPTIONS, "--patch-location", "outside", "--steps", 3, "--restarts", 1)
    found = json.loads(run(workplace, *attack, "--out", "attacked", "--json").stdout)
    (row,) = found["objects"]
    assert row["certified"]
    assert row["defended_survived"] is True
    several = ("attack", "images/1.png", *OPTIONS, "--patch-count", 3, "--steps", 3, "--restarts", 1, "--json")
    (row,) = json.loads(run(workplace, *several, "--out", "several").stdout)["objects"]
    assert not row["guarantee_broken"]
