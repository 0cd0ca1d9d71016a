"""Models of ultralytics, run by its predict(). It is AGPL: only `ultralytics:` specs import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.class_names import from_mapping
from objectseeker.detectors.network.detector import SingleImageDetector, parse_size
from objectseeker.detectors.network.raw_boxes import MAX_BOXES, SCORE_FLOOR, RawBoxes
from objectseeker.errors import ObjectSeekerError


def load_ultralytics(file: str, **options: Any) -> SingleImageDetector:
    """Load a model file, for example yolov8n.pt. Loading one runs code in it: load only files you trust."""
    weights = Path(file)
    if not weights.is_file():
        raise ObjectSeekerError(f"there is no file {file}: pass the path of an ultralytics model file")
    try:
        from ultralytics import YOLO
    except ImportError:
        raise ObjectSeekerError(
            f"ultralytics:{file} needs ultralytics, which is AGPL: pip install ultralytics"
        ) from None
    return ultralytics_detector(YOLO(file), weights, **options)


def ultralytics_detector(
    model: Any,
    weights: Path,
    *,
    input_size: int | tuple[int, int] = 640,
    score_floor: float = SCORE_FLOOR,
    device: str = "cpu",
) -> SingleImageDetector:
    """Wrap a model of ultralytics, which was loaded from the file `weights`.

    Its `predict` takes BGR arrays and returns results with `boxes.xyxy`, `boxes.conf` and `boxes.cls`. For speed,
    export the model to ONNX: its views are then masked after the resize and run in batches.
    """
    width, height = parse_size(input_size)
    options = {"conf": score_floor, "device": device, "max_det": MAX_BOXES, "verbose": False}

    def detect_one(image: Image) -> RawBoxes:
        (result,) = model.predict(np.ascontiguousarray(image[..., ::-1]), imgsz=[height, width], **options)
        return RawBoxes(result.boxes.xyxy, result.boxes.conf, result.boxes.cls)

    processor = fingerprint.on_cpu() if device == "cpu" else fingerprint.device_fingerprint(device)
    settings = f"{width}x{height} floor={score_floor:g} {processor}"
    named = f"{weights.name} ({settings}) sha256:{fingerprint.hash_files(weights)}"
    return SingleImageDetector(
        names=from_mapping(model.names), fingerprint=named, detect_one=detect_one, score_floor=score_floor
    )
