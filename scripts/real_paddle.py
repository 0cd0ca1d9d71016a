"""PicoDet and PP-YOLOE of PaddleDetection, exported by Paddle (used by export_real_detectors.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from real_exports import CLASSES, FLOOR, IMAGENET, Own, Size, make_image


def paddle_model(build_model: Callable[..., Any], *, nms: bool = True, layout: str = "") -> Callable[[Size], Own]:
    """A model of PaddleDetection, exported by Paddle; without `nms`, its graph leaves the suppression to others."""

    def build(size: Size) -> Own:
        for name, kind in (("int", int), ("bool", bool), ("float", float)):  # older than the NumPy that Paddle takes
            vars(np).setdefault(name, kind)
        paddle = import_module("paddle")
        model = build_model([size[1], size[0]])
        generator = np.random.default_rng(0)
        for weight in (weight for weight in model.parameters() if not weight.stop_gradient):
            values = generator.standard_normal(weight.shape).astype(np.float32)
            scale = (2 * weight.shape[0] / np.prod(weight.shape)) ** 0.5
            weight.set_value(scale * values if weight.ndim > 1 else np.maximum(weight.numpy(), -1.5) + 0.1 * values)
        mean, std = (np.array(part, np.float32) for part in IMAGENET)

        def tensors(*images: np.ndarray) -> dict[str, Any]:
            values = [((image - mean) / std).transpose(2, 0, 1) for image in images]
            told = {"im_shape": [size[1], size[0]], "scale_factor": [1, 1]}
            each = {name: np.array([value] * len(images), np.float32) for name, value in told.items()}
            return {name: paddle.to_tensor(part) for name, part in ({"image": np.stack(values)} | each).items()}

        model.eval()
        layers = [layer for layer in model.sublayers() if isinstance(layer, paddle.nn.BatchNorm2D)]
        for layer in layers:  # as `settle`
            layer.training, layer._momentum = True, 0.0
        model(tensors(*(make_image(size, seed) for seed in range(8))))
        model.eval()

        def find(image: np.ndarray) -> tuple[Any, Any, Any]:
            rows = model(tensors(image))["bbox"].numpy()
            return rows[:, 2:], rows[:, 1], rows[:, 0]

        def write(path: Path) -> None:
            getattr(model, "yolo_head", model).exclude_nms = not nms  # PP-YOLOE's, and PicoDet's
            model.export_nms = nms
            write_paddle(model, tensors(make_image(size)), path)

        return Own(find, write, most=100, layout=layout)

    return build


def write_paddle(model: Any, tensors: dict[str, Any], path: Path) -> None:
    """As PaddleDetection exports: to Paddle's format without the inputs that nothing is computed from, then to ONNX."""
    paddle = import_module("paddle")
    prune = import_module("ppdet.engine.export_utils")._prune_input_spec
    spec = [
        {
            name: paddle.static.InputSpec([None, *tensor.shape[1:]], name=name)  # any batch
            for name, tensor in tensors.items()
        }
    ]
    static = paddle.jit.to_static(model, input_spec=spec, full_graph=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = prune(spec, static.forward.main_program, static.forward.outputs)
        paddle.jit.save(static, f"{folder}/model", input_spec=kept)
        files = (f"{folder}/model.pdmodel", f"{folder}/model.pdiparams", str(path))
        import_module("paddle2onnx").export(*files, opset_version=14)


SUPPRESSION = {"nms_top_k": 1000, "keep_top_k": 100, "score_threshold": FLOOR, "nms_threshold": 0.7}


def ppyoloe(side: list[int]) -> Any:
    parts = import_module("ppdet.modeling")
    small = {"width_mult": 0.125, "depth_mult": 0.1}
    backbone = parts.CSPResNet(return_idx=[1, 2, 3], use_large_stem=True, **small)
    channels = [shape.channels for shape in backbone.out_shape]
    neck = parts.CustomCSPPAN(channels, [768, 384, 192], act="swish", spp=True, **small)
    head = parts.PPYOLOEHead(
        [shape.channels for shape in neck.out_shape],
        num_classes=len(CLASSES),
        nms=parts.MultiClassNMS(**SUPPRESSION),
        static_assigner=None,
        assigner=None,
        eval_size=side,
    )
    return parts.PPYOLOE(backbone=backbone, neck=neck, yolo_head=head, post_process=None)


def picodet(side: list[int]) -> Any:
    from types import SimpleNamespace

    parts = import_module("ppdet.modeling")
    backbone = parts.LCNet(scale=0.35, feature_maps=[3, 4, 5])
    scales = [1 / 8, 1 / 16, 1 / 32]  # a list of ours: it appends to the default one
    neck = parts.LCPAN([shape.channels for shape in backbone.out_shape], 32, num_features=4, spatial_scales=scales)
    head = parts.PicoHeadV2(
        conv_feat=parts.PicoFeat(
            feat_in=32, feat_out=32, num_convs=2, num_fpn_stride=4, norm_type="bn", share_cls_reg=True, use_se=True
        ),
        num_classes=len(CLASSES),
        fpn_stride=[8, 16, 32, 64],
        feat_in_chan=32,
        reg_max=7,
        cell_offset=0.5,
        loss_class=SimpleNamespace(use_sigmoid=True),  # losses and assigners have no part in a prediction
        loss_dfl=None,
        loss_bbox=None,
        static_assigner=None,
        assigner=None,
        eval_size=side,
        nms=parts.MultiClassNMS(**SUPPRESSION | {"nms_threshold": 0.6}),
    )
    return parts.PicoDet(backbone=backbone, neck=neck, head=head)
