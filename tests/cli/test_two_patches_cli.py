"""Two patches on the command line: a run of pairs of masks, and what is read from it."""

import csv
import json

import numpy as np
import pytest
from command import run, write_dataset

OBSERVE = ("observe", "coco:truth.json:images", "-d", "python:mine:detect", "--masks")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Four images with one bright box each."""
    corners = [(5, 5), (30, 20), (55, 30), (10, 35)]
    folder = write_dataset(tmp_path_factory.mktemp("two"), [(*corner, 30, 20) for corner in corners])
    done = run(folder, *OBSERVE, "pairs:6", "--out", "run")
    assert "24 half masks, 300 pairs of them, 198 of which" in done.stderr  # before it starts
    assert "4 images x 199 views = 796 forward passes" in done.stderr
    assert "4 images observed" in done.stdout
    return folder


def test_the_cost_of_pairs_is_said_before_anything_is_done(workplace):
    done = run(workplace, *OBSERVE, "pairs", "--out", "never", "--estimate")
    assert "10 lines per axis are 40 half masks, 820 pairs of them, 530 of which" in done.stdout
    assert "4 images x 531 views = 2,124 forward passes" in done.stdout
    assert not (workplace / "never").exists()


def test_evaluate_and_certify_against_two_patches_agree(workplace):
    def certified(count):
        arguments = [
            "--patch-area",
            0.03,
            "--patch-count",
            count,
            "--set",
            "rule=paper",
            "--set",
            "alpha=0.5",
            "--set",
            "beta=0",
            "--json",
        ]
        found = json.loads(run(workplace, "evaluate", "run", *arguments).stdout)
        assert found["settings"]["patch_count"] == count
        arguments = [
            "--patch-area",
            0.03,
            "--patch-count",
            count,
            "--set",
            "rule=paper",
            "--set",
            f"mask_threshold={found['defended']['mask_threshold']}",
        ]
        run(workplace, "evaluate", "run", *arguments, "--objects", f"{count}.csv")
        rows = list(csv.DictReader((workplace / f"{count}.csv").open()))
        shares = found["defended"]["certified_recall"]
        for where in ("far", "close", "over"):
            assert shares[where] == 100 * np.mean([row[where] == "True" for row in rows])
        return shares

    once, twice = certified(1), certified(2)
    assert all(twice[where] <= once[where] for where in once)
    assert twice["far"] > 0
    assert twice != once


def test_half_masks_are_said_to_be_the_weaker_choice(workplace):
    run(workplace, *OBSERVE, "halves:6", "--out", "halves")
    done = run(workplace, "evaluate", "halves", "--patch-count", 2, "--set", "mask_threshold=0.8")
    assert "halves:6 remove one patch each" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*OBSERVE, "thirds", "--out", "x"), "cannot read the masks 'thirds'"),
        ((*OBSERVE, "pairs:81", "--out", "x"), "lines must be at most 80: got 81"),
        (("evaluate", "run", "--patch-count", 17), "patch count must be at most 16: got 17"),
        ((*OBSERVE, "halves:6", "--out", "run"), "masks was pairs:6, now halves:6"),
    ],
)
def test_what_cannot_work_is_one_sentence(workplace, arguments, sentence):
    done = run(workplace, *arguments, code=2)
    assert sentence in done.stderr
