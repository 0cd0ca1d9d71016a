"""How a torch module is asked for boxes: all class scores first, and boxes of the few candidates only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from objectseeker.detectors.preprocess import Size
from objectseeker.embedded.model import DISTANCE_BINS, STRIDES, Predictor

Tensor = Any
EXTRA_CHANNELS = 5  # to make eight of three

Decode = Callable[[Any], tuple[Any, Any]]


class RawNetwork(Protocol):
    """A network in two steps. Every view must be treated on its own."""

    def raw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images N x 3 x H x W -> one code per anchor N x A x D, and class values N x A x C that rank the classes."""

    def score(self, values: Tensor) -> Tensor:
        """The best class values N x A as scores within [0, 1], in single precision."""

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        """Codes N x K x D of the anchors `index` N x K as corners N x K x 4, in single precision."""


@dataclass(frozen=True, slots=True, eq=False)
class BoxesAndScores:
    """A module that returns boxes N x A x 4 and scores N x A x C, or something that `decode` turns into them."""

    module: Any
    decode: Decode | None

    def raw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.module(images)
        boxes, scores = outputs if self.decode is None else self.decode(outputs)
        return boxes, scores

    def score(self, values: Tensor) -> Tensor:
        return values.float()

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        return codes.float()


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The embedded detector: box sides are distributions over distances, turned into boxes in single precision only.

    In half precision a coordinate around 600 would be off by up to a quarter of a pixel. `extra` input channels, all
    zero and with zero weights, add exactly zero to the first convolution. They were meant to speed it up and were not
    seen to (docs/speed.md), but they are what was checked on a GPU.
    """

    predictor: Predictor
    extra: int = 0

    @classmethod
    def on_gpu(cls, predictor: Predictor) -> Embedded:
        predictor = copy.deepcopy(predictor)
        conv = predictor.detector.stem.conv
        conv.in_channels += EXTRA_CHANNELS
        conv.weight = torch.nn.Parameter(
            torch.nn.functional.pad(conv.weight, (0, 0, 0, 0, 0, EXTRA_CHANNELS)).to(memory_format=torch.channels_last),
            requires_grad=False,
        )
        return cls(predictor, EXTRA_CHANNELS)

    def raw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scaled = torch.nn.functional.pad(images * (1 / 255), (0, 0, 0, 0, 0, self.extra))
        logits: tuple[Tensor, Tensor] = self.predictor.detector(scaled)
        return logits

    def score(self, values: Tensor) -> Tensor:
        return values.float().sigmoid()

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        shares = codes.float().unflatten(-1, (4, DISTANCE_BINS)).softmax(-1)
        left, top, right, bottom = (shares * self.predictor.bins.float().flatten()).sum(-1).unbind(-1)
        x, y, stride = (part[index] for part in _anchors(size, index.device))
        return torch.stack([x - left, y - top, x + right, y + bottom], -1) * stride[..., None]


def as_network(module: Any, decode: Decode | None, *, gpu: bool) -> RawNetwork:
    if not isinstance(module, Predictor) or decode is not None:
        return BoxesAndScores(module, decode)
    return Embedded.on_gpu(module) if gpu else Embedded(module)


def _anchors(size: Size, device: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Column and row of every anchor point in strides, and its stride: scale by scale, row by row."""
    columns, rows, strides = [], [], []
    for stride in STRIDES:
        width, height = size[0] // stride, size[1] // stride
        y, x = torch.meshgrid(
            torch.arange(height, device=device) + 0.5, torch.arange(width, device=device) + 0.5, indexing="ij"
        )
        columns.append(x.reshape(-1))
        rows.append(y.reshape(-1))
        strides.append(torch.full((width * height,), float(stride), device=device))
    return torch.cat(columns), torch.cat(rows), torch.cat(strides)
