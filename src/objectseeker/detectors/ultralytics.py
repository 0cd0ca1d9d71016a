"""Models of ultralytics, through its own predict(). The package is AGPL: it is never imported unless asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image, as_image
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.detector import as_size
from objectseeker.detectors.network.names import from_mapping
from objectseeker.detectors.network.results import MOST_BOXES, SCORE_FLOOR, Found, on_image
from objectseeker.errors import ObjectSeekerError


class UltralyticsDetector:
    """A model whose `predict` takes BGR arrays and returns results with `boxes.xyxy`, `boxes.conf` and `boxes.cls`.

    Images go through one at a time, so that none can depend on its batch-mates. `weights` is the file the model came
    from. For speed, export the model to ONNX: that way views are masked after the resize and run in batches.
    """

    def __init__(
        self,
        model: Any,
        weights: Path,
        *,
        input_size: int | tuple[int, int] = 640,
        score_floor: float = SCORE_FLOOR,
        device: str = "cpu",
    ) -> None:
        width, height = as_size(input_size)
        self._model = model
        self._options = {
            "imgsz": [height, width],
            "conf": score_floor,
            "device": device,
            "max_det": MOST_BOXES,
            "verbose": False,
        }
        self._floor = score_floor
        self.names = from_mapping(model.names)
        settings = f"{width}x{height} floor={score_floor:g} {device}"
        self.identity = f"{weights.name} ({settings}) sha256:{identity.of_files(weights)}"

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        return [self._detect(as_image(image)) for image in images]

    def _detect(self, image: Image) -> Detections:
        (result,) = self._model.predict(np.ascontiguousarray(image[..., ::-1]), **self._options)
        return on_image(Found(result.boxes.xyxy, result.boxes.conf, result.boxes.cls), image, floor=self._floor)


def load_ultralytics(file: str, **options: Any) -> UltralyticsDetector:
    """A model file, for instance yolov8n.pt."""
    weights = Path(file)
    if not weights.is_file():
        raise ObjectSeekerError(f"there is no file {file}: give the path of an ultralytics model file")
    try:
        from ultralytics import YOLO
    except ImportError:
        raise ObjectSeekerError(
            f"ultralytics:{file} needs ultralytics, which is AGPL: pip install ultralytics"
        ) from None
    return UltralyticsDetector(YOLO(file), weights, **options)
