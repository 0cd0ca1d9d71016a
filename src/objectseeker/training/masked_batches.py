"""Masks for whole batches on a device: what `masking` does to one image, for all samples at once.

Masks and targets come from the same functions as in `masking`. Only filling is implemented again: image by image it
would take hundreds of kernels per batch, and wait for the device to know each line. Tests compare both per sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from objectseeker.training.masking import (
    DEFAULT_BAND_FRACTION,
    DEFAULT_BAND_WIDTHS,
    area_of,
    fill_value,
    keeps_target,
    strip_from_numbers,
    visible_part,
)

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
    band_fraction: float = DEFAULT_BAND_FRACTION,
    band_widths: tuple[float, float] = DEFAULT_BAND_WIDTHS,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw masks for `count` samples of one size: whether there is one, its axis, its start and its end."""
    import torch

    numbers = torch.rand((4, count), generator=generator, device=generator.device, dtype=torch.float32).double()
    return strip_from_numbers(
        numbers, width, height, probability=probability, band_fraction=band_fraction, band_widths=band_widths
    )


def kept_parts(masked: Tensor, axis: Tensor, start: Tensor, end: Tensor, width: int, height: int) -> Tensor:
    """Return the rectangles that masks keep before and behind their strips, (N, 2, 4): x1, y1, x2, y2.

    Without a mask, everything is before an empty strip at the right border.
    """
    import torch

    axis = (axis.bool() & masked).long()[:, None]
    start, end = (torch.where(masked, line, width).long()[:, None] for line in (start, end))
    entry = torch.arange(4, device=masked.device)
    full = (entry == 2) * width + (entry == 3) * height
    return torch.stack([torch.where(entry == axis + 2, start, full), torch.where(entry == axis, end, full)], dim=1)


def visible_targets(boxes: Tensor, present: Tensor, kept: Tensor, min_visible: float) -> tuple[Tensor, Tensor]:
    """Return the visible parts of boxes (N, M, 4) in their samples, and which `present` ones stay targets.

    Decided in float64, as for a single image.
    """
    visible, visible_area = visible_part(boxes.double(), kept[:, None].double())
    return visible.to(boxes.dtype), present & keeps_target(visible_area, area_of(boxes.double()), min_visible)


def mask_and_move(images: Tensor, kept: Tensor, shift: Tensor | None = None, *, fill: float | None = None) -> Tensor:
    """Fill samples (N, C, H, W) outside their kept parts, then move each left and up by its `shift`.

    `shift` (N, 2) is in whole pixels; pixels that move in from outside are filled as well.
    """
    import torch

    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device).expand(len(images), -1)  # the source of each column
    y = torch.arange(height, device=images.device).expand(len(images), -1)
    if shift is not None:
        x, y = x + shift[:, :1], y + shift[:, 1:]
    x1, y1, x2, y2 = (side[..., None] for side in kept.unbind(2))  # N, 2, 1
    columns = (x[:, None] >= x1) & (x[:, None] < x2)  # N, 2, W: the columns of each part
    rows = (y[:, None] >= y1) & (y[:, None] < y2)
    visible = (columns[:, :, None, :] & rows[:, :, :, None]).any(dim=1, keepdim=True)
    row = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    moved = images[row, channel, y.clamp(0, height - 1)[:, None, :, None], x.clamp(0, width - 1)[:, None, None, :]]
    return moved.masked_fill(~visible, fill_value(images.is_floating_point(), fill))
