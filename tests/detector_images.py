"""Images to show to detectors."""

from __future__ import annotations

import numpy as np


def noise(width: int, height: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def scene(width: int, height: int, seed: int) -> np.ndarray:
    """Coarse colored blocks: more like an image than noise is."""
    return noise(width // 16 + 1, height // 16 + 1, seed).repeat(16, axis=0).repeat(16, axis=1)[:height, :width].copy()
