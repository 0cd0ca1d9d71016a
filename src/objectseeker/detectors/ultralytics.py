"""Models of ultralytics, through its own predict(). The package is AGPL: it is never imported unless asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.class_names import from_mapping
from objectseeker.detectors.network.detector import SingleImageDetector, parse_size
from objectseeker.detectors.network.raw_boxes import MOST_BOXES, SCORE_FLOOR, RawBoxes
from objectseeker.errors import ObjectSeekerError


def load_ultralytics(file: str, **options: Any) -> SingleImageDetector:
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
    return ultralytics_detector(YOLO(file), weights, **options)


def ultralytics_detector(
    model: Any,
    weights: Path,
    *,
    input_size: int | tuple[int, int] = 640,
    score_floor: float = SCORE_FLOOR,
    device: str = "cpu",
) -> SingleImageDetector:
    """A model whose `predict` takes BGR arrays and returns results with `boxes.xyxy`, `boxes.conf` and `boxes.cls`.

    `weights` is the file the model came from. For speed, export the model to ONNX: that way views are masked after the
    resize and run in batches.
    """
    width, height = parse_size(input_size)
    options = {"conf": score_floor, "device": device, "max_det": MOST_BOXES, "verbose": False}

    def find(image: Image) -> RawBoxes:
        (seen,) = model.predict(np.ascontiguousarray(image[..., ::-1]), imgsz=[height, width], **options)
        return RawBoxes(seen.boxes.xyxy, seen.boxes.conf, seen.boxes.cls)

    where = fingerprint.on_cpu() if device == "cpu" else fingerprint.device_fingerprint(device)
    settings = f"{width}x{height} floor={score_floor:g} {where}"
    named = f"{weights.name} ({settings}) sha256:{fingerprint.hash_files(weights)}"
    return SingleImageDetector(names=from_mapping(model.names), fingerprint=named, find=find, score_floor=score_floor)
