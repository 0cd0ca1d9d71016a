"""Detection models of torchvision, with its weights or with yours."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.detectors import WEIGHTS
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.class_names import COCO_91, numbered_names
from objectseeker.detectors.network.detector import SingleImageDetector
from objectseeker.detectors.network.raw_boxes import SCORE_FLOOR, RawBoxes
from objectseeker.detectors.torch_module import import_torch, prepare_module
from objectseeker.errors import ObjectSeekerError

INSIDE = ("model", "state_dict", "model_state_dict")  # where training programs keep the weights in a checkpoint
PREFIXES = ("module.", "model.")  # that wrappers put before the name of every weight

log = logging.getLogger("objectseeker")


def load_torchvision(target: str, *, class_names: Sequence[str] | None = None, **options: Any) -> SingleImageDetector:
    """`NAME`, for instance fasterrcnn_resnet50_fpn_v2: a model of torchvision with its default weights.

    `NAME,weights=FILE` is that model with your weights: a state dict that `torch.save` wrote, by itself or in a
    checkpoint, of any number of classes. Nothing but tensors is read from it. `class_names` then names the classes, the
    background, label 0, among them.
    """
    name, own, file = target.partition(WEIGHTS)
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
    if own:
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
            f"the weights of torchvision:{name} cannot be downloaded here: download {weights.url} elsewhere and put it "
            f"into {folder}, or give your own with torchvision:{name}{WEIGHTS}FILE"
        ) from None
    return torchvision_detector(model, names=names, **options)


def torchvision_detector(
    model: Any, *, names: Sequence[str] = (), score_floor: float = SCORE_FLOOR, device: str = "cpu"
) -> SingleImageDetector:
    """A model from a list of 3 x H x W tensors within [0, 1] to a list of {boxes, scores, labels}.

    Labels are torchvision's own, 0 is the background.
    """
    torch = import_torch("a torchvision model", extra="torchvision")
    model = prepare_module(model, device)

    def find(image: Image) -> RawBoxes:
        pixels = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)
        with torch.inference_mode():
            (seen,) = model([torch.from_numpy(pixels).to(device)])
        return RawBoxes(seen["boxes"], seen["scores"], seen["labels"])

    named = fingerprint.model_fingerprint(model, score_floor, device)
    return SingleImageDetector(names=tuple(names), fingerprint=named, find=find, score_floor=score_floor)


def read_weights(file: Path) -> dict[str, Any]:
    """The tensors of a checkpoint by name; no code in it is run."""
    import torch

    if not file.is_file():
        raise ObjectSeekerError(f"there is no file {file}: give the weights that torch.save wrote")
    try:
        # The training program that comes with torchvision saves its arguments as well: texts and numbers.
        torch.serialization.add_safe_globals([argparse.Namespace])
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # whatever a broken or hostile file leads to
        raise ObjectSeekerError(
            f"{file} cannot be read as weights: write it with torch.save(model.state_dict(), FILE)"
        ) from None
    inside = (content[key] for key in INSIDE if isinstance(content, Mapping) and isinstance(content.get(key), Mapping))
    weights = next(inside, content)
    if not isinstance(weights, Mapping) or not weights or not all(map(torch.is_tensor, weights.values())):
        raise ObjectSeekerError(f"{file} holds no weights by name: write it with torch.save(model.state_dict(), FILE)")
    for prefix in PREFIXES:
        if all(str(key).startswith(prefix) for key in weights):
            weights = {str(key).removeprefix(prefix): tensor for key, tensor in weights.items()}
    return dict(weights)


def _with_weights(models: Any, name: str, weights: Mapping[str, Any], file: str) -> tuple[Any, int]:
    """The model that these weights fit, with them in it, and how many classes it has."""
    classes = _count_classes(models, name, weights)
    problem = "it lacks the layer that tells classes apart"
    if classes is not None:
        model = models.get_model(name, weights=None, weights_backbone=None, num_classes=classes)
        try:
            missing, unknown = model.load_state_dict(dict(weights), strict=False)
        except RuntimeError as error:  # of other shapes
            problem = str(error).splitlines()[-1].strip()
        else:
            # What counts the batches of training has no part in a prediction; frozen layers do not save it.
            missing = [key for key in missing if not key.endswith("num_batches_tracked")]
            if not missing and not unknown:
                return model, classes
            problem = f"{len(missing)} weights are missing, {len(unknown)} unknown, as {(missing + unknown)[0]}"
    raise ObjectSeekerError(f"the weights in {file} do not fit torchvision's {name}: {problem}")


def _count_classes(models: Any, name: str, weights: Mapping[str, Any]) -> int | None:
    """How many classes weights are for. Layers that grow with the number of classes are found by asking for 2 and 3."""
    import torch

    shapes = []
    for count in (2, 3):
        with torch.device("meta"):  # shapes alone: nothing is computed
            model = models.get_model(name, weights=None, weights_backbone=None, num_classes=count)
        shapes.append({key: tensor.shape for key, tensor in model.state_dict().items()})
    two, three = shapes
    for key, shape in two.items():
        if shape != three[key] and key in weights and len(weights[key].shape) == len(shape):
            step = three[key][0] - shape[0]
            classes, rest = divmod(weights[key].shape[0] - shape[0] + 2 * step, step)
            return int(classes) if rest == 0 and classes > 0 else None
    return None


def _names(file: str, classes: int, given: Sequence[str] | None) -> tuple[str, ...]:
    if given is not None:
        if len(given) != classes:
            raise ObjectSeekerError(
                f"{file} has {classes} classes, the background (label 0) among them, but {len(given)} names were given"
            )
        return tuple(given)
    if classes == len(COCO_91):
        log.warning(
            "%s does not name its 91 classes: they are taken for those of COCO; --names FILE gives others", file
        )
        return COCO_91
    return numbered_names(0, classes)
