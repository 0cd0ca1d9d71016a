"""Write token-based detectors of common sizes with random weights, to measure token dropping.

    python scripts/random_token_models.py FOLDER
    python -m benchmarks.detect --detector transformers:FOLDER/rf-detr-nano --masks halves:30

Writes FOLDER/yolos-tiny, yolos-small, rf-detr-nano and rf-detr-small, as `save_pretrained` does. The image processor of
RF-DETR needs torchvision; without it, RT-DETR's is written, which reads boxes alike and resizes with Pillow.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

YOLOS = {  # width, heads, embeddings between layers, shortest and longest side of the input
    "yolos-tiny": (192, 3, False, 512, 864),
    "yolos-small": (384, 6, True, 512, 1333),
}
RF_DETR = {"rf-detr-nano": (384, 2), "rf-detr-small": (512, 3)}  # side of the input, layers of the decoder


def main(folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    for name in (*YOLOS, *RF_DETR):
        model, processor = yolos(*YOLOS[name]) if name in YOLOS else rf_detr(*RF_DETR[name])
        for weight in model.parameters():  # as initialized, boxes hardly depend on the image
            weight.data += 0.02 * torch.randn(weight.shape)
        model.save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
        print(f"{folder / name}: {sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} million weights")


def yolos(width: int, heads: int, between: bool, shortest: int, longest: int) -> tuple[Any, Any]:
    import transformers

    config = transformers.YolosConfig(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        use_mid_position_embeddings=between,
        num_labels=91,
    )
    size = {"shortest_edge": shortest, "longest_edge": longest}
    return transformers.YolosForObjectDetection(config), transformers.YolosImageProcessor(size=size)


def rf_detr(side: int, decoder_layers: int) -> tuple[Any, Any]:
    import transformers

    backbone = transformers.RfDetrDinov2Config(
        hidden_size=384,
        num_attention_heads=6,
        image_size=side,
        patch_size=16,
        num_windows=2,
        out_features=["stage3", "stage6", "stage9", "stage12"],
    )
    config = transformers.RfDetrConfig(
        backbone_config=backbone, decoder_layers=decoder_layers, decoder_n_points=2, num_labels=91
    )
    settings = {"size": {"height": side, "width": side}, "do_normalize": True, "do_pad": False}
    try:
        processor = transformers.RfDetrImageProcessor(**settings)
    except ImportError:
        processor = transformers.RTDetrImageProcessorPil(**settings)
    return transformers.RfDetrForObjectDetection(config), processor


if __name__ == "__main__":
    main(Path(sys.argv[1]))
