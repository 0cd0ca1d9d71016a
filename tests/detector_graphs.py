"""Small ONNX graphs of every layout, whose outputs follow from one pixel of their input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 64  # the side of the network input: 64 + 16 + 4 = 84 grid cells at strides 8, 16, 32
CELLS = 84


class Graph:
    """Collects nodes; `probe` is what the input shows at one pixel, N x 3, brought back to 0..1."""

    def __init__(
        self, *, probe: tuple[int, int], scale: Sequence[float], shift: Sequence[float], one_image: bool
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        images = self.add("Unsqueeze", "images", self.constant([0])) if one_image else "images"
        column, row = probe
        starts, ends = self.constant([row, column]), self.constant([row + 1, column + 1])
        pixel = self.add("Slice", images, starts, ends, self.constant([2, 3]))
        pixel = self.add("Reshape", pixel, self.constant([-1, 3]))
        scaled = self.add("Mul", pixel, self.constant(np.array(scale, np.float32)))
        self.probe = self.add("Add", scaled, self.constant(np.array(shift, np.float32)))

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: object) -> str:
        name = name or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values: object) -> str:
        array = np.asarray(values)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def repeated(self, rows: np.ndarray) -> str:
        """Constant rows for every image of the batch."""
        zero = self.add("Mul", self.probe, self.constant(np.zeros(3, np.float32)))
        zero = self.add("ReduceSum", zero, self.constant([1]), keepdims=1)  # N x 1
        zero = self.add("Unsqueeze", zero, self.constant([2]))
        return self.add("Add", zero, self.constant(rows[None].astype(np.float32)))

    def class_scores(self, strengths: np.ndarray) -> str:
        """N x A x 3: the probe's three channels times each row's strength."""
        probe = self.add("Unsqueeze", self.probe, self.constant([1]))
        return self.add("Mul", probe, self.constant(strengths[None, :, None].astype(np.float32)))

    def scale(self) -> str:
        """N x 1 x 1: the first side of the input scale_factor."""
        side = self.add("Slice", "scale_factor", self.constant([0]), self.constant([1]), self.constant([1]))
        return self.add("Unsqueeze", side, self.constant([2]))

    def save(
        self,
        path: Path,
        outputs: Sequence[tuple[str, int, Sequence[object]]],
        *,
        input_shape: Sequence[int | str] = ("n", 3, SIZE, SIZE),
        sizes_input: bool = False,
        paddle_inputs: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
    ) -> Path:
        inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, input_shape)]
        if sizes_input:
            inputs.append(helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, ["n", 2]))
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in paddle_inputs] + inputs
        infos = [helper.make_tensor_value_info(*output) for output in outputs]
        graph = helper.make_graph(self.nodes, "graph", inputs, infos, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        if metadata:
            helper.set_model_props(model, metadata)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


# What each family is given for a pixel value v of 0..255, as (scale, shift) that bring it back to v / 255.
UNIT = ((1.0,) * 3, (0.0,) * 3)
BYTES = ((1 / 255,) * 3, (0.0,) * 3)
IMAGENET = (
    tuple(std / 255 for std in (58.395, 57.12, 57.375)),
    tuple(mean / 255 for mean in (123.675, 116.28, 103.53)),
)
IMAGENET_BGR = (IMAGENET[0][::-1], IMAGENET[1][::-1])
INPUTS = {"yolox": BYTES, "decoded": BYTES, "nanodet": IMAGENET_BGR}
INPUTS |= dict.fromkeys(("mmdeploy", "rfdetr", "picodet", "ppyoloe", "paddle"), IMAGENET)


def build(layout: str, path: Path, box: Sequence[float], probe: tuple[int, int], **options: Any) -> Path:
    """A graph of `layout` that finds `box` (corners, network pixels), scored by the pixel `probe` = column, row.

    Class c gets the value of input channel c. Raw layouts hold the box twice, the second time at half the score and
    a pixel further, for suppression to remove; all their other rows score 0.
    """
    scale, shift = INPUTS.get(layout, UNIT)
    one_image = len(options.get("input_shape", (1, 2, 3, 4))) == 3
    graph = Graph(probe=probe, scale=scale, shift=shift, one_image=one_image)
    return BUILDERS[layout](graph, path, np.asarray(box, np.float64), options)


def rows_with(box: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and strengths of `count` rows."""
    boxes, strengths = np.tile([0.0, 0.0, 1.0, 1.0], (count, 1)), np.zeros(count)
    boxes[70], strengths[70] = box, 1.0
    boxes[7], strengths[7] = box + 1, 0.5
    return boxes, strengths


def cells_with(box: np.ndarray, strides: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and strengths of a grid's cells: as learnt from distances, each box holds the middle of its cell."""
    cells = [(x, y, s) for s in strides for y in range(SIZE // s) for x in range(SIZE // s)]
    x, y, stride = np.array(cells, np.float64).T
    boxes = np.stack([x, y, x + 1, y + 1], axis=1) * stride[:, None]
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    first, second = np.flatnonzero(((middle > box[:2] + 1) & (middle < box[2:])).all(axis=1))[:2]
    boxes[first], boxes[second] = box, box + 1
    strengths = np.zeros(len(boxes))
    strengths[first], strengths[second] = 1.0, 0.5
    return boxes, strengths


def center_sides(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)


def decoded(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    boxes, strengths = rows_with(box, CELLS)
    graph.add("Identity", graph.repeated(boxes), name="boxes")
    graph.add("Identity", graph.class_scores(strengths), name="scores")
    outputs = [("boxes", TensorProto.FLOAT, ["n", "a", 4]), ("scores", TensorProto.FLOAT, ["n", "a", 3])]
    return graph.save(path, outputs, **options)


def yolov5(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    boxes, strengths = rows_with(box, 3 * CELLS)
    return one_output(graph, path, center_sides(boxes), strengths, options)


def yolox(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    boxes, strengths = rows_with(box, CELLS)
    cells = [(x, y, s) for s in (8, 16, 32) for y in range(SIZE // s) for x in range(SIZE // s)]
    x, y, stride = np.array(cells, np.float64).T
    cx, cy, w, h = center_sides(boxes).T
    raw = np.stack([cx / stride - x, cy / stride - y, np.log(w / stride), np.log(h / stride)], axis=1)
    return one_output(graph, path, raw, strengths, options)


def one_output(graph: Graph, path: Path, boxes: np.ndarray, strengths: np.ndarray, options: dict) -> Path:
    """Objectness is the strength, class scores are the probe's channels."""
    objectness = graph.repeated(strengths[:, None])
    scores = graph.class_scores(np.ones(len(boxes)))
    graph.add("Concat", graph.repeated(boxes), objectness, scores, name="output", axis=2)
    shape = options.pop("output_shape", ["n", len(boxes), 8])
    return graph.save(path, [("output", TensorProto.FLOAT, shape)], **options)


def yolov8(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    boxes, strengths = rows_with(box, CELLS)
    rows = graph.add("Concat", graph.repeated(center_sides(boxes)), graph.class_scores(strengths), axis=2)
    graph.add("Transpose", rows, name="output0", perm=[0, 2, 1])
    shape = options.pop("output_shape", ["n", 7, CELLS])
    return graph.save(path, [("output0", TensorProto.FLOAT, shape)], **options)


def yolov9(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    boxes, strengths = cells_with(box, (8, 16, 32))
    rows = graph.add("Concat", graph.repeated(boxes), graph.class_scores(strengths), axis=2)
    graph.add("Transpose", rows, name="output", perm=[0, 2, 1])
    return graph.save(path, [("output", TensorProto.FLOAT, ["n", 7, CELLS])], **options)


def picodet(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    """With the coarse cells first, as PP-YOLOE has them."""
    boxes, strengths = cells_with(box, (32, 16, 8))
    graph.add("Concat", graph.repeated(boxes), graph.class_scores(strengths), name="output", axis=2)
    return graph.save(path, [("output", TensorProto.FLOAT, ["n", CELLS, 7])], **options)


def ppyoloe(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    """Scores in columns, names that say nothing, boxes in pixels of an image that was scaled."""
    boxes, strengths = rows_with(box, CELLS)
    names = [f"save_infer_model/scale_{number}.tmp_0" for number in range(2)]
    graph.add("Div", graph.repeated(boxes), graph.scale(), name=names[0])
    graph.add("Transpose", graph.class_scores(strengths), name=names[1], perm=[0, 2, 1])
    outputs: list[tuple[str, int, list[object]]] = [
        (names[0], TensorProto.FLOAT, ["n", CELLS, 4]),
        (names[1], TensorProto.FLOAT, ["n", 3, CELLS]),
    ]
    return graph.save(path, outputs, paddle_inputs=("scale_factor",), **options)


def paddle(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    """Rows of label, score and corners, and how many; the inputs in the order of PaddleDetection's RT-DETR."""
    labels, boxes, scores = listed(graph, box)
    columns = [graph.add("Unsqueeze", part, graph.constant([2])) for part in (graph.add("Cast", labels, to=1), scores)]
    rows = graph.add("Concat", *columns, graph.add("Div", boxes, graph.scale()), axis=2)
    graph.add("Squeeze", rows, graph.constant([0]), name="rows_out")
    graph.add("Identity", graph.constant(np.array([3], np.int32)), name="count_out")
    outputs: list[tuple[str, int, list[object]]] = [
        ("rows_out", TensorProto.FLOAT, ["k", 6]),
        ("count_out", TensorProto.INT32, [1]),
    ]
    return graph.save(path, outputs, paddle_inputs=("im_shape", "scale_factor"), **options)


def queries(graph: Graph, path: Path, box: np.ndarray, options: dict, names=("logits", "pred_boxes")) -> Path:
    """Logits, and boxes as shares of the input, by names and in the order of exports of transformers."""
    boxes, strengths = rows_with(box, 75)
    score = graph.class_scores(strengths)
    rest = graph.add("Sub", graph.constant(np.float32(1)), score)
    graph.add("Log", graph.add("Div", score, rest), name=names[0])
    graph.add("Identity", graph.repeated(center_sides(boxes) / SIZE), name=names[1])
    outputs = [(name, TensorProto.FLOAT, ["n", 75, side]) for name, side in zip(names, (3, 4), strict=True)]
    return graph.save(path, sorted(outputs, key=lambda output: output[0] == "labels"), **options)


def rfdetr(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    return queries(graph, path, box, options, names=("labels", "dets"))


def nanodet(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    """The box is seen from a cell of stride 16 and, a pixel further and at half the score, from one of stride 32."""
    cells = [(x, y, s) for s in (8, 16, 32, 64) for y in range(SIZE // s) for x in range(SIZE // s)]
    strengths, distances = np.zeros(len(cells)), np.zeros((len(cells), 4, 8))
    for row, strength, seen in ((70, 1.0, box), (83, 0.5, box + 1)):
        x, y, stride = cells[row]
        sides = np.abs(seen / stride - np.array([x, y, x, y]))
        strengths[row] = strength
        distances[row] = np.log(np.maximum(1 - np.abs(sides[:, None] - np.arange(8)), 1e-30))
    rows = graph.repeated(distances.reshape(len(cells), 32))
    graph.add("Concat", graph.class_scores(strengths), rows, name="output", axis=2)
    return graph.save(path, [("output", TensorProto.FLOAT, ["n", len(cells), 35])], **options)


def listed(graph: Graph, box: np.ndarray) -> tuple[str, str, str]:
    """Labels, boxes and scores of three boxes, one for each channel."""
    scores = graph.add("Identity", graph.probe)  # N x 3
    boxes = graph.repeated(np.tile(box, (3, 1)))
    zero = graph.add("Cast", graph.add("Mul", graph.probe, graph.constant(np.zeros(3, np.float32))), to=7)
    labels = graph.add("Add", zero, graph.constant(np.arange(3)))
    return labels, boxes, scores


def end2end(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    labels, boxes, scores = listed(graph, box)
    columns = [graph.add("Unsqueeze", part, graph.constant([2])) for part in (scores, graph.add("Cast", labels, to=1))]
    graph.add("Concat", boxes, *columns, name="output0", axis=2)
    return graph.save(path, [("output0", TensorProto.FLOAT, ["n", 3, 6])], **options)


def detr(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    """Boxes are stored as shares of the size that comes in."""
    labels, boxes, scores = listed(graph, box / SIZE)
    size = graph.add("Cast", "orig_target_sizes", to=1)
    corners = graph.add("Unsqueeze", graph.add("Concat", size, size, axis=1), graph.constant([1]))
    graph.add("Mul", boxes, corners, name="boxes")
    graph.add("Identity", labels, name="labels")
    graph.add("Identity", scores, name="scores")
    outputs = [
        ("labels", TensorProto.INT64, ["n", 3]),
        ("boxes", TensorProto.FLOAT, ["n", 3, 4]),
        ("scores", TensorProto.FLOAT, ["n", 3]),
    ]
    return graph.save(path, outputs, sizes_input=True, **options)


def mmdeploy(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    labels, boxes, scores = listed(graph, box)
    graph.add("Concat", boxes, graph.add("Unsqueeze", scores, graph.constant([2])), name="dets", axis=2)
    graph.add("Identity", labels, name="labels")
    outputs = [("dets", TensorProto.FLOAT, ["n", 3, 5]), ("labels", TensorProto.INT64, ["n", 3])]
    return graph.save(path, outputs, **options)


def torchvision(graph: Graph, path: Path, box: np.ndarray, options: dict) -> Path:
    """No batch axis in the outputs, which are numbered as exporters like to."""
    names = []
    for part in listed(graph, box):
        names.append(graph.add("Squeeze", part, graph.constant([0])))
    labels, boxes, scores = names
    outputs: list[tuple[str, int, list[object]]] = [
        (boxes, TensorProto.FLOAT, ["k", 4]),
        (labels, TensorProto.INT64, ["k"]),
        (scores, TensorProto.FLOAT, ["k"]),
    ]
    return graph.save(path, outputs, **options)


BUILDERS = {
    "decoded": decoded,
    "yolox": yolox,
    "yolov5": yolov5,
    "yolov8": yolov8,
    "yolov9": yolov9,
    "nanodet": nanodet,
    "picodet": picodet,
    "ppyoloe": ppyoloe,
    "paddle": paddle,
    "end2end": end2end,
    "queries": queries,
    "rfdetr": rfdetr,
    "detr": detr,
    "mmdeploy": mmdeploy,
    "torchvision": torchvision,
}
