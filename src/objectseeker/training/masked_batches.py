"""For pipelines that make whole batches on a device: what `masking` does to one image, done to all samples at once.

Masks and targets come from the very functions of `masking`. Only painting is written anew: image by image it would take
hundreds of kernels a batch, and the device would have to be waited for to know where each line lies. That both agree is
tested sample by sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from objectseeker.training.masking import BAND_WIDTHS, BANDS, area_of, gray, still_target, strip_of, visible_part

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def draw_strips(
    count: int,
    width: int,
    height: int,
    generator: torch.Generator,
    *,
    probability: float,
    bands: float = BANDS,
    band_widths: tuple[float, float] = BAND_WIDTHS,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`draw_strip` for `count` samples of one size: is there a mask, its axis, its start and its end."""
    import torch

    numbers = torch.rand((4, count), generator=generator, device=generator.device, dtype=torch.float32).double()
    return strip_of(numbers, width, height, probability=probability, bands=bands, band_widths=band_widths)


def kept_parts(masked: Tensor, axis: Tensor, start: Tensor, end: Tensor, width: int, height: int) -> Tensor:
    """What masks leave of their samples before and behind their strips, (N, 2, 4): x1, y1, x2, y2.

    Where there is no mask, everything lies before an empty strip at the right border.
    """
    import torch

    axis = (axis.bool() & masked).long()[:, None]
    start, end = (torch.where(masked, line, width).long()[:, None] for line in (start, end))
    entry = torch.arange(4, device=masked.device)
    whole = (entry == 2) * width + (entry == 3) * height
    return torch.stack([torch.where(entry == axis + 2, start, whole), torch.where(entry == axis, end, whole)], dim=1)


def visible_targets(boxes: Tensor, present: Tensor, kept: Tensor, visible: float) -> tuple[Tensor, Tensor]:
    """What is visible of boxes (N, M, 4) inside their samples, as boxes; which of those `present` are targets still.

    Decided in float64, as for a single image.
    """
    seen, seen_area = visible_part(boxes.double(), kept[:, None].double())
    return seen.to(boxes.dtype), present & still_target(seen_area, area_of(boxes.double()), visible)


def mask_and_move(images: Tensor, kept: Tensor, shift: Tensor | None = None, *, fill: float | None = None) -> Tensor:
    """Paint over what lies outside the kept parts of samples (N, C, H, W), then move each left and up by its `shift`.

    `shift` (N, 2) is in whole pixels; what comes into a sample from outside is painted, too.
    """
    import torch

    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device).expand(len(images), -1)  # where each column comes from
    y = torch.arange(height, device=images.device).expand(len(images), -1)
    if shift is not None:
        x, y = x + shift[:, :1], y + shift[:, 1:]
    x1, y1, x2, y2 = (side[..., None] for side in kept.unbind(2))  # N, 2, 1
    columns = (x[:, None] >= x1) & (x[:, None] < x2)  # N, 2, W: which of them each part holds
    rows = (y[:, None] >= y1) & (y[:, None] < y2)
    visible = (columns[:, :, None, :] & rows[:, :, :, None]).any(dim=1, keepdim=True)
    row = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    moved = images[row, channel, y.clamp(0, height - 1)[:, None, :, None], x.clamp(0, width - 1)[:, None, None, :]]
    return moved.masked_fill(~visible, gray(images.is_floating_point(), fill))
