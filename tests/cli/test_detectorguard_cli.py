"""DetectorGuard on the command line: evaluate compares it with ours."""

import json

import pytest
from command import run, write_dataset
from detectorguard_network import write_network

from objectseeker.detectorguard.features import ObjectnessFeatures, add_features
from objectseeker.runs.run import open_run


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Eight images with one bright object each, with features of a small network that sees brightness."""
    boxes = [(6 * number, 20, 90, 96) for number in range(8)]
    folder = write_dataset(tmp_path_factory.mktemp("guard"), boxes, (152, 136), dark=20)
    run(folder, "observe", "coco:truth.json:images", "-d", "python:mine:detect", "--out", "run", "--masks", "halves:4")
    network = ObjectnessFeatures(write_network(folder / "network.onnx"), input_size=(152, 136))
    add_features(open_run(folder / "run"), network)
    return folder


def test_evaluate_compares_it_with_ours(workplace):
    answer = json.loads(run(workplace, "evaluate", "run", "--measure", "detectorguard", "--json").stdout)
    assert [row["defense"] for row in answer["rows"]][:2] == ["undefended", "DetectorGuard"]
    assert answer["network"]["network"] == "network.onnx"  # the stored features count
    run(workplace, "evaluate", "run", "--measure", "detectorguard", "--out", "tables")
    assert (workplace / "tables" / "detectorguard.csv").read_text().count("\n") > 3


def test_it_is_compared_at_a_clean_recall(workplace):
    done = run(workplace, "evaluate", "run", "--measure", "detectorguard", "--operating-point", "fppi=1", code=2)
    assert "omit fppi, fabrication and --by" in done.stderr
