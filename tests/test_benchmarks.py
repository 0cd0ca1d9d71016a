"""The benchmarks run, measure every strategy and report truthfully what they measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import write_dataset
from detector_graphs import build

from objectseeker import Bands, Defense, Halves
from objectseeker.demo.samples import samples
from objectseeker.files.images import load_image

pytest.importorskip("benchmarks", reason="the benchmarks are not part of the package")

from benchmarks import certify, detect, evaluate, observe
from benchmarks.common import print_jobs

OWN = """
from objectseeker import Detections

def nothing(images):
    return [Detections.empty() for _ in images]
"""
STRATEGIES = ["5 plain passes", "naive", "ours by fill"]


def defense(spec: str, lines: int, **options) -> Defense:
    return Defense.for_detector(spec, masks=Halves(lines), **options)


def test_certifying_and_pruning_agree_with_the_naive_implementation(capsys):
    certify.main(["--objects", "40", "--boxes", "600", "--json"])
    assert [row["equal"] for row in json.loads(capsys.readouterr().out)] == [True, True, True]


def test_both_rules_are_evaluated(capsys):
    evaluate.main(["--images", "6", "--lines", "4", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["job"].rpartition(", ")[2] for row in rows] == ["paper rule", "evidence rule"]
    assert all(row["seconds"] > 0 and row["peak_memory_gb"] > 0 for row in rows)
    print_jobs(rows, as_json=False)
    assert "naive" in capsys.readouterr().out


def test_every_strategy_is_measured_on_every_image(tmp_path):
    graph = build("decoded", tmp_path / "free.onnx", (4, 6, 20, 30), (5, 5), input_shape=("n", 3, "h", "w"))
    own = defense(f"onnx:{graph}", 2, layout="decoded", input_size=128)
    result = detect.run(own, images=2, extra_masks=[Bands(0.2)])

    rows = {row["strategy"]: row for row in result["rows"]}
    assert list(rows) == [*STRATEGIES, "ours by crop", "ours by fill, bands:0.2", "ours by crop, bands:0.2"]
    assert result["masks"] == "halves:2"
    banded = max(Bands(0.2).forward_passes(*load_image(sample.path).shape[1::-1]) for sample in samples()[:2])
    assert [row["forward_passes"] for row in rows.values()] == [5, 9, 9, 9, banded, banded]
    assert rows["naive"]["of_naive"] == 1.0
    assert all(row["seconds"] > 0 for row in rows.values())
    assert 0 < rows["ours by fill"]["outside_the_network"] < 1
    assert rows["ours by fill"]["share_of_peak"] is None  # the operations of this graph are unknown
    assert result["equal"] in (True, None)


def test_a_callable_or_a_fixed_input_size_is_measured_by_fill_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_bench.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    detect.main(["--detector", "python:own_bench:nothing", "--masks", "halves:1", "--images", "1"])
    assert "naive" in capsys.readouterr().out

    graph = build("yolox", tmp_path / "fixed.onnx", (4, 6, 20, 30), (5, 5))
    result = detect.run(defense(f"onnx:{graph}", 1), images=1)
    assert [row["strategy"] for row in result["rows"]] == STRATEGIES
    assert result["device"] == "cpu"


def test_consecutive_images_are_measured_on_pipelined_detectors():
    torch = pytest.importorskip("torch")

    from objectseeker.detectors.torch_module import torch_detector

    def decode(outputs):
        return torch.zeros(len(outputs), 1, 4), outputs[:, :, 0, 0][:, None]

    detector = torch_detector(torch.nn.Identity(), decode=decode, input_size=64)
    strategy = detect.Strategy("ours by fill", lambda *_: [], detector, Halves(2))
    row = detect._consecutive(strategy, [np.zeros((60, 80, 3), np.uint8)] * 2, defense("builtin", 2))

    assert row.name == "ours by fill, consecutive"
    assert len(row.seconds) == 2
    assert 0 < row.seconds[0] < 10


def test_operations_follow_the_pixels_of_the_views():
    image = np.zeros((416, 416, 3), np.uint8)
    fill, crop = (
        detect.Strategy("", lambda *_: [], detect.load_detector("builtin", mask_mode=mask_mode), Halves(30))
        for mask_mode in ("fill", "crop")
    )

    assert detect._flops(fill, [image], defense("builtin", 30)) == pytest.approx(121 * 5.197e9)
    assert 0.5 < detect._flops(crop, [image], defense("builtin", 30)) / (121 * 5.197e9) < 0.56
    plain = detect.Strategy(detect.PLAIN, fill.run, fill.detector, Halves(30))
    assert detect._flops(plain, [image], defense("builtin", 30)) == pytest.approx(detect.PLAIN_PASSES * 5.197e9)
    flat = np.zeros((100, 300, 3), np.uint8)  # where the sides follow the image, so does the work
    assert detect._flops(plain, [flat], defense("builtin", 30)) < 0.97 * detect.PLAIN_PASSES * 5.197e9


def test_observing_is_measured_against_the_views_alone(tmp_path, monkeypatch, capsys):
    write_dataset(tmp_path, [(10, 10, 20, 15), (30, 20, 20, 15)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["coco:truth.json:images", "--detector", "python:mine:detect", "--masks", "halves:2"]
    observe.main([*arguments, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["images"], result["sizes"], result["views"]) == (2, 1, 9)
    assert result["rate_ratio"] == pytest.approx(result["detect_ms"] / result["observe_ms"])
    observe.main(arguments)
    assert "of the rate" in capsys.readouterr().out
