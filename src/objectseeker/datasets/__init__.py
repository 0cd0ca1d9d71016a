"""Datasets: images with ground truth, one module per format.

A new format is a module with `read(spec, path_spec, skip_log) -> Dataset` and a line in `READERS`.
"""

from __future__ import annotations

from pathlib import Path

from objectseeker.datasets import boxes_json, coco, cvat, folder, image_list, kitti, mot, voc, yolo
from objectseeker.datasets.class_matching import ClassMatch, match_classes
from objectseeker.datasets.dataset import Dataset, DatasetImage
from objectseeker.datasets.folder import as_sequences
from objectseeker.datasets.parsing import SkipLog
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import is_url
from objectseeker.text import shown, writable

__all__ = ["ClassMatch", "Dataset", "DatasetImage", "match_classes", "open_dataset"]

READERS = {
    "coco": coco.read,
    "voc": voc.read,
    "kitti": kitti.read,
    "yolo": yolo.read,
    "list": image_list.read,
    "mot": mot.read,
    "cvat": cvat.read,
    "boxes": boxes_json.read,
}
FRAMES = "frames"
FORMS = (
    "coco:ANNOTATIONS.json:IMAGES, voc:VOCDIR:SPLIT or voc:DIR, kitti:DIR, yolo:DIR or yolo:DATA.yaml (with :SPLIT for "
    "one split), list:FILE.txt or list:FILE.parquet, or a folder of images (a path or an address "
    "such as s3://bucket/folder); sequences: mot:DIR, cvat:ANNOTATIONS.xml:IMAGES, boxes:DIR, or frames: before any "
    "other"
)


def open_dataset(spec: str | Path, *, strict: bool = False, allow_outside_paths: bool = False) -> Dataset:
    """The dataset that `spec` names, in one of `FORMS`.

    All annotation is read and checked now; of the images only their presence (and, where a format does not state
    it, their size). A plain folder or list has no ground truth. A box that cannot be used is skipped, and the
    warnings say how many; `strict` refuses it instead. An annotation file may name images in the folder given with
    it; `outside` allows others.
    """
    text = str(spec)
    skip_log = SkipLog(strict=strict, allow_outside_paths=allow_outside_paths)
    kind, _, path_spec = text.partition(":")
    if not writable(text):  # a run could not write down where it came from
        raise ObjectSeekerError(f"the dataset's path {shown(text)} is not UTF-8; rename its folder")
    try:
        if path_spec and kind == FRAMES:
            return as_sequences(
                text, open_dataset(path_spec, strict=strict, allow_outside_paths=allow_outside_paths), skip_log
            )
        if path_spec and kind in READERS:
            return READERS[kind](text, path_spec, skip_log)
        if is_url(text):
            return folder.read(text, text, skip_log)
        if text and Path(text).expanduser().exists():
            return folder.read(text, text, skip_log)
    except (OSError, RuntimeError) as error:  # no permission, a name too long, an unknown ~user
        reason = getattr(error, "strerror", None) or error
        raise ObjectSeekerError(f"cannot open the dataset {text!r}: {reason}") from None
    raise ObjectSeekerError(f"no dataset at {text!r}; give {FORMS}")
