"""The built-in detector in PyTorch is the same function as its ONNX file."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from objectseeker.detectors.builtin import ONNX_FILE
from objectseeker.errors import ObjectSeekerError

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import onnxruntime

from objectseeker.detectors.builtin import load_torch, read_weights
from objectseeker.detectors.builtin.model import CLASSES, STRIDES, BuiltinDetector, Predictor, PyramidPooling, fused


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return load_torch()


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(ONNX_FILE), providers=["CPUExecutionProvider"])


def random_images(count: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 3, height, width)).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 416, 416), (3, 96, 160), (2, 224, 128), (5, 64, 64), (1, 32, 32)])
def test_same_function_as_the_onnx_file(predictor, session, shape):
    images = random_images(*shape)
    expected_boxes, expected_scores = session.run(["boxes", "scores"], {"images": images})
    boxes, scores = predictor(torch.from_numpy(images))
    anchor_points = sum((shape[1] // stride) * (shape[2] // stride) for stride in STRIDES)
    assert boxes.shape == (shape[0], anchor_points, 4)
    assert scores.shape == (shape[0], anchor_points, len(CLASSES))
    np.testing.assert_allclose(boxes.numpy(), expected_boxes, rtol=0, atol=1e-3)
    np.testing.assert_allclose(scores.numpy(), expected_scores, rtol=0, atol=1e-4)


def test_training_forward_and_predictor_agree():
    torch.manual_seed(0)
    detector = BuiltinDetector()
    for module in detector.modules():  # statistics as after training: folding must use them
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    detector.eval()
    images = torch.from_numpy(random_images(2, 64, 96))
    with torch.no_grad():
        _, logits = detector(images / 255)
        _, scores = Predictor(fused(detector))(images)
    np.testing.assert_allclose(scores.numpy(), logits.sigmoid().numpy(), rtol=1e-3, atol=1e-6)


def test_gradients_reach_the_image(predictor):
    images = torch.from_numpy(random_images(1, 64, 64)).requires_grad_()
    _, scores = predictor(images)
    scores.sum().backward()
    assert float(images.grad.abs().max()) > 0
    assert not any(parameter.requires_grad for parameter in predictor.parameters())


def test_a_fresh_export_loads_through_the_same_path(tmp_path):
    torch.manual_seed(1)
    fresh = Predictor(fused(BuiltinDetector())).eval()
    file = tmp_path / "fresh.onnx"
    tensors = [
        onnx.numpy_helper.from_array(value.numpy().astype(np.float16), name + "_h")
        for name, value in fresh.state_dict().items()
    ]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "fresh", [], [], tensors)), file)
    loaded = load_torch(file).state_dict()
    assert loaded.keys() == fresh.state_dict().keys()
    for name, value in fresh.state_dict().items():
        torch.testing.assert_close(loaded[name], value.half().float(), rtol=0, atol=0)


def test_equal_weights_stored_once_are_found(tmp_path):
    bias = onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "detector.box_heads.0.2.bias")
    twin = onnx.helper.make_node("Identity", [bias.name], ["detector.box_heads.1.2.bias"])
    file = tmp_path / "twins.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([twin], "twins", [], [], [bias])), file)
    weights = read_weights(file)
    np.testing.assert_array_equal(weights["box_heads.1.2.bias"], [0, 1, 2])
    assert weights.keys() == {"box_heads.0.2.bias", "box_heads.1.2.bias"}
    with pytest.raises(ObjectSeekerError, match=r"twins\.onnx does not contain the weights"):
        load_torch(file)


def test_the_file_names_its_classes():
    metadata = {entry.key: entry.value for entry in onnx.load(str(ONNX_FILE)).metadata_props}
    assert metadata["classes"].split(",") == list(CLASSES)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ObjectSeekerError, match=r"cannot read .*nothing\.onnx"):
        load_torch(tmp_path / "nothing.onnx")


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ObjectSeekerError, match=r"objectseeker\[torch\]"):
        load_torch()


def test_pooling_axis_by_axis_is_pooling():
    pooling = PyramidPooling(16).eval()
    features = torch.randn(2, 16, 13, 9, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        parts = [pooling.first(features)]
        for _ in range(3):
            parts.append(torch.nn.functional.max_pool2d(parts[-1], 5, 1, 2))
        assert torch.equal(pooling(features), pooling.second(torch.cat(parts, 1)))
