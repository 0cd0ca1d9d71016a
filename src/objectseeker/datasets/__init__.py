"""Datasets: images with ground truth, one module per format.

A new format is a module with `read(spec, rest) -> Dataset` and a line in `READERS`.
"""

from __future__ import annotations

from pathlib import Path

from objectseeker.datasets import coco, folder, kitti, listed, voc, yolo
from objectseeker.datasets.classes import ClassMatch, match_classes
from objectseeker.datasets.dataset import Dataset, Entry
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import is_url

__all__ = ["ClassMatch", "Dataset", "Entry", "match_classes", "open_dataset"]

READERS = {"coco": coco.read, "voc": voc.read, "kitti": kitti.read, "yolo": yolo.read, "list": listed.read}
FORMS = (
    "coco:ANNOTATIONS.json:IMAGES, voc:VOCDIR:SPLIT, kitti:DIR, yolo:DIR or yolo:DIR:SPLIT, list:FILE.txt or "
    "list:FILE.parquet, or a folder of images (a path or an address such as s3://bucket/folder)"
)


def open_dataset(spec: str | Path) -> Dataset:
    """The dataset that `spec` names, in one of `FORMS`.

    All annotation is read and checked now; of the images only their presence (and, where a format does not state
    it, their size). A plain folder or list has no ground truth.
    """
    text = str(spec)
    kind, _, rest = text.partition(":")
    try:
        if rest and kind in READERS:
            return READERS[kind](text, rest)
        if is_url(text):
            return folder.read(text, text)
        if text and Path(text).expanduser().exists():
            return folder.read(text, text)
    except (OSError, RuntimeError) as error:  # no permission, a name too long, an unknown ~user
        raise ObjectSeekerError(f"cannot open the dataset {text!r}: {error}") from None
    raise ObjectSeekerError(f"no dataset at {text!r}; give {FORMS}")
