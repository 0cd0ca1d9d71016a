"""Any data set as sequences: the images of each folder in the order of their names, numbers counted as numbers.

Objects are linked by overlap (`sequences.link`), since other formats have no tracks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from objectseeker.core.observation import Frame
from objectseeker.datasets.dataset import Box, Dataset, Record, build
from objectseeker.datasets.notes import Notes
from objectseeker.datasets.sequences import link, natural


def as_sequences(spec: str, dataset: Dataset, notes: Notes) -> Dataset:
    """`dataset`, whose images are frames."""
    folders: dict[str, list[Record]] = {}
    for entry in sorted(dataset.entries, key=lambda entry: natural(entry.id)):
        folder = PurePosixPath(entry.id).parent.as_posix()
        folder = PurePosixPath(dataset.spec).name if folder == "." else folder
        boxes = [
            Box(dataset.names[label], tuple(xyxy), f"image {entry.id}", ignore, crowd)
            for xyxy, label, ignore, crowd in zip(
                entry.truth.xyxy.tolist(),
                np.asarray(entry.truth.label).tolist(),
                entry.ignore.tolist(),
                entry.crowd.tolist(),
                strict=True,
            )
        ]
        records = folders.setdefault(folder, [])
        records.append(Record(entry.id, entry.path, entry.size, boxes, Frame(folder, len(records))))
    linked = [record for records in folders.values() for record in link(records)]
    return replace(build(spec, dataset.names, linked, notes), warnings=dataset.warnings)
