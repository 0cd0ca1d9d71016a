"""Datasets: images with ground truth, in many formats.

A new format is a function `read(spec, path_spec, skip_log) -> Dataset` and a line in `READERS`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from objectseeker.core.class_matching import ClassMatch, match_classes
from objectseeker.datasets import coco, kitti, tracking, unlabeled, voc, yolo
from objectseeker.datasets.dataset import Dataset, DatasetImage
from objectseeker.datasets.parsing import SkipLog
from objectseeker.datasets.sequences import as_sequences
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.remote import is_url
from objectseeker.text import is_utf8, quote

__all__ = ["ClassMatch", "Dataset", "DatasetImage", "match_classes", "open_dataset"]

READERS = {
    "coco": coco.read,
    "voc": voc.read,
    "kitti": kitti.read,
    "yolo": yolo.read,
    "list": unlabeled.read_list,
    "mot": tracking.read_mot,
    "cvat": tracking.read_cvat,
    "boxes": tracking.read_boxes,
}
FRAMES = "frames"
FORMS = (
    "coco:ANNOTATIONS.json:IMAGES or coco:ROOT, voc:VOCDIR:SPLIT or voc:DIR, kitti:DIR, yolo:DIR or yolo:DATA.yaml "
    "(with :SPLIT for one split), list:FILE.txt or list:FILE.parquet, or a folder of images (a path or an address "
    "such as s3://bucket/folder); sequences: mot:DIR, cvat:ANNOTATIONS.xml:IMAGES, boxes:DIR, or frames: before any "
    "other"
)


ANNOTATED = {  # what a folder of annotated images holds, and how to name it
    "annotations": "coco:{}",
    "data.yaml": "yolo:{}",
    "training/label_2": "kitti:{}",
    "ImageSets": "voc:{}:SPLIT",
}


ANNOTATION_FILES = {  # by their suffix, how to name them
    ".json": "coco:{}:IMAGES",
    ".yaml": "yolo:{}",
    ".txt": "list:{}",
    ".parquet": "list:{}",
    ".xml": "cvat:{}:IMAGES, or its folder as voc:DIR",
}


def open_dataset(spec: str | Path, *, strict: bool = False, allow_outside_paths: bool = False) -> Dataset:
    """Open a dataset: read and check all annotations, and find the images without decoding them.

    Args:
        spec: Format and paths, such as `coco:ANNOTATIONS.json:IMAGES`, `coco:ROOT:val2017`, `voc:VOCDIR:val`,
            `yolo:DIR`, `kitti:DIR`, `list:FILE.txt` or `mot:DIR`; or a folder of images, without ground truth.
        strict: Raise an error for a box or file that cannot be used, instead of skipping it with a warning.
        allow_outside_paths: Let an annotation file name images outside the image folder.

    Returns:
        The dataset. Its `warnings` count what was skipped, and name the first of each kind.

    Raises:
        ObjectSeekerError: There is no dataset, or a file is damaged, contradicts itself or names a missing image.

    Example:
        >>> from importlib.resources import files
        >>> root = files("objectseeker.demo") / "samples"
        >>> dataset = open_dataset(f"coco:{root / 'annotations.json'}:{root}")
        >>> len(dataset), dataset.objects
        (6, 75)
    """
    text = str(spec)
    kind, _, path_spec = text.partition(":")
    if not is_utf8(text):  # a run could not record where it came from
        raise ObjectSeekerError(f"the dataset's path {quote(text)} is not UTF-8. Rename its folder.")
    skip_log = SkipLog(strict=strict, allow_outside_paths=allow_outside_paths)
    try:
        if path_spec and kind == FRAMES:
            images = open_dataset(path_spec, strict=strict, allow_outside_paths=allow_outside_paths)
            return as_sequences(text, images, skip_log)
        if path_spec and kind in READERS:
            return READERS[kind](text, path_spec, skip_log)
        if not is_url(text) and text.endswith(tuple(ANNOTATION_FILES)) and Path(text).expanduser().is_file():
            form = ANNOTATION_FILES[Path(text).suffix].format(text)
            raise ObjectSeekerError(f"{text!r} is a file of annotations, not an image. Name it as {form}.")
        if is_url(text) or (text and Path(text).expanduser().exists()):
            dataset = unlabeled.read_folder(text, text, skip_log)
            unread = (
                f"{text} has {name}, which is not read: name it as {form.format(text)} to use its annotations"
                for name, form in ANNOTATED.items()
                if not is_url(text) and (Path(text).expanduser() / name).exists()
            )
            return replace(dataset, warnings=(*dataset.warnings, *unread))
    except (OSError, RuntimeError) as error:  # no permission, a name too long, an unknown ~user
        reason = getattr(error, "strerror", None) or error
        raise ObjectSeekerError(f"cannot open the dataset {text!r}: {reason}. Check its path.") from None
    raise ObjectSeekerError(f"there is no dataset {text!r}. Give {FORMS}.")
