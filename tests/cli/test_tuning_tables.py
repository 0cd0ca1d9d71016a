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
    expected = [(price, kind) for kind in ("paper", "evidence") for price in ("5", "20")]
    assert [(row["price"], row["rule"]) for row in rows] == expected
    for row, one in zip(rows, tuning.frontier, strict=True):
        assert row["AP50"] == f"{one.held_out_split.outcome.ap50:.1f}"
        assert row["far"] == f"{one.held_out_split.outcome.certified_recall()['far']:.1f}"
        assert row["searched"] == f"{one.search_split.ap_loss:.1f}"


def test_a_loss_that_one_rule_cannot_keep_has_no_row(tuning):
    without = dataclasses.replace(tuning, frontier=tuning.frontier[1:])
    assert [(row["price"], row["rule"]) for row in frontier.frontier_rows(without)][:2] == [
        ("20", "paper"),
        ("5", "evidence"),
    ]


def test_the_best_rule_is_shown_where_it_was_searched_and_held_out(tuning):
    best = tuning.best
    for row in tuning.rows():
        if row[""] == "certified far, %":
            assert row["searched"] == f"{best.search_split.outcome.certified_recall()['far']:.1f}"
            assert row["held out"] == f"{best.held_out_split.outcome.certified_recall()['far']:.1f}"
            break
    else:
        raise AssertionError("no row of far")


def test_every_setting_shows_what_its_rule_has(tuning):
    paper, _, evidence, _ = frontier.frontier_rows(tuning)
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
    assert [panel.title for panel in plot.panels] == ["paper rule", "evidence rule"]
    assert [line.label for line in plot.panels[1].series] == ["far", "close", "over", "mean"]
    drawn = plot.panels[1].series[0]
    assert drawn.x == sorted(one.held_out_split.ap_loss for one in tuning.frontier if one.kind == "evidence")
