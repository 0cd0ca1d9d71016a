"""The outputs of a torch module: all class scores first, boxes only for the few candidates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from objectseeker.detectors.builtin.model import DISTANCE_BINS, STRIDES, BuiltinDetector, Predictor
from objectseeker.detectors.gpu.batch_plan import ReceptiveField
from objectseeker.detectors.network.preprocess import Size

Tensor = Any

DecodeTensor = Callable[[Any], tuple[Any, Any]]


class RawNetwork(Protocol):
    """A network in two steps. Every view must be treated on its own.

    A network may begin with `stages` of convolutions that views can share (`shared`); `rest` continues from there.
    """

    @property
    def reaches(self) -> tuple[ReceptiveField, ...]:
        """Return what a cell behind each of the stages sees, on the output of the one before."""

    def stage(self, number: int, features: Tensor) -> Tensor:
        """One of the first stages; the features of the first are images N x 3 x H x W."""

    def rest(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Run the rest: features -> a code per anchor N x A x D, values N x A x C that rank classes."""

    def score(self, values: Tensor) -> Tensor:
        """Class values of any shape as scores within [0, 1], in single precision, in the same order."""

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        """Codes N x K x D of the anchors `index` N x K as corners N x K x 4, in single precision."""


@dataclass(frozen=True, slots=True, eq=False)
class BoxesAndScores:
    """A module that returns boxes N x A x 4 and scores N x A x C, or an output for `decode`."""

    module: Any
    decode: DecodeTensor | None
    reaches: tuple[ReceptiveField, ...] = ()

    def stage(self, number: int, features: Tensor) -> Tensor:
        raise IndexError(number)

    def rest(self, features: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.module(features)
        boxes, scores = outputs if self.decode is None else self.decode(outputs)
        return boxes, scores

    def score(self, values: Tensor) -> Tensor:
        return values.float()

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        return codes.float()


@dataclass(frozen=True, slots=True, eq=False)
class BuiltinNetwork:
    """The built-in detector: distributions over distances to box sides, decoded in single precision.

    In half precision a coordinate around 600 would be off by up to a quarter of a pixel. `behind` is the detector
    without its first three stages, the same function of their output.
    """

    predictor: Predictor
    behind: BuiltinDetector

    @classmethod
    def of(cls, predictor: Predictor) -> BuiltinNetwork:
        behind = copy.deepcopy(predictor.detector)
        behind.stem = behind.stage2 = behind.stage3 = torch.nn.Identity()
        return cls(predictor, behind)

    @property
    def reaches(self) -> tuple[ReceptiveField, ...]:
        detector = self.predictor.detector
        return reach_of(detector.stem, detector.stage2), reach_of(detector.stage3)

    def stage(self, number: int, features: Tensor) -> Tensor:
        detector = self.predictor.detector
        return detector.stage3(features) if number else detector.stage2(detector.stem(features * (1 / 255)))

    def rest(self, features: Tensor) -> tuple[Tensor, Tensor]:
        logits: tuple[Tensor, Tensor] = self.behind(features)
        return logits

    def score(self, values: Tensor) -> Tensor:
        return values.float().sigmoid()

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        shares = codes.float().unflatten(-1, (4, DISTANCE_BINS)).softmax(-1)
        left, top, right, bottom = (shares * self.predictor.bins.float().flatten()).sum(-1).unbind(-1)
        x, y, stride = (part[index] for part in _anchors(size, index.device))
        return torch.stack([x - left, y - top, x + right, y + bottom], -1) * stride[..., None]


def wrap_network(module: Any, decode: DecodeTensor | None) -> RawNetwork:
    if not isinstance(module, Predictor) or decode is not None:
        return BoxesAndScores(module, decode)
    return BuiltinNetwork.of(module)


def reach_of(*modules: torch.nn.Module) -> ReceptiveField:
    """Return what a cell behind `modules` sees, or more: as if all their convolutions were one chain."""
    total = ReceptiveField()
    for module in modules:
        for part in module.modules():
            if isinstance(part, torch.nn.Conv2d):
                (kernel, _), (stride, _), (padding, _) = part.kernel_size, part.stride, part.padding
                total = total.then(ReceptiveField(int(stride), int(padding), kernel - int(padding)))
            elif isinstance(part, torch.nn.MaxPool2d | torch.nn.AvgPool2d | torch.nn.Upsample):
                raise TypeError(f"{type(part).__name__} is not a convolution")
    return total


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
