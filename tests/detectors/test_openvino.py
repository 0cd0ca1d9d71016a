"""ONNX graphs run by OpenVINO: the same boxes up to rounding, pure, and never taken for ONNX Runtime's."""

import importlib.resources
import json
import sys

import numpy as np
import pytest
from command import run

from objectseeker import Halves, ObjectSeekerError, load_image
from objectseeker.detectors import load_detector
from objectseeker.detectors.check import check

SAMPLES = importlib.resources.files("objectseeker.demo") / "samples"


@pytest.fixture(scope="module")
def image():
    return load_image(str(SAMPLES / "crossing.jpg"))[::2, ::2].copy()


@pytest.fixture
def openvino():
    return pytest.importorskip("openvino", reason="needs OpenVINO")


def computes(openvino, precision):
    return precision == "float32" or "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.mark.parametrize(("precision", "pixels", "score"), [("float32", 0.01, 1e-4), ("bfloat16", 8.0, 0.05)])
def test_boxes_are_those_of_onnx_runtime_up_to_rounding_and_pure(openvino, image, precision, pixels, score):
    if not computes(openvino, precision):
        pytest.skip("this processor does not compute in bfloat16")
    theirs = load_detector("builtin", device="openvino", precision=precision)
    ours = load_detector("builtin")
    (found,), (expected,) = theirs([image]), ours([image])
    strong = expected.with_min_score(0.5)
    assert len(strong) > 2
    for box, label, confidence in zip(strong.xyxy, strong.label, strong.score, strict=True):
        same = found[found.label == label]
        nearest = np.abs(same.xyxy - box).max(axis=1).argmin()
        assert np.abs(same.xyxy[nearest] - box).max() < pixels
        assert abs(same.score[nearest] - confidence) < score
    report = check(theirs, image, masks=Halves(2), batch_size=4)
    assert report.passed, str(report)
    assert f"openvino {precision} cpu" in theirs.fingerprint


def test_precisions_and_engines_are_detectors_of_their_own(openvino, tmp_path, image):
    names = {load_detector("builtin").fingerprint, load_detector("builtin", device="openvino").fingerprint}
    if computes(openvino, "bfloat16"):
        names.add(load_detector("builtin", device="openvino", precision="bfloat16").fingerprint)
        assert len(names) == 3
    assert len(names) >= 2
    run(tmp_path, "observe", SAMPLES, "--limit", 1, "--masks", "halves:1", "--device", "openvino", "--out", "run")
    run(tmp_path, "defense", "new", "builtin", "--set", "masks=halves:1", "--out", "defense.json")
    content = json.loads((tmp_path / "defense.json").read_text())
    assert "openvino" not in json.dumps(content)  # a device is where it runs; the fingerprint tells the detectors apart
    again = run(tmp_path, "observe", SAMPLES, "--limit", 1, "--masks", "halves:1", "--out", "run", code=2)
    assert "openvino" in again.stderr


def test_what_openvino_cannot_do_is_refused(openvino):
    with pytest.raises(ObjectSeekerError, match="one of float32, bfloat16: got 'float16'"):
        load_detector("builtin", device="openvino", precision="float16")


def test_without_openvino_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ObjectSeekerError, match=r"pip install 'objectseeker\[openvino\]'"):
        load_detector("builtin", device="openvino")
    with pytest.raises(ObjectSeekerError, match="needs torch and a GPU, or device openvino"):
        load_detector("builtin", precision="bfloat16")
    onnx = f"onnx:{importlib.resources.files('objectseeker.detectors.builtin') / 'seeker.onnx'}"
    with pytest.raises(ObjectSeekerError, match="precision bfloat16 of an ONNX graph needs device openvino: got 'cpu'"):
        load_detector(onnx, precision="bfloat16")
