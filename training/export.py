"""Averaged weights of a training run -> ONNX, checked against PyTorch.

python -m training.export runs/embedded/weights.pt seeker.onnx
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from objectseeker.detectors.embedded.model import STRIDES, Predictor
from objectseeker.detectors.embedded.weights import HALF_SUFFIX
from training.trainer import load_trained

METADATA = {
    "input": "RGB float32 0..255, N3HW, H and W multiples of 32",
    "outputs": "boxes xyxy in input pixels; class scores 0..1; no NMS inside",
    "strides": " ".join(map(str, STRIDES)),
}
STORED_HALF_FROM = 256  # elements: smaller tensors are not worth a Cast node
CHECKED_SHAPES = ((1, 416, 416), (3, 320, 416), (2, 512, 288), (1, 640, 640))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="weights.pt of a training run")
    parser.add_argument("file", type=Path, help="the .onnx to write")
    arguments = parser.parse_args()
    predictor, names = load_trained(arguments.weights)
    export(predictor, arguments.file)
    model = onnx.load(arguments.file)
    add_metadata(model, {"classes": ",".join(names), **METADATA})
    store_half(model)
    onnx.checker.check_model(model)
    onnx.save(model, arguments.file)
    box_error, score_error = differences(predictor, arguments.file)
    print(
        f"{arguments.file}: {arguments.file.stat().st_size} bytes; "
        f"rounding to half precision moves boxes by up to {box_error:.3f} pixels and scores by {score_error:.5f}"
    )


def export(predictor: Predictor, file: Path) -> None:
    """Any batch size and any image size (multiples of 32)."""
    torch.onnx.export(
        predictor,
        (torch.zeros(2, 3, 416, 416),),
        str(file),
        input_names=["images"],
        output_names=["boxes", "scores"],
        dynamic_axes={"images": {0: "n", 2: "h", 3: "w"}, "boxes": {0: "n", 1: "a"}, "scores": {0: "n", 1: "a"}},
        opset_version=17,
        dynamo=False,
    )


def add_metadata(model: onnx.ModelProto, metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


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


@torch.no_grad()
def differences(predictor: Predictor, file: Path) -> tuple[float, float]:
    """The largest differences of boxes and scores between the module and the file, over several shapes."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    box_error = score_error = 0.0
    for count, height, width in CHECKED_SHAPES:
        images = torch.randint(0, 256, (count, 3, height, width), generator=generator).float()
        expected = [output.numpy() for output in predictor(images)]
        boxes, scores = session.run(None, {"images": images.numpy()})
        if boxes.shape != expected[0].shape or scores.shape != expected[1].shape:
            raise SystemExit(f"{file} gives shapes {boxes.shape} and {scores.shape} at {height}x{width}")
        box_error = max(box_error, float(np.abs(boxes - expected[0]).max()))
        score_error = max(score_error, float(np.abs(scores - expected[1]).max()))
    return box_error, score_error


if __name__ == "__main__":
    main()
