"""Windows on the command line: from a run to certificates against everything outside an object's grown box."""

import csv
import json

import numpy as np
import pytest
from command import run, write_dataset

from objectseeker import Defense, open_run
from objectseeker import tune as tune_in_python
from objectseeker.core.recipes import has_windows
from objectseeker.metrics.tuning import split_by_share

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
    (of_class,) = json.loads(run(workplace, "evaluate", "run", "--by", "class", "--json").stdout)["slices"]["rows"]
    assert of_class["certified_anywhere"] == found["defended"]["certified_recall"]["anywhere"]
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


def test_a_defense_is_tuned_for_the_outside_without_labels(tmp_path):
    """From images to certificates: what is chosen, what was measured of it, and what detect and evaluate then show."""
    rng = np.random.default_rng(5)
    corners = rng.integers((0, 0), (40, 24), (24, 2)).tolist()
    sizes = rng.integers((26, 18), (50, 36), (24, 2)).tolist()
    write_dataset(tmp_path, [(*corner, *size) for corner, size in zip(corners, sizes, strict=True)])
    tune = ("tune", "images", "-d", "python:mine:detect", "--threshold", 0.5, "--spurious", 1, "--passes", 40)
    assert "certified outside, %" in run(tmp_path, *tune, "--patch-location", "outside", "--out", "tuned").stdout
    defense, content = (tmp_path / "tuned" / name for name in ("defense.json", "tuning.json"))
    chosen, content = Defense.load(defense), json.loads(content.read_text())
    assert has_windows(chosen.masks)
    assert chosen.masks.forward_passes(90, 60) == content["forward_passes"] <= 40
    assert content["locations"] == list(content["best"]["search_split"]["certified"]) == ["outside"]

    run(tmp_path, "detect", "images", "--defense", defense, "--out", "found", "--certify")
    rows = list(csv.DictReader((tmp_path / "found" / "boxes.csv").open()))
    names = [image.id for image in open_run(tmp_path / "tuned" / "run").manifest.images]
    held_out = {names[number] for number in split_by_share(24, 0.5, 0)[1]}
    verdicts = [row["outside"] == "True" for row in rows if row["image"] in held_out and row["origin"] == "base"]
    measured = content["best"]["held_out_split"]["certified"]["outside"]["value"]
    assert 0 < 100 * np.mean(verdicts) == pytest.approx(measured, abs=1e-6)

    run(tmp_path, "observe", "coco:truth.json:images", "--defense", defense, "--out", "labeled")
    evaluated = json.loads(run(tmp_path, "evaluate", "labeled", "--defense", defense, "--json").stdout)
    assert evaluated["defended"]["certified_recall"]["outside"] > 0
    run(tmp_path, *tune, "--out", "one-patch")
    other = Defense.load(tmp_path / "one-patch" / "defense.json")
    assert not has_windows(other.masks)
    in_python = tune_in_python(tmp_path / "tuned" / "run", threshold=0.5, spurious=1, passes=40, location="outside")
    assert in_python.best.to_dict() == content["best"]


def test_a_defense_is_tuned_against_two_patches(tmp_path):
    """Pairs of half masks compete with windows, and the gain is about two patches."""
    rng = np.random.default_rng(6)
    corners = rng.integers((0, 0), (60, 40), (16, 2)).tolist()
    write_dataset(tmp_path, [(*corner, 30, 20) for corner in corners])
    two = ("--patch-count", 2, "--patch-area", "0.5%", "--patch-location", "far")
    tune = ("tune", "images", "-d", "python:mine:detect", "--threshold", 0.5, "--spurious", 2, "--passes", 60)
    run(tmp_path, *tune, *two, "--out", "tuned")
    content = json.loads((tmp_path / "tuned" / "tuning.json").read_text())
    tried = {row["masks"]: row["mean_certified"] or 0 for row in content["recipes"]}
    assert any(masks.startswith("pairs") and gain > 0 for masks, gain in tried.items())
    assert content["patch_count"] == 2
    found = content["best"]["search_split"]["certified"]["far"]["value"]
    assert found > 0
    of_one = run(
        tmp_path, "tune", "tuned/run", "--threshold", 0.5, "--spurious", 2, "--masks", content["masks"], "--json"
    )
    assert json.loads(of_one.stdout)["best"]["search_split"]["certified"]["far"]["value"] >= found
    message = run(tmp_path, *tune, "--patch-location", "near", "--out", "x", code=2).stderr
    assert "location must be one of far, close, over, anywhere, outside: got 'near'" in message
