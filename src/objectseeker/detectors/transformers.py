"""Object detection models of Hugging Face transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from objectseeker.core.masks import Image
from objectseeker.detectors.network import fingerprint
from objectseeker.detectors.network.class_names import from_mapping
from objectseeker.detectors.network.detector import SingleImageDetector
from objectseeker.detectors.network.raw_boxes import SCORE_FLOOR, RawBoxes
from objectseeker.detectors.token_dropping import TokenDetector, make_token_dropper, plan_views
from objectseeker.detectors.torch_module import import_torch, prepare_module
from objectseeker.errors import ObjectSeekerError

LONGEST_REASON = 300  # characters of what transformers says
ANSWER_WITHIN = 20.0  # seconds
MASK_BY = ("fill", "drop")
ATTENTION = "_attn_implementation"

# Of a model's configuration, what is written when it is saved and decides nothing; types are those of the weights.
BESIDE = ("architectures", "dtype", "torch_dtype", "transformers_version")


def load_transformers(name: str, **options: Any) -> SingleImageDetector:
    """A model by the folder that `save_pretrained` wrote, your own or any, or by its name on the Hugging Face hub.

    Weights and settings are read, code that may lie beside them is not run.
    """
    try:
        from transformers import AutoImageProcessor, AutoModelForObjectDetection
    except ImportError:
        raise ObjectSeekerError(f"transformers:{name} needs pip install 'objectseeker[transformers]'") from None
    failed = f"transformers cannot load an object detector from {name!r}"
    here = True  # a folder, or what was downloaded before: then nothing needs a connection, and nothing changes
    while True:
        try:
            processor = AutoImageProcessor.from_pretrained(name, local_files_only=here)
            with _silently() if here else nullcontext():
                model = AutoModelForObjectDetection.from_pretrained(name, local_files_only=here)
            break
        except Exception as error:  # of the hub, of the file, of a setting: there is no end to them
            if Path(name).is_dir() or not here:
                raise ObjectSeekerError(f"{failed}: {_reason(error)}") from None
        _require_on_hub(name, failed)
        here = False
    return transformers_detector(model, processor, **options)


@contextmanager
def _silently() -> Iterator[None]:
    """No progress bar for a file that is read in a moment: `--quiet` is to be quiet. Downloads keep theirs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _reason(error: Exception) -> str:
    """The first sentence of what transformers says, and what of it people can do something about."""
    said = str(error).strip() or type(error).__name__
    first = said.splitlines()[0].partition(". ")[0][:LONGEST_REASON]
    missing = "torchvision" in said and "torchvision" not in first
    return f"{first}; it needs pip install 'objectseeker[torchvision]'" if missing else first


def _require_on_hub(name: str, failed: str) -> None:
    """Ask once: transformers itself would try for minutes, file by file."""
    import huggingface_hub

    try:
        huggingface_hub.model_info(name, timeout=ANSWER_WITHIN)
    except Exception as error:
        raise ObjectSeekerError(
            f"{failed}: it is no folder here, and the hub has no such model or cannot be reached "
            f"({type(error).__name__}); elsewhere, save the model and its image processor with save_pretrained(DIR), "
            "and give transformers:DIR"
        ) from None


def transformers_detector(
    model: Any, processor: Any, *, score_floor: float = SCORE_FLOOR, device: str = "cpu", mask_mode: str = "fill"
) -> SingleImageDetector:
    """A model for object detection and its image processor, which resizes and maps the boxes back.

    By "fill" the caller paints over what a mask removes; by "drop" the detector does, and leaves out what is then
    nothing but paint: `tokens` says how, and which models can.
    """
    torch = import_torch("a transformers model", extra="transformers")
    if mask_mode not in MASK_BY:
        raise ObjectSeekerError(f"a transformers detector masks by {' or '.join(MASK_BY)}, got {mask_mode!r}")
    model = prepare_module(model, device)
    dtype = next(model.parameters()).dtype

    def prepare(image: Image) -> dict[str, Any]:
        inputs = processor(images=[image], return_tensors="pt", input_data_format="channels_last")
        return {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in inputs.items()}

    def read(outputs: Any, image: Image) -> RawBoxes:
        (seen,) = processor.post_process_object_detection(
            outputs, threshold=score_floor, target_sizes=[image.shape[:2]]
        )
        return RawBoxes(seen["boxes"], seen["scores"], seen["labels"])

    def find(image: Image) -> RawBoxes:
        with torch.inference_mode():
            return read(model(**prepare(image)), image)

    # How the processor resizes and normalizes decides the boxes as much as the weights do.
    settings = processor.to_json_string() if hasattr(processor, "to_json_string") else repr(processor)
    values = model.config.to_dict() if hasattr(model.config, "to_dict") else vars(model.config)
    config = {key: value for key, value in values.items() if key[0] != "_" and key not in BESIDE}
    # Which kernels attend is no part of a configuration that is written, and decides the last bits.
    attends = sorted(
        {str(getattr(part.config, ATTENTION, None)) for part in model.modules() if hasattr(part, "config")}
    )
    around = f"{type(processor).__name__} {settings} {json.dumps(config, sort_keys=True, default=str)} {attends}"
    named = fingerprint.model_fingerprint(model, score_floor, device, around)
    names = from_mapping(model.config.id2label)
    if mask_mode == "fill":
        return SingleImageDetector(names=names, identity=named, find=find, score_floor=score_floor)
    return TokenDetector(
        names=names,
        identity=named.replace(" (", " (drop ", 1),
        find=find,
        score_floor=score_floor,
        plan=plan_views(model, prepare, read, make_token_dropper(model)),
    )
