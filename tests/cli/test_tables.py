"""Tables hold names that others chose: none of them is markup, a formula or the end of a row."""

import csv
import io

import pytest
from evaluation_cases import EVIDENCE, image
from rich.console import Console

from objectseeker.attack.metrics import attack_effects, rate_with_interval
from objectseeker.cli import _evaluation_tables as evaluation_tables
from objectseeker.core.label_map import LabelMap
from objectseeker.metrics import evaluate_images
from objectseeker.metrics.slices import NO_TAGS, measure_slices
from objectseeker.text import escape_csv_cell, to_csv, to_markdown

NAMES = ("[/foo]", "=1+1 | <b>\x1b[31m\n")


@pytest.fixture(scope="module")
def evaluation():
    views = [[(10, 10, 50, 50, 0.9, 0)]] * 4
    one = image([(10, 10, 50, 50, 0.9, 0), (60, 60, 90, 90, 0.9, 1)], [(10, 10, 50, 50, 0), (60, 60, 90, 90, 1)], views)
    return evaluate_images([one], LabelMap.from_names(NAMES), EVIDENCE)


def shown(parts) -> str:
    text = io.StringIO()
    console = Console(file=text, width=200)
    for part in parts:
        if not isinstance(part, str):
            console.print(part)
    return text.getvalue()


def test_class_names_are_shown_as_they_are_and_obeyed_by_nothing(evaluation):
    slices = measure_slices(evaluation.tally, NO_TAGS, ["class"], EVIDENCE.threat)
    printed = shown(evaluation_tables.render_terminal(evaluation, slices=slices))
    assert "[/foo]" in printed
    assert "=1+1 | <b>\\x1b[31m\\n" in printed
    assert "\x1b" not in printed


def test_files_are_tables_whatever_the_names(evaluation, tmp_path):
    evaluation_tables.save(tmp_path, evaluation)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "evaluation.csv").read_text(), newline="")))
    assert [row["class"] for row in rows] == ["[/foo]", "'" + NAMES[1]]
    lines = [line for line in (tmp_path / "evaluation.md").read_text().splitlines() if line.startswith("|")]
    assert any(r"=1+1 \| &lt;b>\x1b[31m\n" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_undefended_is_next_to_defended_with_intervals_and_definitions_on_request(evaluation):
    rows = {row[""]: row for row in evaluation.rows()}
    assert rows["AP50"]["undefended"].startswith(f"{evaluation.undefended.ap50:.1f} (")
    interval = evaluation.intervals["defended.certified_recall.far"]
    share = evaluation.defended.certified_recall()["far"]
    assert rows["certified far"]["defended"] == f"{share:.1f} ({interval.low:.1f} to {interval.high:.1f})"
    assert rows["certified far"]["undefended"] == ""
    short = evaluation_tables.render_terminal(evaluation)
    explained = evaluation_tables.render_terminal(evaluation, explained=True)
    told = " ".join(line for line in explained if isinstance(line, str))
    for words in ("filter_ioa=0.6", "edge_factor=0.8", "cluster_distance=0.1", "clean recall: ", "false alerts: "):
        assert words in told
        assert words not in " ".join(line for line in short if isinstance(line, str))


def test_cells_that_a_spreadsheet_would_compute():
    for formula in ("=1+1", "+1", "@x", "-x", "-1+cmd", "\t=1", "\r=1", "-1e"):
        assert escape_csv_cell(formula) == f"'{formula}"
    for plain in ("", "cat", "a=b", "-", "-0.5", "-12", "-1e-07", "0.5", "[/foo]"):
        assert escape_csv_cell(plain) == plain
    assert to_csv([{"=x": "-1.5", "b": -1.5, "c": None}]) == "'=x,b,c\n-1.5,-1.5,\n"
    assert to_csv([]) == to_markdown([]) == ""


def under_attack():
    """Recall of three attacked objects, of which the defense lost one."""
    fates = (("misclassified", "found"), ("disappeared", "disappeared"), ("disappeared", "found"))
    rows = [
        {"effects": {"undefended": {"object": a, "fabricated": 0}, "defended": {"object": b, "fabricated": 2}}}
        for a, b in fates
    ]
    recalls = {name: rate_with_interval(2, 3) for name in ("certified_recall", "recall_under_attack", "clean_recall")}
    return {"objects": 3, "undefended": recalls, "defended": recalls, "effects": attack_effects(rows)}


def test_what_an_attack_did_is_shown_by_kind_and_side_by_side(evaluation, tmp_path):
    attacked = under_attack()
    printed = shown(evaluation_tables.render_terminal(evaluation, attacked)).splitlines()
    lines = [" ".join(line.split()) for line in printed]
    assert "misclassified 1 of 3: 33% (6% to 79%) 0 of 3: 0% (0% to 56%)" in lines
    assert "disappeared 2 of 3: 67% (21% to 94%) 1 of 3: 33% (6% to 79%)" in lines
    assert "fabricated boxes 0 in 0 of 3 images 6 in 3 of 3 images" in lines
    evaluation_tables.save(tmp_path, evaluation, attacked)
    written = (tmp_path / "evaluation.md").read_text()
    assert "| defended | 2 of 3: 67% (21% to 94%) | 0 of 3: 0% (0% to 56%) | 1 of 3: 33% (6% to 79%) | 6 in" in written
    for word in ("found", "misclassified", "disappeared", "fabricated"):
        assert f"{word}: " in evaluation_tables.ATTACK_LEGEND
    assert evaluation_tables.as_json(evaluation, attacked)["under_attack"]["effects"] == attacked["effects"]


def test_an_attack_on_no_object_has_no_effects():
    unattacked = evaluation_tables.effect_rows(attack_effects([]))
    assert {cell for row in unattacked for name, cell in row.items() if name != "detector"} == {"-"}
