"""Training data from dataset folders: VOC, COCO and every other format of `objectseeker.datasets`.

    pack, names = read_folder("voc:VOCdevkit:trainval", longest_side=640, processes=8)
    pack, names = read_folder("coco:instances_train2017.json:train2017", longest_side=640, processes=8)

Images are shrunk once, here: training never needs them larger than a little above the size it trains at.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt
from PIL import Image

from objectseeker.datasets import DatasetImage, match_classes, open_dataset
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.errors import ObjectSeekerError
from train_builtin.packs import CROWD, DIFFICULT, NORMAL, Pack

FORMATS: dict[str, dict[str, int]] = {  # how Pillow is to write them
    "jpeg": {"subsampling": 0},
    "webp": {"method": 4},
    "avif": {"speed": 9, "max_threads": 1},
}


@dataclass(frozen=True, slots=True)
class Storage:
    """Image compression: a name of FORMATS, and the format's quality value."""

    form: str
    quality: int


JPEG = Storage("jpeg", 95)


def read_folder(
    spec: str,
    *,
    longest_side: int,
    processes: int,
    classes: Sequence[str] | None = VOC_20,
    limit: int | None = None,
    storage: Storage = JPEG,
) -> tuple[Pack, tuple[str, ...]]:
    """Read at most `limit` images of a dataset, none longer than `longest_side`, and its class names.

    Labels are positions in `classes`; the dataset's classes are matched to them by name, with the usual aliases, and
    objects of classes without a match are omitted (their images stay: they show what is none of the classes). With
    `classes` None labels are the dataset's own. VOC's difficult objects and COCO's crowds are flagged as in any pack.
    """
    try:
        dataset = open_dataset(spec)
        if not dataset.has_ground_truth:
            raise ObjectSeekerError(f"{spec} has no annotations to train with")
        names = tuple(dataset.names if classes is None else classes)
        labels = label_of_each(dataset.names, names)
        entries = [entry for _, entry in zip(range(limit or len(dataset)), dataset.images, strict=False)]
        with get_context("fork").Pool(processes) as pool:
            shrunk = pool.map(partial(shrink, longest_side=longest_side, storage=storage), entries, chunksize=16)
    except ObjectSeekerError as error:
        raise SystemExit(str(error)) from None
    pack = Pack(
        files=[file for file, _, _ in shrunk],
        names=[entry.id for entry in entries],
        sizes=np.array([size for _, size, _ in shrunk], np.int64),
        boxes=[rows_of(entry, labels, scale) for entry, (_, _, scale) in zip(entries, shrunk, strict=True)],
    )
    return pack, names


def label_of_each(dataset_names: Sequence[str], classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """Map every label of the dataset to its index in `classes`, or -1."""
    match = match_classes(dataset_names, classes)
    labels = np.full(len(dataset_names), -1)
    known = np.flatnonzero(match.dataset_labels >= 0)
    labels[match.dataset_labels[known]] = known
    return labels


def rows_of(entry: DatasetImage, labels: npt.NDArray[np.int64], scale: tuple[float, float]) -> npt.NDArray[np.float32]:
    """Return an image's objects as rows of a pack: label, x1, y1, x2, y2, flag."""
    flag = np.where(entry.crowd, CROWD, np.where(entry.ignore, DIFFICULT, NORMAL))
    label = labels[entry.ground_truth.label]
    rows = np.column_stack([label, entry.ground_truth.xyxy * np.tile(scale, 2), flag])
    return rows[label >= 0].astype(np.float32)


def shrink(
    entry: DatasetImage, longest_side: int, storage: Storage
) -> tuple[bytes, tuple[int, int], tuple[float, float]]:
    """Return an image's file, its width and height, and the factors by which they were reduced.

    All images are stored anew, and upright: what a file may hold besides (a turned image, transparency, an
    end that is missing) is dealt with here, once.
    """
    image = Image.fromarray(entry.load())
    factor = min(1.0, longest_side / max(image.size))
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    small = image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    small.save(buffer, storage.form, quality=storage.quality, **FORMATS[storage.form])
    return buffer.getvalue(), size, (size[0] / image.width, size[1] / image.height)
