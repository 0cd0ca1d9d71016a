"""The augmentation: draw a mask, and apply it to an image and its boxes.

Drawing and applying are separate, so that one mask can be applied to an array, to a tensor and to everything else that
belongs to the image. Images are NumPy arrays (H, W) or (H, W, channels), torch tensors (..., H, W) on any device, or
Pillow images.

A mask is a strip: everything between two columns or two rows. A strip that reaches a border is a half mask, one that
reaches none is a band, as in `core.masks`. How a strip is drawn (`strip_from_numbers`), which part of a box is visible
(`visible_part`) and whether it remains a target (`keeps_target`) are each written once, with operations that numbers,
arrays and tensors share. So the same code masks whole batches on a device (`batches`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from objectseeker.core.boxes import Bools, Floats
from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number

DEFAULT_BAND_WIDTHS = 0.1, 0.3  # for a square patch of 1 %, bands are a fifth of the axis, 15 % at half the spacing

Rectangle = tuple[int, int, int, int]
MaskMode = Literal["fill", "crop"]


@dataclass(frozen=True, slots=True)
class Strip:
    """A mask that removes the columns (`axis` 0) or rows (`axis` 1) in [`start`, `end`).

    Example:
        >>> Strip(axis=0, start=0, end=27).removed(640, 480)
        (0, 0, 27, 480)
    """

    axis: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.axis not in (0, 1):
            raise ObjectSeekerError(f"axis must be 0 (columns) or 1 (rows): got {self.axis!r}.")
        require_count(self.end, "the end of a strip")
        require_count(self.end - self.start, "the width of a strip")
        if self.start < 0:
            raise ObjectSeekerError(f"the start of a strip must be at least 0: got {self.start!r}.")

    def removed(self, width: int, height: int) -> Rectangle:
        """Return the removed rectangle of an image: x1, y1, x2, y2."""
        length = (width, height)[self.axis]
        if self.end > length:
            raise ObjectSeekerError(
                f"the strip does not fit {width}x{height} pixels: got an end of {self.end}. Shorten it."
            )
        if self.end - self.start == length:
            raise ObjectSeekerError(
                f"the strip removes all of {width}x{height} pixels: got a width of {length}. Shorten it."
            )
        return (self.start, 0, self.end, height) if self.axis == 0 else (0, self.start, width, self.end)

    def kept(self, width: int, height: int) -> tuple[Rectangle, Rectangle]:
        """Return the rectangles kept before and behind the strip; at a border one of them is empty."""
        x1, y1, x2, y2 = self.removed(width, height)
        if self.axis == 0:
            return (0, 0, x1, height), (x2, 0, width, height)
        return (0, 0, width, y1), (0, y2, width, height)

    def window(self, width: int, height: int) -> Rectangle:
        """Return what crop keeps: the kept rectangle of a half mask, or the whole image around a band."""
        before, behind = self.kept(width, height)
        if self.start == 0:
            return behind
        return before if self.end == (width, height)[self.axis] else (0, 0, width, height)


def draw_strip(width: int, height: int, rng: Any, **options: Any) -> Strip | None:
    """Draw a random mask for an image, or None.

    Both axes are equally likely. For half masks both sides are equally likely, and so is every line inside the image;
    for bands every position is. Every call draws exactly four numbers, so an image's mask does not depend on the masks
    of the images before it.

    Args:
        width: Of the image, in pixels.
        height: Of the image, in pixels.
        rng: A NumPy generator, a torch generator on any device, or None for torch's global one.
        options: Those of `Masking`, such as its probability.

    Returns:
        The mask, or None.

    Raises:
        ObjectSeekerError: An option is invalid.

    Example:
        >>> draw_strip(640, 480, np.random.default_rng(0), probability=1.0)
        Strip(axis=0, start=0, end=27)
    """
    return Masking(**options).draw((width, height), rng)


def strip_from_numbers(numbers: Any, width: int, height: int, masking: Masking) -> tuple[Any, Any, Any, Any]:
    """Map four random numbers from [0, 1) to a mask: whether it exists, its axis, start and end.

    Takes numbers, or four arrays or tensors, and returns the same.
    """
    narrowest, widest = masking.band_widths
    chance, direction, position, kind = numbers
    axis = direction >= 0.5
    length = width + (height - width) * axis
    masked = (chance < masking.probability) & (length > 1)  # masking a single row or column would leave nothing
    # The first number also decides whether it is a band; the last one which side a half mask removes, or how wide a
    # band is. So four numbers suffice for both, and half masks stay the same with and without bands.
    bands = masking.probability * masking.band_fraction
    band, half = chance < bands, chance >= bands
    line, behind = 1 + position * (length - 1) // 1, kind >= 0.5
    wide = 1 + (narrowest + (widest - narrowest) * kind) * (length - 1) // 1
    first = position * (length - wide + 1) // 1
    start = line * behind * half + first * band
    end = (line + (length - line) * behind) * half + (first + wide) * band
    return masked, axis, start, end


def _uniform(rng: Any) -> list[float]:
    if isinstance(rng, np.random.Generator):
        return [float(number) for number in rng.random(4)]
    import torch

    device = "cpu" if rng is None else rng.device
    return [float(number) for number in torch.rand(4, generator=rng, device=device, dtype=torch.float32).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """The settings of the augmentation.

    Args:
        probability: Of a mask.
        band_fraction: Fraction of the masks that are bands; the others are half masks.
        band_widths: The narrowest and the widest band, as fractions of the axis.
        min_visible: Fraction of a box that must be visible.
        fill: Value of removed pixels. Default: gray, 114 for integers and 114 / 255 for floats. Images in another range
            need their own value.
        mask_mode: "fill" fills removed pixels. "crop" returns only the kept rectangle, with boxes relative to it, for a
            defense that crops. A band keeps no single rectangle and is filled, as that defense fills it.
    """

    probability: float = 0.5
    band_fraction: float = 0.0
    band_widths: tuple[float, float] = DEFAULT_BAND_WIDTHS
    min_visible: float = 0.2
    fill: float | None = None
    mask_mode: MaskMode = "fill"

    def __post_init__(self) -> None:
        for name in ("probability", "band_fraction", "min_visible"):
            require_fraction(getattr(self, name), name)
        try:
            narrowest, widest = (require_number(width, "a band width") for width in self.band_widths)
        except (TypeError, ValueError):
            narrowest, widest = 1.0, 0.0
        if not 0 <= narrowest <= widest < 1:
            raise ObjectSeekerError(
                f"band_widths must be two ascending fractions of the axis, below 1: got {self.band_widths!r}."
            )
        object.__setattr__(self, "band_widths", (narrowest, widest))  # also from a list
        if self.mask_mode not in get_args(MaskMode):
            modes = ", ".join(get_args(MaskMode))
            raise ObjectSeekerError(f"mask_mode must be one of {modes}: got {self.mask_mode!r}.")

    def draw(self, size: tuple[int, int], rng: Any) -> Strip | None:
        """Draw a mask as `draw_strip`."""
        masked, axis, start, end = strip_from_numbers(_uniform(rng), *size, self)
        return Strip(int(axis), int(start), int(end)) if masked else None

    def apply(self, image: Any, boxes: Any, strip: Strip | None) -> Masked:
        """Apply a mask as `apply_strip`."""
        targets = as_boxes(boxes)
        if strip is None:
            return Masked(image, boxes, np.ones(len(targets), np.bool_), np.ones(len(targets)))
        size = size_of(image)
        visible, visible_area = visible_part(targets, np.array(strip.kept(*size)))
        box_area = area_of(intersect_boxes(targets, np.array((0, 0, *size))))  # no mask hides what is outside the image
        keep = keeps_target(visible_area, box_area, self.min_visible)
        fraction = np.divide(visible_area, box_area, out=np.zeros(len(visible)), where=box_area > 0)
        if self.mask_mode == "crop":
            visible = visible - np.tile(strip.window(*size)[:2], 2)
        pixels = mask_pixels(image, strip, fill=self.fill, mask_mode=self.mask_mode)
        return Masked(pixels, as_type_of(visible[keep], boxes), keep, fraction)


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A masked image with the boxes that remain targets.

    `keep` marks these among all boxes; `visible_fraction` is the visible fraction of every box.

    Example:
        >>> masked = apply_strip(np.zeros((10, 10, 3), np.uint8), [[0, 0, 4, 4]], Strip(0, 8, 10))
        >>> masked.keep.tolist(), masked.visible_fraction.tolist()
        ([True], [1.0])
    """

    image: Any
    boxes: Any
    keep: Bools
    visible_fraction: Floats


def mask_strip(image: Any, boxes: Any, labels: Any, *, rng: Any, **options: Any) -> tuple[Any, Any, Any]:
    """Mask a training image at random: remove one side of a line, or a band between two lines.

    Args:
        image: An array, tensor or Pillow image; it is not changed.
        boxes: (N, 4), x1, y1, x2, y2 in pixels.
        labels: One per box.
        rng: A NumPy or torch generator.
        options: Those of `Masking`.

    Returns:
        The masked image, and the boxes and labels that remain targets.

    Raises:
        ObjectSeekerError: An option, a box or the number of labels is invalid.

    Example:
        >>> image = np.zeros((48, 64, 3), np.uint8)
        >>> rng = np.random.default_rng(0)
        >>> masked, boxes, labels = mask_strip(image, [[0, 0, 9, 9]], ["car"], rng=rng, probability=0)
        >>> labels
        ['car']
    """
    masking = Masking(**options)
    masked = masking.apply(image, boxes, masking.draw(size_of(image), rng))
    if len(labels) != len(masked.keep):
        raise ObjectSeekerError(f"labels must be one per box: got {len(labels)} for {len(masked.keep)} boxes.")
    return masked.image, masked.boxes, select(labels, masked.keep)


def apply_strip(image: Any, boxes: Any, strip: Strip | None, **options: Any) -> Masked:
    """Mask an image and its boxes.

    The target rule: an object with less than `min_visible` of its box visible is no longer a target, since too little
    remains to recognize. For the others, the target is the box around the visible part, because the defense's masked
    views show nothing else: a mask over the end of an object shortens its box, a band across its middle does not.

    Args:
        image: An array, tensor or Pillow image; it is not changed.
        boxes: (N, 4), x1, y1, x2, y2 in pixels.
        strip: The mask; None masks nothing.
        options: Those of `Masking`: min_visible, fill and mask_mode.

    Returns:
        The masked image, the boxes, and which of them remain targets.

    Raises:
        ObjectSeekerError: The image, a box or an option is invalid.

    Example:
        >>> apply_strip(np.zeros((10, 10, 3), np.uint8), [[0, 0, 4, 4]], Strip(0, 0, 2)).boxes.tolist()
        [[2.0, 0.0, 4.0, 4.0]]
    """
    return Masking(**options).apply(image, boxes, strip)


def mask_pixels(image: Any, strip: Strip, *, fill: float | None = None, mask_mode: MaskMode = "fill") -> Any:
    """Return a masked copy of the image, as `apply_strip` does."""
    if is_pil_image(image):
        from PIL.Image import fromarray

        converted = image if image.mode in ("RGB", "L") else image.convert("RGB")
        return fromarray(mask_pixels(np.asarray(converted), strip, fill=fill, mask_mode=mask_mode))
    size = size_of(image)
    window = strip.window(*size)
    if mask_mode == "crop" and window != (0, 0, *size):
        return _copy(_part(image, window))
    masked = _copy(image)  # keeps a tensor's subclass
    is_float = np.issubdtype(image.dtype, np.inexact) if isinstance(image, np.ndarray) else image.is_floating_point()
    _part(masked, strip.removed(*size))[...] = fill_value(is_float, fill)
    return masked


def _part(image: Any, rectangle: Rectangle) -> Any:
    """Return a view of a part of an array or a tensor."""
    x1, y1, x2, y2 = rectangle
    return image[y1:y2, x1:x2] if isinstance(image, np.ndarray) else image[..., y1:y2, x1:x2]


def _copy(image: Any) -> Any:
    return image.copy() if isinstance(image, np.ndarray) else image.clone()


def fill_value(is_float: bool, fill: float | None) -> float:
    """Return the value of removed pixels: `fill`, or gray in the image's range."""
    return (DEFAULT_FILL / 255 if is_float else DEFAULT_FILL) if fill is None else fill


def intersect_boxes(boxes: Any, rectangles: Any) -> Any:
    """Return the part of every box (..., 4) within its rectangle (..., 4), of zero area if disjoint."""
    corners = boxes.reshape(*boxes.shape[:-1], 2, 2)
    return corners.clip(rectangles[..., None, :2], rectangles[..., None, 2:]).reshape(boxes.shape)


def visible_part(boxes: Any, kept: Any) -> tuple[Any, Any]:
    """Return the box around the visible part of every box (..., 4), and the visible area.

    `kept` (..., 2, 4) are the rectangles that a mask keeps before and behind its strip. Arrays or tensors, best in
    float64. A box of which nothing is visible gets zero area.
    """
    before, behind = intersect_boxes(boxes, kept[..., 0, :]), intersect_boxes(boxes, kept[..., 1, :])
    before_area, behind_area = area_of(before), area_of(behind)
    # The first corner is before the strip if any part is, the last one behind it if any part is.
    first = (before_area > 0)[..., None]
    last = first & (behind_area <= 0)[..., None]
    around = behind
    around[..., :2] = before[..., :2] * first + behind[..., :2] * ~first
    around[..., 2:] = before[..., 2:] * last + behind[..., 2:] * ~last
    return around, before_area + behind_area


def keeps_target(visible_area: Any, box_area: Any, min_visible: float) -> Any:
    """Return whether enough of every box is visible: the target rule."""
    return (visible_area > 0) & (visible_area >= min_visible * box_area)


def area_of(boxes: Any) -> Any:
    """Return the area of every box (..., 4), an array or a tensor."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def size_of(image: Any) -> tuple[int, int]:
    """Return width and height of an array, a tensor or a Pillow image."""
    if is_pil_image(image):
        return int(image.width), int(image.height)
    if not hasattr(image, "shape"):
        raise ObjectSeekerError(f"an image must be an array, a tensor or a Pillow image: got {type(image).__name__}.")
    shape = tuple(image.shape)
    if isinstance(image, np.ndarray):
        if len(shape) not in (2, 3) or min(shape[:2]) < 1:
            raise ObjectSeekerError(f"an image array must have shape (H, W) or (H, W, channels): got {shape}.")
        return shape[1], shape[0]
    if len(shape) < 2 or min(shape[-2:]) < 1:
        raise ObjectSeekerError(f"an image tensor must have shape (..., H, W): got {shape}.")
    return int(shape[-1]), int(shape[-2])


def select(entries: Any, keep: Bools) -> Any:
    """Select the entries to keep of an array, a tensor or another sequence; return the same type."""
    if isinstance(entries, np.ndarray):
        return entries[keep]
    if is_tensor(entries):
        return entries[np.flatnonzero(keep).tolist()]
    kept = [entry for entry, is_kept in zip(entries, keep.tolist(), strict=True) if is_kept]
    return tuple(kept) if isinstance(entries, tuple) else kept


def is_pil_image(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "width")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "is_floating_point")


def as_floats(values: Any) -> Floats:
    """Return numbers in float64 on the CPU, so that arrays and tensors get the same decisions."""
    return np.array(values.detach().cpu().double().numpy() if is_tensor(values) else values, dtype=np.float64)


def as_boxes(boxes: Any) -> Floats:
    """Return boxes in float64, checked to be (N, 4)."""
    rows = as_floats(boxes)
    rows = rows.reshape(0, 4) if rows.size == 0 else rows
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise ObjectSeekerError(f"boxes must have shape (N, 4): got {rows.shape}.")
    return rows


def as_type_of(numbers: Floats, template: Any) -> Any:
    """Return numbers as a tensor of the same dtype and device as `template`, if that is a tensor."""
    if not is_tensor(template):
        return numbers
    import torch

    return torch.from_numpy(numbers).to(dtype=template.dtype, device=template.device)


# Corners; corners as fractions of the image; corner and size; center and size as fractions; center and size.
Format = Literal["pascal_voc", "albumentations", "coco", "yolo", "cxcywh"]


def to_corners(boxes: Floats, form: Format, size: tuple[int, int]) -> Floats:
    """Convert boxes (N, 4) to x1, y1, x2, y2 in pixels of an image of `size` (width, height)."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if form in ("yolo", "albumentations"):
        first, second = first * size, second * size
    if form == "coco":
        second = first + second
    if form in ("yolo", "cxcywh"):
        first, second = first - second / 2, first + second / 2
    return np.concatenate([first, second], axis=1)


def from_corners(boxes: Floats, form: Format, size: tuple[int, int]) -> Floats:
    """Invert `to_corners`."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if form == "coco":
        second = second - first
    if form in ("yolo", "cxcywh"):
        first, second = (first + second) / 2, second - first
    if form in ("yolo", "albumentations"):
        first, second = first / size, second / size
    return np.concatenate([first, second], axis=1)


def require_format(form: str) -> Format:
    for known in get_args(Format):
        if form == known:
            return known  # type: ignore[no-any-return]
    raise ObjectSeekerError(f"box format must be one of {', '.join(get_args(Format))}: got {form!r}.")
