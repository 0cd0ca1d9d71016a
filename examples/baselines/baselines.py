"""Other people's defenses in front of any detector, as plain callables, to compare with and to compose with.

    export BASELINE_DETECTOR=onnx:yolox_nano.onnx      # default: builtin; BASELINE_DEVICE=cuda for a GPU
    objectseeker observe voc:VOCdevkit:val -d python:baselines:gradient_smoothing --masks halves:9 --out runs/lgs
    objectseeker evaluate runs/lgs

The column `undefended` of that table is the baseline alone, `defended` is the composition: the baseline inside, our
masks outside. Certificates hold, because a detector with a filter in front is a pure function of its input like any
other; `objectseeker check python:baselines:gradient_smoothing` tests that.

| callable | what it does to the image | described in |
|---|---|---|
| `jpeg` | compresses it, quality 50 | Dziugaite et al. 2016 |
| `median` | median filter of 3 x 3 pixels | Xu et al. 2018 (feature squeezing) |
| `bit_depth` | keeps 3 bits per channel | Xu et al. 2018 |
| `gradient_smoothing` | darkens blocks with strong gradients | Naseer et al. 2019 (local gradient smoothing) |
| `nutnet` | grays out what an autoencoder cannot reproduce | Lin et al. 2024 (NutNet); weights: see nutnet.py |
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence

import numpy as np
from nutnet import nutnet_filter
from PIL import Image, ImageFilter

from objectseeker.detectors import load_detector

QUALITY = 50
MEDIAN_SIDE = 3
BITS = 3
BLOCK, STRIDE = 15, 10  # of local gradient smoothing, as published
MIN_GRADIENT, SMOOTHING = 0.1, 2.3


def compress(image: np.ndarray) -> np.ndarray:
    """Return the image after JPEG compression."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=QUALITY)
    return np.asarray(Image.open(stream))


def median_filter(image: np.ndarray) -> np.ndarray:
    """Return the image with every pixel replaced by the median around it."""
    return np.asarray(Image.fromarray(image).filter(ImageFilter.MedianFilter(MEDIAN_SIDE)))


def reduce_bits(image: np.ndarray) -> np.ndarray:
    """Return the image with fewer gray levels per channel."""
    levels = 2**BITS - 1
    return np.rint(np.rint(image / 255 * levels) / levels * 255).astype(np.uint8)


def smooth_gradients(image: np.ndarray) -> np.ndarray:
    """Return the image, darker where the mean gradient of a block is strong."""
    height, width = image.shape[:2]
    if min(height, width) < BLOCK:
        return image
    values = image.astype(np.float32) / 255
    across = np.diff(values, axis=1, append=values[:, -1:])
    down = np.diff(values, axis=0, append=values[-1:])
    gradient = np.sqrt(across**2 + down**2)
    low, high = gradient.min(axis=(0, 1)), gradient.max(axis=(0, 1))
    gradient = (gradient - low) / (high - low + 1e-7)
    total = np.zeros((height + 1, width + 1, 3))
    total[1:, 1:] = gradient.cumsum(axis=0, dtype=np.float64).cumsum(axis=1)
    y, x = np.arange(0, height - BLOCK + 1, STRIDE)[:, None], np.arange(0, width - BLOCK + 1, STRIDE)[None]
    mean = total[y + BLOCK, x + BLOCK] - total[y, x + BLOCK] - total[y + BLOCK, x] + total[y, x]
    strong = mean / BLOCK**2 > MIN_GRADIENT
    mask = np.zeros(image.shape, np.bool_)
    rows, columns = strong.shape[:2]
    for dy in range(BLOCK):  # of all blocks at once
        shown = mask[dy : dy + rows * STRIDE : STRIDE][:rows]
        for dx in range(BLOCK):
            shown[:, dx : dx + columns * STRIDE : STRIDE][:, :columns] |= strong
    kept = 1 - np.clip(SMOOTHING * gradient * mask, 0, 1)
    return np.rint(255 * values * kept).astype(np.uint8)


FILTERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "jpeg": compress,
    "median": median_filter,
    "bit_depth": reduce_bits,
    "gradient_smoothing": smooth_gradients,
    "nutnet": nutnet_filter,
}


class Filtered:
    """A detector that sees what a filter leaves of each image."""

    def __init__(self, name: str) -> None:
        self.filter, self.spec = FILTERS[name], os.environ.get("BASELINE_DETECTOR", "builtin")
        self.detector = load_detector(self.spec, device=os.environ.get("BASELINE_DEVICE"))
        self.names = self.detector.names
        self.fingerprint = f"{name}:{self.detector.fingerprint}"

    def __call__(self, images: Sequence[np.ndarray]) -> Sequence[object]:
        return self.detector([self.filter(image) for image in images])


def __getattr__(name: str) -> Filtered:
    """Load the detector of the one baseline that is requested."""
    if name not in FILTERS:
        raise AttributeError(name)
    globals()[name] = Filtered(name)
    return globals()[name]
