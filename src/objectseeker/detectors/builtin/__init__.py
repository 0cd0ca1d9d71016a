"""The detector that comes with the package: VOC's 20 classes, trained with half masks and bands, so cheap to defend.

Importing this needs no framework; `model` and `weights` need PyTorch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.detectors.network.detector import NetworkDetector
from objectseeker.errors import ObjectSeekerError

ONNX_FILE = Path(__file__).with_name("seeker.onnx")

# An image is shown as large as the pixels of the square allow, and where the best guess about a box is wrong the next
# one is often right: together 2.4 points of AP; suppression a little earlier than others do it, 0.2
# (docs/builtin-detector.md).
LAYOUT = "decoded,fit=spend,every_class=yes,nms=0.55"
# Cropped views are as good as filled ones and take 1.7 times less on a CPU (docs/speed.md).
USUAL: dict[str, Any] = {"layout": LAYOUT, "input_size": 416, "mask_mode": "crop"}


def load_builtin(*, precision: str = "float32", workers: int | None = None, **options: Any) -> NetworkDetector:
    """The packaged detector. An image is shown as large as 416 x 416 pixels in all allow, whatever its shape.

    On the CPU it runs in ONNX Runtime, on a GPU in torch where that is installed: all views of an image at once.
    `options` are those of `NetworkOptions`.
    """
    options = USUAL | options
    if options.get("device", "cpu") != "cpu" and find_spec("torch") is not None:
        from objectseeker.detectors.builtin.weights import load_torch
        from objectseeker.detectors.torch_module import torch_detector

        return torch_detector(load_torch(), names=VOC_20, precision=precision, **options)
    if precision != "float32":
        raise ObjectSeekerError(f"precision {precision} needs torch and a GPU: leave it out on the CPU")
    from objectseeker.detectors.onnx import load_onnx

    return load_onnx(ONNX_FILE, class_names=VOC_20, workers=workers, **options)
