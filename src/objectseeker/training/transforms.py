"""Masks for common training pipelines: torchvision, albumentations, PyTorch datasets, transformers.

No framework is imported: torchvision's boxes and masks are recognized by their attributes and rebuilt by their class.

Where the randomness comes from decides whether masks repeat. A NumPy generator kept in a dataset is copied into every
worker process, again in every epoch: all of them would draw the same masks. So the datasets keep none. Without a
`seed`, masks are drawn from torch's global generator, which data loaders seed differently for every worker and every
epoch. With one, a mask depends on seed, epoch and index only, whatever the number of workers; call `set_epoch(n)`
before every epoch, or each epoch repeats the same masks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.errors import ObjectSeekerError
from objectseeker.training.masking import (
    Format,
    Masking,
    Strip,
    as_boxes,
    as_floats,
    as_type_of,
    from_corners,
    is_tensor,
    mask_pixels,
    require_format,
    select,
    size_of,
    to_corners,
)

FORMATS: dict[str, Format] = {"XYXY": "pascal_voc", "XYWH": "coco", "CXCYWH": "cxcywh"}
PER_OBJECT = ("labels", "masks", "area", "iscrowd")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchvisionMask(Masking):
    """A transform for torchvision's transforms.v2, also in a `Compose`.

    The target is a dictionary with "boxes": x1, y1, x2, y2, or torchvision's BoundingBoxes in any format. "masks" are
    masked like the image; "area" becomes the visible area; other entries are unchanged.

    Args:
        per_object: Entries of the target with one value per object; they lose the objects that are no longer targets.
        generator: A torch generator. The default is the global one, which data loaders seed for every worker and epoch.

    Example:
        image, target = TorchvisionMask(probability=0.5)(image, target)
    """

    per_object: tuple[str, ...] = PER_OBJECT
    generator: Any = None

    def __call__(self, image: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return self.mask(image, target, self.draw(size_of(image), self.generator))

    def mask(self, image: Any, target: dict[str, Any], strip: Strip | None) -> tuple[Any, dict[str, Any]]:
        """Apply a drawn mask."""
        boxes, form = _boxes_of(target)
        if strip is None:
            return image, target
        masked = self.apply(image, to_corners(as_boxes(boxes), form, (1, 1)), strip)
        changed = dict(target)
        for name in self.per_object:
            if name in target:
                changed[name] = select(target[name], masked.keep)
        changed["boxes"] = as_type_of(from_corners(masked.boxes, form, (1, 1)), boxes)
        if hasattr(boxes, "canvas_size"):
            height, width = masked.image.shape[-2:] if is_tensor(masked.image) else masked.image.size[::-1]
            changed["boxes"] = type(boxes)(changed["boxes"], format=boxes.format, canvas_size=(height, width))
        if "masks" in target:
            pixels = mask_pixels(changed["masks"], strip, fill=0, mask_mode=self.mask_mode)
            changed["masks"] = _as_class_of(pixels, target["masks"])
        if "area" in target:
            # Counted if there are masks, otherwise estimated from the visible fraction of the box.
            estimated = as_floats(changed["area"]) * masked.visible_fraction[masked.keep]
            counted = as_floats(changed["masks"].flatten(1).sum(1)) if "masks" in target else estimated
            changed["area"] = as_type_of(counted, target["area"])
        return _as_class_of(masked.image, image), changed


def _boxes_of(target: dict[str, Any]) -> tuple[Any, Format]:
    """Return the boxes and their format; reject what cannot be masked, whether or not a mask was drawn."""
    if "keypoints" in target:
        raise ObjectSeekerError("keypoints cannot be masked: got a target with 'keypoints'. Remove them first.")
    if "boxes" not in target:
        raise ObjectSeekerError(
            f"a target must contain 'boxes': got {', '.join(map(repr, target)) or 'nothing'}. Add them."
        )
    boxes = target["boxes"]
    name = getattr(getattr(boxes, "format", None), "value", "XYXY")
    if name not in FORMATS:
        raise ObjectSeekerError(f"box format must be one of {', '.join(FORMATS)}: got {name}. Convert the boxes first.")
    return boxes, FORMATS[name]


def _as_class_of(tensor: Any, template: Any) -> Any:
    """Return a tensor as the same subclass as `template`."""
    return type(template)(tensor) if is_tensor(tensor) and type(tensor) is not type(template) else tensor


UNSUPPORTED = ("mask", "masks", "keypoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlbumentationsMask(Masking):
    """A transform in albumentations' style: takes keyword arguments, returns a dictionary.

    Args:
        format: Of the boxes: pascal_voc, albumentations, coco or yolo. Values after the first four are kept.
        label_fields: Entries with one value per box; other entries are unchanged.
        rng: A NumPy generator. The default is seeded from Python's `random`, which torch's data loaders seed
            differently for every worker and every epoch.

    Example:
        sample = AlbumentationsMask(probability=0.5)(image=image, bboxes=bboxes, labels=labels)
    """

    format: Format = "pascal_voc"
    label_fields: tuple[str, ...] = ("labels", "class_labels", "category_ids")
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        Masking.__post_init__(self)
        require_format(self.format)

    def __call__(self, *, image: Any, bboxes: Any, **entries: Any) -> dict[str, Any]:
        for name in UNSUPPORTED:
            if name in entries:
                raise ObjectSeekerError(f"entry cannot be masked: got {name!r}. Pass images, boxes and labels.")
        strip = self.draw(size_of(image), self.rng or np.random.default_rng(random.getrandbits(64)))
        if strip is None:
            return {"image": image, "bboxes": bboxes, **entries}
        numbers = np.array([tuple(box)[:4] for box in bboxes], dtype=np.float64).reshape(-1, 4)
        masked = self.apply(image, to_corners(numbers, self.format, size_of(image)), strip)
        cut = from_corners(masked.boxes, self.format, size_of(masked.image))
        kept = {name: select(entries[name], masked.keep) for name in self.label_fields if name in entries}
        return {"image": masked.image, "bboxes": _with_numbers(cut, select(bboxes, masked.keep)), **entries, **kept}


def _with_numbers(cut: Any, bboxes: Any) -> Any:
    """Replace the first four numbers of each box, in an array or a list of tuples."""
    if isinstance(bboxes, np.ndarray):
        return np.concatenate([cut, bboxes[:, 4:]], axis=1) if bboxes.ndim == 2 else cut
    return [(*row, *tuple(box)[4:]) for row, box in zip(cut.tolist(), bboxes, strict=True)]


class _MaskedItems:
    """A map-style dataset whose items are masked."""

    def __init__(self, dataset: Any, masking: Masking, seed: int | None) -> None:
        import torch

        self.dataset = dataset
        self._masking = masking
        self._seed = seed
        # Shared memory: persistent workers also see the next epoch's number.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Draw other masks from the same `seed`."""
        self._epoch.fill_(epoch)

    def _draw(self, image: Any, index: int) -> Strip | None:
        if self._seed is None:
            return self._masking.draw(size_of(image), None)
        index = index + len(self) if index < 0 else index
        return self._masking.draw(size_of(image), np.random.default_rng((self._seed, int(self._epoch), index)))


class MaskedDataset(_MaskedItems):
    """A masked dataset of (image, target) pairs, with targets as `TorchvisionMask` takes them.

    Args:
        dataset: A map-style dataset.
        seed: Makes masks depend on seed, epoch and index only.
        per_object: As for `TorchvisionMask`.
        options: Those of `Masking`.

    Example:
        loader = DataLoader(MaskedDataset(dataset, probability=0.5))
    """

    _masking: TorchvisionMask

    def __init__(
        self, dataset: Any, *, seed: int | None = None, per_object: tuple[str, ...] = PER_OBJECT, **options: Any
    ) -> None:
        super().__init__(dataset, TorchvisionMask(per_object=per_object, **options), seed)

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        image, target = self.dataset[index]
        return self._masking.mask(image, target, self._draw(image, index))


class MaskedDetectionDataset(_MaskedItems):
    """A masked dataset for the object detectors of transformers, to be used before their image processor.

    Takes items {"image", "image_id", "objects": {"bbox", "category", "area", "id"}} with boxes as x, y, width, height
    (image_id, area, id and iscrowd are optional; "category_id" is an alternative), and returns {"image", "annotations"}
    as the processors expect them:

        batch = processor(
            images=[item["image"] for item in items],
            annotations=[item["annotations"] for item in items],
            return_tensors="pt",
        )
    """

    def __init__(self, dataset: Any, *, seed: int | None = None, **options: Any) -> None:
        super().__init__(dataset, Masking(**options), seed)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        objects = _columns(item["objects"])
        corners = to_corners(as_boxes(objects["bbox"]), "coco", (1, 1))
        strip = self._draw(item["image"], index)
        masked = self._masking.apply(item["image"], corners, strip)
        boxes = objects["bbox"] if strip is None else from_corners(masked.boxes, "coco", (1, 1)).tolist()
        box_areas = [float(width * height) for _, _, width, height in objects["bbox"]]
        areas = np.array(objects.get("area", box_areas), dtype=np.float64) * masked.visible_fraction
        columns = {
            "bbox": boxes,
            "area": areas[masked.keep].tolist(),
            "category_id": select(_categories(objects), masked.keep),
            "iscrowd": select(objects.get("iscrowd", [0] * len(areas)), masked.keep),
        }
        if "id" in objects:
            columns["id"] = select(objects["id"], masked.keep)
        image_id = item.get("image_id", index)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        annotations = {"image_id": image_id, "annotations": [{"image_id": image_id, **row} for row in rows]}
        return {"image": masked.image, "annotations": annotations}


def _columns(objects: Any) -> dict[str, list[Any]]:
    """Convert objects to one list per key, also from one dictionary per object."""
    if isinstance(objects, Mapping):
        return {name: list(values) for name, values in objects.items()}
    rows = list(objects)
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {"bbox": [], "category_id": []}


def _categories(objects: Mapping[str, list[Any]]) -> list[Any]:
    for name in ("category_id", "category"):
        if name in objects:
            return objects[name]
    raise ObjectSeekerError(f"objects must have 'category' or 'category_id': got {', '.join(objects)}. Add one.")
