"""Export detectors from the code of the projects themselves, with random weights, and what that code reads from them.

    python scripts/export_real_detectors.py FOLDER [NAME ...]
    OBJECTSEEKER_REAL_DETECTORS=FOLDER pytest tests/detectors/test_real_detectors.py

For every project that is installed FOLDER gets NAME-WIDTHxHEIGHT.onnx at two input sizes and, beside it, a .npz with an
image of that very size (so that how images are resized plays no part) and the boxes, scores and labels that the
project's own post-processing gives for it, from its own model in its own framework. The projects need versions of
their own: run this in one environment for each, all into the same folder. NanoDet has no package: put its
repository on PYTHONPATH.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Size = tuple[int, int]  # width, height
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
FLOOR = 0.05  # below, own post-processing is not asked


class Export(NamedTuple):
    """One graph: what is exported, how its tensors are called, its input for an image, and its own reading of that.

    `read` takes what the module returned for the image and gives boxes in pixels, scores and labels.
    """

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    prepare: Callable[[np.ndarray], Any]
    read: Callable[[Any, Size], tuple[Any, Any, Any]]
    free: tuple[str, ...] = ()  # tensors whose first side is not fixed
    most: int = 300  # boxes that its own reading gives at most


def main(folder: Path, wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (build, sizes) in PROJECTS.items():
        if wanted and name not in wanted:
            continue
        for size in sizes:
            try:
                export = build(size)
            except ImportError as error:
                print(f"{name}: left out, {error}")
                break
            save(folder / f"{name}-{size[0]}x{size[1]}", export, size)


def save(stem: Path, export: Export, size: Size) -> None:
    """The graph by torch's exporter, and the project's own boxes."""
    import torch

    image = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image[size[1] // 4 : size[1] // 2, size[0] // 4 : size[0] // 2] = (250, 20, 30)
    module = export.module.eval()
    tensor = export.prepare(image)
    with torch.inference_mode():
        boxes, scores, labels = export.read(module(tensor), size)
    torch.onnx.export(
        module,
        (tensor,),
        str(stem) + ".onnx",
        dynamo=False,
        opset_version=17,
        input_names=list(export.inputs),
        output_names=list(export.outputs),
        dynamic_axes={name: {0: "batch"} for name in export.free},
    )
    boxes, scores, labels = (np.asarray(part) for part in (boxes, scores, labels))
    floor = floor_of(export, scores)
    np.savez(str(stem) + ".npz", image=image, floor=floor, boxes=boxes, scores=scores, labels=labels)
    print(f"{stem.name}: {len(scores)} boxes, best {scores.max(initial=0):.3f}")


def around(model: Any, forward: Callable[[Any], Any]) -> Any:
    """A module that holds `model` and computes `forward`."""
    import torch

    class Exported(torch.nn.Module):  # type: ignore[misc]  # Any where torch is not looked at
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Any) -> Any:
            return forward(images)

    return Exported()


def floor_of(export: Export, scores: Any) -> float:
    """The score from which its own reading lists every box."""
    return FLOOR if len(scores) < export.most else float(scores.min())


def randomise(module: Any, gain: float = 1.0, seed: int = 0) -> Any:
    """Weights under which every pixel matters: as initialised, heads are constant and all queries tie.

    With the wrong `gain` all scores are 1, or the same.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            weight.data = gain * noise * (2 * weight.shape[0] / weight.numel()) ** 0.5
        else:
            weight.data += 0.1 * noise
    return module


def normalised(mean: tuple[float, ...] = (0,) * 3, std: tuple[float, ...] = (255,) * 3, *, bgr: bool = False) -> Any:
    """An image as the tensor of a network."""

    def prepare(image: np.ndarray) -> Any:
        import torch

        ordered = image[..., ::-1] if bgr else image
        values = (ordered.astype(np.float32) - np.array(mean, np.float32)) / np.array(std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)[None]))

    return prepare


# --- Hugging Face transformers ------------------------------------------------------------------------------------

QUERIES = 20
LISTED = ("boxes", "scores", "labels")
CLASSES = ("van", "bike", "tram")


def transformers_queries(kind: str) -> Callable[[Size], Export]:
    """RT-DETR, RT-DETRv2, D-FINE and DEIMv2, with the post-processing of their own image processor."""

    def build(size: Size) -> Export:
        import transformers

        model = randomise(transformers.AutoModelForObjectDetection.from_config(tiny_config(kind)))
        processor = own_processor()

        def forward(images: Any) -> Any:
            found = model(pixel_values=images)
            return found.logits, found.pred_boxes

        def read(outputs: Any, size: Size) -> tuple[Any, Any, Any]:
            from types import SimpleNamespace

            logits, boxes = outputs
            (seen,) = processor.post_process_object_detection(
                SimpleNamespace(logits=logits, pred_boxes=boxes), threshold=FLOOR, target_sizes=[size[::-1]]
            )
            return seen["boxes"], seen["scores"], seen["labels"]

        names = ("pixel_values", "logits", "pred_boxes")
        # It reads as many pairs of a query and a class as there are queries.
        return Export(around(model, forward), names[:1], names[1:], normalised(), read, names, QUERIES)

    return build


def own_processor() -> Any:
    import transformers

    names = ("RTDetrImageProcessorPil", "RTDetrImageProcessor")  # older versions have the second alone
    return next(getattr(transformers, name) for name in names if hasattr(transformers, name))()


def tiny_config(kind: str) -> Any:
    """A configuration of the real model with few and narrow layers."""
    import transformers

    labels = dict(enumerate(CLASSES))
    classes = {"id2label": labels, "label2id": {name: label for label, name in labels.items()}}
    heads = {
        "num_queries": QUERIES,
        "d_model": 32,
        "encoder_hidden_dim": 32,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "decoder_layers": 2,
        "decoder_in_channels": [32] * 3,
        "encoder_in_channels": [12, 16, 24],
        "num_denoising": 0,
        **classes,
    }
    stages = {"depths": [1] * 4, "hidden_sizes": [8, 12, 16, 24], "out_features": ["stage2", "stage3", "stage4"]}
    if kind.startswith("rt_detr"):
        backbone = transformers.RTDetrResNetConfig(embedding_size=8, layer_type="basic", **stages)
        config = {"rt_detr": transformers.RTDetrConfig, "rt_detr_v2": transformers.RTDetrV2Config}[kind]
        return config(backbone_config=backbone, **heads)
    backbone = transformers.HGNetV2Config(
        embedding_size=8,
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 12, 16],
        stage_mid_channels=[8] * 4,
        stage_out_channels=[8, 12, 16, 24],
        stage_num_blocks=[1] * 4,
        stage_numb_of_layers=[1] * 4,
        stage_downsample=[False, True, True, True],
        stage_light_block=[False] * 4,
        stage_kernel_size=[3] * 4,
        **stages,
    )
    config = {"d_fine": "DFineConfig", "deimv2": "Deimv2Config"}[kind]
    return getattr(transformers, config)(backbone_config=backbone, **heads)


# --- others -------------------------------------------------------------------------------------------------------


def nanodet_plus(size: Size) -> Export:
    """NanoDet-Plus-m as its repository configures, exports and reads it."""
    import torch

    parts = import_module("nanodet.model.backbone.shufflenetv2"), import_module("nanodet.model.fpn.ghost_pan")
    heads = import_module("nanodet.model.head.nanodet_plus_head")
    act = {"activation": "LeakyReLU"}
    backbone = parts[0].ShuffleNetV2(model_size="0.5x", out_stages=(2, 3, 4), pretrain=False, **act)
    fpn = parts[1].GhostPAN([48, 96, 192], 32, kernel_size=5, num_extra_level=1, use_depthwise=True, **act)
    loss = {
        "loss_qfl": {"name": "QualityFocalLoss", "use_sigmoid": True, "beta": 2.0, "loss_weight": 1.0},
        "loss_dfl": {"name": "DistributionFocalLoss", "loss_weight": 0.25},
        "loss_bbox": {"name": "GIoULoss", "loss_weight": 2.0},
    }
    head = heads.NanoDetPlusHead(
        num_classes=len(CLASSES),
        loss=_attributes(loss),
        input_channel=32,
        feat_channels=32,
        stacked_convs=1,
        kernel_size=5,
        strides=[8, 16, 32, 64],
        reg_max=7,
        **act,
    )
    module = randomise(torch.nn.Sequential(backbone, fpn, head), gain=0.95)

    def forward(images: Any) -> Any:
        return head._forward_onnx(fpn(backbone(images)))

    def read(outputs: Any, size: Size) -> tuple[Any, Any, Any]:
        # Its post-processing takes logits, its exported graph gives scores.
        scores, distances = outputs[..., : len(CLASSES)], outputs[..., len(CLASSES) :]
        shown = {"img": torch.zeros(1, 3, size[1], size[0])}
        ((boxes, labels),) = head.get_bboxes(torch.logit(scores), distances, shown)
        return boxes[:, :4], boxes[:, 4], labels

    prepare = normalised(IMAGENET[0][::-1], IMAGENET[1][::-1], bgr=True)
    return Export(around(module, forward), ("data",), ("output",), prepare, read, most=100)


class _Attributes(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


def _attributes(values: Any) -> Any:
    """Nested dicts that are read by attribute, as NanoDet's configurations are."""
    return _Attributes({k: _attributes(v) for k, v in values.items()}) if isinstance(values, dict) else values


def rfdetr_package(size: Size) -> Export:
    """RF-DETR Nano of Roboflow's package, by its own module for exports, with its own post-processing."""
    import torch

    build = import_module("rfdetr.models.lwdetr").build_model_from_config
    postprocess = import_module("rfdetr.models.postprocess").PostProcess(num_select=300)
    config = import_module("rfdetr.config").RFDETRNanoConfig(
        pretrain_weights=None,
        num_classes=len(CLASSES),
        resolution=size[0],
        positional_encoding_size=size[0] // 16,
        num_queries=QUERIES,
        device="cpu",
    )
    model = randomise(build(config), gain=0.5).eval()
    model.class_embed.bias.data.zero_()  # scores about a half
    model.export()

    def read(outputs: Any, size: Size) -> tuple[Any, Any, Any]:
        boxes, logits = outputs
        foreground = {"pred_boxes": boxes, "pred_logits": logits[..., :-1]}  # the last class is the background
        (seen,) = postprocess(foreground, torch.tensor([size[::-1]]))
        keep = seen["scores"] > FLOOR
        return seen["boxes"][keep], seen["scores"][keep], seen["labels"][keep]

    return Export(model, ("input",), ("dets", "labels"), normalised(*IMAGENET), read)


def torchvision_model(name: str) -> Callable[[Size], Export]:
    """A model of torchvision, which resizes, normalises and suppresses by itself."""

    def build(size: Size) -> Export:
        from torchvision.models import get_model

        classes = len(CLASSES) + 1
        model = randomise(get_model(name, weights=None, weights_backbone=None, num_classes=classes), gain=0.7).eval()

        def forward(images: Any) -> Any:
            (found,) = model([images[0]])
            return tuple(found[name] for name in LISTED)

        def read(outputs: Any, size: Size) -> tuple[Any, Any, Any]:
            boxes, scores, labels = outputs
            keep = scores > FLOOR
            return boxes[keep], scores[keep], labels[keep]

        return Export(around(model, forward), ("images",), LISTED, normalised(), read, LISTED)

    return build


SQUARE_AND_WIDE = ((64, 64), (128, 96))
PROJECTS: dict[str, tuple[Callable[[Size], Export], tuple[Size, ...]]] = {
    "rt_detr": (transformers_queries("rt_detr"), SQUARE_AND_WIDE),
    "rt_detr_v2": (transformers_queries("rt_detr_v2"), SQUARE_AND_WIDE),
    "d_fine": (transformers_queries("d_fine"), SQUARE_AND_WIDE),
    "deimv2": (transformers_queries("deimv2"), SQUARE_AND_WIDE),
    "nanodet_plus": (nanodet_plus, SQUARE_AND_WIDE),
    "rfdetr": (rfdetr_package, ((128, 128), (192, 192))),
    "torchvision_ssdlite": (torchvision_model("ssdlite320_mobilenet_v3_large"), SQUARE_AND_WIDE),
}

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
