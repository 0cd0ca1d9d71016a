"""An ONNX graph that finds blobs of pure colors."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 64
NAMES = ("car", "bicycle", "person")  # by color: red, green, blue


def write_graph(path: Path) -> None:
    """Finds the blob of each pure color: where it begins and ends along both axes, scored 0.9 if there is one."""
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(values: Any, dtype: Any = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.asarray(values, dtype), f"c{len(constants)}"))
        return str(constants[-1].name)

    def add(kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name or f"t{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def axes(*values: int) -> str:
        return constant(values, np.int64)

    bright = add("Cast", add("Greater", "images", constant(180)), to=TensorProto.FLOAT)
    alone = add("ReduceSum", bright, axes(1), keepdims=1)  # gray and white are not colors
    pure = add("Mul", bright, add("Cast", add("Equal", alone, constant(1)), to=TensorProto.FLOAT))
    ends = []
    for other in (2, 3):  # the axis that is not asked about
        seen = add("ReduceMax", pure, axes=[other], keepdims=0)  # N x 3 x side
        last = add("ReduceMax", add("Mul", seen, constant(np.arange(1, SIDE + 1))), axes=[2], keepdims=1)
        room = add("ReduceMax", add("Mul", seen, constant(np.arange(SIDE, 0, -1))), axes=[2], keepdims=1)
        ends.append((add("Min", add("Sub", constant(SIDE), room), last), last))
    (left, right), (top, bottom) = ends
    add("Concat", left, top, right, bottom, name="boxes", axis=2)
    there = add("ReduceMax", pure, axes=[2, 3], keepdims=0)
    scored = add("Mul", add("Unsqueeze", there, axes(2)), constant(0.9 * np.eye(3)[None]))
    add("Identity", scored, name="scores")
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, size])
        for name, size in (("boxes", 4), ("scores", 3))
    ]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])]
    graph = helper.make_graph(nodes, "blobs", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
