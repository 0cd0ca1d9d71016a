"""The augmentation: draw a half mask, apply it to an image and to the boxes in it.

Drawing and applying are apart, so that one mask can be applied to an array, to a tensor and to everything else that
belongs to the image. Images are NumPy arrays (H, W) or (H, W, channels), torch tensors (..., H, W) on any device, or
Pillow images.

How a mask is drawn from random numbers (`half_of`) and what is a target still (`inside`, `still_target`) are written
once, with operations that plain numbers, arrays and tensors share: `masked_batches` calls them for whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from objectseeker.core.boxes import Bools, Floats, area
from objectseeker.core.image import GREY
from objectseeker.core.masks import SIDES, Side
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction

By = Literal["fill", "crop"]
PROBABILITY, VISIBLE = 0.5, 0.2


@dataclass(frozen=True, slots=True)
class HalfMask:
    """Everything on one side of a line: `side` is removed, up to (or from) column or row `line`."""

    side: Side
    line: int

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise ObjectSeekerError(f"side must be one of {', '.join(SIDES)}, got {self.side!r}")
        require_count(self.line, "line")

    def kept(self, width: int, height: int) -> tuple[int, int, int, int]:
        """What is left of an image, as x1, y1, x2, y2."""
        kept, moved = [0, 0, width, height], SIDES.index(self.side)  # side i moves entry i to the line
        if self.line >= (width, height)[moved % 2]:
            raise ObjectSeekerError(f"the line at {self.line} does not cross an image of {width}x{height} pixels")
        kept[moved] = self.line
        x1, y1, x2, y2 = kept
        return x1, y1, x2, y2


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """How training images are masked: what `draw_half` and `apply_half` are called with."""

    probability: float = PROBABILITY
    visible: float = VISIBLE
    fill: float | None = None
    by: By = "fill"

    def __post_init__(self) -> None:
        require_fraction(self.probability, "probability")
        require_fraction(self.visible, "visible")
        _require_by(self.by)

    def draw(self, image: Any, rng: Any) -> HalfMask | None:
        return draw_half(*size_of(image), rng, probability=self.probability)

    def apply(self, image: Any, boxes: Any, half: HalfMask | None) -> Masked:
        return apply_half(image, boxes, half, visible=self.visible, fill=self.fill, by=self.by)


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A masked image and the boxes that are still targets; of all given boxes, which those are and what is visible."""

    image: Any
    boxes: Any
    keep: Bools
    share: Floats


def mask_half(
    image: Any,
    boxes: Any,
    labels: Any,
    *,
    rng: Any,
    probability: float = PROBABILITY,
    visible: float = VISIBLE,
    fill: float | None = None,
    by: By = "fill",
) -> tuple[Any, Any, Any]:
    """Remove, with this probability, one side of a random vertical or horizontal line from a training image.

    Returns the image and the boxes and labels that are still targets; nothing that was given is changed. `rng` is a
    NumPy or a torch generator. The rest is as in `apply_half`.
    """
    masking = Masking(probability=probability, visible=visible, fill=fill, by=by)
    masked = masking.apply(image, boxes, masking.draw(image, rng))
    if len(labels) != len(masked.keep):
        raise ObjectSeekerError(f"there must be one label per box, got {len(labels)} for {len(masked.keep)} boxes")
    return masked.image, masked.boxes, select(labels, masked.keep)


def draw_half(width: int, height: int, rng: Any, *, probability: float = PROBABILITY) -> HalfMask | None:
    """With this probability a half mask of an image: every side is as likely, and so is every line inside the image.

    `rng` is a NumPy generator, a torch generator on any device, or None for torch's global one. Four numbers are drawn
    from it whatever comes of them, so an image's mask does not depend on what happened to the images before it.
    """
    require_fraction(probability, "probability")
    masked, side, line = half_of(_uniform(rng), width, height, probability)
    return HalfMask(SIDES[side], int(line)) if masked else None


def half_of(numbers: Any, width: int, height: int, probability: float) -> tuple[Any, Any, Any]:
    """What four random numbers from [0, 1) stand for: is there a mask, its side as an index into SIDES, and its line.

    The numbers are single ones, or four arrays or tensors, and so is what is returned.
    """
    chance, direction, place, end = numbers
    across = direction >= 0.5
    length = width + (height - width) * across
    masked = (chance < probability) & (length > 1)  # a line lies inside the image: a single row or column has none
    return masked, across + 2 * (end >= 0.5), 1 + place * (length - 1) // 1


def _uniform(rng: Any) -> list[float]:
    if isinstance(rng, np.random.Generator):
        return [float(number) for number in rng.random(4)]
    import torch

    device = "cpu" if rng is None else rng.device
    return [float(number) for number in torch.rand(4, generator=rng, device=device, dtype=torch.float32).tolist()]


def apply_half(
    image: Any,
    boxes: Any,
    half: HalfMask | None,
    *,
    visible: float = VISIBLE,
    fill: float | None = None,
    by: By = "fill",
) -> Masked:
    """Mask an image and its boxes (N, 4: x1, y1, x2, y2 in pixels), both arrays or both tensors. None masks nothing.

    The target rule: an object of whose box less than the share `visible` remains is no target any more, since nothing
    is left to recognise. Of the others the target is the visible part, as the masked views of the defence show nothing
    else.

    Removed pixels get the value `fill`: by default grey, 114 where pixels are whole numbers and 114 / 255 where they
    are not. Images in another range need a `fill` of their own. With by="crop" only what is left is returned, and
    boxes count from its corner: for a defence that cuts masked pixels away.
    """
    require_fraction(visible, "visible")
    _require_by(by)
    targets = as_boxes(boxes)
    if half is None:
        return Masked(image, boxes, np.ones(len(targets), np.bool_), np.ones(len(targets)))
    size = size_of(image)
    kept = half.kept(*size)
    seen = inside(targets, np.array(kept))
    whole = inside(targets, np.array((0, 0, *size)))  # what lies outside the image is hidden by no mask
    keep = still_target(seen, whole, visible)
    share = np.divide(area(seen), area(whole), out=np.zeros(len(seen)), where=area(whole) > 0)
    if by == "crop":
        seen = seen - np.tile(kept[:2], 2)
    return Masked(mask_pixels(image, half, fill=fill, by=by), like(seen[keep], boxes), keep, share)


def mask_pixels(image: Any, half: HalfMask, *, fill: float | None = None, by: By = "fill") -> Any:
    """What `apply_half` makes of the image: always a copy."""
    if is_picture(image):
        from PIL.Image import fromarray

        picture = image if image.mode in ("RGB", "L") else image.convert("RGB")
        return fromarray(mask_pixels(np.asarray(picture), half, fill=fill, by=by))
    x1, y1, x2, y2 = half.kept(*size_of(image))
    rows, columns = slice(y1, y2), slice(x1, x2)
    if isinstance(image, np.ndarray):
        if by == "crop":
            return image[rows, columns].copy()
        result = np.full_like(image, grey(np.issubdtype(image.dtype, np.inexact), fill))
        result[rows, columns] = image[rows, columns]
        return result
    if by == "crop":
        return image[..., rows, columns].clone()
    result = image.clone()  # of a tensor's subclass, the same subclass
    result[...] = grey(image.is_floating_point(), fill)
    result[..., rows, columns] = image[..., rows, columns]
    return result


def _require_by(by: str) -> None:
    if by not in get_args(By):
        raise ObjectSeekerError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")


def grey(fractions: bool, fill: float | None) -> float:
    """The value of removed pixels, unless `fill` is one: grey in the range of the image."""
    return (GREY / 255 if fractions else GREY) if fill is None else fill


def inside(boxes: Any, rectangles: Any) -> Any:
    """The part of every box (..., 4) that lies within its rectangle (..., 4); of no area where nothing does."""
    corners = boxes.reshape(*boxes.shape[:-1], 2, 2)
    return corners.clip(rectangles[..., None, :2], rectangles[..., None, 2:]).reshape(boxes.shape)


def still_target(seen: Any, whole: Any, visible: float) -> Any:
    """The target rule: whether enough of every box is seen. Boxes (..., 4) as arrays or tensors, best in float64."""
    seen_area, whole_area = ((b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1]) for b in (seen, whole))
    return (seen_area > 0) & (seen_area >= visible * whole_area)


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
