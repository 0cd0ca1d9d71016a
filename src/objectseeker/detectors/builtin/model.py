"""The built-in detector in PyTorch: a compact anchor-free detector with 5.6 million parameters.

A cross-stage-partial backbone with spatial pyramid pooling, a neck that mixes scales downwards and upwards, and one
head for boxes and one for classes at strides 8, 16 and 32. A box side is predicted as a distribution over distances.
Image sides must be multiples of 32.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from objectseeker.detectors.gpu.batch_plan import ReceptiveField
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.detectors.network.preprocess import Size

_Network = TypeVar("_Network", bound=nn.Module)

CLASSES = VOC_20
STRIDES = (8, 16, 32)
DISTANCE_BINS = 16  # a side is 0..15 strides from its anchor point

BACKBONE_CHANNELS = (16, 32, 80, 192, 352)
BACKBONE_BLOCKS = (1, 2, 3, 2)
NECK_CHANNELS = (80, 160, 320)
BOX_HEAD_CHANNELS = 48
CLASS_HEAD_CHANNELS = 64


class ConvNormSilu(nn.Module):
    """Convolution without bias, batch normalization, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


class Block(nn.Module):
    """Two 3x3 convolutions, optionally with a skip connection."""

    def __init__(self, channels: int, *, skip: bool) -> None:
        super().__init__()
        self.first = ConvNormSilu(channels, channels, 3)
        self.second = ConvNormSilu(channels, channels, 3)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.skip else y


class CrossStage(nn.Module):
    """Channels split in two: one half passes a chain of blocks, and all intermediate results are fused."""

    def __init__(self, inputs: int, outputs: int, blocks: int, *, skip: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.split = ConvNormSilu(inputs, 2 * half)
        self.blocks = nn.ModuleList(Block(half, skip=skip) for _ in range(blocks))
        self.fuse = ConvNormSilu((2 + blocks) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.split(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        fused: Tensor = self.fuse(torch.cat(parts, 1))
        return fused


class PyramidPooling(nn.Module):
    """The feature map concatenated with three successively wider maxima of itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvNormSilu(channels, channels // 2)
        self.second = ConvNormSilu(channels * 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = [self.first(x)]
        for _ in range(3):
            # Axis by axis: the same numbers as over 5 x 5 cells, with ten compiled reads instead of 25.
            along = F.max_pool2d(pooled[-1], (5, 1), 1, (2, 0))
            pooled.append(F.max_pool2d(along, (1, 5), 1, (0, 2)))
        fused: Tensor = self.second(torch.cat(pooled, 1))
        return fused


class BuiltinDetector(nn.Module):
    """Network from RGB images to box and class logits.

    Images N3HW in [0, 1] become box logits N,A,4*DISTANCE_BINS and class logits N,A,classes. A is the number of anchor
    points. `width` multiplies the channels, rounded to multiples of 16: a larger network of the same shape.
    """

    def __init__(self, width: float = 1.0, classes: int = len(CLASSES)) -> None:
        super().__init__()
        c1, c2, c3, c4, c5 = (_scale_channels(channels, width) for channels in BACKBONE_CHANNELS)
        n2, n3, n4, n5 = BACKBONE_BLOCKS
        necks = p3, p4, p5 = tuple(_scale_channels(channels, width) for channels in NECK_CHANNELS)
        box_channels, class_channels = (
            _scale_channels(BOX_HEAD_CHANNELS, width),
            _scale_channels(CLASS_HEAD_CHANNELS, width),
        )
        self.stem = ConvNormSilu(3, c1, 3, 2)
        self.stage2 = nn.Sequential(ConvNormSilu(c1, c2, 3, 2), CrossStage(c2, c2, n2, skip=True))
        self.stage3 = nn.Sequential(ConvNormSilu(c2, c3, 3, 2), CrossStage(c3, c3, n3, skip=True))
        self.stage4 = nn.Sequential(ConvNormSilu(c3, c4, 3, 2), CrossStage(c4, c4, n4, skip=True))
        self.stage5 = nn.Sequential(ConvNormSilu(c4, c5, 3, 2), CrossStage(c5, c5, n5, skip=True), PyramidPooling(c5))
        self.top_down4 = CrossStage(c5 + c4, p4, 1, skip=False)
        self.top_down3 = CrossStage(p4 + c3, p3, 1, skip=False)
        self.shrink3 = ConvNormSilu(p3, p3, 3, 2)
        self.bottom_up4 = CrossStage(p3 + p4, p4, 1, skip=False)
        self.shrink4 = ConvNormSilu(p4, p4, 3, 2)
        self.bottom_up5 = CrossStage(p4 + c5, p5, 1, skip=False)
        self.box_heads = nn.ModuleList(_head(channels, box_channels, 4 * DISTANCE_BINS, bias=1.0) for channels in necks)
        self.class_heads = nn.ModuleList(
            _head(channels, class_channels, classes, bias=_initial_logit(stride, classes))
            for channels, stride in zip(necks, STRIDES, strict=True)
        )

    def features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the input of the heads: one feature map per stride."""
        c3 = self.stage3(self.stage2(self.stem(images)))
        c4 = self.stage4(c3)
        c5 = self.stage5(c4)
        t4 = self.top_down4(torch.cat([_upsample(c5), c4], 1))
        p3 = self.top_down3(torch.cat([_upsample(t4), c3], 1))
        p4 = self.bottom_up4(torch.cat([self.shrink3(p3), t4], 1))
        p5 = self.bottom_up5(torch.cat([self.shrink4(p4), c5], 1))
        return p3, p4, p5

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(images)
        box_logits = [_rows(head(level)) for head, level in zip(self.box_heads, features, strict=True)]
        class_logits = [_rows(head(level)) for head, level in zip(self.class_heads, features, strict=True)]
        return torch.cat(box_logits, 1), torch.cat(class_logits, 1)


class Predictor(nn.Module):
    """Network from RGB images to boxes and scores.

    Images 0..255, float N3HW, become boxes N,A,4 (corners, input pixels) and scores N,A,classes. There is no
    suppression. This is the function that is exported to ONNX.
    """

    bins: Tensor

    def __init__(self, detector: BuiltinDetector) -> None:
        super().__init__()
        self.detector = detector
        self.register_buffer("bins", torch.arange(DISTANCE_BINS, dtype=torch.float).view(1, 1, -1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = [], []
        for level, features in enumerate(self.detector.features(images * (1 / 255))):
            boxes.append(self._boxes(self.detector.box_heads[level](features), STRIDES[level]))
            scores.append(_rows(self.detector.class_heads[level](features)).sigmoid())
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    def _boxes(self, logits: Tensor, stride: int) -> Tensor:
        n, _, height, width = logits.shape
        shares = logits.reshape(n, 4, DISTANCE_BINS, height * width).softmax(2)
        left, top, right, bottom = (shares * self.bins).sum(2).unbind(1)
        x = (torch.arange(width, device=logits.device) + 0.5).view(1, width).expand(height, width).reshape(1, -1)
        y = (torch.arange(height, device=logits.device) + 0.5).view(height, 1).expand(height, width).reshape(1, -1)
        return torch.stack([x - left, y - top, x + right, y + bottom], -1) * stride


def fused(network: _Network) -> _Network:
    """Copy a network for inference, with the batch `norm` of every module folded into its `conv`."""
    result = copy.deepcopy(network).eval()
    for module in result.modules():
        if isinstance(getattr(module, "norm", None), nn.BatchNorm2d):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.norm = nn.Identity()
    return result


def _head(inputs: int, channels: int, outputs: int, *, bias: float) -> nn.Sequential:
    last = nn.Conv2d(channels, outputs, 1)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.constant_(last.get_parameter("bias"), bias)
    return nn.Sequential(ConvNormSilu(inputs, channels, 3), ConvNormSilu(channels, channels, 3), last)


def _scale_channels(channels: int, width: float) -> int:
    return max(round(channels * width / 16), 1) * 16


def _initial_logit(stride: int, classes: int) -> float:
    """Return the initial logit of the class scores: about five objects in an image of 640 pixels."""
    return math.log(5 / classes / (640 / stride) ** 2)


def _upsample(features: Tensor) -> Tensor:
    return F.interpolate(features, scale_factor=2.0, mode="nearest")


def _rows(features: Tensor) -> Tensor:
    """Convert N,C,H,W to N,H*W,C: one row per anchor point."""
    return features.flatten(2).transpose(1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class BuiltinNetwork:
    """The built-in detector as a `gpu.RawNetwork`: box sides are decoded in single precision.

    In half precision a coordinate around 600 would be off by up to a quarter of a pixel. `behind` is the detector
    without its first three stages, the same function of their output.
    """

    predictor: Predictor
    behind: BuiltinDetector
    receptive_fields: tuple[ReceptiveField, ...]

    @classmethod
    def from_predictor(cls, predictor: Predictor) -> BuiltinNetwork:
        detector, behind = predictor.detector, copy.deepcopy(predictor.detector)
        behind.stem = behind.stage2 = behind.stage3 = nn.Identity()
        fields = receptive_field_of(detector.stem, detector.stage2), receptive_field_of(detector.stage3)
        return cls(predictor, behind, fields)

    def stage(self, number: int, features: Tensor) -> Tensor:
        detector = self.predictor.detector
        return detector.stage3(features) if number else detector.stage2(detector.stem(features * (1 / 255)))

    def final_stage(self, features: Tensor) -> tuple[Tensor, Tensor]:
        logits: tuple[Tensor, Tensor] = self.behind(features)
        return logits

    def score(self, values: Tensor) -> Tensor:
        return values.float().sigmoid()

    def boxes(self, codes: Tensor, index: Tensor, size: Size) -> Tensor:
        shares = codes.float().unflatten(-1, (4, DISTANCE_BINS)).softmax(-1)
        left, top, right, bottom = (shares * self.predictor.bins.float().flatten()).sum(-1).unbind(-1)
        x, y, stride = (part[index] for part in anchors(size, index.device))
        return torch.stack([x - left, y - top, x + right, y + bottom], -1) * stride[..., None]


def receptive_field_of(*modules: nn.Module) -> ReceptiveField:
    """Return what a cell behind `modules` sees, or more: as if all their convolutions were one chain."""
    total = ReceptiveField()
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                (kernel, _), (stride, _), (padding, _) = part.kernel_size, part.stride, part.padding
                total = total.then(ReceptiveField(int(stride), int(padding), kernel - int(padding)))
            elif isinstance(part, nn.MaxPool2d | nn.AvgPool2d | nn.Upsample):
                raise TypeError(f"{type(part).__name__} is not a convolution")
    return total


def anchors(size: Size, device: Any) -> tuple[Tensor, ...]:
    """Return column and row of every anchor point in strides, and its stride: scale by scale, row by row."""
    levels = []
    for stride in STRIDES:
        columns, rows = (torch.arange(side // stride, device=device) + 0.5 for side in size)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        levels.append(torch.stack([x.flatten(), y.flatten(), torch.full_like(x, stride).flatten()]))
    return torch.cat(levels, 1).unbind()
