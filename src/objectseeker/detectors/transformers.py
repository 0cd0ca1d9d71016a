"""Object detection models of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from objectseeker.core.boxes import Detections
from objectseeker.core.image import Image, as_image
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.names import from_mapping
from objectseeker.detectors.network.results import SCORE_FLOOR, Found, on_image
from objectseeker.detectors.torch_module import import_torch, ready
from objectseeker.errors import ObjectSeekerError


class TransformersDetector:
    """A model for object detection and its image processor, which resizes and maps the boxes back.

    Images go through one at a time: processors pad the images of a batch to a common size, so that batch-mates
    would change the result.
    """

    def __init__(self, model: Any, processor: Any, *, score_floor: float = SCORE_FLOOR, device: str = "cpu") -> None:
        self._torch = import_torch("a transformers model")
        self._model = ready(model, device)
        self._processor = processor
        self._device = device
        self._floor = score_floor
        self.names = from_mapping(model.config.id2label)
        self.identity = f"{type(model).__name__} (floor={score_floor:g} {device}) sha256:{identity.of_module(model)}"

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        return [self._detect(as_image(image)) for image in images]

    def _detect(self, image: Image) -> Detections:
        inputs = self._processor(images=[image], return_tensors="pt", input_data_format="channels_last")
        with self._torch.inference_mode():
            outputs = self._model(**{key: value.to(self._device) for key, value in inputs.items()})
        (found,) = self._processor.post_process_object_detection(
            outputs, threshold=self._floor, target_sizes=[image.shape[:2]]
        )
        return on_image(Found(found["boxes"], found["scores"], found["labels"]), image, floor=self._floor)


def load_transformers(name: str, **options: Any) -> TransformersDetector:
    """A model by its name on the Hugging Face hub, or by the folder it was saved to."""
    try:
        from transformers import (
            AutoImageProcessor,
            AutoModelForObjectDetection,
        )
    except ImportError:
        raise ObjectSeekerError(f"transformers:{name} needs pip install 'objectseeker[transformers]'") from None
    try:
        processor = AutoImageProcessor.from_pretrained(name)
        model = AutoModelForObjectDetection.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ObjectSeekerError(f"transformers cannot load an object detector from {name!r}: {reason}") from None
    return TransformersDetector(model, processor, **options)
