"""Detection models of torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image, as_image
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.results import SCORE_FLOOR, Found, on_image
from objectseeker.detectors.torch_module import import_torch, ready
from objectseeker.errors import ObjectSeekerError


class TorchvisionDetector:
    """A model from a list of 3 x H x W tensors within [0, 1] to a list of {boxes, scores, labels}.

    Images go through one at a time: torchvision pads the images of a batch to a common size, so that batch-mates
    would change the result. Labels are torchvision's own, 0 is the background.
    """

    def __init__(
        self, model: Any, *, names: Sequence[str] = (), score_floor: float = SCORE_FLOOR, device: str = "cpu"
    ) -> None:
        self._torch = import_torch("a torchvision model")
        self._model = ready(model, device)
        self._device = device
        self._floor = score_floor
        self.names = tuple(names)
        self.identity = f"{type(model).__name__} (floor={score_floor:g} {device}) sha256:{identity.of_module(model)}"

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        return [self._detect(as_image(image)) for image in images]

    def _detect(self, image: Image) -> Detections:
        pixels = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)
        with self._torch.inference_mode():
            (found,) = self._model([self._torch.from_numpy(pixels).to(self._device)])
        return on_image(Found(found["boxes"], found["scores"], found["labels"]), image, floor=self._floor)


def load_torchvision(name: str, **options: Any) -> TorchvisionDetector:
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
    return TorchvisionDetector(models.get_model(name, weights=weights), names=weights.meta["categories"], **options)
