"""For pipelines that mask where a sample is fetched: wrappers around map-style datasets.

Where the randomness comes from decides whether masks repeat. A NumPy generator kept in a dataset is copied into every
worker process, and again in every epoch: all of them would draw the same masks. So there is none here. Without a
`seed` masks are drawn from torch's global generator, which data loaders seed differently for every worker and every
epoch. With one, a mask depends on seed, epoch and index alone, whatever the number of workers; then call
`set_epoch(n)` before every epoch, or each will see the same masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from objectseeker.errors import ObjectSeekerError
from objectseeker.training.masking import (
    Masking,
    Strip,
    as_boxes,
    from_corners,
    select,
    to_corners,
)
from objectseeker.training.torchvision_transform import PER_OBJECT, TorchvisionMask


class _Wrapper:
    """A dataset and a way to mask what it gives."""

    def __init__(self, dataset: Any, masking: Masking, seed: int | None) -> None:
        import torch

        self.dataset = dataset
        self._masking = masking
        self._seed = seed
        # Shared memory: workers that outlive an epoch see the next one's number, too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Other masks for the same `seed`."""
        self._epoch.fill_(epoch)

    def _draw(self, image: Any, index: int) -> Strip | None:
        if self._seed is None:
            return self._masking.draw(image, None)
        index = index + len(self) if index < 0 else index
        return self._masking.draw(image, np.random.default_rng((self._seed, int(self._epoch), index)))


class MaskedDataset(_Wrapper):
    """A dataset of (image, target), the target as `TorchvisionMask` takes it; options are those of `Masking`.

    loader = DataLoader(MaskedDataset(dataset, probability=0.5), ...)
    """

    _masking: TorchvisionMask

    def __init__(
        self, dataset: Any, *, seed: int | None = None, per_object: tuple[str, ...] = PER_OBJECT, **options: Any
    ) -> None:
        super().__init__(dataset, TorchvisionMask(per_object=per_object, **options), seed)

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        image, target = self.dataset[index]
        return self._masking.mask(image, target, self._draw(image, index))


class MaskedDetection(_Wrapper):
    """A dataset for the object detectors of transformers, masked before an image processor sees it.

    Takes items {"image", "image_id", "objects": {"bbox", "category", "area", "id"}} with boxes as x, y, width, height
    (image_id, area, id and iscrowd may be missing; "category_id" will do), and gives {"image", "annotations"} as the
    processors want them:

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
        whole = [float(width * height) for _, _, width, height in objects["bbox"]]
        areas = np.array(objects.get("area", whole), dtype=np.float64) * masked.share
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
    """Objects as one list per key, whether they come so or as one dictionary per object."""
    if isinstance(objects, Mapping):
        return {name: list(values) for name, values in objects.items()}
    rows = list(objects)
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {"bbox": [], "category_id": []}


def _categories(objects: Mapping[str, list[Any]]) -> list[Any]:
    for name in ("category_id", "category"):
        if name in objects:
            return objects[name]
    raise ObjectSeekerError(f"objects have neither 'category' nor 'category_id', only {', '.join(objects)}")
