"""The command line as a user calls it."""

import json
import os
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
from command import DETECTOR, run
from typer.testing import CliRunner

from objectseeker.cli import app
from objectseeker.demo.samples import samples


@pytest.fixture
def workplace(tmp_path):
    (tmp_path / "mine.py").write_text(DETECTOR)
    image = np.full((60, 90, 3), 30, np.uint8)
    image[20:40, 30:60] = 255
    (tmp_path / "images").mkdir()
    PIL.Image.fromarray(image).save(tmp_path / "images" / "one.png")
    PIL.Image.fromarray(image[::-1]).save(tmp_path / "images" / "two.png")
    return tmp_path


def test_every_verb_has_help_with_an_example():
    listed = CliRunner().invoke(app, ["--help"]).stdout
    verbs = ["demo", "detect", "check", "observe", "evaluate", "tune"]
    verbs += ["report", "gate", "verify", "attack"]
    for verb in verbs:
        assert verb in listed
        text = CliRunner().invoke(app, [verb, "--help"]).stdout
        assert f"Example:  objectseeker {verb}" in " ".join(text.split()).replace("Example: ", "Example:  ")
        assert "--json" in text


def test_detect_writes_coco_results_and_images(workplace):
    done = run(
        workplace, "detect", "images", "--detector", "python:mine:detect", "--set", "masks=halves:3", "--out", "found"
    )
    assert "2 boxes in 2 images" in done.stdout
    rows = json.loads((workplace / "found" / "detections.json").read_text())
    assert [(row["image_id"], row["image"]) for row in rows] == [(1, "one.png"), (2, "two.png")]
    assert rows[0]["bbox"] == [30, 20, 30, 20]
    assert rows[0]["category_name"] == "bright"
    assert {row["origin"] for row in rows} == {"base"}
    annotated = np.asarray(PIL.Image.open(workplace / "found" / "annotated" / "one.jpg"))
    assert annotated.shape[0] > 60  # the image, and a legend
    assert annotated.shape[1:] == (90, 3)


def test_detect_marks_what_only_masking_found(workplace):
    """A detector that is blind as long as it sees the corner: masks that hide the corner give it back its sight."""
    (workplace / "shy.py").write_text(
        "from mine import detect as see\nfrom objectseeker import Detections\n"
        "def detect(images):\n"
        "    return [Detections.empty() if i[0, 0, 0] == 7 else see([i])[0] for i in images]\n"
    )
    image = np.full((60, 90, 3), 30, np.uint8)
    image[20:40, 30:60] = 255
    image[:3, :3] = 7
    PIL.Image.fromarray(image).save(workplace / "attacked.png")
    done = run(
        workplace,
        "detect",
        "attacked.png",
        "-d",
        "python:shy:detect",
        "--set",
        "masks=halves:5",
        "--out",
        "o",
        "--json",
    )
    answer = json.loads(done.stdout)
    assert answer["recovered_boxes"] == answer["detections"] == 1
    (row,) = json.loads((workplace / "o" / "detections.json").read_text())
    assert row["origin"] == "recovered"
    assert row["bbox"] == [30, 20, 30, 20]


def test_unreadable_files_are_named_and_the_rest_is_processed(workplace):
    (workplace / "images" / "text.jpg").write_text("not an image")
    (workplace / "images" / "empty.png").write_bytes(b"")
    done = run(
        workplace, "detect", "images", "-d", "python:mine:detect", "--set", "masks=halves:2", "--out", "o", code=1
    )
    assert "2 boxes in 2 images" in done.stdout
    assert "text.jpg" in done.stderr
    assert "empty.png" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["detect", "nowhere", "--out", "o"], "nowhere"),
        (["detect", "images", "--out", "o", "-d", "yolo"], "unknown detector 'yolo'"),
        (["detect", "images", "--out", "o", "-d", "onnx:missing.onnx"], "missing.onnx"),
        (
            ["detect", "images", "--out", "o", "-d", "python:mine:detect", "--set", "masks=halves:0"],
            "lines must be at least 1",
        ),
        (
            [
                "detect",
                "images",
                "--out",
                "o",
                "-d",
                "python:mine:detect",
                "--set",
                "rule=paper",
                "--set",
                "mask_threshold=7",
            ],
            "mask_threshold",
        ),
        (["detect", "images", "--out", "mine.py", "-d", "python:mine:detect"], "mine.py"),
        (["check", "python:nothere:f"], "nothere"),
        (["demo", "--patch-area", "3"], "a patch area must be a share"),
        (["demo", "--set", "detector=python:mine:detect"], "the demo uses the built-in detector"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(workplace, arguments, message):
    done = run(workplace, *arguments, code=2)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_check_passes_and_fails(workplace):
    done = run(workplace, "check", "python:mine:detect", "images/one.png", "--set", "masks=halves:2")
    assert "All checks passed." in done.stdout
    assert "FAIL" not in done.stdout
    assert "cost  an image of " in done.stdout
    assert "defended with halves:2 (9 forward passes)" in done.stdout
    following = "objectseeker tune IMAGES --detector python:mine:detect --masks halves:2 --out tuned"
    assert done.stdout.endswith(f"All checks passed.\nNext: {following}\n")
    done = run(workplace, "check", "python:mine:broken", "images/one.png", "--set", "masks=halves:2", "--json", code=1)
    answer = json.loads(done.stdout)
    assert not answer["passed"]
    assert any(f["passed"] is False and "batch" in f["name"] for f in answer["checks"])
    run(workplace, "defense", "new", "python:mine:detect", "--set", "masks=halves:2", "--out", "d.json")
    done = run(workplace, "check", "--defense", "d.json", "images/one.png", "--set", "batch_size=4")
    following = "objectseeker detect IMAGES --defense d.json --set batch_size=4 --out results"
    assert done.stdout.endswith(f"All checks passed.\nNext: {following}\n")
    done = run(workplace, "check", "builtin", "images/one.png", "--defense", "d.json", code=2)
    assert "SPEC and --defense name a detector each: got builtin and d.json. Omit one." in done.stderr


def test_demo_certifies_the_images(tmp_path):
    """With few masks, to be quick; the printed table and the page come from the same rows."""
    answer = json.loads(run(tmp_path, "demo", "--out", "d", "--set", "masks=halves:2", "--json").stdout)
    assert len(answer["objects"]) == sum(int((~s.crowd).sum()) for s in samples())
    assert any(row["found_undefended"] for row in answer["objects"])
    assert any(row["certified"]["far"] for row in answer["objects"])
    page = (tmp_path / "d" / "report.html").read_text()
    assert page.count('id="view-') == len(samples())  # the images of the interactive report
    assert {p.name for p in (tmp_path / "d").iterdir()} == {"report.html", *(f"{s.name}.jpg" for s in samples())}


def test_version(tmp_path):
    assert run(tmp_path, "--version").stdout.startswith("objectseeker 0.")


def test_class_names_come_from_a_file_or_from_the_module(workplace):
    """A name of the function, of the module, or of --set: the last wins."""
    code = "from mine import detect as see\nnames = ['shine']\ndef detect(images): return see(images)\n"
    (workplace / "plain.py").write_text(code)
    (workplace / "names.txt").write_text("glow\n\n")
    for more, name in (([], "shine"), (["--set", "class_names=@names.txt"], "glow")):
        arguments = ["-d", "python:plain:detect", "--set", "masks=halves:2", "--out", f"named-{name}", "--no-annotate"]
        run(workplace, "detect", "images/one.png", *arguments, *more)
        rows = json.loads((workplace / f"named-{name}" / "detections.json").read_text())
        assert {row["category_name"] for row in rows} == {name}
    (workplace / "names.txt").write_text("glow\nglow\n")
    done = run(workplace, "detect", "images/one.png", *arguments, "--set", "class_names=@names.txt", code=2)
    assert "line 2 of names.txt repeats 'glow'" in done.stderr


@pytest.mark.parametrize(("columns", "cut"), [(None, False), ("60", True)])
def test_a_table_in_a_log_is_cut_only_if_the_user_names_a_width(columns, cut):
    program = (
        "from objectseeker.cli._console import stdout_console, terminal_table\n"
        "stdout_console.print(terminal_table('wide', [{name: 30 * name for name in 'abcdef'}]))"
    )
    others = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment = others if columns is None else others | {"COLUMNS": columns}
    environment["PYTHONIOENCODING"] = "utf-8"
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True).stdout
    assert ("…" in told) == cut
    assert (30 * "f" in told) != cut
