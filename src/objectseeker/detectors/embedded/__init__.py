"""The detector that comes with the package: VOC classes, trained with half-plane masks (see `training/`).

Importing this needs nothing beyond the standard library; `model` and `weights` need PyTorch.
"""

from __future__ import annotations

from pathlib import Path

ONNX_FILE = Path(__file__).with_name("seeker.onnx")
