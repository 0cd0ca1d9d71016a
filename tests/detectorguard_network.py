"""A small objectness network for tests of the baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_network(file: Path, *, kernel: int = 33, seed: int = 0) -> Path:
    """One convolution of `kernel` pixels and stride 8: class 0 is brightness, class 1 is noise."""
    rng = np.random.default_rng(seed)
    weights = np.stack([np.full((3, kernel, kernel), 1.0), rng.normal(0, 1, (3, kernel, kernel))]) / (3 * kernel**2)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "w"], ["local"], strides=[8, 8]),
            helper.make_node("Relu", ["local"], ["features"]),
        ],
        "objectness",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 2, "r", "c"])],
        [numpy_helper.from_array(weights.astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, file)
    return file
