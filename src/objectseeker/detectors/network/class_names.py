"""Class names: those of the common datasets, and those in the metadata of a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from objectseeker.errors import ObjectSeekerError

MAX_CLASSES = 65_536
MAX_METADATA_LENGTH = 2**22  # characters; enough to name MAX_CLASSES classes

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
_NUMBERS = [number for number in range(91) if number not in _COCO_SKIPPED]
COCO_91 = tuple(COCO_80[_NUMBERS.index(number)] if number in _NUMBERS else "n/a" for number in range(91))

BY_COUNT = {len(names): names for names in (VOC_20, COCO_80, COCO_91)}


def numbered_names(first: int, end: int) -> tuple[str, ...]:
    """Make names for the labels from `first` up to, but not including, `end`."""
    return tuple(f"class_{label}" for label in range(first, end))


def from_metadata(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Read the class names in the metadata of a graph.

    They are in `classes`, separated by commas or blanks, or in `names`, a Python dict or list. The file is untrusted:
    names in an unknown form, or far too many of them, count as absent.
    """
    classes, names = metadata.get("classes", ""), metadata.get("names", "()")
    if max(len(classes), len(names)) > MAX_METADATA_LENGTH:
        return ()
    if classes.strip():
        parts = classes.split(",") if "," in classes else classes.split()
        return tuple(part.strip() for part in parts) if len(parts) <= MAX_CLASSES else ()
    try:
        read = ast.literal_eval(names)
        return () if isinstance(read, str | bytes) else normalize_names(read)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ()


def normalize_names(names: Mapping[int, str] | Iterable[str]) -> tuple[str, ...]:
    """Return names given by label, or in the order of the labels, as a tuple indexed by label."""
    return from_mapping(names if isinstance(names, Mapping) else dict(enumerate(names)))


def from_mapping(names: Mapping[int, str]) -> tuple[str, ...]:
    """Return {label: name} as a tuple indexed by label; labels without a name get a numbered one."""
    by_label = {int(label): str(name) for label, name in names.items() if int(label) >= 0}
    last = max(by_label, default=-1)
    if last >= MAX_CLASSES:
        raise ObjectSeekerError(
            f"class names must have labels below {MAX_CLASSES:,}: got label {last:,}: name fewer classes"
        )
    return tuple(by_label.get(label, f"class_{label}") for label in range(last + 1))
