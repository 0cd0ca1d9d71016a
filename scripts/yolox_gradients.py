"""A YOLOX ONNX file as a torch module, for attacks that need its gradients.

    pip install onnx2torch
    YOLOX=yolox_nano.onnx PYTHONPATH=scripts objectseeker attack street.jpg --detector python:yolox_gradients:detector

ONNX Runtime gives boxes but no gradients. The module computes the same function up to rounding, so a patch trained on
it is judged on the ONNX file. YOLOX_DEVICE=cuda trains on a GPU.
"""

from __future__ import annotations

import os
from typing import Any

from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.class_names import COCO_80
from objectseeker.detectors.network.layouts import grid
from objectseeker.detectors.torch_module import torch_detector

SIZE = 416


def decode(rows: Any) -> tuple[Any, Any]:
    """Return corners and class scores of the raw output N x A x (center, sides, objectness, classes)."""
    import torch

    cell, stride = (torch.as_tensor(part, dtype=rows.dtype, device=rows.device) for part in grid((SIZE, SIZE)))
    center, half = (rows[..., :2] + cell) * stride, rows[..., 2:4].exp() * stride / 2
    return torch.cat([center - half, center + half], dim=-1), rows[..., 4:5] * rows[..., 5:]


def load(path: str, device: str = "cpu") -> NetworkDetector:
    """Load a YOLOX graph of one input size and COCO's 80 classes."""
    import onnx
    from onnx2torch import convert  # type: ignore[import-not-found]

    model = onnx.load(path)
    reshapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for shape in (shape for shape in model.graph.initializer if shape.name in reshapes):
        sizes = onnx.numpy_helper.to_array(shape).copy()
        sizes[0] = 0  # as many images as there are: the file says one
        shape.CopyFrom(onnx.numpy_helper.from_array(sizes, shape.name))
    module, layout = convert(model), "decoded,channels=bgr"
    return torch_detector(module, decode=decode, names=COCO_80, layout=layout, input_size=SIZE, device=device)


def __getattr__(name: str) -> NetworkDetector:
    """Load the detector when it is first used."""
    if name != "detector":
        raise AttributeError(name)
    loaded = globals()[name] = load(os.environ["YOLOX"], os.environ.get("YOLOX_DEVICE", "cpu"))
    return loaded
