"""Rates, intervals and the table of recalls."""

from __future__ import annotations

import json

import pytest

from objectseeker.attack.statistics import rate, read_recall, robust_recall, robust_rows, summary, wilson
from objectseeker.errors import ObjectSeekerError


def row(certified=False, clean=True, vanilla=True, defence=True, attacked=True, vacuous=False):
    return {
        "certified": certified,
        "vacuous": vacuous,
        "found_by_detector": clean,
        "found_by_defence": clean,
        "vanilla_survived": vanilla if attacked else None,
        "vanilla_survived_iou50": vanilla if attacked else None,
        "defence_survived": defence if attacked else None,
        "broken": certified and attacked and not defence,
    }


def test_wilson_interval_against_published_values():
    # Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)
    assert rate(0, 0)["share"] is None


def test_rates_count_what_was_attacked():
    rows = [
        row(certified=True, vanilla=False),
        row(vanilla=False, defence=False),
        row(vanilla=True, defence=True),
        row(clean=False, attacked=False),
        row(certified=True, attacked=False, vacuous=True),
    ]
    found = summary(rows)
    assert (found["objects"], found["attacked"], found["without_position"]) == (5, 3, 1)
    assert (found["hidden_from_detector"]["count"], found["hidden_from_detector"]["of"]) == (2, 3)
    assert (found["hidden_certified"]["count"], found["hidden_certified"]["of"]) == (0, 1)
    assert (found["hidden_uncertified"]["count"], found["hidden_uncertified"]["of"]) == (1, 2)
    assert found["broken_guarantees"] == 0
    assert summary([row(certified=True, defence=False)])["broken_guarantees"] == 1


def test_recall_under_attack_lies_between_certified_and_clean():
    rows = [row(certified=True)] * 3 + [row(defence=False, vanilla=False)] * 2 + [row()] * 4
    rows += [row(clean=False, attacked=False)]
    defended = robust_recall(rows)["defended"]
    assert defended["certified_recall"]["share"] == pytest.approx(0.3)
    assert defended["recall_under_attack"]["share"] == pytest.approx(0.7)
    assert defended["clean_recall"]["share"] == pytest.approx(0.9)
    assert robust_recall(rows)["vanilla"]["recall_under_attack"]["share"] == pytest.approx(0.7)
    with pytest.raises(ObjectSeekerError, match="no object"):
        robust_recall([])


def test_recalls_are_read_from_the_file_of_an_attack(tmp_path):
    rows = [row(certified=True, vanilla=False)] * 3 + [row(defence=False, vanilla=False)]
    file = tmp_path / "attack.json"
    file.write_text(json.dumps({"patch": {"area": 0.01}, "objects": rows}))
    vanilla, defended = robust_rows(read_recall(file))
    assert vanilla["under attack (upper bound)"].startswith("0.0 (0.0 to ")
    assert defended["certified (lower bound)"].startswith("75.0 (")
    assert defended["clean"].startswith("100.0 (")
    file.write_text("[]")
    with pytest.raises(ObjectSeekerError, match=r"no attack\.json"):
        read_recall(file)
    with pytest.raises(ObjectSeekerError, match="cannot read"):
        read_recall(tmp_path / "none.json")
