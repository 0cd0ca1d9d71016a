"""The images that `objectseeker detect` is given, and the categories its results are listed under."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectseeker.core.masks import Image
from objectseeker.datasets import READERS, Dataset, match_classes
from objectseeker.datasets.dataset import load_sized
from objectseeker.datasets.parsing import read_bytes
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import expand_image_paths
from objectseeker.files.remote import Url, is_url

Id = int | str


@dataclass(frozen=True, slots=True)
class Source:
    """One image: its id and name in the results, where it lies, and its size where an annotation states it."""

    id: Id
    name: str
    path: Path | Url
    size: tuple[int, int] | None = None

    def load(self) -> Image:
        return load_sized(self.path, self.size)


@dataclass(frozen=True, slots=True)
class Categories:
    """Under which category the boxes of a detector's label are listed.

    With `to_category` (by detector label, -1 for none) the categories are a dataset's; else they are the detector's
    own classes, numbered from 1, and a label without a name is called by its number.
    """

    detector_names: tuple[str, ...]
    ids: tuple[Id, ...]
    names: tuple[str, ...]
    to_category: tuple[int, ...] | None = None

    @classmethod
    def of_detector(cls, names: Sequence[str]) -> Categories:
        return cls(tuple(names), tuple(range(1, len(names) + 1)), tuple(names))

    def detector_name(self, label: int) -> str:
        return self.detector_names[label] if 0 <= label < len(self.detector_names) else str(label)

    def of(self, label: int) -> tuple[Id, str] | None:
        """Id and name; None for a class that the dataset does not have."""
        if self.to_category is None:
            return label + 1, self.detector_name(label)
        place = self.to_category[label] if 0 <= label < len(self.to_category) else -1
        return None if place < 0 else (self.ids[place], self.names[place])

    def listed(self, labels: Iterable[int]) -> list[dict[str, Any]]:
        """All categories in COCO's form; those of labels without a name if they are among `labels`."""
        listed = list(zip(self.ids, self.names, strict=True))
        if self.to_category is None:
            listed += [(label + 1, str(label)) for label in sorted(labels) if not 0 <= label < len(self.names)]
        return [{"id": identity, "name": name} for identity, name in listed]


def is_dataset(given: str) -> bool:
    """Whether an argument names a dataset, not an image or a folder on disk."""
    kind, colon, rest = given.partition(":")
    return not os.path.exists(given) and (is_url(given) or bool(colon and rest and kind in READERS))  # noqa: PTH110


def sources_of_files(given: Sequence[Path]) -> list[Source]:
    """The images that files and folders stand for, each once, numbered from 1.

    A name is the path below the folder given, with the folder's own name where several things are given; where that
    is not enough to tell two files apart, as much of their paths as is needed.
    """
    several = len(given) > 1
    parts: dict[Path, int] = {}  # how many parts of its path an image is called by
    for place in given:
        root = Path(os.path.abspath(place))  # noqa: PTH100  # a link is called by its own name, not by its target's
        for found in expand_image_paths(place):
            path = Path(os.path.abspath(found))  # noqa: PTH100
            below = len(path.parts) - len(root.parts)
            parts.setdefault(path, below + several if below else 1)
    names = {path: _last(path, count) for path, count in parts.items()}
    while repeated := {name for name, count in Counter(names.values()).items() if count > 1}:
        for number, (path, name) in enumerate(names.items()):
            if name in repeated:
                parts[path] += 1
                names[path] = _last(path, parts[path]) if parts[path] <= len(path.parts) else f"{name}~{number}"
    return [Source(number, name, path) for number, (path, name) in enumerate(names.items(), 1)]


def _last(path: Path, parts: int) -> str:
    return "/".join(path.parts[-parts:]).encode(errors="backslashreplace").decode()


def sources_of_dataset(data: Dataset) -> tuple[list[Source], tuple[Id, ...]]:
    """The images of a dataset and the ids of its categories: those of a COCO file, else numbered from 1."""
    if not data.spec.startswith("coco:"):
        sources = [Source(number, entry.id, entry.path, entry.size) for number, entry in enumerate(data.images, 1)]
        return sources, tuple(range(1, len(data.names) + 1))
    content = _coco_file(data.spec)
    sources = [
        Source(image["id"], image["file_name"], entry.path, entry.size)
        for image, entry in zip(content["images"], data.images, strict=True)
    ]
    return sources, tuple(category["id"] for category in content["categories"])


def categories_of_dataset(
    data: Dataset, ids: tuple[Id, ...], detector_names: Sequence[str], class_map: Mapping[str, str] | None = None
) -> tuple[Categories, tuple[str, ...]]:
    """The categories of a dataset's results, and sentences for the user on classes that do not match."""
    if not data.has_ground_truth:
        if class_map:
            raise ObjectSeekerError(f"{data.spec} has no classes: leave out --class-map")
        return Categories.of_detector(detector_names), ()
    match = match_classes(data.names, detector_names, class_map=class_map)
    return Categories(tuple(detector_names), ids, data.names, tuple(match.dataset_labels.tolist())), match.warnings


def _coco_file(spec: str) -> dict[str, list[dict[str, Any]]]:
    """The file that a dataset was read from, and checked: a `Dataset` has ids as texts, and none of categories."""
    parts = spec.split(":")[1:]
    files = (Path(":".join(parts[:count])).expanduser() for count in range(1, len(parts)))
    content: dict[str, list[dict[str, Any]]] = json.loads(read_bytes(next(file for file in files if file.is_file())))
    return content
