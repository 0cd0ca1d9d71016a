"""NutNet's filter: blocks that its autoencoder cannot reproduce are grayed out, pixel by pixel.

    git clone https://github.com/Nickory/NutNet        # the authors' weights; no license is stated: do not pass them on
    export NUTNET_WEIGHTS=NutNet/ae_weights_/n_13.pth

An image is resized to 416 x 416 and cut into blocks. A block is suspicious if its mean squared error is above
`MAX_ERROR`; in a suspicious block the pixels are grayed out whose absolute error, summed over channels, is above
`MAX_DIFFERENCE`. Both are the values that the authors use for YOLOv3. Described in Lin et al., CCS 2024.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 416  # pixels of the image that the autoencoder sees
MAX_ERROR, MAX_DIFFERENCE = 0.125, 0.3
DEVICE = os.environ.get("NUTNET_DEVICE", "cpu")
FIRST_STRIDES = {13: 1, 26: 2, 52: 2}  # of the first and the last layer, by the side of a block; all others are 2


@cache
def load_autoencoder(path: str) -> tuple[Any, int]:
    """Build the autoencoder that a file of weights is for; return it with the side of its blocks."""
    import torch
    from torch import nn

    weights = torch.load(path, weights_only=True, map_location="cpu")
    kernel = weights["encoder.0.weight"].shape[2]
    side = 52 if kernel == 8 else 26 if "26" in Path(path).name else 13  # n_13 and n_26 have the same shapes
    parts: dict[str, Any] = {}
    for part, layer, channel in (("encoder", nn.Conv2d, (1, 0)), ("decoder", nn.ConvTranspose2d, (0, 1))):
        layers: list[Any] = []
        for n in range(3):
            shape = weights[f"{part}.{2 * n}.weight"].shape
            outer = n == 0 if part == "encoder" else n == 2
            stride = FIRST_STRIDES[side] if outer else 2
            layers.append(layer(shape[channel[0]], shape[channel[1]], shape[2], stride=stride, padding=1))
            layers.append(nn.Tanh() if part == "decoder" and n == 2 else nn.ReLU())
        parts[part] = nn.Sequential(*layers)
    model = nn.Sequential(nn.ModuleDict(parts)["encoder"], parts["decoder"])
    model.load_state_dict(
        {key.replace("encoder", "0").replace("decoder", "1"): value for key, value in weights.items()}
    )
    return model.eval().requires_grad_(False).to(DEVICE), side


def nutnet_filter(image: np.ndarray) -> np.ndarray:
    """Return the image without the pixels that NutNet grays out."""
    import torch

    model, side = load_autoencoder(os.environ["NUTNET_WEIGHTS"])
    seen = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    blocks = torch.from_numpy(seen.astype(np.float32) / 127.5 - 1).to(DEVICE).permute(2, 0, 1)
    count = SIDE // side
    blocks = blocks.reshape(3, count, side, count, side).permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
    difference = (model(blocks) - blocks).abs()
    suspicious = (difference**2).mean(dim=(1, 2, 3)) > MAX_ERROR
    removed = (difference.sum(dim=1) > MAX_DIFFERENCE) & suspicious[:, None, None]
    mask = removed.reshape(count, count, side, side).permute(0, 2, 1, 3).reshape(SIDE, SIDE).cpu().numpy()
    if not mask.any():
        return image
    height, width = image.shape[:2]
    of_image = np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
    return np.where(of_image[..., None], 127, image).astype(np.uint8)
