"""A very small detector of transformers with random weights, for tests that have transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def tiny_yolos(
    names: Iterable[str], *, layers: int = 1, boxes: int = 5, size: tuple[int, int] = (32, 48)
) -> tuple[Any, Any]:
    """A model of these classes that returns that many boxes, and its processor; inputs have this height and width."""
    names = list(names)
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[32, 48],
        patch_size=16,
        num_detection_tokens=boxes,
        id2label=dict(enumerate(names)),
        label2id={name: label for label, name in enumerate(names)},
    )
    height, width = size
    processor = transformers.DetrImageProcessor(size={"height": height, "width": width}, do_pad=False)
    return transformers.YolosForObjectDetection(config), processor
