"""The detector that comes with the package: VOC's 20 classes, trained with half masks, so cheap to defend."""

from __future__ import annotations

from objectseeker.detectors.onnx import OnnxDetector
from objectseeker.detectors.results import SCORE_FLOOR
from objectseeker.embedded import ONNX_FILE
from objectseeker.pruning import Rule

# The evidence rule at base_score 0.2, mask_score following it with alpha .22, beta .1 and low_score with .15, .08: no
# loss of clean AP on VOC images it was not trained on, and high certified recall (docs/reproduce.md).
RECOMMENDED = Rule(base_score=0.2, mask_score=0.28, low_score=0.264, edge_factor=0.85)


def load_embedded(
    *,
    input_size: int | tuple[int, int] = 416,
    layout: str = "decoded",
    score_floor: float = SCORE_FLOOR,
    batch: int = 8,
    device: str = "cpu",
) -> OnnxDetector:
    """The packaged detector. Larger inputs than 416 cost time and gain about two points of AP (512)."""
    return OnnxDetector(
        ONNX_FILE, layout=layout, input_size=input_size, score_floor=score_floor, batch=batch, device=device
    )
