"""The objectness network in PyTorch: every output position sees 33 x 33 pixels only.

Convolutions are not padded, so position (i, j) of the output depends exactly on the pixels [8i, 8i + 33) x
[8j, 8j + 33): four convolutions widen the view (5 + 2*2 + 4*2 + 8*2 = 33) and shrink the image (by 2, 2 and 2), and all
depth comes from layers that look at one position. An input of 416 x 416 gives 48 x 48 positions, one of 744 x 224 gives
89 x 24. For every position the network says how much it looks like each class, and like background, clipped at 0.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from objectseeker.detectors.builtin.model import CLASSES

LOGITS = len(CLASSES) + 1  # the last is background

# After each widening convolution.
STEM_CHANNELS, PARTS_CHANNELS, SHAPES_CHANNELS, WHOLE_CHANNELS = 32, 96, 192, 288
PARTS_BLOCKS, SHAPES_BLOCKS, WHOLE_BLOCKS = 2, 3, 4
EXPANSION = 2


class ConvNorm(nn.Module):
    """Convolution without padding, batch normalization, ReLU unless `linear`."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, linear: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, bias=False)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        return y if self.linear else F.relu(y)


class Depth(nn.Module):
    """A residual layer that looks at one position only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.widen = ConvNorm(channels, EXPANSION * channels)
        self.narrow = ConvNorm(EXPANSION * channels, channels, linear=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.narrow(self.widen(x)))


class ObjectnessNetwork(nn.Module):
    """RGB images in [0, 1], float N3HW -> clipped logits N,21,(H-33)//8+1,(W-33)//8+1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(3, STEM_CHANNELS, 5, 2),
            Depth(STEM_CHANNELS),
            ConvNorm(STEM_CHANNELS, PARTS_CHANNELS, 3, 2),
            *(Depth(PARTS_CHANNELS) for _ in range(PARTS_BLOCKS)),
            ConvNorm(PARTS_CHANNELS, SHAPES_CHANNELS, 3, 2),
            *(Depth(SHAPES_CHANNELS) for _ in range(SHAPES_BLOCKS)),
            ConvNorm(SHAPES_CHANNELS, WHOLE_CHANNELS, 3),
            *(Depth(WHOLE_CHANNELS) for _ in range(WHOLE_BLOCKS)),
        )
        self.head = nn.Conv2d(WHOLE_CHANNELS, LOGITS, 1)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.constant_(self.head.get_parameter("bias"), 0.5)  # above 0: a clipped logit has no gradient

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.head(self.body(images)))


class FeatureExtractor(nn.Module):
    """The network as it is exported: RGB 0..255, float N3HW -> clipped logits of the classes, background omitted.

    The defense never asks how much a position looks like background (docs/concepts/detectorguard.md says why).
    """

    def __init__(self, network: ObjectnessNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images * (1 / 255))[:, : len(CLASSES)]
