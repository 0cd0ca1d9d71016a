"""Detection models of torchvision and of ultralytics, run one image at a time by their own code.

ultralytics is AGPL: only `ultralytics:` specs import it.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.detectors import WEIGHTS
from objectseeker.detectors.network import SingleImageDetector, fingerprint, parse_size
from objectseeker.detectors.network.class_names import COCO_91, from_mapping, numbered_names
from objectseeker.detectors.network.raw_boxes import MAX_BOXES, SCORE_FLOOR, RawBoxes
from objectseeker.detectors.torch_module import import_torch, prepare_module
from objectseeker.errors import ObjectSeekerError, import_optional

CHECKPOINT_KEYS = ("model", "state_dict", "model_state_dict")  # under which training programs save the weights
PREFIXES = ("module.", "model.")  # that wrappers put in front of every weight's name

log = logging.getLogger("objectseeker")


def load_torchvision(target: str, *, class_names: Sequence[str] | None = None, **options: Any) -> SingleImageDetector:
    """Load a detection model of torchvision.

    Args:
        target: `NAME`, for example fasterrcnn_resnet50_fpn_v2, for the default weights. `NAME,weights=FILE` for your
            own: a state dict that `torch.save` wrote, alone or in a checkpoint, with any number of classes. Only
            tensors are read from it, never code.
        class_names: Class names by label, including the background, label 0.
        options: `score_floor` and `device`.

    Raises:
        ObjectSeekerError: torchvision or PyTorch is missing, or the model or its weights cannot be loaded.
    """
    name, has_file, file = target.partition(WEIGHTS)
    torch = import_torch(f"torchvision:{name}", extra="torchvision")
    try:
        from torchvision import models
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision built for another torch
        raise ObjectSeekerError(
            f"torchvision:{name} needs a torchvision that fits your torch: pip install 'objectseeker[torchvision]'"
        ) from None
    known = models.list_models(module=models.detection)
    if name not in known:
        raise ObjectSeekerError(f"torchvision has no detector {name!r}: choose one of {', '.join(known)}")
    if has_file:
        model, classes = _with_weights(models, name, read_weights(Path(file)), file)
        return torchvision_detector(model, names=_names(file, classes, class_names), **options)
    weights = models.get_model_weights(name).DEFAULT
    names = weights.meta["categories"]
    if class_names is not None:
        names = _names(name, len(names), class_names)
    try:
        model = models.get_model(name, weights=weights)
    except OSError:  # no connection: urllib's errors are of this kind
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise ObjectSeekerError(
            f"cannot download the weights of torchvision:{name}: download {weights.url} elsewhere and put it into "
            f"{folder}, or use your own with torchvision:{name}{WEIGHTS}FILE"
        ) from None
    return torchvision_detector(model, names=names, **options)


def torchvision_detector(
    model: Any, *, names: Sequence[str] = (), score_floor: float = SCORE_FLOOR, device: str = "cpu"
) -> SingleImageDetector:
    """Wrap a model from a list of 3 x H x W tensors within [0, 1] to a list of {boxes, scores, labels}.

    Labels are torchvision's own; 0 is the background.
    """
    torch = import_torch("a torchvision model", extra="torchvision")
    model = prepare_module(model, device)

    def detect_one(image: Image) -> RawBoxes:
        pixels = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)
        with torch.inference_mode():
            (output,) = model([torch.from_numpy(pixels).to(device)])
        return RawBoxes(output["boxes"], output["scores"], output["labels"])

    named = fingerprint.model_fingerprint(model, score_floor, device)
    return SingleImageDetector(names=tuple(names), fingerprint=named, detect_one=detect_one, score_floor=score_floor)


def read_weights(file: Path) -> dict[str, Any]:
    """Read the tensors of a checkpoint by name; no code in it is run."""
    import torch

    if not file.is_file():
        raise ObjectSeekerError(f"there is no file {file}: pass weights that torch.save wrote")
    try:
        # The training program of torchvision also saves its arguments: strings and numbers.
        torch.serialization.add_safe_globals([argparse.Namespace])
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # any error that a broken or malicious file causes
        raise ObjectSeekerError(
            f"cannot read {file} as weights: write it with torch.save(model.state_dict(), FILE)"
        ) from None
    nested = (
        content[key]
        for key in CHECKPOINT_KEYS
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping)
    )
    weights = next(nested, content)
    if not isinstance(weights, Mapping) or not weights or not all(map(torch.is_tensor, weights.values())):
        raise ObjectSeekerError(
            f"{file} does not contain weights by name: write it with torch.save(model.state_dict(), FILE)"
        )
    for prefix in PREFIXES:
        if all(str(key).startswith(prefix) for key in weights):
            weights = {str(key).removeprefix(prefix): tensor for key, tensor in weights.items()}
    return dict(weights)


def _with_weights(models: Any, name: str, weights: Mapping[str, Any], file: str) -> tuple[Any, int]:
    """Return the model with these weights loaded, and its number of classes."""
    classes = _count_classes(models, name, weights)
    problem = "they lack the classification layer"
    if classes is not None:
        model = models.get_model(name, weights=None, weights_backbone=None, num_classes=classes)
        try:
            missing, unknown = model.load_state_dict(dict(weights), strict=False)
        except RuntimeError as error:  # of other shapes
            problem = str(error).splitlines()[-1].strip()
        else:
            # Counters of training batches do not affect predictions; frozen layers do not save them.
            missing = [key for key in missing if not key.endswith("num_batches_tracked")]
            if not missing and not unknown:
                return model, classes
            problem = f"{len(missing)} are missing and {len(unknown)} unknown, such as {(missing + unknown)[0]}"
    raise ObjectSeekerError(f"the weights in {file} do not fit torchvision's {name}: {problem}")


def _count_classes(models: Any, name: str, weights: Mapping[str, Any]) -> int | None:
    """Return the number of classes of weights, by the layers whose shapes differ between 2 and 3 classes."""
    import torch

    shapes = []
    for count in (2, 3):
        with torch.device("meta"):  # shapes only: nothing is computed
            model = models.get_model(name, weights=None, weights_backbone=None, num_classes=count)
        shapes.append({key: tensor.shape for key, tensor in model.state_dict().items()})
    two, three = shapes
    for key, shape in two.items():
        if shape != three[key] and key in weights and len(weights[key].shape) == len(shape):
            step = three[key][0] - shape[0]
            classes, remainder = divmod(weights[key].shape[0] - shape[0] + 2 * step, step)
            return int(classes) if remainder == 0 and classes > 0 else None
    return None


def _names(file: str, classes: int, class_names: Sequence[str] | None) -> tuple[str, ...]:
    if class_names is not None:
        if len(class_names) != classes:
            raise ObjectSeekerError(
                f"{file} has {classes} classes, including the background (label 0): got {len(class_names)} names: "
                "pass one per class"
            )
        return tuple(class_names)
    if classes == len(COCO_91):
        log.warning("%s does not name its 91 classes: COCO's are assumed; others: --set class_names=@FILE", file)
        return COCO_91
    return numbered_names(0, classes)


def load_ultralytics(file: str, **options: Any) -> SingleImageDetector:
    """Load a model file, for example yolov8n.pt. Loading one runs code in it: load only files you trust."""
    weights = Path(file)
    if not weights.is_file():
        raise ObjectSeekerError(f"there is no file {file}: pass the path of an ultralytics model file")
    advice = f"ultralytics:{file} needs ultralytics, which is AGPL: pip install ultralytics"
    return ultralytics_detector(import_optional("ultralytics", advice).YOLO(file), weights, **options)


def ultralytics_detector(
    model: Any,
    weights: Path | None = None,
    *,
    input_size: int | tuple[int, int] = 640,
    score_floor: float = SCORE_FLOOR,
    device: str = "cpu",
) -> SingleImageDetector:
    """Wrap a model of ultralytics; its fingerprint is of the file `weights`, or of the model in memory.

    Its `predict` takes BGR arrays and returns results with `boxes.xyxy`, `boxes.conf` and `boxes.cls`. For speed,
    export the model to ONNX: its views are then masked after the resize and run in batches.
    """
    width, height = parse_size(input_size)
    options = {"conf": score_floor, "device": device, "max_det": MAX_BOXES, "verbose": False}

    def detect_one(image: Image) -> RawBoxes:
        (result,) = model.predict(np.ascontiguousarray(image[..., ::-1]), imgsz=[height, width], **options)
        return RawBoxes(result.boxes.xyxy, result.boxes.conf, result.boxes.cls)

    settings = f"{width}x{height} floor={score_floor:g} {fingerprint.device_fingerprint(device)}"
    if weights is None:
        model.fuse()  # as the first prediction would, so that the weights are the same before it and after
        named = f"{type(model).__name__} ({settings}) sha256:{fingerprint.hash_module(model.model, weights_only=True)}"
    else:
        named = f"{weights.name} ({settings}) sha256:{fingerprint.hash_files(weights)}"
    return SingleImageDetector(
        names=from_mapping(model.names), fingerprint=named, detect_one=detect_one, score_floor=score_floor
    )
