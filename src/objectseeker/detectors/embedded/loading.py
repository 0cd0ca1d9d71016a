"""The detector that comes with the package: VOC's 20 classes, trained with half masks, so cheap to defend."""

from __future__ import annotations

from importlib.util import find_spec

from objectseeker.core.rule import Rule
from objectseeker.detectors.embedded import ONNX_FILE
from objectseeker.detectors.network.detector import NetworkDetector
from objectseeker.detectors.network.results import SCORE_FLOOR
from objectseeker.detectors.network.views import MaskBy
from objectseeker.detectors.onnx import OnnxDetector
from objectseeker.errors import ObjectSeekerError

# The evidence rule at base_score 0.2, mask_score following it with alpha .22, beta .1 and low_score with .15, .08: high
# certified recall for a point of clean AP on VOC images it was not trained on (docs/reproduce.md).
RECOMMENDED = Rule(base_score=0.2, mask_score=0.28, low_score=0.264, edge_factor=0.85)


# An image is shown as large as the pixels of the square allow, and where the best guess about a box is wrong the next
# one is often right: together 2.5 points of AP (docs/embedded.md).
LAYOUT = "decoded,fit=spend,every_class=yes"


def load_embedded(
    *,
    input_size: int | tuple[int, int] = 416,
    layout: str = LAYOUT,
    score_floor: float = SCORE_FLOOR,
    batch: int | None = None,
    device: str = "cpu",
    mask_by: MaskBy = "fill",
    precision: str | None = None,
    workers: int | None = None,
) -> NetworkDetector:
    """The packaged detector. An image is shown as large as 416 x 416 pixels in all allow, whatever its shape.

    On the CPU it runs in ONNX Runtime, on a GPU in torch where that is installed: all views of an image at once.
    """
    if device != "cpu" and find_spec("torch") is not None:
        from objectseeker.detectors.embedded.weights import load_torch
        from objectseeker.detectors.network.names import VOC_20
        from objectseeker.detectors.torch_module import TorchDetector

        return TorchDetector(
            load_torch(),
            names=VOC_20,
            layout=layout,
            input_size=input_size,
            score_floor=score_floor,
            batch=batch,
            device=device,
            mask_by=mask_by,
            precision=precision or "float32",
        )
    if precision not in (None, "float32"):
        raise ObjectSeekerError(f"precision {precision} needs torch and a GPU: leave it out on the CPU")
    return OnnxDetector(
        ONNX_FILE,
        layout=layout,
        input_size=input_size,
        score_floor=score_floor,
        batch=batch,
        device=device,
        mask_by=mask_by,
        workers=workers,
    )
