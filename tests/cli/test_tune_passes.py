"""A budget on the command line, the whole way: observe a sum, choose masks, observe with them, evaluate."""

import json

import numpy as np
import pytest
from command import write_dataset

from objectseeker import Defense
from objectseeker.datasets import open_dataset
from objectseeker.detectors import load_detector
from objectseeker.runs.observe import observe

FEW = (
    "--operating-point",
    "clean_recall=0.5",
    "--set",
    "filter_ioa=0.6",
    "--set",
    "edge_factor=1",
    "--set",
    "cluster_distance=0.1",
)
TUNE = ("tune", "sum", "--patch-area", "4%", *FEW)


def test_from_a_sum_of_recipes_to_certificates_of_the_chosen_one(call, tmp_path):
    rng = np.random.default_rng(0)
    boxes = [(int(rng.integers(5, 50)), int(rng.integers(5, 30)), 30, 20) for _ in range(4)]
    write_dataset(tmp_path, boxes)
    observe = ("observe", "coco:truth.json:images")
    call(*observe, "-d", "python:mine:detect", "--masks", "halves:3+bands:4%", "--out", "sum")
    said, _ = call(*TUNE, "--passes", "13", "--out", "tuned")
    defense = Defense.load("tuned/defense.json")
    assert f"to certify {defense.masks}, observe again with the defense" in said
    chosen = json.loads((tmp_path / "tuned" / "tuning.json").read_text())["best"]
    assert chosen["masks"] == str(defense.masks)
    assert chosen["forward_passes"] == defense.masks.forward_passes(90, 60) <= chosen["budget"] == 13

    _, noted = call("evaluate", "sum", "--defense", "tuned/defense.json", code=2)
    assert f"its masks are {defense.masks}, the run's halves:3+bands:0.04" in noted
    call(*observe, "--defense", "tuned/defense.json", "--out", "own")
    answer = json.loads(call("evaluate", "own", "--defense", "tuned/defense.json", "--patch-area", "4%", "--json")[0])
    assert answer["defense"]["masks"] == str(defense.masks)
    searched, held_out = (chosen[half]["certified_far"] for half in ("search_split", "held_out_split"))
    assert answer["defended"]["certified_recall"]["far"] == pytest.approx((searched + held_out) / 2)

    _, noted = call(*TUNE, "--passes", "4", code=2)
    assert "the fewest are 5, with halves:1" in noted.splitlines()[-1]
    assert defense.tuned_on is not None
    several = call(*TUNE, "--masks", "halves:1", "--masks", "halves:3", code=2)[1]
    assert "one of several masks is chosen within a budget: got halves:1, halves:3. Add passes." in several
    one = json.loads(call(*TUNE, "--masks", "halves:1", "--json")[0])
    assert (one["masks"], one["forward_passes"]) == ("halves:1", 5)


def test_several_budgets_have_a_defense_each(call, tmp_path):
    """By labels and by own boxes: one row for each, and the largest is the best."""
    write_dataset(tmp_path, [(10, 10, 30, 20), (40, 12, 30, 20), (20, 30, 30, 20), (50, 5, 25, 25)] * 4)
    call("observe", "coco:truth.json:images", "-d", "python:mine:detect", "--masks", "halves:3", "--out", "sum")
    for out, more in (("labels", TUNE[2:]), ("own", ("--threshold", "0.5", "--spurious", "2", *FEW[2:]))):
        said, _ = call("tune", "sum", *more, "--passes", "5", "--passes", "13", "--out", out)
        content = json.loads((tmp_path / out / "tuning.json").read_text())
        assert [point["budget"] for point in content["frontier"]] == [5, 13]
        assert content["best"] == content["frontier"][-1]
        for budget, masks in ((5, "halves:1"), (13, "halves:3")):
            assert str(Defense.load(f"{out}/defense-{budget}.json").masks) == masks
            assert f"at most {budget} passes: {masks}" in said
        assert {row["masks"] for row in content["recipes"]} == {"halves:1", "halves:3"}


def test_a_run_whose_detector_has_no_spec_is_tuned_without_a_defense(call, tmp_path, monkeypatch):
    write_dataset(tmp_path, [(10, 10, 30, 20), (40, 12, 30, 20)])
    monkeypatch.syspath_prepend(tmp_path)
    dataset, detector = open_dataset("coco:truth.json:images"), load_detector("python:mine:detect")
    observe(dataset, detector, out=tmp_path / "sum", masks="halves:3")
    said, noted = call(*TUNE, "--passes", "13", "--out", "tuned")
    assert "no defense is written" in noted
    assert "halves:" in said
    assert not list((tmp_path / "tuned").glob("defense*"))
