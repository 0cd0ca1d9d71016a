"""For pipelines that make whole batches on a device: what `masking` does to one image, done to all samples at once.

Masks and targets come from the very functions of `masking`. Only painting is written anew: image by image it would take
hundreds of kernels a batch, and the device would have to be waited for to know where each line lies. That both agree is
tested sample by sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from objectseeker.training.masking import grey, half_of, inside, still_target

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def draw_halves(
    count: int, width: int, height: int, generator: torch.Generator, *, probability: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`draw_half` for `count` samples of one size: is there a mask, its side as an index into SIDES, and its line."""
    import torch

    numbers = torch.rand((4, count), generator=generator, device=generator.device, dtype=torch.float32)
    return half_of(numbers.double(), width, height, probability)


def kept_parts(masked: Tensor, side: Tensor, line: Tensor, width: int, height: int) -> Tensor:
    """What masks leave of their samples, (N, 4): x1, y1, x2, y2."""
    import torch

    entry = torch.arange(4, device=side.device)
    whole = (entry == 2) * width + (entry == 3) * height
    return torch.where(masked[:, None] & (side[:, None] == entry), line[:, None].long(), whole)


def visible_targets(boxes: Tensor, present: Tensor, kept: Tensor, visible: float) -> tuple[Tensor, Tensor]:
    """The visible parts of boxes (N, M, 4) inside their samples, and which of those `present` are targets still.

    Decided in float64, as for a single image.
    """
    seen = inside(boxes.double(), kept[:, None].double())
    return seen.to(boxes.dtype), present & still_target(seen, boxes.double(), visible)


def mask_and_move(images: Tensor, kept: Tensor, shift: Tensor | None = None, *, fill: float | None = None) -> Tensor:
    """Paint over what lies outside the kept parts of samples (N, C, H, W), then move each left and up by its `shift`.

    `shift` (N, 2) is in whole pixels; what comes into a sample from outside is painted, too.
    """
    import torch

    height, width = images.shape[-2:]
    x1, y1, x2, y2 = (side[:, None] for side in kept.unbind(1))
    x = torch.arange(width, device=images.device).expand(len(images), -1)  # where each column comes from
    y = torch.arange(height, device=images.device).expand(len(images), -1)
    if shift is not None:
        x, y = x + shift[:, :1], y + shift[:, 1:]
    visible = ((x >= x1) & (x < x2))[:, None, None, :] & ((y >= y1) & (y < y2))[:, None, :, None]
    row = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    moved = images[row, channel, y.clamp(0, height - 1)[:, None, :, None], x.clamp(0, width - 1)[:, None, None, :]]
    return moved.masked_fill(~visible, grey(images.is_floating_point(), fill))
