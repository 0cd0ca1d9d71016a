"""run.json and images.parquet: what was observed, with what, and the ground truth.

The files hold no time of day and nothing that depends on how the run went: the same job writes the same bytes. The
first line of run.json is the SHA-256 of everything below it, which is also the run's identity; one of its settings is
the SHA-256 of images.parquet (see `listing`). Up to format 2 the images were listed in run.json itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import MaskChoice
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.listing import ImageRecord, Listing, Written, hash_of

__all__ = ["ImageRecord", "Manifest", "decode", "encode", "setting_differences", "software_differences"]

FORMAT = 3  # 1 had half masks only, and did not say so; 2 listed the images in run.json, and had a part for each
LISTING = "images.parquet"
FIRST_LINES = re.compile(rb'\{\n"sha256": "([0-9a-f]{64})",\n')

# What must be the same for a run to go on: everything else follows from these, or is only for the reader.
SETTINGS = {
    "detector": "detector",
    "detector_names": "detector classes",
    "lines": "lines",
    "masks": "masks",
    "fill": "fill",
    "batch": "batch",
    "base_floor": "base floor",
    "mask_floor": "mask floor",
    "dataset_identity": "dataset",
    "limit": "limit",
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Manifest:
    """Everything about a run but its boxes.

    Boxes scored below `base_floor` (untouched image) or `mask_floor` (masked views) are not stored, so no threshold
    below them may be used. `batch` is None for a detector that makes its own batches. `limit` is how many images were
    taken, None for all. `to_dataset` translates detector labels, -1 for none, and is None where the dataset has no
    classes; `excluded` are the dataset classes the detector does not know. The boxes of `images_per_part` images are
    one file.
    """

    detector: str
    detector_names: tuple[str, ...]
    lines: int
    masks: MaskChoice
    fill: int
    batch: int | None
    base_floor: float
    mask_floor: float
    dataset: str
    dataset_identity: str
    dataset_names: tuple[str, ...]
    limit: int | None
    to_dataset: tuple[int, ...] | None
    excluded: tuple[str, ...]
    software: dict[str, str]
    images: Sequence[ImageRecord]
    images_per_part: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The class names behind the labels of the run's images."""
        return self.dataset_names or self.detector_names

    def ids(self) -> Iterator[str]:
        """The ids of all images, in order."""
        return self.images.ids() if isinstance(self.images, Listing) else (image.id for image in self.images)

    @property
    def excluded_labels(self) -> tuple[int, ...]:
        return tuple(self.dataset_names.index(name) for name in self.excluded)


def encode(manifest: Manifest, listing: Written) -> tuple[bytes, str]:
    """The bytes of run.json, one line per setting, and the run's identity."""
    settings = {"format": FORMAT} | {field.name: getattr(manifest, field.name) for field in fields(Manifest)}
    settings |= {"images": listing.images, "images_sha256": listing.sha256}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in settings.items())
    body = (",\n".join(lines) + "\n}\n").encode()
    identity = hashlib.sha256(body).hexdigest()
    return f'{{\n"sha256": "{identity}",\n'.encode() + body, identity


def decode(content: bytes, source: Path) -> tuple[Manifest, str]:
    """What `encode` wrote into the file `source`, and the listing next to it; anything else is refused."""
    start = FIRST_LINES.match(content)
    if start is None or hashlib.sha256(content[start.end() :]).hexdigest() != start[1].decode():
        raise _damaged(source)
    found = json.loads(content)
    identity = found.pop("sha256")
    written_as = found.pop("format")
    if written_as not in range(1, FORMAT + 1):
        raise ObjectSeekerError(
            f"{source} has format {written_as}, this objectseeker reads format {FORMAT}: use the version that wrote it"
        )
    if written_as == 1:
        found["masks"] = "halves"
    if written_as < 3:
        found["images"] = tuple(_image_from_json(image) for image in found["images"])
    else:
        found["images"] = _listing(source.with_name(LISTING), found.pop("images_sha256"))
    for name in ("detector_names", "dataset_names", "excluded"):
        found[name] = tuple(found[name])
    found["to_dataset"] = None if found["to_dataset"] is None else tuple(found["to_dataset"])
    return Manifest(**found), identity


def setting_differences(old: Manifest, new: Manifest) -> list[str]:
    """What makes `new` another run than `old`, each in a few words."""
    pairs = ((name, getattr(old, field), getattr(new, field)) for field, name in SETTINGS.items())
    return [f"{name} was {_show(before)}, now {_show(now)}" for name, before, now in pairs if before != now]


def software_differences(old: Manifest, new: Manifest) -> list[str]:
    """Packages in another version than when the run began: they may round differently, or write other bytes.

    A package that only one side has loaded took no part in it. Python itself computes nothing here.
    """
    shared = sorted((old.software.keys() & new.software.keys()) - {"python"})
    pairs = ((name, old.software[name], new.software[name]) for name in shared)
    return [f"{name} was {before}, now {now}" for name, before, now in pairs if before != now]


def _show(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else "none" if value is None else str(value)


def _listing(file: Path, sha256: str) -> Listing:
    try:
        if hash_of(file) == sha256:
            return Listing(file)
    except (OSError, pa.ArrowException):
        pass
    raise _damaged(file)


def _damaged(file: Path) -> ObjectSeekerError:
    return ObjectSeekerError(
        f"{file} is damaged or was edited, its checksum does not fit: restore it or observe into a new folder"
    )


def _image_from_json(found: dict[str, Any]) -> ImageRecord:
    size = None if found["width"] is None else (found["width"], found["height"])
    truth = Detections(found["truth"], np.ones(len(found["label"])), found["label"])
    ignore, crowd = (np.array(found[name], dtype=np.bool_) for name in ("ignore", "crowd"))
    for flags in (ignore, crowd):
        flags.setflags(write=False)
    return ImageRecord(found["id"], Path(found["path"]), size, truth, ignore, crowd)
