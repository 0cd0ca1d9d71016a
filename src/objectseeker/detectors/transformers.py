"""Object detection models of Hugging Face transformers, and token dropping for those that allow it.

Mask mode "drop": a transformer that cuts its input into squares, tokens, skips those that a mask removes. A token is
dropped if every raw pixel that its square of the network input touches is removed. It is then neither read nor
computed, and nothing attends to it. The others pass the model's own layers, with the position embeddings that they have
in the whole image; a token that a mask cuts shows filling in the removed part. A view in which no token is dropped is
run by the model itself.

Guarantee: the boxes of a view depend on its kept pixels and on the image's size alone. Proof: the removed pixels are
filled in the raw image before anything reads it, so everything computed from pixels is computed from the filled image,
which does not depend on the removed pixels. Which tokens are dropped follows from the sizes of image, network input and
token and from the removed rectangles (`kept_tokens`); what replaces a missing token follows from those, the filling and
the weights (`TokenDropper.blank`). Each view is run on its own: no batch, no padding. QED. So a token that is kept or
dropped by mistake could cost boxes, never a certificate's truth.

What follows from sizes and weights is computed once: if the weights of a model change, make a new detector.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.masks import Image, as_image, fill_rectangles
from objectseeker.core.seeker import try_view
from objectseeker.detectors.network import SingleImageDetector, as_rectangles, detect_each_view, fingerprint
from objectseeker.detectors.network.class_names import from_mapping
from objectseeker.detectors.network.preprocess import Size, shown_pixels
from objectseeker.detectors.network.raw_boxes import SCORE_FLOOR, RawBoxes
from objectseeker.detectors.torch_module import import_torch, prepare_module
from objectseeker.errors import ObjectSeekerError, import_optional

DetectView = Callable[[Image, int], RawBoxes]  # from the filled image and the number of the view
PlanViews = Callable[[Size, Ints, int], DetectView]


def kept_tokens(image: Size, network: Size, token: Size, removed: Ints) -> Bools:
    """Compute which tokens each view keeps, N x tokens, row by row.

    These are the tokens that touch a raw pixel outside `removed`, N x R x 4. An image of `image` = width, height fills
    a network input of `network`, which is cut into squares of `token` from the top left; the remainder at the right
    and at the bottom belongs to no token.
    """
    (columns, rows), (width, height) = map(_touched, image, network, token), image
    kept = []
    for rectangles in removed:
        shown = shown_pixels(rectangles, width, height)
        by_row = np.stack([shown[first:last].any(axis=0) for first, last in rows])
        kept.append(np.stack([by_row[:, first:last].any(axis=1) for first, last in columns], axis=1).ravel())
    return np.stack(kept)


def _touched(raw: int, network: int, token: int) -> list[tuple[int, int]]:
    """Return the raw pixels that each token touches along one axis, in integers, so without rounding."""
    return [(i * token * raw // network, -(-(i + 1) * token * raw // network)) for i in range(network // token)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDetector(SingleImageDetector):
    """Detector that runs the views of an image one by one.

    `plan` prepares all views of one image size before any pixel is read.
    """

    plan: PlanViews

    def detect_views(self, image: Image, removed: Ints, value: int) -> list[Detections]:
        """Detect on `image` without the R rectangles of each view, N x R x 4.

        Guarantee: entry i depends only on the pixels outside `removed[i]` (and on the image's size), as shown above. A
        view on which the model fails has no boxes, as `core.seeker` describes.
        """
        image, removed = as_image(image), as_rectangles(removed)
        height, width = image.shape[:2]
        detect = self.plan((width, height), removed, value)

        def detect_view(view: int) -> RawBoxes:
            return detect(fill_rectangles(image, removed[view], value), view)

        views = detect_each_view(len(removed), detect_view, NOTHING)
        return self.to_detections([image] * len(views), views)


NOTHING = RawBoxes(np.empty((0, 4)), np.empty(0), np.empty(0))


class TokenDropper(NamedTuple):
    """A model that can drop tokens, in three parts.

    `token` is the size of a token. `run` takes the network input of one view, the tokens it keeps and the replacement
    of missing ones, and returns the model's outputs: logits and boxes. `blank` computes the replacement from the
    network input of a view that shows nothing.
    """

    token: Size
    blank: Callable[[Any], Any]
    run: Callable[[Any, Any, Any], Any]


def make_token_dropper(model: Any) -> TokenDropper:
    """Make the token dropper of a model of transformers; an error for models without one."""
    # By its exact class: a subclass, or another class of that name, may compute something else.
    make = {"YolosForObjectDetection": _yolos, "RfDetrForObjectDetection": _rf_detr}.get(type(model).__name__)
    if make is None or not type(model).__module__.startswith("transformers.models."):
        raise ObjectSeekerError(
            f"cannot drop tokens of {type(model).__name__}, only of YOLOS and RF-DETR: use mask_mode fill"
        )
    return make(model)


def plan_views(
    model: Any, prepare: Callable[[Image], Any], read: Callable[[Any, Image], RawBoxes], drops: TokenDropper
) -> PlanViews:
    """Plan the views of `model`; `prepare` makes inputs of an image, `read` boxes of outputs."""
    import torch

    accepted: set[Size] = set()  # sizes of the network input on which the model has run

    @lru_cache(maxsize=4)  # the images of a camera have one size
    def prepare_blank(size: Size, value: int) -> tuple[Size, Any]:
        """Return the size of the network input of an image, and the replacement of missing tokens."""
        inputs = prepare(np.full((size[1], size[0], 3), value, np.uint8))
        if "pixel_mask" in inputs and not inputs["pixel_mask"].all():
            raise ObjectSeekerError(
                f"the image processor pads an image of {size[0]}x{size[1]}, so its tokens cannot be dropped: "
                "switch padding off, or use mask_mode fill"
            )
        pixels = inputs["pixel_values"]
        across, down = drops.token
        tokens = (pixels.shape[3] // across) * (pixels.shape[2] // down)
        if tokens == 0:
            raise ObjectSeekerError(f"an image of {size[0]}x{size[1]} is smaller than a token: use mask_mode fill")
        network = pixels.shape[3], pixels.shape[2]

        def run_blank() -> Any:
            blank = drops.blank(pixels)
            if network not in accepted:
                with torch.inference_mode():
                    model(**inputs)
                    drops.run(pixels, torch.arange(tokens, device=pixels.device) > 0, blank)
            return blank

        # A model that fails on plain filling fails on every view, which must not look like detecting nothing.
        blank = try_view(run_blank)
        if isinstance(blank, BaseException):
            reason = (str(blank) or type(blank).__name__).splitlines()[0][:200]
            raise ObjectSeekerError(
                f"tokens of this {type(model).__name__} cannot be dropped ({reason}): install a newer transformers, "
                "or use mask_mode fill"
            )
        accepted.add(network)
        return network, blank

    @lru_cache(maxsize=32)  # a stream may have several sets of masks
    def kept_in(size: Size, network: Size, removed: bytes, shape: tuple[int, ...]) -> Any:
        rectangles = np.frombuffer(removed, np.int64).reshape(shape)
        return torch.from_numpy(kept_tokens(size, network, drops.token, rectangles))

    def plan(size: Size, removed: Ints, value: int) -> DetectView:
        network, blank = prepare_blank(size, value)
        kept = kept_in(size, network, removed.tobytes(), removed.shape)

        def detect(filled: Image, view: int) -> RawBoxes:
            inputs = prepare(filled)
            with torch.inference_mode():
                if kept[view].all():
                    return read(model(**inputs), filled)
                pixels = inputs["pixel_values"]
                return read(drops.run(pixels, kept[view].to(pixels.device), blank), filled)

        return detect

    return plan


def _yolos(model: Any) -> TokenDropper:
    """YOLOS: one sequence of a class token, the tokens of the image and the tokens that become boxes."""
    import torch

    vit = model.vit
    parts, encoder = vit.embeddings, vit.encoder

    @lru_cache(maxsize=1)  # all views of an image have one size
    def positions(height: int, width: int) -> Sequence[Any]:
        """Return what is added to the whole sequence before the first layer, and after each but the last."""
        first = parts.interpolation(parts.position_embeddings, (height, width))
        return [first, *(() if encoder.interpolation is None else encoder.interpolation((height, width)))]

    def run(pixels: Any, kept: Any, blank: None) -> Any:
        first, *later = positions(*pixels.shape[2:])
        ends = kept.new_ones(1), kept.new_ones(parts.detection_tokens.shape[1])
        stays = torch.cat([ends[0], kept, ends[1]])
        tokens = _embed_tokens(parts.patch_embeddings.projection, pixels, kept)[None]
        hidden = torch.cat([parts.cls_token, tokens, parts.detection_tokens], dim=1) + first[:, stays]
        for number, layer in enumerate(encoder.layer):
            hidden = layer(hidden)
            if number < len(later):
                hidden = hidden + later[number][:, stays]
        boxes = vit.layernorm(hidden)[:, -len(ends[1]) :]
        return SimpleNamespace(
            logits=model.class_labels_classifier(boxes), pred_boxes=model.bbox_predictor(boxes).sigmoid()
        )

    return TokenDropper(_token_size(parts), lambda pixels: None, run)


def _rf_detr(model: Any) -> TokenDropper:
    """RF-DETR: tokens in windows, each with a class token; every few layers all attend to each other.

    The outputs of its layers become feature maps for the convolutions and the decoder. At a missing token a map has the
    features of an image that shows nothing but filling.
    """
    import torch

    backbone = model.model.backbone.backbone
    parts, settings, behind = backbone.embeddings, backbone.config, _behind_backbone(model)

    def windows(height: int, width: int) -> Any:
        """Return the tokens of each window, numbered after its class token (0), as the model partitions."""
        across, down = _token_size(parts)
        numbers = torch.arange(1 + (height // down) * (width // across)).view(1, -1, 1)
        formed = parts.window_partition(numbers, height, width) if settings.num_windows > 1 else numbers
        return formed[..., 0]

    def layers(pixels: Any, kept: Any) -> tuple[Any, list[Any]]:
        """Return which positions of the windows are kept, and the features of the output layers there."""
        height, width = pixels.shape[2:]
        order = windows(height, width).to(pixels.device)
        stays = torch.cat([kept.new_ones(1), kept])[order]
        numbers, lengths = order[stays], stays.sum(dim=1).tolist()
        whole = parts.cls_token.expand(-1, 1 + len(kept), -1)
        tokens = parts.cls_token.new_zeros(whole.shape[1:])
        tokens[0], tokens[1:][kept] = (
            parts.cls_token[0, 0],
            _embed_tokens(parts.patch_embeddings.projection, pixels, kept),
        )
        hidden = (tokens + parts.interpolate_pos_encoding(whole, height, width)[0])[None, numbers]
        features = []
        for name, layer in zip(backbone.stage_names, [None, *backbone.encoder.layer], strict=True):
            hidden = hidden if layer is None else _run_layer(layer, hidden, lengths)
            if name in backbone.out_features:
                seen = backbone.layernorm(hidden) if settings.apply_layernorm else hidden
                features.append(seen[0, numbers > 0])
        return stays[:, 1:], features

    def blank(pixels: Any) -> Any:
        height, width = pixels.shape[2:]
        every = torch.ones(windows(height, width).max(), dtype=torch.bool, device=pixels.device)
        with torch.inference_mode():
            stays, features = layers(pixels, every)
            return [seen.view(*stays.shape, -1) for seen in features]

    def run(pixels: Any, kept: Any, blank: Any) -> Any:
        stays, features = layers(pixels, kept)
        maps = []
        for missing, seen in zip(blank, features, strict=True):
            laid = missing.clone()
            laid[stays] = seen
            maps.append(as_map(laid, pixels))
        return behind(pixel_values=torch.cat(maps, dim=1))

    def as_map(laid: Any, pixels: Any) -> Any:
        (across, down), (height, width) = _token_size(parts), pixels.shape[2:]
        laid = backbone.window_unpartition(laid, height, width) if settings.num_windows > 1 else laid
        return laid.reshape(1, height // down, width // across, -1).permute(0, 3, 1, 2)

    return TokenDropper(_token_size(parts), blank, run)


def _run_layer(layer: Any, hidden: Any, lengths: list[int]) -> Any:
    """Run a layer of RF-DETR's backbone; tokens attend within their window, in a global layer to all."""
    import torch

    seen = layer.norm1(hidden)
    parts = [seen] if layer.global_attention else seen.split(lengths, dim=1)
    attended = torch.cat([layer.attention(part)[0] for part in parts], dim=1)
    hidden = layer.layer_scale1(attended) + hidden
    return layer.layer_scale2(layer.mlp(layer.norm2(hidden))) + hidden


def _behind_backbone(model: Any) -> Any:
    """Return RF-DETR from the feature maps of its backbone on: its backbone passes its input through."""
    import torch

    class Identity(torch.nn.Module):  # type: ignore[misc]  # torch is Any for mypy
        def forward(self, maps: Any) -> Any:
            return SimpleNamespace(feature_maps=(maps,))  # they are joined along the channels anyway

    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    behind = copy.deepcopy(model, shared)
    behind.model.backbone.backbone = Identity()
    return behind


def _token_size(embeddings: Any) -> Size:
    height, width = embeddings.patch_embeddings.projection.kernel_size
    return width, height


def _embed_tokens(projection: Any, pixels: Any, kept: Any) -> Any:
    """Embed the kept tokens of an input 1 x 3 x H x W; the squares of others are not read."""
    import torch

    (down, across), (height, width) = projection.kernel_size, pixels.shape[2:]
    rows, columns = height // down, width // across
    squares = pixels[0, :, : rows * down, : columns * across].view(-1, rows, down, columns, across)
    shown = squares.permute(1, 3, 0, 2, 4).flatten(0, 1)[kept].flatten(1).to(projection.weight.dtype)
    return torch.nn.functional.linear(shown, projection.weight.flatten(1), projection.bias)


MAX_REASON_LENGTH = 300  # characters of an error message of transformers
HUB_TIMEOUT = 20.0  # seconds
MASK_MODES = ("fill", "drop")
ATTENTION = "_attn_implementation"

# Entries of a saved configuration that decide nothing; types are those of the weights.
IGNORED_CONFIG = ("architectures", "dtype", "torch_dtype", "transformers_version")


def load_transformers(name: str, **options: Any) -> SingleImageDetector:
    """Load a model from a folder that `save_pretrained` wrote, or by its name on the Hugging Face hub.

    Weights and settings are read; code that may be next to them is not run.

    Args:
        name: The folder or the name.
        options: `score_floor`, `device` and `mask_mode`, as for `transformers_detector`.

    Raises:
        ObjectSeekerError: transformers or PyTorch is missing, or the model cannot be loaded.
    """
    library = import_optional("transformers", f"transformers:{name} needs pip install 'objectseeker[transformers]'")
    failed = f"transformers cannot load an object detector from {name!r}"
    for local in (True, False):  # first a folder or an earlier download: it needs no connection, and nothing changes
        try:
            processor = library.AutoImageProcessor.from_pretrained(name, local_files_only=local)
            with _without_progress_bar() if local else nullcontext():
                model = library.AutoModelForObjectDetection.from_pretrained(name, local_files_only=local)
            break
        except Exception as error:  # of the hub, of the file, of a setting: there are too many kinds
            if Path(name).is_dir() or not local:
                raise ObjectSeekerError(f"{failed}: {_reason(error)}") from None
        _require_on_hub(name, failed)
    return transformers_detector(model, processor, **options)


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Hide the progress bar while a local file is read, for `--quiet`. Downloads keep theirs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _reason(error: Exception) -> str:
    """Return the first sentence of an error of transformers, and the extra that it asks for."""
    message = str(error).strip() or type(error).__name__
    first = message.splitlines()[0].partition(". ")[0][:MAX_REASON_LENGTH]
    missing = "torchvision" in message and "torchvision" not in first
    return f"{first}; it needs pip install 'objectseeker[torchvision]'" if missing else first


def _require_on_hub(name: str, failed: str) -> None:
    """Ask the hub once: transformers itself would retry for minutes, file by file."""
    import huggingface_hub

    try:
        huggingface_hub.model_info(name, timeout=HUB_TIMEOUT)
    except Exception as error:
        raise ObjectSeekerError(
            f"{failed}: there is no such folder, and the hub has no such model or cannot be reached "
            f"({type(error).__name__}); elsewhere, save the model and its image processor with save_pretrained(DIR), "
            "and use transformers:DIR"
        ) from None


def transformers_detector(
    model: Any, processor: Any, *, score_floor: float = SCORE_FLOOR, device: str = "cpu", mask_mode: str = "fill"
) -> SingleImageDetector:
    """Wrap an object detection model and its image processor, which resizes and maps boxes back.

    In mask mode "fill" the caller fills what a mask removes. In "drop" the detector fills it and drops the tokens that
    then show only filling, as the module explains; YOLOS and RF-DETR can.
    """
    torch = import_torch("a transformers model", extra="transformers")
    if mask_mode not in MASK_MODES:
        raise ObjectSeekerError(
            f"mask_mode of a transformers detector must be {' or '.join(MASK_MODES)}: got {mask_mode!r}"
        )
    model = prepare_module(model, device)
    dtype = next(model.parameters()).dtype

    def prepare(image: Image) -> dict[str, Any]:
        inputs = processor(images=[image], return_tensors="pt", input_data_format="channels_last")
        return {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in inputs.items()}

    def read(outputs: Any, image: Image) -> RawBoxes:
        (result,) = processor.post_process_object_detection(
            outputs, threshold=score_floor, target_sizes=[image.shape[:2]]
        )
        return RawBoxes(result["boxes"], result["scores"], result["labels"])

    def detect_one(image: Image) -> RawBoxes:
        with torch.inference_mode():
            return read(model(**prepare(image)), image)

    # How the processor resizes and normalizes decides the boxes as much as the weights do.
    settings = processor.to_json_string() if hasattr(processor, "to_json_string") else repr(processor)
    values = model.config.to_dict() if hasattr(model.config, "to_dict") else vars(model.config)
    config = {key: value for key, value in values.items() if key[0] != "_" and key not in IGNORED_CONFIG}
    # A saved configuration does not have the attention kernels, but they decide the last bits.
    attention = sorted(
        {str(getattr(part.config, ATTENTION, None)) for part in model.modules() if hasattr(part, "config")}
    )
    around = f"{type(processor).__name__} {settings} {json.dumps(config, sort_keys=True, default=str)} {attention}"
    named = fingerprint.model_fingerprint(model, score_floor, device, around)
    names = from_mapping(model.config.id2label)
    if mask_mode == "fill":
        return SingleImageDetector(names=names, fingerprint=named, detect_one=detect_one, score_floor=score_floor)
    return TokenDetector(
        names=names,
        fingerprint=named.replace(" (", " (drop ", 1),
        detect_one=detect_one,
        score_floor=score_floor,
        plan=plan_views(model, prepare, read, make_token_dropper(model)),
    )
