"""Every file of examples/ runs as it stands."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command import write_dataset
from serving import serving
from tiny_transformers import tiny_yolos

from objectseeker import Defense, Halves, Rule
from objectseeker.detectors import load_detector
from objectseeker.files.images import load_image

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


def defense_for(folder):
    """Images of bright things, as COCO annotations, and a defense of a detector that sees them."""
    write_dataset(folder, [(5 + 9 * number, 8, 24, 22) for number in range(4)])
    rule = Rule(base_threshold=0.5, mask_threshold=0.6)
    return Defense(detector="python:mine:detect", rule=rule, masks=Halves(6))


def test_an_own_onnx_file(said, tmp_path):
    graphs = pytest.importorskip("detector_graphs")
    model = graphs.build("decoded", tmp_path / "model.onnx", box=(8, 8, 40, 40), probe=(20, 20))
    image_file = write_dataset(tmp_path, [(5, 5, 50, 50)], size=(64, 64)) / "images" / "0.png"

    out = said("own_onnx.py", model, image_file)

    assert "pass  deterministic" in out
    failed = [line[6:].partition(": ")[0] for line in out.splitlines() if line.startswith("FAIL  ")]
    assert "defended with halves:30 (121 forward passes)" in out
    assert failed == ["boxes are x1, y1, x2, y2 in raw pixels"]  # this graph's box follows nothing
    # It looks at one pixel alone, inside its box: only a patch over that hides it, and there the smallest does.
    assert "class_0 1.00: certified far, close; the largest square that cannot hide it anywhere has 0 pixels" in out
    assert (tmp_path / "defense.json").is_file()


def test_a_torch_module(said):
    pytest.importorskip("torch")
    assert said("torch_module.py") == "red 0.92 [64.0, 32.0, 80.0, 48.0]\n"


def test_training_with_masks(said):
    pytest.importorskip("torch")
    losses = [float(line.split()[-1]) for line in said("train_with_masks.py").splitlines()]
    assert losses[-1] < 0.7 * losses[0]


def test_a_gate_in_ci(tmp_path):
    defense_for(tmp_path).save(tmp_path / "defense.json")
    shell = [EXAMPLES / "gate" / "gate.sh", "coco:truth.json:images", "defense.json", EXAMPLES / "gate" / "policy.toml"]
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([*shell, "gate"], cwd=tmp_path, env=os.environ | {"PATH": places}, capture_output=True)

    # Four images are few: the gate reports it, and does not let them pass.
    assert done.returncode == 1, done.stderr
    assert b"undecided" in done.stdout
    assert (tmp_path / "gate" / "junit.xml").is_file()


def test_a_baseline(said, tmp_path):
    """What random weights see is taken for the truth, and they see it whatever the mask, at scores that are low."""
    for part in tiny_yolos(("bright",), boxes=1):
        part.save_pretrained(tmp_path / "random")
    write_dataset(tmp_path, [(30, 20, 30, 20)])
    (found,) = load_detector(f"transformers:{tmp_path / 'random'}")([load_image(tmp_path / "images" / "0.png")])
    truth, (x1, y1, x2, y2) = json.loads((tmp_path / "truth.json").read_text()), found.xyxy[0].tolist()
    truth["annotations"][0]["bbox"] = [x1, y1, x2 - x1, y2 - y1]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    tuned = tmp_path / "baseline" / "tuned"  # as if it had been tuned: that takes a while
    tuned.mkdir(parents=True)
    rule = Rule(base_threshold=float(found.score[0]) - 0.01, mask_threshold=0.1)
    Defense(detector="transformers:random", rule=rule, masks=Halves(1)).save(tuned / "defense.json")

    data = ["coco:truth.json:images"] * 2
    out = said("baseline.py", "transformers:random", *data, "baseline")
    lines = [" ".join(line.split()) for line in out.splitlines()]

    assert lines[0] == "undefended published default tuned as saved"
    assert "clean AP50 100.0 100.0 100.0 100.0 100.0" in lines
    assert "certified recall far 0.0 0.0 0.0 100.0 100.0" in lines  # a mask_threshold of 0.8, or 0.625, is beyond it
    assert "defended at least 0, at most 100: 0 disappeared, 0 misclassified; 0 boxes fabricated" in lines
    assert any(line.startswith("defended 5 passes 0.") for line in lines)


def test_a_video(said, tmp_path):
    pytest.importorskip("av", reason="PyAV (the extra video) is not installed")
    from clips import encode, moving

    replace(defense_for(tmp_path), masks=Halves(12)).save(tmp_path / "defense.json")
    encode(tmp_path / "clip.mkv", moving(16, 20, (96, 64)), codec="ffv1", pixels="bgr0")

    *frames, last = said("video.py", "clip.mkv", "defense.json").splitlines()

    assert [line.endswith(" passes, 1 boxes") for line in frames] == [True] * 16
    assert sum(int(line.split()[2]) for line in frames) == 16 + 2 * 48  # every mask once in eight frames
    alone, over_time = last.split("; ")
    assert alone == "bright: 6 of 16 frames are certified alone"
    assert over_time == "a patch of 1 % that moves 2 pixels per frame cannot hide it for more than 2 frames in a row"


def test_a_client_of_the_server(said, tmp_path):
    defense = defense_for(tmp_path)
    with serving(defense=defense, seeker=defense.build()) as server:
        lines = said("serve.py", f"127.0.0.1:{server.port}", tmp_path / "images" / "0.png").splitlines()
        with pytest.raises(SystemExit, match="400: "):
            said("serve.py", f"127.0.0.1:{server.port}", tmp_path / "mine.py")
    assert lines == [
        f"python:mine:detect under halves:6, sha256:{defense.sha256[:12]}",
        "bright 0.90 at 5, 8, 24 x 22: certified; the largest square that cannot hide it has 18 pixels per side",
        "no alert",
    ]
