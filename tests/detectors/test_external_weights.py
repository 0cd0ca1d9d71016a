"""Weights next to an ONNX graph are part of its fingerprint, whatever their files are called."""

import numpy as np
import pytest

from objectseeker import ObjectSeekerError
from objectseeker.detectors.onnx import external_files, load_onnx

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper


def save(file, location):
    """A graph with a weight in an initializer and one in a constant inside a branch, both kept outside."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(0, 1, (64, 64)).astype(np.float32), "w")
    constant = numpy_helper.from_array(rng.normal(0, 1, (64, 64)).astype(np.float32), "c")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["k"], value=constant)],
        "branch",
        [],
        [helper.make_tensor_value_info("k", TensorProto.FLOAT, [64, 64])],
    )
    nodes = [
        helper.make_node("If", ["flag"], ["picked"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["picked", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(
        model, file, save_as_external_data=True, location=location, size_threshold=100, convert_attribute=True
    )
    return file


@pytest.mark.parametrize("location", ["weights.bin", "m.onnx.data", "m.onnx_data"])
def test_every_file_is_found_by_its_name(tmp_path, location):
    assert external_files(save(tmp_path / "m.onnx", location)) == [tmp_path / location]


def test_what_is_no_graph_is_refused(tmp_path):
    """It cannot be known what weights it has: onnxruntime may read it differently."""
    for name, content in (("empty.onnx", b""), ("text.onnx", b"not a graph"), ("bits.onnx", bytes(range(256)) * 9)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ObjectSeekerError, match=r"cannot read .* as an ONNX file: export it again"):
            external_files(tmp_path / name)


def test_a_group_behind_the_graph_hides_no_weights(tmp_path):
    """Protocol buffers may hold groups, which ONNX never uses and its readers skip."""
    file = save(tmp_path / "m.onnx", "weights.bin")
    file.write_bytes(file.read_bytes() + b"\xa3\x06\xa4\x06")
    assert external_files(file) == [tmp_path / "weights.bin"]


@pytest.fixture
def outside(tmp_path):
    """A graph whose weights lie outside its folder."""
    model = onnx.load(save(tmp_path / "m.onnx", "weights.bin"), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../elsewhere.bin"
    (tmp_path / "out.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "out.onnx"


def test_weights_outside_the_folder_are_refused(outside):
    with pytest.raises(ObjectSeekerError, match=r"outside its folder, in '\.\./elsewhere\.bin'"):
        external_files(outside)


def test_weights_outside_the_folder_are_refused_before_anything_is_loaded(outside, monkeypatch):
    """ONNX Runtime before 1.31 would load them."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    with pytest.raises(ObjectSeekerError, match="outside its folder"):
        load_onnx(outside)
