"""What `tune` found, as tables and as a plot."""

import csv
import dataclasses

import pytest
from evaluation_cases import VOCABULARY, noisy

from objectseeker.cli import _tuning_tables as frontier
from objectseeker.metrics import SearchSpace, SearchSpec, tune_images

RECALL = 0.9


@pytest.fixture(scope="module")
def tuning():
    choices = SearchSpace((0.6,), (1.0,), (0.1,))
    search = SearchSpec(mask_floor=0.15, clean_recall=RECALL, max_ap_loss=5.0, losses=(20.0,), search_space=choices)
    return tune_images(noisy(4, 12), VOCABULARY, search)


def test_both_rules_stand_side_by_side_at_every_loss(tuning):
    rows = frontier.frontier_rows(tuning)
    assert [row["max AP loss"] for row in rows] == ["5", "20"]
    for row, allowed in zip(rows, (5.0, 20.0), strict=True):
        for kind in ("paper", "evidence"):
            (one,) = (one for one in tuning.frontier[kind] if one.max_ap_loss == allowed)
            assert row[f"{kind} AP50"] == f"{one.held_out_split.outcome.ap50:.1f}"
            assert row[f"{kind} far"] == f"{one.held_out_split.outcome.certified_recall()['far']:.1f}"


def test_a_loss_that_one_rule_cannot_keep_is_a_dash(tuning):
    paper, evidence = tuning.frontier["paper"], tuning.frontier["evidence"]
    without = dataclasses.replace(tuning, frontier={"paper": paper[1:], "evidence": evidence})
    assert frontier.frontier_rows(without)[0]["paper far"] == "-"
    assert frontier.frontier_rows(without)[0]["evidence far"] != "-"


def test_the_best_setting_shows_what_its_rule_has(tuning):
    paper, _, evidence, _ = frontier.tuned_rows(tuning)
    assert (paper["rule, half"], evidence["rule, half"]) == ("paper, searched", "evidence, searched")
    assert paper["evidence_alpha"] == paper["evidence_power"] == ""
    assert evidence["evidence_alpha"] != ""


def test_everything_is_saved(tuning, tmp_path):
    pytest.importorskip("matplotlib")
    frontier.save_tuning(tmp_path / "tuned", tuning)
    names = {file.name for file in (tmp_path / "tuned").iterdir()}
    assert names == {"tuning.json", "tuning.md", "frontier.csv", "frontier.svg", "frontier.png"}
    with (tmp_path / "tuned" / "frontier.csv").open() as file:
        assert list(csv.DictReader(file)) == frontier.frontier_rows(tuning)
    plot = frontier.frontier_plot(tuning)
    assert [panel.title for panel in plot.panels] == ["far", "close", "over", "mean"]
    drawn = plot.panels[0].series[1]
    assert sorted(drawn.x) == sorted(one.held_out_split.ap_loss for one in tuning.frontier["evidence"])
