"""A torch detector as a differentiable function of raw patch pixels.

The patch is drawn into raw pixels and resized with the very weights of `detectors.network.preprocess`: resizing is
linear, so

    network input  =  resized clean image  +  rows @ (patch - what it covers) @ columns^T

with the slices of both weight tables that belong to the patch. Rounding to 8 bits passes gradients straight through.
Sums are taken in another order than the detector takes them, so a pixel may round the other way: this is where the
attack looks for patches, not where it is judged.

What a patch reaches on the network input is read off the same weights, not off the margin that the detector's masks
rely on (`InputPlacement.leaking_extent`). `Stage.doubted` goes further: it says what would be filled if that margin
leaked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.core.boxes import Bools, Floats, Ints
from objectseeker.core.masks import Image, Masks
from objectseeker.core.pruning import EDGE
from objectseeker.detectors.network.detector import NetworkDetector, Predict
from objectseeker.detectors.network.preprocess import InputPlacement, Resampling, Singles, Size, ViewPlan

Tensor = Any

HALF = 0.5  # share of a network pixel's weight that lies on removed pixels if it lies on a mask's scaled line


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WhiteBox:
    """A detector whose gradients are known.

    `predict` maps network inputs N x 3 x H x W on `device` to boxes N x A x 4 (network pixels) and scores
    N x A x classes; `detector` is the same function as the pipeline calls it. With `autocast` gradients are computed in
    bfloat16.
    """

    predict: Predict
    detector: NetworkDetector
    device: str = "cpu"
    autocast: bool = False

    def place(self, size: Size) -> InputPlacement:
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

    def look(self, inputs: Tensor, window: Ints) -> tuple[Tensor, Tensor]:
        """Boxes and scores of the windows (N, 4) of network inputs, in pixels of the whole input.

        Windows of one size go through the network together. A smaller one has fewer boxes: the rest are empty.
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
        most = max(boxes.shape[1] for boxes, _ in parts)
        padded = [
            torch.cat([torch.nn.functional.pad(part[k], (0, 0, 0, most - part[k].shape[1])) for part in parts])
            for k in (0, 1)
        ]
        back = torch.as_tensor(np.argsort(order), device=inputs.device)
        return padded[0][back], padded[1][back]


def white_box_of(detector: Any, *, predict: Predict | None = None, device: str = "cpu") -> WhiteBox | None:
    """The gradients of a loaded detector, if it shows them: a network detector with a `predict`; None otherwise.

    `predict` may be given for a detector that runs the same network elsewhere.
    """
    inner = getattr(detector, "function", detector)  # python:MODULE:FUNCTION wraps the user's object
    if not isinstance(inner, NetworkDetector):
        return None
    predict = predict or inner.predict
    return None if predict is None else WhiteBox(predict=predict, detector=inner, device=device)


class Stage:
    """Images on the device, ready to have patches drawn on them; all must have the same network input size."""

    def __init__(self, white: WhiteBox, images: Sequence[Image]) -> None:
        import torch

        self.white, self.images = white, images
        self.placements = [white.place((image.shape[1], image.shape[0])) for image in images]
        assert len({placement.size for placement in self.placements}) == 1, "one network input size on one stage"
        self.weights = [tuple(dense(axis.resampling) for axis in (p.x, p.y)) for p in self.placements]
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
        drawn = torch.einsum("nhs,nwt->nst", (self.rows > 0).float(), (self.columns > 0).float()) > 0
        resized = torch.einsum("nhs,nhwc,nwt->ncst", self.rows, self.raw.float(), self.columns)
        self.clean = torch.where(drawn[:, None], resized, pad)

    def render(self, image: Tensor, corner: Tensor, size: Tensor, patches: Tensor) -> Tensor:
        """Network inputs B x 3 x H x W of images with patches, later ones over earlier ones.

        `image` (B,) which image, `corner` (B, K, 2) x and y, `size` (B, 2) width and height, `patches`
        (B, K, 3, h, w) pixels 0..255, of which the first `size` count.
        """
        drawn = self.clean[image]
        for k in range(patches.shape[1]):
            drawn = drawn + self._change(image, corner, size, patches, k)
        return through(drawn.clamp(0, 255).round(), drawn)

    def _change(self, image: Tensor, corner: Tensor, size: Tensor, patches: Tensor, k: int) -> Tensor:
        """What patch k of each image changes on the network input."""
        import torch

        patch = patches[:, k]
        pixels, valid = [], []
        for axis in (0, 1):
            step = torch.arange(patch.shape[3 - axis], device=patch.device)
            at = corner[:, k, axis, None] + step
            limit = self.extent[image, axis, None]
            valid.append((step < size[:, axis, None]) & (at >= 0) & (at < limit))
            pixels.append(at.clamp(min=0).minimum(limit - 1))
        seen = valid[1][:, :, None] & valid[0][:, None, :]  # B h w
        for later in range(k + 1, patches.shape[1]):
            x, y = (
                (pixels[axis] >= corner[:, later, axis, None])
                & (pixels[axis] < corner[:, later, axis, None] + size[:, axis, None])
                for axis in (0, 1)
            )
            seen = seen & ~(y[:, :, None] & x[:, None, :])
        covered = self.raw[image[:, None, None], pixels[1][:, :, None], pixels[0][:, None, :]].permute(0, 3, 1, 2)
        change = (through(patch.round(), patch) - covered) * seen[:, None]
        rows = self.rows[image[:, None], pixels[1]].transpose(1, 2)[:, None]  # B 1 H h
        columns = self.columns[image[:, None], pixels[0]][:, None]  # B 1 w W
        return rows @ change @ columns

    def views(self, image: int, removed: Ints) -> ViewPlan:
        """What the detector fills and cuts away in views without the raw rectangles `removed` N x R x 4."""
        return self.white.detector.plan(self.images[image], removed)[1]

    def doubted(self, image: int, removed: Ints) -> tuple[Ints, Ints]:
        """What would be filled instead, if the margin leaked: twice (N, R, 4), an empty rectangle where nothing is.

        One pixel less at every line than the weights of the resize ask for; and up to the scaled line only, which is
        where half of a pixel's weight lies on removed pixels.
        """
        one_less, to_line = np.zeros_like(removed), np.zeros_like(removed)
        for axis, place in enumerate((self.placements[image].x, self.placements[image].y)):
            total = np.cumsum(self.weights[image][axis], axis=1, dtype=np.float64)
            total = np.concatenate([np.zeros((len(total), 1)), total], axis=1)
            start, end = removed[..., axis], removed[..., axis + 2]
            share = total[:, end] - total[:, start]  # of each network pixel's weight that lies on removed pixels
            first, last = _ends(share > 0)
            one_less[..., axis] = place.offset + first + (start > 0)
            one_less[..., axis + 2] = place.offset + last - (end < place.resampling.raw)
            first, last = _ends(share >= HALF)
            to_line[..., axis], to_line[..., axis + 2] = place.offset + first, place.offset + last
        nothing = (removed[..., :2] >= removed[..., 2:]).any(axis=-1, keepdims=True)
        return np.where(nothing, 0, one_less), np.where(nothing, 0, to_line)

    def footprint(self, image: int, corner: tuple[int, int], size: tuple[int, int]) -> Ints:
        """The rectangle of the network input that a patch can change, by the weights of the resize."""
        reach = np.zeros(4, np.int64)
        for axis, place in enumerate((self.placements[image].x, self.placements[image].y)):
            start, end = np.clip([corner[axis], corner[axis] + size[axis]], 0, place.resampling.raw)
            touched = (self.weights[image][axis][:, start:end] > 0).any(axis=1)
            first, last = _ends(np.asarray(touched))
            reach[[axis, axis + 2]] = place.offset + first, place.offset + last
        return reach

    def lines(self, image: int, masks: Masks) -> Floats:
        """Where the lines of each mask lie on the network input: (M, 2 axes, 2), infinity where there is none."""
        strips, members = masks.strips, masks.members
        inside, position = strips.lines
        lines = np.full((len(masks), 2, 2), np.inf)
        for k in range(members.shape[1]):
            strip = members[:, k]
            for end in (0, 1):
                there = np.flatnonzero(inside[strip, end])
                slot = end if members.shape[1] == 1 else k  # a half mask has one line, a band two
                lines[there, strips.axis[strip[there]], slot] = position[strip[there], end]
        scale, offset = self._scale(image)
        return lines * scale[:, None] + offset[:, None]

    def edge(self, image: int) -> Floats:
        """How near to a line a box counts as cut by it, in pixels of the network input along x and y."""
        limit = np.array([axis.resampling.raw for axis in (self.placements[image].x, self.placements[image].y)])
        return np.asarray(EDGE * limit * self._scale(image)[0])

    def to_network(self, image: int, boxes: Floats) -> Floats:
        """Boxes in raw pixels as boxes on the network input."""
        scale, offset = self._scale(image)
        return np.asarray(boxes * np.tile(scale, 2) + np.tile(offset, 2))

    def _scale(self, image: int) -> tuple[Floats, Floats]:
        """Network pixels a raw pixel, and where the image begins, along x and y."""
        axes = self.placements[image].x, self.placements[image].y
        scale = np.array([axis.resampling.resized / axis.resampling.raw for axis in axes])
        return scale, np.array([float(axis.offset) for axis in axes])


def unreached(views: ViewPlan, footprints: Ints) -> Bools:
    """Which views show nothing of any patch: what of each footprint (K, 4) lies in the window lies in a filled
    rectangle."""
    hidden = np.ones(len(views), np.bool_)
    for reach in footprints:
        first, last = np.maximum(views.window[:, :2], reach[:2]), np.minimum(views.window[:, 2:], reach[2:])
        inside = (views.filled[..., :2] <= first[:, None]).all(-1) & (views.filled[..., 2:] >= last[:, None]).all(-1)
        hidden &= (first >= last).any(axis=1) | inside.any(axis=1)
    return hidden


def masked(inputs: Tensor, filled: Tensor, value: int) -> Tensor:
    """Network inputs N x 3 x H x W with the rectangles (N, R, 4) of each filled; an empty one fills nothing."""
    import torch

    rows = torch.arange(inputs.shape[2], device=inputs.device)
    columns = torch.arange(inputs.shape[3], device=inputs.device)
    for rectangle in filled.unbind(1):
        x1, y1, x2, y2 = rectangle.unbind(1)
        inside = ((rows >= y1[:, None]) & (rows < y2[:, None]))[:, :, None]
        inside = inside & ((columns >= x1[:, None]) & (columns < x2[:, None]))[:, None, :]
        inputs = torch.where(inside[:, None], float(value), inputs)
    return inputs


def through(value: Tensor, gradient: Tensor) -> Tensor:
    """`value` going forward, the gradient of `gradient` going back."""
    return gradient + (value - gradient).detach()


def dense(axis: Resampling) -> Singles:
    """The weights of one axis as a matrix (resized, raw)."""
    matrix = np.zeros((axis.resized, axis.raw), np.float32)
    np.add.at(matrix, (np.arange(axis.resized)[:, None], axis.tap), axis.weight)
    return matrix


def _ends(flags: Bools) -> tuple[Ints, Ints]:
    """The first flagged entry along axis 0 and the one behind the last; both 0 where there is none."""
    none = ~flags.any(axis=0)
    first, last = np.argmax(flags, axis=0), len(flags) - np.argmax(flags[::-1], axis=0)
    return np.where(none, 0, first), np.where(none, 0, last)
