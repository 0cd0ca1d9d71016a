"""A torch detector as a differentiable function of raw patch pixels, for the white-box attack.

The patch is drawn into raw pixels and resized with exactly the weights of `detectors.network.preprocess`. Resizing is
linear, so

    network input  =  resized clean image  +  rows @ (patch - pixels under it) @ columns^T

with the slices of both weight tables that belong to the patch. Rounding to 8 bits passes gradients straight through.
Sums are taken in another order than in the detector, so a pixel may round the other way: the attack searches for
patches here, and the real pipeline judges them.

What a patch affects on the network input is computed from the same weights, not from the margin that the detector's
masks rely on (`InputPlacement.leaking_extent`). `PatchRenderer.leak_rectangles` goes further: it returns what would be
filled if that margin leaked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.masks import Image, Masks
from objectseeker.core.pruning import EDGE
from objectseeker.detectors.network import NetworkDetector, Predict
from objectseeker.detectors.network.preprocess import InputPlacement, Size, ViewPlan

Tensor = Any

HALF = 0.5  # share of a network pixel's weight on removed pixels if the pixel is on a mask's scaled line


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WhiteBox:
    """A detector with known gradients.

    `predict` maps network inputs N x 3 x H x W on `device` to boxes N x A x 4 (network pixels) and scores
    N x A x classes; `detector` is the same function as the pipeline calls it. With `autocast` gradients are computed in
    bfloat16.
    """

    predict: Predict
    detector: NetworkDetector
    device: str = "cpu"
    autocast: bool = False

    @classmethod
    def from_detector(cls, detector: Any, *, predict: Predict | None = None, device: str = "cpu") -> WhiteBox | None:
        """Return the gradients of a loaded network detector, or None if it has no `predict`.

        `predict` is the same network in torch, on `device`, for a detector that runs it elsewhere.
        """
        inner = getattr(detector, "function", detector)  # python:MODULE:FUNCTION wraps the user's object
        if not isinstance(inner, NetworkDetector):
            return None
        if predict is not None:
            return cls(predict=predict, detector=inner, device=device)
        return None if inner.predict is None else cls(predict=inner.predict, detector=inner, device=inner.device)

    def place(self, size: Size) -> InputPlacement:
        return self.detector.layout.place(size, self.detector.input_size)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes and scores of network inputs 0..255 RGB."""
        import torch

        layout = self.detector.layout
        values = inputs.flip(1) if layout.channels == "bgr" else inputs
        if values.is_cuda:
            values = values.contiguous(memory_format=torch.channels_last)  # as the weights are there
        mean, std = (torch.tensor(t, device=inputs.device).view(3, 1, 1) for t in (layout.mean, layout.std))
        with torch.autocast(self.device.partition(":")[0], dtype=torch.bfloat16, enabled=self.autocast):
            boxes, scores = self.predict((values - mean) / std)
        return boxes.float(), scores.float()

    def window_outputs(self, inputs: Tensor, window: Ints) -> tuple[Tensor, Tensor]:
        """Return boxes and scores of the windows (N, 4) of network inputs, in pixels of the whole input.

        Windows of one size go through the network together. A smaller one has fewer boxes; the missing ones are empty.
        """
        import torch

        sizes = window[:, 2:] - window[:, :2]
        if (sizes == [inputs.shape[3], inputs.shape[2]]).all():
            return self(inputs)
        order: list[int] = []
        parts: list[tuple[Tensor, Tensor]] = []
        for size in np.unique(sizes, axis=0):
            members = np.flatnonzero((sizes == size).all(axis=1)).tolist()
            cut = [inputs[n, :, y1:y2, x1:x2] for n, (x1, y1, x2, y2) in zip(members, window[members], strict=True)]
            boxes, scores = self(torch.stack(cut))
            corner = torch.as_tensor(np.tile(window[members, :2], 2), device=boxes.device)
            parts.append((boxes + corner[:, None], scores))
            order += members
        count = max(boxes.shape[1] for boxes, _ in parts)
        padded = [
            torch.cat([torch.nn.functional.pad(part[k], (0, 0, 0, count - part[k].shape[1])) for part in parts])
            for k in (0, 1)
        ]
        inverse = torch.as_tensor(np.argsort(order), device=inputs.device)
        return padded[0][inverse], padded[1][inverse]


class PatchRenderer:
    """Images on the device, ready to draw patches on; all have one network input size."""

    def __init__(self, white: WhiteBox, images: Sequence[Image]) -> None:
        import torch

        self.white, self.images = white, images
        self.placements = [white.place((image.shape[1], image.shape[0])) for image in images]
        assert len({placement.size for placement in self.placements}) == 1, "images of several network input sizes"
        self.weights = [tuple(axis.resampling.matrix() for axis in (p.x, p.y)) for p in self.placements]
        tall, wide = (max(image.shape[axis] for image in images) for axis in (0, 1))
        raw = np.zeros((len(images), tall, wide, 3), np.uint8)
        for slot, image in zip(raw, images, strict=True):
            slot[: image.shape[0], : image.shape[1]] = image
        width, height = self.placements[0].size
        rows = np.zeros((len(images), tall, height), np.float32)
        columns = np.zeros((len(images), wide, width), np.float32)
        for n, placement in enumerate(self.placements):
            for table, axis, weights in zip((columns, rows), (placement.x, placement.y), self.weights[n], strict=True):
                table[n, : weights.shape[1], axis.offset : axis.offset + weights.shape[0]] = weights.T
        self.raw, self.rows, self.columns = (torch.from_numpy(a).to(white.device) for a in (raw, rows, columns))
        self.extent = torch.tensor([image.shape[1::-1] for image in images], device=white.device)  # width, height
        pad = torch.full((len(images), 3, height, width), float(white.detector.layout.pad), device=white.device)
        inside = torch.einsum("nhs,nwt->nst", (self.rows > 0).float(), (self.columns > 0).float()) > 0
        resized = torch.einsum("nhs,nhwc,nwt->ncst", self.rows, self.raw.float(), self.columns)
        self.clean = torch.where(inside[:, None], resized, pad)

    def render(self, image: Tensor, corner: Tensor, size: Tensor, patches: Tensor) -> Tensor:
        """Return network inputs B x 3 x H x W of images with patches, later ones over earlier ones.

        `image` (B,) is the index of the image, `corner` (B, K, 2) x and y of each patch. Of the `patches`
        (B, K, 3, h, w), pixels 0..255, the first `size` (B, 2) = width, height count.
        """
        inputs = self.clean[image]
        for k in range(patches.shape[1]):
            inputs = inputs + self._change(image, corner, size, patches, k)
        return straight_through(inputs.clamp(0, 255).round(), inputs)

    def _change(self, image: Tensor, corner: Tensor, size: Tensor, patches: Tensor, k: int) -> Tensor:
        """Return what patch k of each image changes on the network input."""
        import torch

        patch = patches[:, k]
        pixels, valid = [], []
        for axis in (0, 1):
            step = torch.arange(patch.shape[3 - axis], device=patch.device)
            at = corner[:, k, axis, None] + step
            limit = self.extent[image, axis, None]
            valid.append((step < size[:, axis, None]) & (at >= 0) & (at < limit))
            pixels.append(at.clamp(min=0).minimum(limit - 1))
        visible = valid[1][:, :, None] & valid[0][:, None, :]  # B h w
        for later in range(k + 1, patches.shape[1]):
            x, y = (
                (pixels[axis] >= corner[:, later, axis, None])
                & (pixels[axis] < corner[:, later, axis, None] + size[:, axis, None])
                for axis in (0, 1)
            )
            visible = visible & ~(y[:, :, None] & x[:, None, :])
        covered = self.raw[image[:, None, None], pixels[1][:, :, None], pixels[0][:, None, :]].permute(0, 3, 1, 2)
        change = (straight_through(patch.round(), patch) - covered) * visible[:, None]
        rows = self.rows[image[:, None], pixels[1]].transpose(1, 2)[:, None]  # B 1 H h
        columns = self.columns[image[:, None], pixels[0]][:, None]  # B 1 w W
        return rows @ change @ columns

    def view_plan(self, image: int, removed: Ints) -> ViewPlan:
        """Return what the detector fills and crops in views without the raw rectangles (N, R, 4)."""
        return self.white.detector.plan(self.images[image], removed)[1]

    def leak_rectangles(self, image: int, removed: Ints) -> tuple[Ints, Ints]:
        """Return what would be filled if the margin leaked: twice (N, R, 4), an empty rectangle for none.

        First with one pixel less at every line than the weights of the resize require; then up to the scaled line only,
        where half of a pixel's weight is on removed pixels.
        """
        one_less, to_line = np.zeros_like(removed), np.zeros_like(removed)
        for axis, along in enumerate((self.placements[image].x, self.placements[image].y)):
            total = np.cumsum(self.weights[image][axis], axis=1, dtype=np.float64)
            total = np.concatenate([np.zeros((len(total), 1)), total], axis=1)
            start, end = removed[..., axis], removed[..., axis + 2]
            share = total[:, end] - total[:, start]  # of each network pixel's weight, on removed pixels
            first, last = _flagged_range(share > 0)
            one_less[..., axis] = along.offset + first + (start > 0)
            one_less[..., axis + 2] = along.offset + last - (end < along.resampling.raw)
            first, last = _flagged_range(share >= HALF)
            to_line[..., axis], to_line[..., axis + 2] = along.offset + first, along.offset + last
        nothing = (removed[..., :2] >= removed[..., 2:]).any(axis=-1, keepdims=True)
        return np.where(nothing, 0, one_less), np.where(nothing, 0, to_line)

    def affected_rectangle(self, image: int, corner: tuple[int, int], size: tuple[int, int]) -> Ints:
        """Return the rectangle of the network input that a patch can change, by the weights of the resize."""
        affected = np.zeros(4, np.int64)
        for axis, along in enumerate((self.placements[image].x, self.placements[image].y)):
            start, end = np.clip([corner[axis], corner[axis] + size[axis]], 0, along.resampling.raw)
            touched = (self.weights[image][axis][:, start:end] > 0).any(axis=1)
            first, last = _flagged_range(np.asarray(touched))
            affected[[axis, axis + 2]] = along.offset + first, along.offset + last
        return affected

    def mask_lines(self, image: int, masks: Masks) -> Floats:
        """Return the lines of each mask on the network input: (M, 2 axes, 2), infinity where there is none."""
        lines = np.where(masks.is_line, masks.rectangle, np.inf).reshape(-1, 2, 2).transpose(0, 2, 1)  # by axis, end
        scale, offset = self._scale(image)
        return lines * scale[:, None] + offset[:, None]

    def edge(self, image: int) -> Floats:
        """Return the distance to a line at which a box counts as cut by it, in network pixels along x and y."""
        limit = np.array([axis.resampling.raw for axis in (self.placements[image].x, self.placements[image].y)])
        return np.asarray(EDGE * limit * self._scale(image)[0])

    def to_network(self, image: int, boxes: Floats) -> Floats:
        """Convert boxes from raw pixels to pixels of the network input."""
        scale, offset = self._scale(image)
        return np.asarray(boxes * np.tile(scale, 2) + np.tile(offset, 2))

    def _scale(self, image: int) -> tuple[Floats, Floats]:
        """Return network pixels per raw pixel, and where the image begins, along x and y."""
        axes = self.placements[image].x, self.placements[image].y
        scale = np.array([axis.resampling.resized / axis.resampling.raw for axis in axes])
        return scale, np.array([float(axis.offset) for axis in axes])


def unaffected_views(views: ViewPlan, affected: Ints) -> Bools:
    """Return which views show nothing of any patch.

    Each of the affected rectangles (K, 4) is outside the view's window, or its part inside is in a filled rectangle.
    """
    unaffected = np.ones(len(views), np.bool_)
    for rectangle in affected:
        first, last = np.maximum(views.window[:, :2], rectangle[:2]), np.minimum(views.window[:, 2:], rectangle[2:])
        inside = (views.filled[..., :2] <= first[:, None]).all(-1) & (views.filled[..., 2:] >= last[:, None]).all(-1)
        unaffected &= (first >= last).any(axis=1) | inside.any(axis=1)
    return unaffected


def fill_views(inputs: Tensor, filled: Tensor, value: int) -> Tensor:
    """Fill the rectangles (N, R, 4) of each network input N x 3 x H x W; an empty rectangle fills nothing."""
    import torch

    rows = torch.arange(inputs.shape[2], device=inputs.device)
    columns = torch.arange(inputs.shape[3], device=inputs.device)
    for rectangle in filled.unbind(1):
        x1, y1, x2, y2 = rectangle.unbind(1)
        inside = ((rows >= y1[:, None]) & (rows < y2[:, None]))[:, :, None]
        inside = inside & ((columns >= x1[:, None]) & (columns < x2[:, None]))[:, None, :]
        inputs = torch.where(inside[:, None], float(value), inputs)
    return inputs


def straight_through(value: Tensor, gradient: Tensor) -> Tensor:
    """Return `value` in the forward pass, with the gradient of `gradient` in the backward pass."""
    return gradient + (value - gradient).detach()


def _flagged_range(flags: Bools) -> tuple[Ints, Ints]:
    """Return the first flagged entry along axis 0 and the one behind the last; both 0 where there is none."""
    none = ~flags.any(axis=0)
    first, last = np.argmax(flags, axis=0), len(flags) - np.argmax(flags[::-1], axis=0)
    return np.where(none, 0, first), np.where(none, 0, last)
