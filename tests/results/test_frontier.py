"""What `tune` found, as tables and as a plot."""

import csv
import dataclasses

import pytest
from evaluation_cases import NAMES, PAPER, noisy

from objectseeker.evaluation import Choices, tune
from objectseeker.results import tuned as frontier

RECALL = 0.9


@pytest.fixture(scope="module")
def tuning():
    settings = dataclasses.replace(PAPER, clean_recall=RECALL)
    choices = Choices((0.6,), (1.0,), (0.1,))
    return tune(noisy(4, 12), NAMES, settings, mask_floor=0.15, most_loss=5.0, losses=(20.0,), choices=choices)


def test_both_rules_stand_side_by_side_at_every_loss(tuning):
    rows = frontier.frontier_rows(tuning)
    assert [row["loss allowed"] for row in rows] == ["5", "20"]
    for row, allowed in zip(rows, (5.0, 20.0), strict=True):
        for family in ("paper", "evidence"):
            (one,) = (one for one in tuning.frontier[family] if one.most_loss == allowed)
            assert row[f"{family} AP50"] == f"{one.held_out['ap50']:.1f}"
            assert row[f"{family} far"] == f"{one.held_out['certified_far']:.1f}"


def test_a_loss_that_one_rule_cannot_keep_is_a_dash(tuning):
    paper, evidence = tuning.frontier["paper"], tuning.frontier["evidence"]
    without = dataclasses.replace(tuning, frontier={"paper": paper[1:], "evidence": evidence})
    assert frontier.frontier_rows(without)[0]["paper far"] == "-"
    assert frontier.frontier_rows(without)[0]["evidence far"] != "-"


def test_the_best_setting_shows_what_its_rule_has(tuning):
    paper, _, evidence, _ = frontier.tuned_rows(tuning)
    assert (paper["rule, half"], evidence["rule, half"]) == ("paper, searched", "evidence, searched")
    assert paper["low alpha"] == paper["power"] == ""
    assert evidence["low alpha"] != ""


def test_everything_is_saved(tuning, tmp_path):
    pytest.importorskip("matplotlib")
    frontier.save(tmp_path / "tuned", tuning, RECALL)
    names = {file.name for file in (tmp_path / "tuned").iterdir()}
    assert names == {"tuning.json", "tuning.md", "frontier.csv", "frontier.svg", "frontier.png"}
    with (tmp_path / "tuned" / "frontier.csv").open() as file:
        assert list(csv.DictReader(file)) == frontier.frontier_rows(tuning)
    plot = frontier.frontier_plot(tuning, RECALL)
    assert [panel.title for panel in plot.panels] == ["far", "close", "over", "mean"]
    drawn = plot.panels[0].series[1]
    assert sorted(drawn.x) == sorted(one.held_out["ap50_loss"] for one in tuning.frontier["evidence"])
