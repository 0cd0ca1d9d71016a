"""Object detection models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from objectseeker.core.image import Image
from objectseeker.detectors.network import identity
from objectseeker.detectors.network.names import from_mapping
from objectseeker.detectors.network.one_by_one import OneByOneDetector
from objectseeker.detectors.network.results import SCORE_FLOOR, Found
from objectseeker.detectors.torch_module import import_torch, ready
from objectseeker.errors import ObjectSeekerError


def load_transformers(name: str, **options: Any) -> OneByOneDetector:
    """A model by its name on the Hugging Face hub, or by the folder it was saved to."""
    try:
        from transformers import AutoImageProcessor, AutoModelForObjectDetection
    except ImportError:
        raise ObjectSeekerError(f"transformers:{name} needs pip install 'objectseeker[transformers]'") from None
    try:
        processor = AutoImageProcessor.from_pretrained(name)
        model = AutoModelForObjectDetection.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ObjectSeekerError(f"transformers cannot load an object detector from {name!r}: {reason}") from None
    return transformers_detector(model, processor, **options)


def transformers_detector(
    model: Any, processor: Any, *, score_floor: float = SCORE_FLOOR, device: str = "cpu"
) -> OneByOneDetector:
    """A model for object detection and its image processor, which resizes and maps the boxes back."""
    torch = import_torch("a transformers model")
    model = ready(model, device)

    def find(image: Image) -> Found:
        inputs = processor(images=[image], return_tensors="pt", input_data_format="channels_last")
        with torch.inference_mode():
            outputs = model(**{key: value.to(device) for key, value in inputs.items()})
        (seen,) = processor.post_process_object_detection(
            outputs, threshold=score_floor, target_sizes=[image.shape[:2]]
        )
        return Found(seen["boxes"], seen["scores"], seen["labels"])

    # How the processor resizes and normalises decides the boxes as much as the weights do.
    settings = processor.to_json_string() if hasattr(processor, "to_json_string") else repr(processor)
    named = identity.of_model(model, score_floor, device, f"{type(processor).__name__} {settings}")
    return OneByOneDetector(
        names=from_mapping(model.config.id2label), identity=named, find=find, score_floor=score_floor
    )
