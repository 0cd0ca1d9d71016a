"""Class names: of the usual datasets, and of a graph by what it says about itself."""

from __future__ import annotations

import ast
from collections.abc import Mapping

VOC_20 = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip

COCO_80 = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip

# COCO numbers its categories 1 to 90 and skips some. 91-class detectors use these numbers, 0 is the background.
_COCO_SKIPPED = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)


def _with_gaps() -> tuple[str, ...]:
    remaining = iter(COCO_80)
    return tuple("n/a" if number in _COCO_SKIPPED else next(remaining) for number in range(91))


COCO_91 = _with_gaps()

BY_COUNT = {len(names): names for names in (VOC_20, COCO_80, COCO_91)}


def by_count(count: int) -> tuple[str, ...]:
    """The dataset with that many classes, or numbered names."""
    return BY_COUNT.get(count) or tuple(f"class_{number}" for number in range(count))


def from_metadata(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names a graph carries: `classes`, separated by commas or blanks, or `names`, a Python dict or list."""
    classes = metadata.get("classes", "")
    if classes.strip():
        parts = classes.split(",") if "," in classes else classes.split()
        return tuple(part.strip() for part in parts)
    try:
        names = ast.literal_eval(metadata.get("names", "()"))
        return from_mapping(names if isinstance(names, dict) else dict(enumerate(names)))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ()  # not in a form we know: as good as absent


def from_mapping(names: Mapping[int, str]) -> tuple[str, ...]:
    """{label: name} as a tuple indexed by label; labels without a name get a numbered one."""
    numbered = {int(label): str(name) for label, name in names.items() if int(label) >= 0}
    return tuple(numbered.get(label, f"class_{label}") for label in range(max(numbered, default=-1) + 1))
