"""Six photographs with their objects, so that everything can be tried without a dataset.

They come from COCO val2017, hold objects of the PASCAL VOC classes, and are free to use (CC BY 2.0, see
ATTRIBUTION.md beside them). The embedded detector was trained without any image of COCO val2017, so it has not
seen them. Six photographs show how things work; they measure nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from objectseeker.core.boxes import Bools, Detections
from objectseeker.detectors.network.names import VOC_20


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
    content = json.loads((folder / "annotations.json").read_text(encoding="utf-8"))
    label = {category["id"]: VOC_20.index(category["name"]) for category in content["categories"]}
    found = []
    for image in content["images"]:
        objects = [item for item in content["annotations"] if item["image_id"] == image["id"]]
        x, y, width, height = np.array([item["bbox"] for item in objects], dtype=np.float64).T
        path = folder / image["file_name"]
        found.append(
            Sample(
                path=path,
                name=path.stem,
                truth=Detections(
                    np.stack([x, y, x + width, y + height], axis=1),
                    np.ones(len(objects)),
                    [label[item["category_id"]] for item in objects],
                ),
                crowd=np.array([item["iscrowd"] == 1 for item in objects]),
            )
        )
    return found
