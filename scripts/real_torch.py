"""Detectors of projects that are torch modules (used by export_real_detectors.py)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from real_exports import CLASSES, FLOOR, IMAGENET, Export, Own, Size, around, make_image, normalized, randomise, settle

# --- Hugging Face transformers ------------------------------------------------------------------------------------

QUERIES = 20
LISTED = ("boxes", "scores", "labels")


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
        return Export(around(model, forward), names[:1], names[1:], normalized(), read, names, QUERIES)

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
        # Its post-processing takes logits, its exported graph returns scores.
        scores, distances = outputs[..., : len(CLASSES)], outputs[..., len(CLASSES) :]
        shown = {"img": torch.zeros(1, 3, size[1], size[0])}
        ((boxes, labels),) = head.get_bboxes(torch.logit(scores), distances, shown)
        return boxes[:, :4], boxes[:, 4], labels

    prepare = normalized(IMAGENET[0][::-1], IMAGENET[1][::-1], bgr=True)
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

    return Export(model, ("input",), ("dets", "labels"), normalized(*IMAGENET), read)


def torchvision_model(name: str) -> Callable[[Size], Export]:
    """A model of torchvision, which resizes, normalizes and suppresses on its own."""

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

        return Export(around(model, forward), ("images",), LISTED, normalized(), read, LISTED)

    return build


# --- libreyolo ----------------------------------------------------------------------------------------------------


def libreyolo_model(name: str, which: str, *, iou: float = 0.65, floor: float = 0.6, **options: Any) -> Any:
    """A model of libreyolo, exported and read by its own methods; `options` are those of its export.

    `floor` keeps the boxes below a thousand: that many are used in our suppression.
    """

    def build(size: Size) -> Own:
        import torch

        side = (size[1], size[0])
        torch.manual_seed(0)
        model = getattr(import_module("libreyolo"), name)(None, size=which, nb_classes=len(CLASSES), device="cpu")
        randomise(model.model)
        seen = [model._preprocess(make_image(size, seed), color_format="rgb", input_size=side)[0] for seed in range(8)]
        settle(model.model, torch.cat(seen))
        for weight in model.model.parameters():
            if weight.dim() == 1:
                weight.data[weight < -1.5] = 0  # scores about a half, not next to nothing
        suppression = {"conf": floor, "iou": iou} if options.get("nms") else {}

        def find(image: np.ndarray) -> tuple[Any, Any, Any]:
            seen = model(image, conf=floor, iou=iou, imgsz=side, color_format="rgb", max_det=300)
            seen = (seen[0] if isinstance(seen, list) else seen).boxes
            return seen.xyxy, seen.conf, seen.cls

        def write(path: Path) -> None:
            model.export(format="onnx", output_path=str(path), imgsz=side, simplify=False, **options, **suppression)

        return Own(find, write, floor=floor)

    return build
