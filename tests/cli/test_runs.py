"""observe, evaluate and tune on the command line, on a small dataset made here."""

import csv
import json

import numpy as np
import pytest
from command import certificates, run, write_dataset

from objectseeker import Defense, Halves

OBSERVE = ("observe", "coco:truth.json:images", "-d", "python:mine:detect")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Twelve images with one bright box each, as COCO annotations; one class the detector does not know."""
    rng = np.random.default_rng(0)
    boxes = [(int(rng.integers(5, 50)), int(rng.integers(5, 30)), 30, 20) for _ in range(12)]
    folder = write_dataset(tmp_path_factory.mktemp("runs"), boxes)
    content = json.loads((folder / "truth.json").read_text())
    content["annotations"].append({"id": 99, "image_id": 0, "category_id": 2, "bbox": [0, 0, 9, 9], "iscrowd": 0})
    content["categories"].append({"id": 2, "name": "dark"})
    (folder / "truth.json").write_text(json.dumps(content))
    arguments = ["observe", "coco:truth.json:images", "-d", "python:mine:detect", "--out", "run", "--masks", "halves:6"]
    done = run(folder, *arguments)
    assert "12 images observed" in done.stdout
    assert "dark" in done.stderr  # excluded, and said so
    return folder


def test_estimate_says_what_it_would_cost_and_does_nothing(workplace):
    arguments = [
        "observe",
        "coco:truth.json:images",
        "-d",
        "python:mine:detect",
        "--out",
        "never",
        "--masks",
        "halves:6",
    ]
    answer = json.loads(run(workplace, *arguments, "--estimate", "--json").stdout)
    assert answer["images"] == 12
    assert answer["forward_passes"] == 12 * 25
    assert answer["hours"] > 0
    assert not (workplace / "never").exists()


def test_evaluate_prints_what_machines_need(workplace):
    answer = json.loads(
        run(
            workplace, "evaluate", "run", "--set", "rule=paper", "--set", "alpha=0.5", "--set", "beta=0", "--json"
        ).stdout
    )
    assert answer["images"] == answer["objects"] == 12
    assert answer["undefended"].keys() >= {"ap50", "ap50_coco"}
    assert answer["undefended"]["ap50_coco"] == pytest.approx(100)
    defended = answer["defended"]
    wanted = {"ap50", "base_threshold", "mask_threshold", "clean_recall", "certified_recall", "vacuous_far"}
    assert defended.keys() >= wanted
    assert defended["certified_recall"].keys() >= {"far", "close", "over"}
    assert defended["ap50"] == pytest.approx(100)
    assert defended["certified_recall"]["far"] >= defended["certified_recall"]["over"] > 50


def test_without_scores_the_rule_is_everybodys_and_with_them_the_papers(workplace):
    answer = json.loads(run(workplace, "evaluate", "run", "--json", "--patch-area", 0.05).stdout)
    rule = answer["defense"]["rule"]
    assert (rule["base_threshold"], rule["mask_threshold"], rule["evidence_threshold"], rule["edge_factor"]) == (
        0.5,
        0.65,
        None,
        0.85,
    )
    assert answer["settings"]["patch_area"] == 0.05
    answer = json.loads(run(workplace, "evaluate", "run", "--json", "--set", "rule=paper", "--set", "alpha=0.8").stdout)
    assert (answer["defense"]["rule"]["evidence_threshold"], answer["defense"]["rule"]["edge_factor"]) == (None, 1.0)
    assert answer["defense"]["threshold_schedule"]["alpha"] == 0.8


def test_evaluate_at_another_operating_point_says_which(workplace):
    own = json.loads(run(workplace, "evaluate", "run", "--json").stdout)["defended"]
    assert own["base_threshold"] == 0.5
    there = json.loads(run(workplace, "evaluate", "run", "--operating-point", "base_threshold=0.3", "--json").stdout)[
        "defended"
    ]
    assert there["base_threshold"] == 0.3
    recall = json.loads(run(workplace, "evaluate", "run", "--operating-point", "clean_recall=0.9", "--json").stdout)[
        "defended"
    ]
    assert recall["base_threshold"] > own["base_threshold"]
    assert recall["clean_recall"] >= 90


def test_evaluate_with_few_fppi_and_slice_by_slice(workplace):
    lines = ["image,weather", *(f"{n},{'rain' if n % 3 else 'sun'}" for n in range(11))]
    (workplace / "tags.csv").write_text("\n".join(lines))
    asked = ["--operating-point", "fppi=0.5", "--tags", "tags.csv", "--by", "weather", "--by", "size=small"]
    done = run(workplace, "evaluate", "run", *asked, "--out", "sliced")
    assert "with at most 0.5 false positives per image" in done.stdout
    assert "worst weather: unknown, every slice has fewer than 30 objects: weather=rain (7), weather" in done.stdout
    assert "1 of 12 images have no row in tags.csv" in done.stderr
    found = json.loads((workplace / "sliced" / "evaluation.json").read_text())
    assert (found["operating_point"]["selected_by"], found["operating_point"]["fppi"]) == ("fppi", 0.5)
    assert found["undefended"]["clean_recall"] == pytest.approx(100)
    assert found["defended"]["fppi"] <= 0.5
    assert found["defended"]["base_threshold"] == 0.01  # nothing is known of base boxes of lower scores
    rows = list(csv.DictReader((workplace / "sliced" / "slices.csv").open()))
    assert [row["slice"] for row in rows] == ["weather=rain", "weather=sun", "size=small"]
    assert [row["slice"] for row in found["slices"]["rows"]] == [row["slice"] for row in rows]
    assert "| weather=rain | 7 | 7 (few) |" in (workplace / "sliced" / "evaluation.md").read_text()


@pytest.mark.slow
def test_evaluate_shows_recall_under_attack(workplace):
    """Only an attack on the same defense counts: any other file is rejected with the difference."""
    run(
        workplace,
        "attack",
        "run",
        "--out",
        "hit",
        "--steps",
        2,
        "--restarts",
        1,
        "--max-objects",
        2,
        "--mode",
        "black-box",
    )
    done = run(workplace, "evaluate", "run", "--attacked", "hit/attack.json", "--out", "attacked")
    assert "under attack (upper bound)" in done.stdout
    assert "under attack (upper bound)" in (workplace / "attacked" / "evaluation.md").read_text()
    recall = json.loads((workplace / "attacked" / "evaluation.json").read_text())["under_attack"]
    assert recall["objects"] == 2
    assert recall["effects"] == json.loads((workplace / "hit" / "attack.json").read_text())["summary"]["effects"]
    assert "fabricated boxes" in done.stdout
    for change, message in (
        (["--set", "rule=paper", "--set", "mask_threshold=0.9"], "mask_threshold 0.65, requested 0.9"),
        (["--set", "edge_factor=0.9"], "edge_factor 0.85, requested 0.9"),
        (["--patch-area", "2%"], "0.01 of the image"),
        (["--certification-threshold", 0.1], "0.0, requested 0.1"),
    ):
        done = run(workplace, "evaluate", "run", "--attacked", "hit/attack.json", *change, code=2)
        assert message in done.stderr
    run(workplace, *OBSERVE, "--out", "other-masks", "--masks", "halves:4")
    done = run(workplace, "evaluate", "other-masks", "--attacked", "hit/attack.json", code=2)
    assert "masks halves:6, requested halves:4" in done.stderr
    (workplace / "broken.json").write_text("{}")
    done = run(workplace, "evaluate", "run", "--attacked", "broken.json", code=2)
    assert "not an attack.json: got broken.json" in done.stderr


def test_evaluate_writes_json_csv_and_markdown(workplace):
    done = run(
        workplace,
        "evaluate",
        "run",
        "--set",
        "rule=paper",
        "--set",
        "alpha=0.5",
        "--set",
        "beta=0",
        "--out",
        "tables",
        "--patch-area",
        0.3,
    )
    assert "certified far" in done.stdout
    found = json.loads((workplace / "tables" / "evaluation.json").read_text())
    assert found["settings"]["patch_area"] == 0.3
    (row,) = csv.DictReader((workplace / "tables" / "evaluation.csv").open())
    assert row["class"] == "bright"
    assert float(row["far"]) == pytest.approx(found["per_class"][0]["certified_recall"]["far"], abs=0.06)
    text = (workplace / "tables" / "evaluation.md").read_text()
    assert "| undefended |" in text
    assert "12 images, 12 objects" in text


def test_tune_reports_both_halves_and_both_rules(workplace):
    asked = ["--operating-point", "clean_recall=0.5", "--by", "class", "--out", "tuned", "--json"]
    answer = json.loads(run(workplace, "tune", "run", *asked).stdout)
    assert {found["rule"]["evidence_threshold"] is None for found in answer["frontier"]} == {True, False}  # paper: True
    for found in answer["frontier"]:
        assert found["search_split"]["certified_far"] is not None
        assert found["held_out_split"]["ap50"] > 0
    assert "| searched | held out |" in (workplace / "tuned" / "tuning.md").read_text()
    (row,) = csv.DictReader((workplace / "tuned" / "slices.csv").open())
    assert (row["slice"], row["objects"]) == ("class=bright", "6")
    best = answer["best"]["held_out_split"]
    assert float(row["certified_over"]) == pytest.approx(best["certified_over"])  # one class: all of the held-out half
    assert "worst class: unknown" in (workplace / "tuned" / "tuning.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "nothing"], "there is no run in nothing"),
        (
            ["evaluate", "run", "--set", "rule=paper", "--set", "alpha=0.05", "--set", "beta=0"],
            "the run stores none below 0.1",
        ),
        (["evaluate", "run", "--set", "evidence_alpha=2"], "evidence_alpha must lie"),
        (["evaluate", "run", "--operating-point", "fppi=-1"], "fppi must be at least 0: got -1.0"),
        (["evaluate", "run", "--operating-point", "recall=0.8"], "clean_recall, fppi, base_threshold"),
        (["evaluate", "run", "--by", "weather"], "no tags are called 'weather': give --tags FILE"),
        (["evaluate", "run", "--measure", "detectorguard", "--operating-point", "fppi=1"], "at a clean recall"),
        (["evaluate", "run", "run", "--measure", "detectorguard"], "takes one run"),
        (
            ["evaluate", "run", "--measure", "everything"],
            "--measure must be fabrication or detectorguard: got everything",
        ),
        (["tune", "run", "--passes", "9", "--by", "class"], "omit --passes"),
        (["tune", "run", "--set", "mask_threshold=0.5"], "--set fixes filter_ioa, edge_factor, cluster_distance"),
        (["observe", "coco:none.json:images", "--out", "x"], "none.json"),
        (
            ["observe", "coco:truth.json:images", "-d", "python:mine:detect", "--out", "run", "--masks", "halves:5"],
            "masks was halves:6, now halves:5",
        ),
    ],
)
def test_bad_input_is_one_sentence(workplace, arguments, message):
    done = run(workplace, *arguments, code=2)
    assert message in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.slow
def test_figures_are_written_from_the_run(workplace):
    run(workplace, "evaluate", "run", "--figures", "figures", "--set", "rule=paper", "--set", "alpha=0.5")
    names = {"patch-area.csv", "patch-area.svg", "patch-area.png", "figures.json"}
    assert {name for name in names if (workplace / "figures" / name).is_file()} == names
    rows = list(csv.DictReader((workplace / "figures" / "patch-area.csv").open()))
    assert {"k", "patch_area", "certified_over"} <= rows[0].keys()


def test_the_certificates_of_all_objects_can_be_written(workplace):
    options = ["--set", "rule=paper", "--set", "mask_threshold=0.5", "--patch-area", 0.05]
    rows = certificates(workplace, "run", *options)["objects"]
    assert len(rows) == 12
    assert {row["class"] for row in rows} == {"bright"}
    assert any(row["over"] for row in rows)
    assert all(row["over"] or not row["anywhere"] for row in rows)
    answer = json.loads(run(workplace, "evaluate", "run", *options, "--objects", "objects.csv", "--json").stdout)
    written = list(csv.DictReader((workplace / "objects.csv").open()))
    assert [row["largest_square"] for row in written] == [str(row["largest_square"]) for row in rows]
    assert answer["defended"]["certified_recall"]["over"] == pytest.approx(100 * sum(row["over"] for row in rows) / 12)
    done = run(workplace, "evaluate", "run", "--set", "rule=paper", "--set", "mask_threshold=0.05", code=2)
    assert "0.05" in done.stderr


def test_an_operating_point_below_what_was_stored_is_refused(workplace):
    """Base boxes would be missing there: recall and AP would be those of another detector."""
    run(workplace, *OBSERVE, "--out", "high-floor", "--masks", "halves:4", "--base-floor", 0.4)
    Defense.for_detector("python:mine:detect", masks=Halves(4)).save(workplace / "four.json")
    run(workplace, "evaluate", "high-floor", "--defense", "four.json")
    done = run(
        workplace, "evaluate", "high-floor", "--defense", "four.json", "--operating-point", "base_threshold=0.3", code=2
    )
    assert "base boxes with scores of at least 0.3 are used, but the run stores none below 0.4" in done.stderr
