"""The built-in detector: 20 classes of VOC, trained with half masks and bands, so cheap to defend.

Importing this module needs no framework. `load_torch` reads the weights of the packaged ONNX file into PyTorch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from objectseeker.detectors.network import NetworkDetector
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.errors import ObjectSeekerError, import_optional

if TYPE_CHECKING:
    from objectseeker.detectors.builtin.model import Predictor

ONNX_FILE = Path(__file__).with_name("seeker.onnx")
HALF_SUFFIX = "_h"  # of a weight stored as float16; the float32 weight behind a Cast node has its own name

# Fit "max-area" shows an image as large as the pixels of the square allow. If a detector's best class for a box is
# wrong, the second one is often right. Together that is 2.4 points of AP; slightly earlier suppression than usual is
# 0.2 (docs/reference/builtin-detector.md).
LAYOUT = "decoded,fit=max-area,every_class=yes,nms=0.55"
# Cropped views are as good as filled ones and take 1.7 times less time on a CPU (docs/concepts/performance.md).
DEFAULT_OPTIONS: dict[str, Any] = {"layout": LAYOUT, "input_size": 416, "mask_mode": "crop"}


def load_builtin(*, precision: str = "float32", workers: int | None = None, **options: Any) -> NetworkDetector:
    """Load the packaged detector.

    It shows an image as large as 416 x 416 pixels allow, whatever its shape. On the CPU it runs in ONNX Runtime. On a
    GPU it runs in torch, if that is installed: all views of an image at once.

    Args:
        precision: float32; on a GPU also float16 or bfloat16, on OpenVINO bfloat16.
        workers: Number of views that run at the same time on a CPU; default: one per core.
        options: Those of `NetworkOptions`.

    Raises:
        ObjectSeekerError: An option is invalid, or the precision or device is not available.
    """
    options = DEFAULT_OPTIONS | options
    device = options.get("device", "cpu")
    if device not in ("cpu", "openvino") and find_spec("torch") is not None:
        from objectseeker.detectors.torch_module import torch_detector

        return torch_detector(load_torch(), names=VOC_20, precision=precision, **options)
    if precision != "float32" and device != "openvino":
        raise ObjectSeekerError(f"precision {precision} needs torch and a GPU, or device openvino: omit it on the CPU")
    from objectseeker.detectors.onnx import load_onnx

    return load_onnx(ONNX_FILE, class_names=VOC_20, workers=workers, precision=precision, **options)


def load_torch(path: Path | str = ONNX_FILE) -> Predictor:
    """Load the network of an exported ONNX file as a differentiable module.

    It is in evaluation mode on the CPU. It maps RGB images 0..255 (float N3HW, sides multiples of 32) to boxes N,A,4
    and scores N,A,classes.
    """
    from objectseeker.detectors.torch_module import import_torch

    torch = import_torch("the built-in detector as a module")
    from objectseeker.detectors.builtin.model import BuiltinDetector, Predictor, fused

    weights = {name: torch.from_numpy(array) for name, array in read_weights(path).items()}
    try:
        detector = fused(BuiltinDetector(classes=len(weights["class_heads.0.2.bias"])))
        detector.load_state_dict(weights)
    except (KeyError, RuntimeError):
        raise ObjectSeekerError(
            f"{path} does not contain the weights of the built-in detector: export it with train_builtin/export.py"
        ) from None
    predictor = Predictor(detector)
    predictor.eval().requires_grad_(False)
    return predictor


def read_weights(path: Path | str) -> dict[str, npt.NDArray[np.float32]]:
    """Read the weights in an exported ONNX file, by their names in `BuiltinDetector` (batch norms folded)."""
    onnx = import_optional("onnx", "weights in an ONNX file need onnx: pip install 'objectseeker[torch]'")
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:  # a missing file, or any error of the parser about a damaged one
        raise ObjectSeekerError(f"cannot read {path} as an ONNX file: {error}. Export it again.") from None
    to_array = onnx.numpy_helper.to_array
    arrays = {tensor.name.removesuffix(HALF_SUFFIX): to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:  # the exporter stores equal weights once and names the others after the first
        if node.op_type == "Identity" and node.input[0] in arrays:
            arrays[node.output[0]] = arrays[node.input[0]]
    return {
        name.partition(".")[2]: np.array(array, np.float32)  # without the name of the enclosing module
        for name, array in arrays.items()
        if name.endswith((".weight", ".bias"))
    }
