"""Every file of examples/ runs as it stands."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from command import photographs

from objectseeker import Defence, Halves, Rule

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not part of the package")


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Runs an example in an empty folder; gives what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name))
        return capsys.readouterr().out

    return run


def defence_for(folder):
    """Photographs of bright things, as COCO annotations, and a defence of a detector that sees them."""
    photographs(folder, [(5 + 9 * number, 8, 24, 22) for number in range(4)])
    rule = Rule(base_score=0.5, mask_score=0.6)
    return Defence(detector="python:mine:detect", rule=rule, masks=Halves(6))


def test_an_own_onnx_file(said, tmp_path):
    graphs = pytest.importorskip("detector_graphs")
    model = graphs.build("decoded", tmp_path / "model.onnx", box=(8, 8, 40, 40), probe=(20, 20))
    photograph = photographs(tmp_path, [(5, 5, 50, 50)], size=(64, 64)) / "photos" / "0.png"

    out = said("own_onnx.py", model, photograph)

    assert "ok | deterministic" in out
    failed = [line.split(" | ")[1] for line in out.splitlines() if line.startswith("FAILED")]
    assert failed == ["boxes are x1, y1, x2, y2 in raw pixels"]  # this graph's box follows nothing
    assert "class_0 1.00: not certified for a patch of 1 %" in out  # it looks at one pixel alone
    assert (tmp_path / "defence.json").is_file()


def test_a_torch_module(said):
    pytest.importorskip("torch")
    assert said("torch_module.py") == "red 0.92 [64.0, 32.0, 80.0, 48.0]\n"


def test_training_with_masks(said):
    pytest.importorskip("torch")
    losses = [float(line.split()[-1]) for line in said("train_with_masks.py").splitlines()]
    assert losses[-1] < 0.7 * losses[0]


def test_a_gate_in_ci(tmp_path):
    defence_for(tmp_path).save(tmp_path / "defence.json")
    shell = [EXAMPLES / "gate" / "gate.sh", "coco:truth.json:photos", "defence.json", EXAMPLES / "gate" / "policy.toml"]
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([*shell, "gate"], cwd=tmp_path, env=os.environ | {"PATH": places}, capture_output=True)

    # Four images are few: the gate says so, and does not let them pass.
    assert done.returncode == 1, done.stderr
    assert b"undecided" in done.stdout
    assert (tmp_path / "gate" / "junit.xml").is_file()


def test_a_baseline(said, tmp_path):
    tuned = tmp_path / "baseline" / "tuned" / "defence.json"
    tuned.parent.mkdir(parents=True)
    defence_for(tmp_path).save(tuned)  # as if it had been tuned: that takes a while

    out = said("baseline.py", "python:mine:detect", "coco:truth.json:photos", "baseline")

    assert "clean AP50: undefended 100.0, defended 100.0" in out
    assert "recall under a patch of 1 %, over: at least 100.0, whatever the patch" in out
    assert "milliseconds an image: undefended" in out
