"""MAITE object detection datasets, stored as lossless files and COCO annotations.

A MAITE dataset is any object with `len`, an index and `metadata`; an item is an image (C x H x W), a target (boxes,
labels) and metadata with an id.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from objectseeker.core.maite import as_numpy, from_maite_image, has_maite_metadata, label_names
from objectseeker.core.masks import Image
from objectseeker.datasets.coco import read
from objectseeker.datasets.dataset import Dataset
from objectseeker.datasets.parsing import SkipLog
from objectseeker.detectors.python import import_named
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json

ANNOTATIONS = "annotations.json"
PYTHON = "python:"
MAX_ID_LENGTH = 80  # characters of a datum's id in the name of its file


def is_maite_dataset(candidate: object) -> bool:
    """Return whether an object is a MAITE dataset: it has a length, an index and metadata with an id."""
    return has_maite_metadata(candidate) and hasattr(candidate, "__getitem__") and hasattr(candidate, "__len__")


def store_maite_dataset(dataset: Any, folder: Path) -> Dataset:
    """Store the images and boxes of a MAITE dataset in `folder`, and open them as a COCO dataset.

    A file that is there and has the same pixels is kept. Boxes that cannot be used are skipped with a warning.

    Raises:
        ObjectSeekerError: An image or a target does not follow the protocol.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = label_names(dataset.metadata)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(len(dataset)):
        try:
            image, target, metadata = dataset[index]
            boxes = as_numpy(target.boxes).astype(np.float64).reshape(-1, 4).tolist()
            labels = as_numpy(target.labels).astype(np.int64).reshape(-1).tolist()
            datum = metadata["id"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ObjectSeekerError(
                f"item {index} of the MAITE dataset must be an image, a target with boxes and labels, and metadata "
                f"with an id: {type(error).__name__}: {error}"
            ) from None
        pixels = from_maite_image(image)
        name = f"{index:06d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', str(datum))[:MAX_ID_LENGTH]}.png"
        store_image(pixels, folder / name)
        size = {"width": pixels.shape[1], "height": pixels.shape[0]}
        images.append({"id": datum, "file_name": name, **size})
        for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True):
            names.setdefault(label, str(label))
            annotations.append({"image_id": datum, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    categories = [{"id": label, "name": name} for label, name in sorted(names.items())]
    file = folder / ANNOTATIONS
    save_json(file, {"images": images, "annotations": annotations, "categories": categories})
    return read(f"coco:{file}:{folder}", f"{file}:{folder}", SkipLog())


def import_maite_dataset(spec: str) -> Any:
    """Import the dataset, or the function that returns one, of python:MODULE:NAME; executes its code."""
    module, dataset = import_named(spec.removeprefix(PYTHON))
    if not is_maite_dataset(dataset) and callable(dataset):
        dataset = dataset()
    if not is_maite_dataset(dataset):
        raise ObjectSeekerError(
            f"{spec} is not a MAITE dataset: got {type(dataset).__name__} of {module.__name__}. It needs a length, an "
            "index and metadata with an id, or must be a function that returns such an object."
        )
    return dataset


def store_image(image: Image, file: Path) -> None:
    """Write an image as a lossless file, unless the file has its pixels already."""
    if not file.exists() or not np.array_equal(np.asarray(PIL.Image.open(file)), image):
        PIL.Image.fromarray(image).save(file)
