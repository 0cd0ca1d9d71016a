"""For pipelines in the style of torchvision's transforms.v2: called with an image and its target.

torchvision itself is never imported: its boxes and masks are told by what they have, and made anew by their own class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from objectseeker.errors import ObjectSeekerError
from objectseeker.training.masking import (
    Format,
    Masking,
    Strip,
    as_boxes,
    as_floats,
    from_corners,
    is_tensor,
    like,
    mask_pixels,
    select,
    to_corners,
)

FORMATS: dict[str, Format] = {"XYXY": "pascal_voc", "XYWH": "coco", "CXCYWH": "cxcywh"}
PER_OBJECT = ("labels", "masks", "area", "iscrowd")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchvisionMask(Masking):
    """A transform: image, target = mask(image, target). It can stand in a `torchvision.transforms.v2.Compose`.

    `target` is a dictionary with "boxes", x1, y1, x2, y2 unless they say otherwise as torchvision's BoundingBoxes do.
    The entries `per_object` lose the objects that are no targets any more; "masks" are masked like the image, and an
    "area" becomes that of the visible part. Everything else in it is left alone.

    Masks are drawn from torch's global generator (or from `generator`), which data loaders seed differently for every
    worker and every epoch.
    """

    per_object: tuple[str, ...] = PER_OBJECT
    generator: Any = None

    def __call__(self, image: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return self.mask(image, target, self.draw(image, self.generator))

    def mask(self, image: Any, target: dict[str, Any], strip: Strip | None) -> tuple[Any, dict[str, Any]]:
        """Apply a mask that was drawn."""
        boxes, form = _boxes_of(target)
        if strip is None:
            return image, target
        masked = self.apply(image, to_corners(as_boxes(boxes), form, (1, 1)), strip)
        changed = dict(target)
        for name in self.per_object:
            if name in target:
                changed[name] = select(target[name], masked.keep)
        changed["boxes"] = like(from_corners(masked.boxes, form, (1, 1)), boxes)
        if hasattr(boxes, "canvas_size"):
            height, width = masked.image.shape[-2:] if is_tensor(masked.image) else masked.image.size[::-1]
            changed["boxes"] = type(boxes)(changed["boxes"], format=boxes.format, canvas_size=(height, width))
        if "masks" in target:
            seen = mask_pixels(changed["masks"], strip, fill=0, by=self.by)
            changed["masks"] = _again(seen, target["masks"])
        if "area" in target:
            # Counted where there are masks, otherwise estimated from the visible share of the box.
            estimated = as_floats(changed["area"]) * masked.share[masked.keep]
            counted = as_floats(changed["masks"].flatten(1).sum(1)) if "masks" in target else estimated
            changed["area"] = like(counted, target["area"])
        return _again(masked.image, image), changed


def _boxes_of(target: dict[str, Any]) -> tuple[Any, Format]:
    """The boxes and how they are written; refuses what cannot be masked, whether a mask was drawn or not."""
    if "keypoints" in target:
        raise ObjectSeekerError("a target with keypoints cannot be masked: it is not known which ones are hidden")
    if "boxes" not in target:
        raise ObjectSeekerError(f"a target must hold 'boxes', got {', '.join(map(repr, target)) or 'nothing'}")
    boxes = target["boxes"]
    name = getattr(getattr(boxes, "format", None), "value", "XYXY")
    if name not in FORMATS:
        raise ObjectSeekerError(f"boxes of the format {name} cannot be masked, only {', '.join(FORMATS)}")
    return boxes, FORMATS[name]


def _again(new: Any, old: Any) -> Any:
    """`new` as the kind of tensor that `old` is."""
    return type(old)(new) if is_tensor(new) and type(new) is not type(old) else new
