"""Six annotated images, to try everything without a dataset.

They come from COCO val2017, contain objects of the PASCAL VOC classes, and are free to use (CC BY 2.0, see
ATTRIBUTION.md). The built-in detector was trained without any image of COCO val2017. Six images show how things work;
they are too few to measure anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from objectseeker.core.boxes import Bools, Detections
from objectseeker.datasets import open_dataset


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A bundled image.

    Labels of `ground_truth` are indices into `VOC_20`; `crowd` marks boxes around groups.
    """

    path: Path
    name: str
    ground_truth: Detections
    crowd: Bools


def samples() -> list[Sample]:
    """Return the bundled images, always in the same order."""
    folder = Path(str(resources.files(__package__)))
    dataset = open_dataset(f"coco:{folder / 'annotations.json'}:{folder}")
    return [
        Sample(path := Path(str(image.path)), path.stem, image.ground_truth, image.crowd) for image in dataset.images
    ]
