"""RTMDet of mmdet, exported by mmdeploy (used by export_real_detectors.py)."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from real_exports import CLASSES, FLOOR, IMAGENET, Own, Size, make_image, normalized, randomise, settle

RTMDET = "mmdeploy,channels=bgr,mean=103.53/116.28/123.675,std=57.375/57.12/58.395"


def mmdet_rtmdet(size: Size) -> Own:
    """RTMDet of mmdet, small, exported by mmdeploy for ONNX Runtime."""
    import torch

    give_mmcv_its_suppression()
    import_module("mmdet.models")
    config = import_module("mmengine.config").Config
    import_module("mmengine.registry").DefaultScope.get_instance("export", scope_name="mmdet")
    norm = {"norm_cfg": {"type": "BN"}, "act_cfg": {"type": "SiLU"}}
    head = {
        "type": "RTMDetSepBNHead",
        "num_classes": len(CLASSES),
        "in_channels": 32,
        "feat_channels": 32,
        "anchor_generator": {"type": "MlvlPointGenerator", "offset": 0, "strides": [8, 16, 32]},
        "bbox_coder": {"type": "DistancePointBBoxCoder", "clip_border": False},  # mmdeploy's graphs do not clip
        "loss_cls": {"type": "QualityFocalLoss", "use_sigmoid": True},
        "loss_bbox": {"type": "GIoULoss"},
        "with_objectness": False,
        "exp_on_reg": True,
        "share_conv": True,
        "pred_kernel_size": 1,
        **norm,
    }
    suppression = {"type": "nms", "iou_threshold": 0.65}
    settings = {
        "type": "RTMDet",
        "backbone": {"type": "CSPNeXt", "deepen_factor": 0.167, "widen_factor": 0.125, **norm},
        "neck": {"type": "CSPNeXtPAFPN", "in_channels": [32, 64, 128], "out_channels": 32, "num_csp_blocks": 1, **norm},
        "bbox_head": head,
        "test_cfg": {"nms_pre": 1000, "min_bbox_size": 0, "score_thr": FLOOR, "nms": suppression, "max_per_img": 100},
    }
    torch.manual_seed(0)
    model = randomise(import_module("mmdet.registry").MODELS.build(config(settings)._cfg_dict))
    prepare = normalized(IMAGENET[0][::-1], IMAGENET[1][::-1], bgr=True)
    settle(model, torch.cat([prepare(make_image(size, seed)) for seed in range(8)]))
    sample = import_module("mmdet.structures").DetDataSample(metainfo={"img_shape": (size[1], size[0])})

    def find(image: np.ndarray) -> tuple[Any, Any, Any]:
        with torch.inference_mode():
            (found,) = model.predict(prepare(image), [sample.clone()], rescale=False)
        return found.pred_instances.bboxes, found.pred_instances.scores, found.pred_instances.labels

    return Own(find, lambda path: write_mmdeploy(model, prepare(make_image(size)), path, config), 100, layout=RTMDET)


def give_mmcv_its_suppression() -> None:
    """mmcv has a compiled part; where that is missing, the one function of it that is used here is torchvision's."""
    from types import ModuleType

    class Missing(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

    if "mmcv._ext" not in sys.modules and not any(Path(import_module("mmcv").__path__[0]).glob("_ext*")):
        suppress = import_module("torchvision").ops.nms
        sys.modules["mmcv._ext"] = module = Missing("mmcv._ext")
        vars(module)["nms"] = lambda boxes, scores, iou_threshold, offset: suppress(boxes, scores, float(iou_threshold))


def write_mmdeploy(model: Any, tensor: Any, path: Path, config: Any) -> None:
    """With the settings of mmdeploy's configs/mmdet/_base_/base_static.py, for ONNX Runtime."""
    import torch

    for part in ("mmcv", "pytorch", "codebase.mmdet.models", "codebase.mmdet.structures", "codebase.mmdet.ops"):
        import_module(f"mmdeploy.{part}")  # each says how it is exported
    reading = {
        "score_threshold": FLOOR,
        "confidence_threshold": 0.005,
        "iou_threshold": 0.65,
        "max_output_boxes_per_class": 200,
        "pre_top_k": 5000,
        "keep_top_k": 100,
        "background_label_id": -1,
    }
    codebase = {"type": "mmdet", "task": "ObjectDetection", "model_type": "end2end", "post_processing": reading}
    deploy = config({"codebase_config": codebase, "backend_config": {"type": "onnxruntime"}})
    by_torch, torch.onnx.export = torch.onnx.export, partial(torch.onnx.export, dynamo=False)  # it knows no other
    try:
        import_module("mmdeploy.apis.onnx").export(
            model,
            tensor,
            str(path.with_suffix("")),
            backend="onnxruntime",
            context_info={"deploy_cfg": deploy},
            input_metas={"data_samples": None, "mode": "predict"},
            input_names=["input"],
            output_names=["dets", "labels"],
            dynamic_axes={name: {0: "batch"} for name in ("input", "dets", "labels")},
        )
    finally:
        torch.onnx.export = by_torch
