"""Export a training run's averaged weights to ONNX, checked against PyTorch.

python -m train_builtin.export runs/builtin/weights.pt seeker.onnx
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from objectseeker.detectors.builtin import HALF_SUFFIX
from objectseeker.detectors.builtin.model import STRIDES
from train_builtin.trainer import load_trained

METADATA = {
    "input": "RGB float32 0..255, N3HW, H and W multiples of 32",
    "outputs": "boxes xyxy in input pixels; class scores 0..1; no NMS inside",
    "strides": " ".join(map(str, STRIDES)),
}
OUTPUTS = {"boxes": {0: "n", 1: "a"}, "scores": {0: "n", 1: "a"}}
STORED_HALF_FROM = 256  # elements: smaller tensors are not worth a Cast node
CHECKED_SHAPES = ((1, 416, 416), (3, 320, 416), (2, 512, 288), (1, 640, 640))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="weights.pt of a training run")
    parser.add_argument("file", type=Path, help="the .onnx to write")
    arguments = parser.parse_args()
    predictor, names = load_trained(arguments.weights)
    export(predictor, arguments.file, OUTPUTS, {"classes": ",".join(names), **METADATA})
    box_error, score_error = differences(predictor, arguments.file, CHECKED_SHAPES)
    print(
        f"{arguments.file}: {arguments.file.stat().st_size} bytes; "
        f"rounding to half precision moves boxes by up to {box_error:.3f} pixels and scores by {score_error:.5f}"
    )


def export(module: Any, file: Path, outputs: dict[str, dict[int, str]], metadata: dict[str, str]) -> None:
    """Write a module as an ONNX file with half-precision weights, for any batch and image size.

    `outputs` names the outputs in order, and the axes of each that are not fixed.
    """
    torch.onnx.export(
        module,
        (torch.zeros(2, 3, 416, 416),),
        str(file),
        input_names=["images"],
        output_names=list(outputs),
        dynamic_axes={"images": {0: "n", 2: "h", 3: "w"}, **outputs},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(file)
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    store_half(model)
    onnx.checker.check_model(model)
    onnx.save(model, file)


def store_half(model: onnx.ModelProto) -> None:
    """Store weights as float16, each followed by a Cast: half the file, and all arithmetic stays in float32."""
    graph = model.graph
    for tensor in list(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < STORED_HALF_FROM:
            continue
        half = values.astype(np.float16)
        if not np.isfinite(half).all():
            raise SystemExit(f"{tensor.name} does not fit half precision")
        stored = tensor.name + HALF_SUFFIX
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(half, stored))
        graph.node.insert(0, helper.make_node("Cast", [stored], [tensor.name], to=TensorProto.FLOAT))


def differences(module: Any, file: Path, shapes: Sequence[tuple[int, int, int]]) -> list[float]:
    """Return for every output the largest difference between module and file, over batches of several shapes."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    errors = []
    for count, height, width in shapes:
        images = torch.randint(0, 256, (count, 3, height, width), generator=generator).float()
        with torch.no_grad():
            expected = module(images)
        expected = [part.numpy() for part in (expected if isinstance(expected, tuple) else (expected,))]
        actual = session.run(None, {"images": images.numpy()})
        if [part.shape for part in actual] != [part.shape for part in expected]:
            raise SystemExit(f"{file} gives shapes {[part.shape for part in actual]} at {height}x{width}")
        errors.append([float(np.abs(a - b).max()) for a, b in zip(actual, expected, strict=True)])
    return [max(of_output) for of_output in zip(*errors, strict=True)]


if __name__ == "__main__":
    main()
