"""A torch detector as a differentiable function of raw patch pixels.

The patch is drawn into raw pixels and resized with the very weights of `detectors.preprocess`: resizing is linear, so

    network input  =  resized clean image  +  rows @ (patch - what it covers) @ columns^T

with the slices of both weight tables that belong to the patch. Rounding to 8 bits passes gradients straight through.
Sums are taken in another order than the detector takes them, so a pixel may round the other way: this is where the
attack looks for patches, not where it is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.image import Image
from objectseeker.detectors.embedded.loading import LAYOUT
from objectseeker.detectors.network.detector import NetworkDetector
from objectseeker.detectors.network.preprocess import Placement, Resampling, Singles, Size
from objectseeker.detectors.network.results import SCORE_FLOOR
from objectseeker.errors import ObjectSeekerError

Tensor = Any
Predict = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WhiteBox:
    """A detector whose gradients are known.

    `predict` maps network inputs N x 3 x H x W on `device` to boxes N x A x 4 (network pixels) and scores
    N x A x classes; `detector` is the same function as the pipeline calls it. `covered` is the rectangle of the
    network input that the detector fills for a removed one: ours, unless a detector that does otherwise is attacked.
    With `autocast` gradients are computed in bfloat16.
    """

    predict: Predict
    detector: NetworkDetector
    device: str = "cpu"
    autocast: bool = False
    covered: Callable[[Placement, Ints], tuple[int, int, int, int]] = Placement.covered

    def place(self, size: Size) -> Placement:
        return self.detector.layout.place(size, self.detector.input_size)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes and scores of network inputs 0..255 RGB."""
        import torch

        layout = self.detector.layout
        values = inputs.flip(1) if layout.channels == "bgr" else inputs
        if values.is_cuda:
            values = values.contiguous(memory_format=torch.channels_last)  # as the weights are there
        mean, std = (torch.tensor(t, device=inputs.device).view(3, 1, 1) for t in (layout.mean, layout.std))
        with torch.autocast(self.device.partition(":")[0], dtype=torch.bfloat16, enabled=self.autocast):
            boxes, scores = self.predict((values - mean) / std)
        return boxes.float(), scores.float()


def embedded_white_box(
    *,
    device: str = "cpu",
    batch: int | None = None,
    input_size: int = 416,
    layout: str = LAYOUT,
    score_floor: float = SCORE_FLOOR,
    autocast: bool = False,
) -> WhiteBox:
    """The packaged detector in PyTorch, attacked and judged as one and the same module."""
    from objectseeker.detectors.embedded.weights import load_torch
    from objectseeker.detectors.network.names import VOC_20
    from objectseeker.detectors.torch_module import TorchDetector, ready

    module = ready(load_torch(), device)
    detector = TorchDetector(
        module,
        names=VOC_20,
        layout=layout,
        input_size=input_size,
        score_floor=score_floor,
        batch=batch,
        device=device,
    )
    return WhiteBox(predict=module, detector=detector, device=device, autocast=autocast)


def white_box_of(detector: Any, *, device: str = "cpu") -> WhiteBox | None:
    """The gradients of a loaded detector, if it shows them: a network detector with a `predict`; None otherwise."""
    inner = getattr(detector, "function", detector)  # python:MODULE:FUNCTION wraps the user's object
    predict = getattr(inner, "predict", None)
    if predict is None or not isinstance(inner, NetworkDetector):
        return None
    return WhiteBox(predict=predict, detector=inner, device=device)


class Stage:
    """Images on the device, ready to have patches drawn on them; all must have the same network input size."""

    def __init__(self, white: WhiteBox, images: Sequence[Image]) -> None:
        import torch

        self.white = white
        self.placements = [white.place((image.shape[1], image.shape[0])) for image in images]
        if len({placement.size for placement in self.placements}) != 1:
            raise ObjectSeekerError("images on one stage must have one network input size")
        tall, wide = (max(image.shape[axis] for image in images) for axis in (0, 1))
        raw = np.zeros((len(images), tall, wide, 3), np.uint8)
        for slot, image in zip(raw, images, strict=True):
            slot[: image.shape[0], : image.shape[1]] = image
        width, height = self.placements[0].size
        rows = np.zeros((len(images), tall, height), np.float32)
        columns = np.zeros((len(images), wide, width), np.float32)
        for n, placement in enumerate(self.placements):
            for table, axis in ((rows, placement.y), (columns, placement.x)):
                weights = dense(axis.resampling)
                table[n, : weights.shape[1], axis.offset : axis.offset + weights.shape[0]] = weights.T
        self.raw, self.rows, self.columns = (torch.from_numpy(a).to(white.device) for a in (raw, rows, columns))
        self.extent = torch.tensor([image.shape[1::-1] for image in images], device=white.device)  # width, height
        pad = torch.full((len(images), 3, height, width), float(white.detector.layout.pad), device=white.device)
        drawn = torch.einsum("nhs,nwt->nst", (self.rows > 0).float(), (self.columns > 0).float()) > 0
        resized = torch.einsum("nhs,nhwc,nwt->ncst", self.rows, self.raw.float(), self.columns)
        self.clean = torch.where(drawn[:, None], resized, pad)

    def render(self, image: Tensor, corner: Tensor, size: Tensor, patch: Tensor) -> Tensor:
        """Network inputs B x 3 x H x W of images with patches.

        `image` (B,) which image, `corner` (B, 2) x and y, `size` (B, 2) width and height, `patch` (B, 3, h, w) pixels
        0..255, of which the first `size` count.
        """
        import torch

        steps = [torch.arange(patch.shape[axis], device=patch.device) for axis in (3, 2)]
        places, valid = [], []
        for axis, step in enumerate(steps):
            where = corner[:, axis, None] + step
            limit = self.extent[image, axis, None]
            valid.append((step < size[:, axis, None]) & (where >= 0) & (where < limit))
            places.append(where.clamp(min=0).minimum(limit - 1))
        covered = self.raw[image[:, None, None], places[1][:, :, None], places[0][:, None, :]].permute(0, 3, 1, 2)
        seen = (valid[1][:, None, :, None] & valid[0][:, None, None, :]).float()
        change = (through(patch.round(), patch) - covered) * seen
        rows = self.rows[image[:, None], places[1]].transpose(1, 2)[:, None]  # B 1 H h
        columns = self.columns[image[:, None], places[0]][:, None]  # B 1 w W
        drawn = self.clean[image] + rows @ change @ columns
        return through(drawn.clamp(0, 255).round(), drawn)

    def filled(self, image: int, removed: Ints) -> Ints:
        """The rectangles of the network input that the detector fills for removed ones (M, 4)."""
        placement = self.placements[image]
        return np.array([self.white.covered(placement, rectangle) for rectangle in removed]).reshape(-1, 4)

    def footprint(self, image: int, corner: tuple[int, int], size: tuple[int, int]) -> Ints:
        """The rectangle of the network input that a patch can change."""
        placement = self.placements[image]
        limit = (placement.x.resampling.raw, placement.y.resampling.raw)
        first = np.clip(corner, 0, limit)
        last = np.clip(np.array(corner) + size, 0, limit)
        return np.array(placement.covered(np.concatenate([first, last])))

    def to_network(self, image: int, boxes: Floats) -> Floats:
        """Boxes in raw pixels as boxes on the network input."""
        placement = self.placements[image]
        made = np.empty_like(boxes)
        for n, axis in enumerate((placement.x, placement.y)):
            scale = axis.resampling.resized / axis.resampling.raw
            made[..., n::2] = boxes[..., n::2] * scale + axis.offset
        return made


def masked(inputs: Tensor, filled: Tensor, value: int) -> Tensor:
    """Network inputs N x 3 x H x W with the rectangle `filled` (N, 4) of each filled; an empty one fills nothing."""
    import torch

    rows = torch.arange(inputs.shape[2], device=inputs.device)
    columns = torch.arange(inputs.shape[3], device=inputs.device)
    x1, y1, x2, y2 = filled.unbind(1)
    inside = ((rows >= y1[:, None]) & (rows < y2[:, None]))[:, :, None]
    inside = inside & ((columns >= x1[:, None]) & (columns < x2[:, None]))[:, None, :]
    return torch.where(inside[:, None], float(value), inputs)


def through(value: Tensor, gradient: Tensor) -> Tensor:
    """`value` going forward, the gradient of `gradient` going back."""
    return gradient + (value - gradient).detach()


def dense(axis: Resampling) -> Singles:
    """The weights of one axis as a matrix (resized, raw)."""
    matrix = np.zeros((axis.resized, axis.raw), np.float32)
    np.add.at(matrix, (np.arange(axis.resized)[:, None], axis.tap), axis.weight)
    return matrix
