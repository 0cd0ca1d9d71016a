"""Runs of made-up boxes, written without a detector, and ways to damage what was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from objectseeker import Detections, Halves
from objectseeker.datasets import DatasetImage
from objectseeker.runs.engines import boxes_to_store
from objectseeker.runs.manifest import Manifest, ObservationSettings
from objectseeker.runs.observe import job_of
from objectseeker.runs.tables import StoredBoxes
from objectseeker.runs.writer import open_writer

DETECTOR_NAMES = ("dog", "cat", "unicorn", "kitten")
DATASET_NAMES = ("cat", "horse", "dog")
SETTINGS = ObservationSettings(Halves(2), base_floor=0.0, mask_floor=0.0)


def manifest(sizes=((20, 10),), **changes):
    truth = Detections([[1, 1, 4.1, 5], [2, 2, 6, 7.3], [0, 0, 3, 3]], np.ones(3), [0, 1, 2])
    ignore, crowd = np.array([False, False, True]), np.array([False, False, True])
    images = tuple(
        DatasetImage(f"image {number}", Path(f"/images/{number}.jpg"), size, truth, ignore, crowd)
        for number, size in enumerate(sizes)
    )
    made = Manifest(
        detector_fingerprint="toy sha256:00ff",
        detector_spec="onnx:somewhere/toy.onnx",
        detector_options={"class_names": DETECTOR_NAMES},
        detector_names=DETECTOR_NAMES,
        observation_settings=SETTINGS,
        dataset="coco:somewhere",
        dataset_fingerprint="abc",
        dataset_names=DATASET_NAMES,
        limit=None,
        dataset_labels=(2, 0, -1, 0),
        unmatched_classes=("horse",),
        software={"python": "3.11.0", "numpy": "2.0.0"},
        images=images,
    )
    return replace(made, **changes)


def some_views(seed, count, most=5):
    rng = np.random.default_rng(seed)
    views = []
    for _ in range(count):
        boxes = rng.integers(0, most + 1)
        corner = rng.normal(0, 10, (boxes, 2))
        size = rng.exponential(5, (boxes, 2))
        views.append(
            Detections(
                np.hstack([corner, corner + size]), rng.random(boxes), rng.integers(0, len(DETECTOR_NAMES), boxes)
            )
        )
    return views


def write_boxes(writer, index, base, masked):
    made = writer.run.manifest
    masks = made.observation_settings.masks.masks(*made.images[index].size)
    writer.add(boxes_to_store(job_of(made), index, [base, *masked], masks))


def write_broken(writer, index, reason):
    writer.add(StoredBoxes.unreadable_image(index, reason))


def store(folder, made, seed=0):
    """A finished run of made-up views; gives the views of each image."""
    every = []
    with open_writer(folder, made) as run:
        for index, entry in enumerate(made.images):
            views = some_views(seed + index, made.observation_settings.masks.forward_passes(*entry.size))
            write_boxes(run, index, views[0], views[1:])
            every.append(views)
    return every


def truncate(part):
    part.write_bytes(part.read_bytes()[:-7])


def flip_a_bit(part):
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 4
    part.write_bytes(content)
