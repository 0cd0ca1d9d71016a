"""Six photographs with their objects, so that everything can be tried without a dataset.

They come from COCO val2017, hold objects of the PASCAL VOC classes, and are free to use (CC BY 2.0, see
ATTRIBUTION.md beside them). The built-in detector was trained without any image of COCO val2017, so it has not
seen them. Six photographs show how things work; they measure nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from objectseeker.core.boxes import Bools, Detections
from objectseeker.datasets import open_dataset


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One photograph. Labels of `truth` are indices into `VOC_20`; `crowd` marks boxes around a whole group."""

    path: Path
    name: str
    truth: Detections
    crowd: Bools


def samples() -> list[Sample]:
    """The bundled photographs, always in the same order."""
    folder = Path(str(resources.files(__package__)))
    dataset = open_dataset(f"coco:{folder / 'annotations.json'}:{folder}")
    return [
        Sample(path := Path(str(image.path)), path.stem, image.ground_truth, image.crowd) for image in dataset.images
    ]
