"""Training batches built on the device: mosaic, scale, crop, flip, color, mixup, and the package's masks.

All images live in device memory, at full and at half size, and every output pixel is looked up there: making a batch
of 256 costs a few kernels and no copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.training import draw_strips, kept_parts, mask_and_move, visible_targets
from objectseeker.training.masking import Masking, area_of, intersect_boxes, keeps_target
from train_builtin.packs import CROWD, DOUBTFUL, Pack, Pixels

TILES = 4  # of a mosaic: top left, top right, bottom left, bottom right
LEAST_VISIBLE_SHARE = 0.2  # of an object's box, below which a tile that cuts it leaves no target
LEAST_VISIBLE_SIDE = 3.0  # pixels, likewise
HALF_SIZE_BELOW = 0.6  # of its scale: pixels are looked up in the image at half size, against aliasing
BOXES_PER_IMAGE = 40  # the largest are kept
BOXES_PER_SAMPLE = 64  # of a finished training sample, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMasking(Masking):
    """Settings of the masks: those of the package, and three variants.

    `through` is the share of the masks of which a line is drawn through an object instead of anywhere. With `paired`,
    half of a batch are whole samples and the other half the same ones masked. Of `worst` masks drawn for a sample the
    one is taken under which its loss is largest. All samples have one size, so mask_mode="crop" moves the cut of a half
    mask to the border of the sample, as a detector sees it that is given the kept half only.
    """

    through: float = 0.0
    paired: bool = False
    worst: int = 1

    def __post_init__(self) -> None:
        Masking.__post_init__(self)
        require_fraction(self.through, "through")
        require_count(self.worst, "worst")
        if self.paired and self.worst > 1:
            raise ObjectSeekerError("paired samples have one mask each: give either paired or worst")


NO_MASKS = SampleMasking(probability=0.0)


@dataclass(frozen=True, slots=True)
class Strength:
    """Strength of the augmentation."""

    mosaic: float  # probabilities
    mixup: float
    smallest: float  # range of the random scale
    largest: float
    masking: SampleMasking = NO_MASKS


Objects = tuple[Tensor, Tensor, Tensor]  # boxes N,M,4 in pixels and labels N,M, meaningful where present, N,M


@dataclass(frozen=True, slots=True)
class Batch:
    """Images N,3,S,S in [0, 1]; boxes N,M,4 in pixels and labels N,M, meaningful where `present`.

    `doubtful` is what may be an object or background; None if no training image has such boxes.
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor
    present: Tensor
    doubtful: Objects | None = None


Strips = tuple[Tensor, Tensor, Tensor, Tensor]  # N each: is there a mask, its axis, its start and its end
Judge = Callable[[Batch], Tensor]  # how bad each sample of a batch is, N


class Bank:
    """All training images and their boxes in device memory.

    A pixel is one integer, red in its lowest byte. Level 0 are the images, level 1 the same at half size. `repeats`
    says how often each image is shown in an epoch; once if it is None.
    """

    def __init__(
        self,
        pack: Pack,
        full: Pixels,
        half: Pixels,
        device: torch.device,
        *,
        repeats: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.device = device
        once = torch.arange(len(pack))
        self.epoch = (once if repeats is None else once.repeat_interleave(torch.from_numpy(repeats))).to(device)
        self.pixels = torch.empty(len(full.values) + len(half.values), dtype=torch.int32, device=device)
        self._store(full, 0)
        self._store(half, len(full.values))
        levels = ((full, 0), (half, len(full.values)))
        self.starts = torch.stack([torch.from_numpy(p.starts[:-1] + base) for p, base in levels]).to(device)
        self.widths = torch.stack([torch.from_numpy(p.sizes[:, 0].copy()) for p, _ in levels]).to(device)
        self.heights = torch.stack([torch.from_numpy(p.sizes[:, 1].copy()) for p, _ in levels]).to(device)
        doubtful = [rows[rows[:, 5] == DOUBTFUL] for rows in pack.boxes]
        self.objects = self._largest([rows[(rows[:, 5] != CROWD) & (rows[:, 5] != DOUBTFUL)] for rows in pack.boxes])
        self.doubtful = self._largest(doubtful) if any(map(len, doubtful)) else None

    def _largest(self, boxes: Sequence[npt.NDArray[np.float32]]) -> tuple[Tensor, Tensor]:
        """Return the largest boxes of each image and their labels, padded with -1."""
        counts = [len(rows) for rows in boxes]
        rows, image = np.concatenate(boxes), np.repeat(np.arange(len(boxes)), counts)
        area = (rows[:, 3] - rows[:, 1]) * (rows[:, 4] - rows[:, 2])
        rows = rows[np.lexsort((-area, image))]
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)  # among those of its image
        kept = place < BOXES_PER_IMAGE
        corners = torch.zeros(len(boxes), BOXES_PER_IMAGE, 4)
        labels = torch.full((len(boxes), BOXES_PER_IMAGE), -1)
        at = torch.from_numpy(image[kept]), torch.from_numpy(place[kept])
        corners[at] = torch.from_numpy(rows[kept, 1:5])
        labels[at] = torch.from_numpy(rows[kept, 0]).long()
        return corners.to(self.device), labels.to(self.device)

    def _store(self, pixels: Pixels, base: int, chunk: int = 1 << 26) -> None:
        for start in range(0, len(pixels.values), chunk):
            rgb = torch.from_numpy(pixels.values[start : start + chunk]).to(self.device).int()
            packed = rgb[:, 0] | (rgb[:, 1] << 8) | (rgb[:, 2] << 16)
            self.pixels[base + start : base + start + len(packed)] = packed


class Augmentation:
    """Draws training batches from a bank; `state_dict` has its complete state."""

    def __init__(self, bank: Bank, size: int, *, seed: int, compiled: bool) -> None:
        self.bank, self.size = bank, size
        self.restart(seed)
        self._sample: Any = torch.compile(sample_pixels, dynamic=False) if compiled else sample_pixels
        self._finish: Any = torch.compile(finish, dynamic=False) if compiled else finish

    def restart(self, seed: int) -> None:
        """Reset to the initial state with this seed."""
        self.generator = torch.Generator(self.bank.device).manual_seed(seed)
        self.order = torch.empty(0, dtype=torch.long, device=self.bank.device)
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "order": self.order, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.order = state["order"].to(self.bank.device)
        self.position = state["position"]

    def batch(self, count: int, strength: Strength, judge: Judge | None = None) -> Batch:
        """Return the next samples; `judge` chooses the worst of several masks for each."""
        masking = strength.masking
        drawn = count // 2 if masking.paired else count
        images = self._choose(drawn)
        mosaic = self._chance((drawn,), strength.mosaic)
        center = self._uniform((drawn, 2), 0.25, 0.75) * self.size
        # Without a mosaic the last tile, the one drawn without repetition, covers everything.
        center = torch.where(mosaic[:, None], center, torch.zeros_like(center)).round()
        tiles = tile_rectangles(center, self.size)
        placement = self._place(images, tiles, mosaic, strength)
        color = self._color(drawn)

        partner = torch.roll(torch.arange(drawn, device=self.bank.device), 1)
        mixed = self._chance((drawn,), strength.mixup)
        own_share = torch.where(mixed, self._uniform((drawn,), 0.35, 0.65), torch.ones_like(center[:, 0]))

        def placed(kind: tuple[Tensor, Tensor]) -> Objects:
            boxes, labels, present = tile_boxes(kind[0][images], kind[1][images], tiles, placement)
            boxes = torch.cat([boxes, boxes[partner]], 1)
            labels = torch.cat([labels, labels[partner]], 1)
            return largest_boxes(boxes, labels, torch.cat([present, present[partner] & mixed[:, None]], 1))

        boxes, labels, present = placed(self.bank.objects)
        doubtful = None if self.bank.doubtful is None else placed(self.bank.doubtful)
        pixels = self._sample(self.bank.pixels, placement.lookup, placement.source, center, color, self.size)
        pixels = pixels * own_share.view(-1, 1, 1, 1) + pixels[partner] * (1 - own_share.view(-1, 1, 1, 1))
        sample = Batch(pixels, boxes, labels, present, doubtful)
        strips = self._strips(boxes, present, masking)
        if masking.worst > 1 and judge is not None:
            strips = self._worst_strips(sample, strips, masking, judge)
        if masking.paired:
            masked, axis, start, end = strips
            strips = torch.cat([torch.zeros_like(masked), masked]), *(torch.cat([x, x]) for x in (axis, start, end))
            doubtful = None if doubtful is None else twice(*doubtful)
            sample = Batch(torch.cat([pixels, pixels]), *twice(boxes, labels, present), doubtful)
        return self._masked(sample, strips, masking)

    def _masked(self, sample: Batch, strips: Strips, masking: SampleMasking) -> Batch:
        """Apply masks to the pixels and targets of samples."""
        kept = kept_parts(*strips, self.size, self.size)
        boxes, present = visible_targets(sample.boxes, sample.present, kept, masking.min_visible)
        shift = cut_to_border(kept, self.size) if masking.mask_mode == "crop" else torch.zeros_like(kept[:, 0, :2])
        corners = torch.cat([shift, shift], 1)[:, None]
        boxes = (boxes - corners) * present[..., None]
        images = self._finish(sample.images, kept, shift, masking.fill)
        doubtful = sample.doubtful
        if doubtful is not None:  # doubt stays where a mask hides it: there is nothing to learn there
            doubtful = doubtful[0] - corners, *doubtful[1:]
        return Batch(images, boxes, sample.labels * present, present, doubtful)

    def _worst_strips(self, sample: Batch, first: Strips, masking: SampleMasking, judge: Judge) -> Strips:
        """Choose for each sample the worst of several strips, as the judge finds.

        Which samples are masked at all is settled by the first, so that their share stays what was requested.
        """
        masked, *lines = first
        always = replace(masking, probability=1.0)
        worst = judge(self._masked(sample, first, masking))
        for _ in range(masking.worst - 1):
            others = self._strips(sample.boxes, sample.present, always)[1:]
            badness = judge(self._masked(sample, (masked, *others), masking))
            worse = badness > worst
            lines = [torch.where(worse, new, old) for new, old in zip(others, lines, strict=True)]
            worst = torch.maximum(badness, worst)
        axis, start, end = lines
        return masked, axis, start, end

    def _uniform(self, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(shape, device=self.bank.device, generator=self.generator) * (high - low) + low

    def _log_uniform(self, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        return torch.exp(self._uniform(shape, math.log(low), math.log(high)))

    def _chance(self, shape: tuple[int, ...], probability: float) -> Tensor:
        return self._uniform(shape) < probability

    def _integers(self, below: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(below, shape, device=self.bank.device, generator=self.generator)

    def _choose(self, count: int) -> Tensor:
        """Choose the images of each sample's tiles: the last without repetition, the others at random."""
        epoch = self.bank.epoch
        places = self._integers(len(epoch), (count, TILES))
        if self.position + count > len(self.order):
            self.order = torch.randperm(len(epoch), device=self.bank.device, generator=self.generator)
            self.position = 0
        places[:, -1] = self.order[self.position : self.position + count]
        self.position += count
        return epoch[places]

    def _place(self, images: Tensor, tiles: Tensor, mosaic: Tensor, strength: Strength) -> Placement:
        """Scale each tile's image, and place it at random in (or around) its tile."""
        count = len(images)
        width, height = self.bank.widths[0][images].float(), self.bank.heights[0][images].float()
        gain = self._log_uniform((count, 1), strength.smallest, strength.largest)  # shared by a sample's tiles
        gain = gain * torch.exp(self._uniform((count, TILES), -0.22, 0.22))
        gain = torch.where(mosaic[:, None], gain * 0.9, gain)
        stretch = torch.exp(self._uniform((count, TILES), -0.15, 0.15))
        scale = gain * self.size / torch.maximum(width, height)
        scale_x, scale_y = scale * stretch, scale / stretch
        tile_x1, tile_y1, tile_x2, tile_y2 = tiles.unbind(-1)
        left = tile_x1 + self._uniform((count, TILES)) * (tile_x2 - tile_x1 - width * scale_x)
        top = tile_y1 + self._uniform((count, TILES)) * (tile_y2 - tile_y1 - height * scale_y)
        flipped = self._chance((count, TILES), 0.5)

        level = (scale < HALF_SIZE_BELOW).long()
        source_width, source_height = self.bank.widths[level, images], self.bank.heights[level, images]
        to_source_x, to_source_y = source_width.float() / width, source_height.float() / height
        slope_x = torch.where(flipped, -1 / scale_x, 1 / scale_x)
        offset_x = torch.where(flipped, (left + width * scale_x) / scale_x, -left / scale_x)
        return Placement(
            scale=torch.stack([scale_x, scale_y], -1),
            corner=torch.stack([left, top], -1),
            width=width * scale_x,
            flipped=flipped,
            lookup=torch.stack(
                [slope_x * to_source_x, offset_x * to_source_x, to_source_y / scale_y, -top / scale_y * to_source_y], -1
            ),
            source=torch.stack([self.bank.starts[level, images], source_width, source_height], -1),
        )

    def _color(self, count: int) -> Tensor:
        """Return (count, 3, 4): matrix and offset for saturation, hue, contrast and brightness; rarely gray."""
        device = self.bank.device
        saturation = 1 + self._uniform((count,), -0.6, 0.6)
        angle = self._uniform((count,), -0.1, 0.1)
        saturation = torch.where(self._chance((count,), 0.03), torch.zeros_like(saturation), saturation)
        contrast = 1 + self._uniform((count,), -0.4, 0.4)
        brightness = self._uniform((count,), -16.0, 16.0)

        identity = torch.eye(3, device=device)
        luminance = torch.tensor([0.299, 0.587, 0.114], device=device).expand(count, 3, 3)
        # Hue is a rotation about the gray axis (Rodrigues' formula; the axis is (1, 1, 1) / sqrt 3).
        cross = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=device) / math.sqrt(3)
        cosine, sine = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
        rotation = cosine * identity + (1 - cosine) / 3 + sine * cross
        saturation = saturation.view(-1, 1, 1)
        matrix = (saturation * identity + (1 - saturation) * luminance) @ rotation * contrast.view(-1, 1, 1)
        return torch.cat([matrix, brightness.view(-1, 1, 1).expand(count, 3, 1)], 2)

    def _strips(self, boxes: Tensor, present: Tensor, masking: SampleMasking) -> Strips:
        """Draw masks as `draw_strips` does, and move some of them so that a line cuts an object."""
        count = len(boxes)
        masked, axis, start, end = draw_strips(
            count,
            self.size,
            self.size,
            self.generator,
            probability=masking.probability,
            band_fraction=masking.band_fraction,
            band_widths=masking.band_widths,
        )
        aim = (self._uniform(present.shape) * present).argmax(1)  # some object, where there is one
        target = boxes[torch.arange(count, device=boxes.device), aim]
        entry = axis.long()[:, None]
        low, high = target.gather(1, entry)[:, 0], target.gather(1, entry + 2)[:, 0]
        aimed = self._chance((count,), masking.through) & present.any(1)
        line = (low + self._uniform((count,)) * (high - low)).round().clamp(1, self.size - 1)
        # A half mask has one line, and still reaches its border; of a band one line is moved, and the other with it.
        at_start, at_end = start == 0, end == self.size
        is_end = at_start | (~at_end & self._chance((count,), 0.5))
        wide = torch.where(at_start | at_end, self.size, end - start)
        moved_start = torch.where(is_end, line - wide, line).clamp(min=0)
        moved_end = torch.where(is_end, line, line + wide).clamp(max=self.size)
        return masked, axis, torch.where(aimed, moved_start, start), torch.where(aimed, moved_end, end)


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of each tile's image, and the source of each output pixel (see `sample_pixels`)."""

    scale: Tensor  # count,TILES,2
    corner: Tensor  # count,TILES,2: left, top
    width: Tensor  # count,TILES: after scaling
    flipped: Tensor  # count,TILES
    lookup: Tensor  # count,TILES,4: source x = lookup[0] * x + lookup[1], source y = lookup[2] * y + lookup[3]
    source: Tensor  # count,TILES,3: first pixel in the bank, width, height


def tile_rectangles(center: Tensor, size: int) -> Tensor:
    """Return the four rectangles around each center: (count, TILES, 4)."""
    x, y = center.unbind(1)
    zero, end = torch.zeros_like(x), torch.full_like(x, size)
    tiles = [(zero, zero, x, y), (x, zero, end, y), (zero, y, x, end), (x, y, end, end)]
    return torch.stack([torch.stack(tile, -1) for tile in tiles], 1)


def tile_boxes(boxes: Tensor, labels: Tensor, tiles: Tensor, placement: Placement) -> Objects:
    """Return the boxes of each sample's tiles at their new position, clipped to their tile.

    `boxes` and `labels` are those of the images, count,TILES,BOXES_PER_IMAGE.
    """
    x1, y1, x2, y2 = boxes.unbind(-1)
    scale_x, scale_y = placement.scale[..., None].unbind(2)
    left, top = placement.corner[..., None].unbind(2)
    width, flipped = placement.width[..., None], placement.flipped[..., None]
    x1, x2 = x1 * scale_x, x2 * scale_x
    x1, x2 = torch.where(flipped, width - x2, x1) + left, torch.where(flipped, width - x1, x2) + left
    placed = torch.stack([x1, y1 * scale_y + top, x2, y2 * scale_y + top], -1)
    cut = intersect_boxes(placed, tiles[:, :, None])
    large = (cut[..., 2:] - cut[..., :2] > LEAST_VISIBLE_SIDE).all(-1)
    present = (labels >= 0) & keeps_target(area_of(cut), area_of(placed), LEAST_VISIBLE_SHARE) & large
    return cut.flatten(1, 2), labels.flatten(1), present.flatten(1)


def twice(boxes: Tensor, labels: Tensor, present: Tensor) -> Objects:
    """Repeat the samples of a batch."""
    return torch.cat([boxes, boxes]), torch.cat([labels, labels]), torch.cat([present, present])


def largest_boxes(boxes: Tensor, labels: Tensor, present: Tensor) -> Objects:
    """Keep the largest BOXES_PER_SAMPLE boxes of each sample."""
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    chosen = torch.where(present, area + 1, torch.zeros_like(area)).topk(BOXES_PER_SAMPLE, 1).indices
    return (
        boxes.gather(1, chosen[..., None].expand(-1, -1, 4)),
        labels.gather(1, chosen),
        present.gather(1, chosen),
    )


def cut_to_border(kept: Tensor, size: int) -> Tensor:
    """Return (N, 2): how far to move a sample left and up until its half mask's line is at the border; 0 for bands."""
    start, end = kept[:, 0, 2:], kept[:, 1, :2]  # of the strip; along the other axis the last and the first pixel
    return torch.where(start == 0, end, 0) + torch.where(end == size, start - size, 0)


def sample_pixels(bank: Tensor, lookup: Tensor, source: Tensor, center: Tensor, color: Tensor, size: int) -> Tensor:
    """Sample every output pixel bilinearly from its tile's image, and recolor it: (N, 3, S, S) in [0, 1]."""
    count = len(center)
    middle = torch.arange(size, device=bank.device, dtype=torch.float) + 0.5
    x, y = middle.view(1, 1, size), middle.view(1, size, 1)
    tile = (x >= center[:, 0].view(-1, 1, 1)).long() + 2 * (y >= center[:, 1].view(-1, 1, 1)).long()
    row = torch.arange(count, device=bank.device).view(-1, 1, 1) * TILES + tile
    lookup, source = lookup.view(-1, 4), source.view(-1, 3)
    source_x = x * lookup[row, 0] + lookup[row, 1] - 0.5
    source_y = y * lookup[row, 2] + lookup[row, 3] - 0.5
    start, width, height = source[row, 0], source[row, 1], source[row, 2]
    inside = (source_x > -0.5) & (source_x < width - 0.5) & (source_y > -0.5) & (source_y < height - 0.5)

    left, top = source_x.floor(), source_y.floor()
    share_x, share_y = source_x - left, source_y - top
    zero = torch.zeros_like(width)
    x0 = torch.minimum(torch.maximum(left.long(), zero), width - 1)
    x1 = torch.minimum(torch.maximum(left.long() + 1, zero), width - 1)
    y0 = torch.minimum(torch.maximum(top.long(), zero), height - 1)
    y1 = torch.minimum(torch.maximum(top.long() + 1, zero), height - 1)
    neighbors = (
        (bank[start + y0 * width + x0], (1 - share_x) * (1 - share_y)),
        (bank[start + y0 * width + x1], share_x * (1 - share_y)),
        (bank[start + y1 * width + x0], (1 - share_x) * share_y),
        (bank[start + y1 * width + x1], share_x * share_y),
    )
    channels = [sum(((pixel >> shift) & 255).float() * share for pixel, share in neighbors) for shift in (0, 8, 16)]
    recolored = []
    for output in range(3):
        weight = color[:, output, :, None, None]
        value = sum(weight[:, k] * channels[k] for k in range(3)) + weight[:, 3]
        recolored.append(torch.where(inside, value.clamp(0, 255), DEFAULT_FILL))
    return torch.stack(recolored, 1) / 255


def finish(images: Tensor, kept: Tensor, shift: Tensor, fill: float | None) -> Tensor:
    """Mask, move and lay out the pixels for convolutions; compiled as one."""
    return mask_and_move(images, kept, shift, fill=fill).contiguous(memory_format=torch.channels_last)
