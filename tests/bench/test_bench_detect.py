"""bench detect: every way is measured, and says so truthfully."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
from command import photographs, run
from detector_graphs import build

from objectseeker import Bands, Defense, Halves
from objectseeker.bench import detecting as detect
from objectseeker.demo.samples import samples

OWN = """
from objectseeker import Detections

def nothing(images):
    return [Detections.empty() for _ in images]
"""


def defense(spec: str, lines: int, **options) -> Defense:
    return Defense.default(spec, masks=Halves(lines), **options)


@pytest.fixture
def free(tmp_path):
    return build("decoded", tmp_path / "free.onnx", (4, 6, 20, 30), (5, 5), input_shape=("n", 3, "h", "w"))


@pytest.fixture
def fixed(tmp_path):
    return build("yolox", tmp_path / "fixed.onnx", (4, 6, 20, 30), (5, 5))


def test_every_way_is_measured_on_every_image(free):
    own = defense(f"onnx:{free}", 2, layout="decoded", input_size=128)
    found = detect.run(own, images=2, beside=[Bands(0.2)])

    ways = {row["way"]: row for row in found["rows"]}
    names = ["5 plain passes", "naive loop", "ours by fill", "ours by crop"]
    assert list(ways) == [*names, "ours by fill, bands:0.2", "ours by crop, bands:0.2"]
    assert found["masks"] == "halves:2"
    banded = max(Bands(0.2).passes(*PIL.Image.open(sample.path).size) for sample in samples()[:2])
    assert [row["passes"] for row in ways.values()] == [5, 9, 9, 9, banded, banded]
    assert ways["naive loop"]["of_naive"] == 1.0
    assert all(row["seconds"] > 0 for row in ways.values())
    assert 0 < ways["ours by fill"]["outside_the_network"] < 1
    assert ways["ours by fill"]["share_of_peak"] is None  # nobody has counted the operations of this graph
    assert found["equal"] in (True, None)


def test_a_callable_has_no_device(tmp_path, monkeypatch):
    (tmp_path / "own_bench.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    measured = detect.run(defense("python:own_bench:nothing", 1, batch=2), images=1)

    assert [row["way"] for row in measured["rows"]] == ["5 plain passes", "naive loop", "ours by fill"]
    assert measured["device"] == "cpu"


def test_the_masks_are_those_of_the_defense(fixed):
    measured = detect.run(Defense.default(f"onnx:{fixed}", masks=Bands(0.3), fill=0), images=1)

    assert measured["rows"][1]["passes"] == Bands(0.3).passes(*PIL.Image.open(samples()[0].path).size)


def test_a_graph_of_one_size_is_measured_by_fill_only(fixed):
    found = detect.run(defense(f"onnx:{fixed}", 1), images=1)

    assert [row["way"] for row in found["rows"]] == ["5 plain passes", "naive loop", "ours by fill"]


def test_a_detector_that_is_only_a_callable_is_measured_too(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    command = [sys.executable, "-m", "objectseeker.cli", "bench", "detect", "--detector", "python:own:nothing"]
    options = ["--images", "1", "--masks", "halves:1"]

    done = subprocess.run([*command, *options, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    table = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert [row["way"] for row in json.loads(done.stdout)["rows"]] == ["5 plain passes", "naive loop", "ours by fill"]
    assert table.returncode == 0
    assert "naive loop" in table.stdout


def test_images_in_a_row_are_measured_where_views_are_begun_first():
    torch = pytest.importorskip("torch")

    from objectseeker.detectors.torch_module import torch_detector

    def decode(outputs):
        return torch.zeros(len(outputs), 1, 4), outputs[:, :, 0, 0][:, None]

    way = detect.Way(
        "ours by fill",
        lambda *_: [],
        torch_detector(torch.nn.Identity(), decode=decode, input_size=64),
        Halves(2),
    )
    pictures = [np.zeros((60, 80, 3), np.uint8)] * 2

    row = detect._in_a_row(way, pictures, defense("builtin", 2))

    assert row.name == "ours by fill, in a row"
    assert len(row.seconds) == 2
    assert 0 < row.seconds[0] < 10


def test_operations_follow_the_pixels_that_are_looked_at():
    image = np.zeros((416, 416, 3), np.uint8)
    fill, crop = (
        detect.Way("", lambda *_: [], detect.load("builtin", mask_mode=mask_mode), Halves(30))
        for mask_mode in ("fill", "crop")
    )

    assert detect._flops(fill, [image], defense("builtin", 30)) == pytest.approx(121 * 5.197e9)
    assert 0.5 < detect._flops(crop, [image], defense("builtin", 30)) / (121 * 5.197e9) < 0.56
    plain = detect.Way(detect.PLAIN, fill.run, fill.detector, Halves(30))
    assert detect._flops(plain, [image], defense("builtin", 30)) == pytest.approx(detect.PLAIN_PASSES * 5.197e9)
    flat = np.zeros((100, 300, 3), np.uint8)  # where the sides follow the image, so does the work
    assert detect._flops(plain, [flat], defense("builtin", 30)) < 0.97 * detect.PLAIN_PASSES * 5.197e9


def test_observing_is_measured_against_the_views_alone(tmp_path):
    folder = photographs(tmp_path, [(10, 10, 20, 15), (30, 20, 20, 15)])
    words = ["bench", "observe", "coco:truth.json:photos", "-d", "python:mine:detect", "--masks", "halves:2", "--json"]
    measured = json.loads(run(folder, *words).stdout)
    assert (measured["images"], measured["sizes"], measured["views"]) == (2, 1, 9)
    assert measured["of_the_rate"] == pytest.approx(measured["detect_ms"] / measured["observe_ms"])
    assert "of the rate" in run(folder, *words[:-1]).stdout
