"""The augmentation for whole batches on a device, by the code of `masking`.

Only filling is implemented again: image by image it would take hundreds of kernels per batch, and wait for the device
to know each line. Tests compare both per sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from objectseeker.training.masking import (
    Masking,
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
    count: int, width: int, height: int, generator: torch.Generator, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw masks for `count` samples of one size: whether there is one, its axis, its start and its end.

    Args:
        count: Number of samples.
        width: Width of the samples in pixels.
        height: Height of the samples in pixels.
        generator: A torch generator; its device computes.
        options: Those of `Masking`: probability, band_fraction and band_widths.

    Returns:
        Four tensors of `count` entries.

    Raises:
        ObjectSeekerError: An option is invalid.

    Example:
        >>> masked, axis, start, end = draw_strips(8, 640, 480, torch.Generator(), probability=0.5)  # doctest: +SKIP
    """
    import torch

    numbers = torch.rand((4, count), generator=generator, device=generator.device, dtype=torch.float32).double()
    return strip_from_numbers(numbers, width, height, Masking(**options))


def kept_parts(masked: Tensor, axis: Tensor, start: Tensor, end: Tensor, width: int, height: int) -> Tensor:
    """Return the rectangles that masks keep before and behind their strips, (N, 2, 4): x1, y1, x2, y2.

    Without a mask, everything is before an empty strip at the right border.

    Args:
        masked: Whether each sample has a mask (N,).
        axis: The axis of each mask.
        start: Where each mask starts.
        end: Where each mask ends.
        width: Width of the samples in pixels.
        height: Height of the samples in pixels.

    Returns:
        The rectangles.

    Example:
        >>> kept = kept_parts(*draw_strips(8, 640, 480, torch.Generator(), probability=0.5), 640, 480)  # doctest: +SKIP
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

    Args:
        boxes: Boxes (N, M, 4) in pixels.
        present: Which boxes exist (N, M).
        kept: What `kept_parts` returned.
        min_visible: Fraction of a box that must be visible.

    Returns:
        The boxes around the visible parts, and which boxes remain targets.

    Example:
        >>> boxes, present = visible_targets(boxes, present, kept, 0.3)  # doctest: +SKIP
    """
    visible, visible_area = visible_part(boxes.double(), kept[:, None].double())
    return visible.to(boxes.dtype), present & keeps_target(visible_area, area_of(boxes.double()), min_visible)


def mask_and_move(images: Tensor, kept: Tensor, shift: Tensor | None = None, *, fill: float | None = None) -> Tensor:
    """Fill samples (N, C, H, W) outside their kept parts, then move each left and up by its `shift`.

    `shift` (N, 2) is in whole pixels; pixels that move in from outside are filled as well.

    Args:
        images: Samples (N, C, H, W).
        kept: What `kept_parts` returned.
        shift: Pixels to move each sample left and up.
        fill: Value of removed pixels. Default: gray.

    Returns:
        New samples of the same shape.

    Example:
        >>> images = mask_and_move(images, kept)  # doctest: +SKIP
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
