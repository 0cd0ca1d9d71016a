"""The baseline on the command line: observe adds its features to a run, evaluate shows it."""

import json

import pytest
from command import photographs, run
from detectorguard_network import write_network


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Eight photographs with one bright object each, observed with a small objectness network that sees brightness."""
    boxes = [(6 * number, 20, 90, 96) for number in range(8)]
    folder = photographs(tmp_path_factory.mktemp("baseline"), boxes, (152, 136), dark=20)
    write_network(folder / "network.onnx")
    run(folder, *observe())
    return folder


def observe(*more):
    arguments = ["observe", "coco:truth.json:photos", "-d", "python:mine:detect", "--out", "run", "--masks", "halves:4"]
    baseline = ["--baseline", "detectorguard", "--baseline-network", "network.onnx", "--baseline-size", "152x136"]
    return [*arguments, *baseline, *more]


def test_observe_adds_the_features_once(workplace):
    files = {file: file.stat().st_mtime_ns for file in (workplace / "run" / "detectorguard").iterdir()}
    assert len(files) > 1
    run(workplace, *observe())
    assert files == {file: file.stat().st_mtime_ns for file in (workplace / "run" / "detectorguard").iterdir()}


def test_evaluate_shows_it_beside_ours(workplace):
    answer = json.loads(run(workplace, "evaluate", "run", "--baseline", "detectorguard", "--json").stdout)
    assert [row["defense"] for row in answer["rows"]][:2] == ["undefended", "DetectorGuard"]
    run(workplace, "evaluate", "run", "--baseline", "detectorguard", "--out", "tables")
    assert (workplace / "tables" / "detectorguard.csv").read_text().count("\n") > 3


def test_an_unknown_baseline_and_a_missing_network_are_one_sentence(workplace):
    done = run(workplace, *observe("--baseline", "magic"), code=2)
    assert "baseline must be one of detectorguard, got 'magic'" in done.stderr
    done = run(workplace, *observe("--baseline-network", "nowhere.onnx"), code=2)
    assert "nowhere.onnx" in done.stderr
