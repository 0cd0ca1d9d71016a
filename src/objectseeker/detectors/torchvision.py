"""Detection models of torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from objectseeker.core.image import Image
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.one_by_one import OneByOneDetector
from objectseeker.detectors.network.results import SCORE_FLOOR, Found
from objectseeker.detectors.torch_module import import_torch, ready
from objectseeker.errors import ObjectSeekerError


def load_torchvision(name: str, **options: Any) -> OneByOneDetector:
    """A model by its name in torchvision, for instance fasterrcnn_resnet50_fpn_v2, with its default weights."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision built for another torch
        raise ObjectSeekerError(
            f"torchvision:{name} needs a torchvision that fits your torch: pip install 'objectseeker[torchvision]'"
        ) from None
    known = models.list_models(module=models.detection)
    if name not in known:
        raise ObjectSeekerError(f"torchvision has no detector {name!r}: choose one of {', '.join(known)}")
    weights = models.get_model_weights(name).DEFAULT
    return torchvision_detector(models.get_model(name, weights=weights), names=weights.meta["categories"], **options)


def torchvision_detector(
    model: Any, *, names: Sequence[str] = (), score_floor: float = SCORE_FLOOR, device: str = "cpu"
) -> OneByOneDetector:
    """A model from a list of 3 x H x W tensors within [0, 1] to a list of {boxes, scores, labels}.

    Labels are torchvision's own, 0 is the background.
    """
    torch = import_torch("a torchvision model")
    model = ready(model, device)

    def find(image: Image) -> Found:
        pixels = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)
        with torch.inference_mode():
            (seen,) = model([torch.from_numpy(pixels).to(device)])
        return Found(seen["boxes"], seen["scores"], seen["labels"])

    named = identity.of_model(model, score_floor, device)
    return OneByOneDetector(names=tuple(names), identity=named, find=find, score_floor=score_floor)
