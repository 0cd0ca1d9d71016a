"""evaluate of several runs on the command line."""

import csv
import json

import pytest
from command import run, write_dataset

TUNED = ["--cross-tune", 5, "--operating-point", "clean_recall=0.9"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The same eight images with one bright box each, observed under two and under three lines."""
    boxes = [(3 + 4 * number, 2 + 2 * number, 20, 15) for number in range(8)]
    folder = write_dataset(tmp_path_factory.mktemp("compared"), boxes, (60, 40))
    for lines in (2, 3):
        observe = ["observe", "coco:truth.json:images", "-d", "python:mine:detect", "--out", f"k{lines}"]
        run(folder, *observe, "--masks", f"halves:{lines}")
    return folder


def test_runs_are_compared_with_the_first_at_their_own_operating_point(workplace):
    printed = run(workplace, "evaluate", "k2", "k3", "--out", "both").stdout
    assert "standard-1: 8 and 8 images" in " ".join(printed.split())
    assert "k3 - k2" in printed
    found = json.loads(run(workplace, "evaluate", "k2", "k3", "--json").stdout)
    (difference,) = found["differences"]
    assert (difference["run"], difference["against"], difference["paired"]) == ("k3", "k2", True)
    alone = json.loads(run(workplace, "evaluate", "k3", "--json").stdout)
    assert found["runs"][1]["evaluation"] == alone
    assert found["runs"][0]["metrics"]["undefended.ap50"]["value"] == pytest.approx(100)
    assert json.loads((workplace / "both" / "comparison.json").read_text()) == found
    rows = list(csv.DictReader((workplace / "both" / "comparison.csv").open()))
    assert list(rows[0]) == ["", "k2", "k3", "k3 - k2"]


def test_every_run_can_get_the_rule_that_suits_it(workplace):
    printed = run(workplace, "evaluate", "k2", "k3", *TUNED).stdout
    assert "tuned on each half with at most 5 points of AP50 lost" in " ".join(printed.split())
    found = json.loads(run(workplace, "evaluate", "k2", *TUNED, "--json").stdout)
    (one,) = found["runs"]
    assert (len(one["halves"]), one["images"], found["differences"]) == (2, 8, [])
    assert all(half["held_out"]["images"] == 4 for half in one["halves"])
    few = ["--cross-tune", 5, "--operating-point", "fppi=0.5", "--json"]
    (half, _) = json.loads(run(workplace, "evaluate", "k2", *few).stdout)["runs"][0]["halves"]
    assert half["held_out"]["operating_point"]["fppi"] == 0.5


def test_some_masks_of_a_run_give_what_a_run_of_them_gives(workplace):
    observe = ["observe", "coco:truth.json:images", "-d", "python:mine:detect", "--out", "sum"]
    run(workplace, *observe, "--masks", "halves:2+halves:3")
    one = json.loads(run(workplace, "evaluate", "sum", *TUNED, "--set", "masks=halves:3", "--json").stdout)["runs"][0]
    own = json.loads(run(workplace, "evaluate", "k3", *TUNED, "--json").stdout)["runs"][0]
    assert one | {"run": "k3"} == own
    told = run(workplace, "evaluate", "k3", *TUNED, "--set", "masks=halves:5", code=2).stderr
    assert "nothing was observed under the mask" in " ".join(told.split())
    done = run(workplace, "evaluate", "k3", *TUNED, "--set", "mask_threshold=0.5", code=2)
    assert "--cross-tune finds the rule itself" in done.stderr
