"""For pipelines in the style of albumentations: called with keyword arguments, returns a dictionary."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.errors import ObjectSeekerError
from objectseeker.training.masking import Format, Masking, from_corners, require_format, select, size_of, to_corners

UNSUPPORTED = ("mask", "masks", "keypoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlbumentationsMask(Masking):
    """A transform: sample = mask(image=image, bboxes=bboxes, labels=labels).

    `format` is how boxes are written: pascal_voc, albumentations, coco or yolo. Of the entries `label_fields` those
    that are given keep step with the boxes, and so does whatever follows the four numbers of a box. Other entries are
    passed through.

    Masks are drawn from `rng`, a NumPy generator. Without one they are seeded from Python's `random`, which torch's
    data loaders seed differently for every worker and every epoch.
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
                raise ObjectSeekerError(f"the entry {name!r} cannot be masked; mask images with boxes and labels only")
        strip = self.draw(image, self.rng or np.random.default_rng(random.getrandbits(64)))
        if strip is None:
            return {"image": image, "bboxes": bboxes, **entries}
        numbers = np.array([tuple(box)[:4] for box in bboxes], dtype=np.float64).reshape(-1, 4)
        masked = self.apply(image, to_corners(numbers, self.format, size_of(image)), strip)
        cut = from_corners(masked.boxes, self.format, size_of(masked.image))
        kept = {name: select(entries[name], masked.keep) for name in self.label_fields if name in entries}
        return {"image": masked.image, "bboxes": _boxes_like(cut, select(bboxes, masked.keep)), **entries, **kept}


def _boxes_like(cut: Any, bboxes: Any) -> Any:
    """The boxes with these four numbers, as an array or a list of tuples as they were given."""
    if isinstance(bboxes, np.ndarray):
        return np.concatenate([cut, bboxes[:, 4:]], axis=1) if bboxes.ndim == 2 else cut
    return [(*row, *tuple(box)[4:]) for row, box in zip(cut.tolist(), bboxes, strict=True)]
