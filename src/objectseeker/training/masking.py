"""The augmentation: apply a mask to an image and to the boxes in it.

Drawing a mask (`strips`) and applying it are apart, so that one mask can be applied to an array, to a tensor and to
everything else that belongs to the image. Images are NumPy arrays (H, W) or (H, W, channels), torch tensors (..., H, W)
on any device, or Pillow images.

What is seen of a box and whether it is a target still (`visible_part`, `still_target`) are written once, with
operations that arrays and tensors share: `masked_batches` calls them for whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from objectseeker.core.boxes import Bools, Floats
from objectseeker.core.masks import DEFAULT_FILL
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number

# Drawing a mask: a strip of the image, all between two columns or between two rows.
#
# A strip that reaches a border is a half mask, one that reaches none a band, as in `core.masks`. How a strip is drawn
# from random numbers (`strip_of`) is written once, with operations that plain numbers, arrays and tensors share:
# `masked_batches` calls it for whole batches.


PROBABILITY = 0.5
BANDS = 0.0
BAND_WIDTHS = 0.1, 0.3  # bands for a square patch of 1 %: a fifth of the axis, 15 % at half the spacing

Rectangle = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Strip:
    """The columns (`axis` 0) or the rows (`axis` 1) from `start` up to `end`, which are removed."""

    axis: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.axis not in (0, 1):
            raise ObjectSeekerError(f"axis must be 0 for columns or 1 for rows, got {self.axis!r}")
        require_count(self.end, "the end of a strip")
        require_count(self.end - self.start, "the width of a strip")
        if self.start < 0:
            raise ObjectSeekerError(f"the start of a strip must be at least 0, got {self.start!r}")

    def removed(self, width: int, height: int) -> Rectangle:
        """What is removed from an image, as x1, y1, x2, y2."""
        length = (width, height)[self.axis]
        if self.end > length:
            raise ObjectSeekerError(f"a strip up to {self.end} does not fit an image of {width}x{height} pixels")
        if self.end - self.start == length:
            raise ObjectSeekerError(f"a strip of {length} leaves nothing of an image of {width}x{height} pixels")
        return (self.start, 0, self.end, height) if self.axis == 0 else (0, self.start, width, self.end)

    def kept(self, width: int, height: int) -> tuple[Rectangle, Rectangle]:
        """What is left of an image before and behind the strip; at a border one of them has no area."""
        x1, y1, x2, y2 = self.removed(width, height)
        if self.axis == 0:
            return (0, 0, x1, height), (x2, 0, width, height)
        return (0, 0, width, y1), (0, y2, width, height)

    def window(self, width: int, height: int) -> Rectangle:
        """What is shown by crop: what is left, where that is one rectangle; around a band the whole image."""
        before, behind = self.kept(width, height)
        if self.start == 0:
            return behind
        return before if self.end == (width, height)[self.axis] else (0, 0, width, height)


def draw_strip(
    width: int,
    height: int,
    rng: Any,
    *,
    probability: float = PROBABILITY,
    bands: float = BANDS,
    band_widths: tuple[float, float] = BAND_WIDTHS,
) -> Strip | None:
    """With this probability a mask of an image: of the masks, the share `bands` are bands and the others half masks.

    Both axes are as likely. Of half masks both sides are as likely, and so is every line inside the image. The width of
    bands is drawn from `band_widths`, the narrowest and the widest as shares of the axis; every place is as likely.

    `rng` is a NumPy generator, a torch generator on any device, or None for torch's global one. Four numbers are drawn
    from it whatever comes of them, so an image's mask does not depend on what happened to the images before it.
    """
    masked, axis, start, end = strip_of(
        _uniform(rng), width, height, probability=probability, bands=bands, band_widths=band_widths
    )
    return Strip(int(axis), int(start), int(end)) if masked else None


def strip_of(
    numbers: Any, width: int, height: int, *, probability: float, bands: float, band_widths: tuple[float, float]
) -> tuple[Any, Any, Any, Any]:
    """What four random numbers from [0, 1) stand for: is there a mask, its axis, its start and its end.

    The numbers are single ones, or four arrays or tensors, and so is what is returned.
    """
    require_fraction(probability, "probability")
    require_fraction(bands, "bands")
    narrowest, widest = require_band_widths(band_widths)
    chance, direction, place, kind = numbers
    axis = direction >= 0.5
    length = width + (height - width) * axis
    masked = (chance < probability) & (length > 1)  # something is left: of a single row or column nothing would be
    # The first number also says whether it is a band; the last one which side of its line a half mask removes, or how
    # wide a band is. So four numbers do for both, and half masks are the same ones with bands among them.
    band, half = chance < probability * bands, chance >= probability * bands
    line, behind = 1 + place * (length - 1) // 1, kind >= 0.5
    wide = 1 + (narrowest + (widest - narrowest) * kind) * (length - 1) // 1
    first = place * (length - wide + 1) // 1
    start = line * behind * half + first * band
    end = (line + (length - line) * behind) * half + (first + wide) * band
    return masked, axis, start, end


def require_band_widths(widths: Any) -> tuple[float, float]:
    """The narrowest and the widest band, as shares of the axis."""
    try:
        narrowest, widest = (require_number(width, "a width of bands") for width in widths)
    except (TypeError, ValueError):
        narrowest, widest = 1.0, 0.0
    if not 0 <= narrowest <= widest < 1:
        raise ObjectSeekerError(f"band_widths must be two shares of the axis, ascending and below 1, got {widths!r}")
    return narrowest, widest


def _uniform(rng: Any) -> list[float]:
    if isinstance(rng, np.random.Generator):
        return [float(number) for number in rng.random(4)]
    import torch

    device = "cpu" if rng is None else rng.device
    return [float(number) for number in torch.rand(4, generator=rng, device=device, dtype=torch.float32).tolist()]


By = Literal["fill", "crop"]
VISIBLE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """How training images are masked: what `draw_strip` and `apply_strip` are called with."""

    probability: float = PROBABILITY
    bands: float = BANDS
    band_widths: tuple[float, float] = BAND_WIDTHS
    visible: float = VISIBLE
    fill: float | None = None
    by: By = "fill"

    def __post_init__(self) -> None:
        for name in ("probability", "bands", "visible"):
            require_fraction(getattr(self, name), name)
        object.__setattr__(self, "band_widths", require_band_widths(self.band_widths))  # a list will do, too
        _require_by(self.by)

    def draw(self, image: Any, rng: Any) -> Strip | None:
        width, height = size_of(image)
        return draw_strip(
            width, height, rng, probability=self.probability, bands=self.bands, band_widths=self.band_widths
        )

    def apply(self, image: Any, boxes: Any, strip: Strip | None) -> Masked:
        return apply_strip(image, boxes, strip, visible=self.visible, fill=self.fill, by=self.by)


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A masked image and the boxes that are still targets; of all given boxes, which those are and what is visible."""

    image: Any
    boxes: Any
    keep: Bools
    share: Floats


def mask_strip(
    image: Any,
    boxes: Any,
    labels: Any,
    *,
    rng: Any,
    probability: float = PROBABILITY,
    bands: float = BANDS,
    band_widths: tuple[float, float] = BAND_WIDTHS,
    visible: float = VISIBLE,
    fill: float | None = None,
    by: By = "fill",
) -> tuple[Any, Any, Any]:
    """Remove, with this probability, one side of a random line, or a band between two, from a training image.

    Returns the image and the boxes and labels that are still targets; nothing that was given is changed. How masks are
    drawn is as in `draw_strip`, where `rng` is a NumPy or a torch generator; the rest is as in `apply_strip`.
    """
    masking = Masking(probability=probability, bands=bands, band_widths=band_widths, visible=visible, fill=fill, by=by)
    masked = masking.apply(image, boxes, masking.draw(image, rng))
    if len(labels) != len(masked.keep):
        raise ObjectSeekerError(f"there must be one label per box, got {len(labels)} for {len(masked.keep)} boxes")
    return masked.image, masked.boxes, select(labels, masked.keep)


def apply_strip(
    image: Any,
    boxes: Any,
    strip: Strip | None,
    *,
    visible: float = VISIBLE,
    fill: float | None = None,
    by: By = "fill",
) -> Masked:
    """Mask an image and its boxes (N, 4: x1, y1, x2, y2 in pixels), both arrays or both tensors. None masks nothing.

    The target rule: an object of whose box less than the share `visible` remains is no target any more, since nothing
    is left to recognize. Of the others the target is the box around what is visible, as the masked views of the defense
    show nothing else: a mask over the end of an object shortens its box, a band across its middle leaves it as it is.

    Removed pixels get the value `fill`: by default gray, 114 where pixels are whole numbers and 114 / 255 where they
    are not. Images in another range need a `fill` of their own. With by="crop" only what is left is returned, and
    boxes count from its corner: for a defense that cuts masked pixels away. A band leaves no single rectangle: it is
    filled, as that defense fills it.
    """
    require_fraction(visible, "visible")
    _require_by(by)
    targets = as_boxes(boxes)
    if strip is None:
        return Masked(image, boxes, np.ones(len(targets), np.bool_), np.ones(len(targets)))
    size = size_of(image)
    seen, seen_area = visible_part(targets, np.array(strip.kept(*size)))
    whole_area = area_of(inside(targets, np.array((0, 0, *size))))  # what lies outside the image is hidden by no mask
    keep = still_target(seen_area, whole_area, visible)
    share = np.divide(seen_area, whole_area, out=np.zeros(len(seen)), where=whole_area > 0)
    if by == "crop":
        seen = seen - np.tile(strip.window(*size)[:2], 2)
    return Masked(mask_pixels(image, strip, fill=fill, by=by), like(seen[keep], boxes), keep, share)


def mask_pixels(image: Any, strip: Strip, *, fill: float | None = None, by: By = "fill") -> Any:
    """What `apply_strip` makes of the image: always a copy."""
    if is_picture(image):
        from PIL.Image import fromarray

        picture = image if image.mode in ("RGB", "L") else image.convert("RGB")
        return fromarray(mask_pixels(np.asarray(picture), strip, fill=fill, by=by))
    size = size_of(image)
    window = strip.window(*size)
    if by == "crop" and window != (0, 0, *size):
        return _copy(_part(image, window))
    masked = _copy(image)  # of a tensor's subclass, the same subclass
    fractions = np.issubdtype(image.dtype, np.inexact) if isinstance(image, np.ndarray) else image.is_floating_point()
    _part(masked, strip.removed(*size))[...] = gray(fractions, fill)
    return masked


def _part(image: Any, rectangle: Rectangle) -> Any:
    """A view of a part of an array or a tensor."""
    x1, y1, x2, y2 = rectangle
    return image[y1:y2, x1:x2] if isinstance(image, np.ndarray) else image[..., y1:y2, x1:x2]


def _copy(image: Any) -> Any:
    return image.copy() if isinstance(image, np.ndarray) else image.clone()


def _require_by(by: str) -> None:
    if by not in get_args(By):
        raise ObjectSeekerError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")


def gray(fractions: bool, fill: float | None) -> float:
    """The value of removed pixels, unless `fill` is one: gray in the range of the image."""
    return (DEFAULT_FILL / 255 if fractions else DEFAULT_FILL) if fill is None else fill


def inside(boxes: Any, rectangles: Any) -> Any:
    """The part of every box (..., 4) that lies within its rectangle (..., 4); of no area where nothing does."""
    corners = boxes.reshape(*boxes.shape[:-1], 2, 2)
    return corners.clip(rectangles[..., None, :2], rectangles[..., None, 2:]).reshape(boxes.shape)


def visible_part(boxes: Any, kept: Any) -> tuple[Any, Any]:
    """The box around what is seen of every box (..., 4), of no area where nothing is; and the area that is seen.

    `kept` (..., 2, 4) is what a mask leaves before and behind its strip. Arrays or tensors, best in float64.
    """
    before, behind = inside(boxes, kept[..., 0, :]), inside(boxes, kept[..., 1, :])
    before_area, behind_area = area_of(before), area_of(behind)
    # The first corner lies before the strip if anything does, the last one behind it if anything does.
    first = (before_area > 0)[..., None]
    last = first & (behind_area <= 0)[..., None]
    around = behind
    around[..., :2] = before[..., :2] * first + behind[..., :2] * ~first
    around[..., 2:] = before[..., 2:] * last + behind[..., 2:] * ~last
    return around, before_area + behind_area


def still_target(seen_area: Any, whole_area: Any, visible: float) -> Any:
    """The target rule: whether enough of every box is seen."""
    return (seen_area > 0) & (seen_area >= visible * whole_area)


def area_of(boxes: Any) -> Any:
    """The area of every box (..., 4), as arrays or tensors."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def size_of(image: Any) -> tuple[int, int]:
    """Width and height of an array, a tensor or a picture."""
    if is_picture(image):
        return int(image.width), int(image.height)
    if not hasattr(image, "shape"):
        raise ObjectSeekerError(f"an image must be an array, a tensor or a Pillow image, got {type(image).__name__}")
    shape = tuple(image.shape)
    if isinstance(image, np.ndarray):
        if len(shape) not in (2, 3) or min(shape[:2]) < 1:
            raise ObjectSeekerError(f"an image array must have shape (H, W) or (H, W, channels), got {shape}")
        return shape[1], shape[0]
    if len(shape) < 2 or min(shape[-2:]) < 1:
        raise ObjectSeekerError(f"an image tensor must have shape (..., H, W), got {shape}")
    return int(shape[-1]), int(shape[-2])


def select(entries: Any, keep: Bools) -> Any:
    """The entries of an array, a tensor or any other sequence that are kept, as the same kind of thing."""
    if isinstance(entries, np.ndarray):
        return entries[keep]
    if is_tensor(entries):
        return entries[np.flatnonzero(keep).tolist()]
    kept = [entry for entry, wanted in zip(entries, keep.tolist(), strict=True) if wanted]
    return tuple(kept) if isinstance(entries, tuple) else kept


def is_picture(thing: Any) -> bool:
    """Whether it is a Pillow image."""
    return hasattr(thing, "convert") and hasattr(thing, "width")


def is_tensor(thing: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported to find out."""
    return hasattr(thing, "is_floating_point")


def as_floats(values: Any) -> Floats:
    """Numbers in float64, wherever they live, so that arrays and tensors are decided alike."""
    return np.array(values.detach().cpu().double().numpy() if is_tensor(values) else values, dtype=np.float64)


def as_boxes(boxes: Any) -> Floats:
    """The boxes in float64."""
    rows = as_floats(boxes)
    rows = rows.reshape(0, 4) if rows.size == 0 else rows
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise ObjectSeekerError(f"boxes must have shape (N, 4), got {rows.shape}")
    return rows


def like(numbers: Floats, given: Any) -> Any:
    """The numbers as a tensor such as `given`, if that is one."""
    if not is_tensor(given):
        return numbers
    import torch

    return torch.from_numpy(numbers).to(dtype=given.dtype, device=given.device)


# How pipelines write a box down: corners in pixels;
# corners, corner and size, center and size as shares of the image; corner and size; center and size.
Format = Literal["pascal_voc", "albumentations", "coco", "yolo", "cxcywh"]


def to_corners(boxes: Floats, form: Format, size: tuple[int, int]) -> Floats:
    """Boxes (N, 4) as x1, y1, x2, y2 in pixels of an image of `size`, its width and height."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if form in ("yolo", "albumentations"):
        first, second = first * size, second * size
    if form == "coco":
        second = first + second
    if form in ("yolo", "cxcywh"):
        first, second = first - second / 2, first + second / 2
    return np.concatenate([first, second], axis=1)


def from_corners(boxes: Floats, form: Format, size: tuple[int, int]) -> Floats:
    """The reverse of `to_corners`."""
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
    raise ObjectSeekerError(f"box format must be one of {', '.join(get_args(Format))}, got {form!r}")
