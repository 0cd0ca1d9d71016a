"""Any data set as sequences: the images of each folder in the order of their names, numbers counted as numbers.

Objects are linked by overlap (`sequences.link`), since other formats have no tracks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from objectseeker.core.observation import Frame
from objectseeker.datasets.dataset import Box, Dataset, Record, build
from objectseeker.datasets.notes import Notes
from objectseeker.datasets.sequences import link, natural, numbered


def as_sequences(spec: str, dataset: Dataset, notes: Notes) -> Dataset:
    """`dataset`, whose images are frames."""
    folders: dict[str, list[Record]] = {}
    for entry in sorted(dataset.entries, key=lambda entry: natural(entry.id)):
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
        records = folders.setdefault(PurePosixPath(entry.id).parent.as_posix(), [])
        records.append(Record(entry.id, entry.path, entry.size, boxes))
    own = PurePosixPath(dataset.spec).name
    names = {folder: own if folder == "." and own not in folders else folder for folder in folders}
    linked = [record for folder, records in folders.items() for record in link(list(_framed(names[folder], records)))]
    return replace(build(spec, dataset.names, linked, notes), warnings=dataset.warnings)


def _framed(sequence: str, records: Sequence[Record]) -> Iterator[Record]:
    """The images of a folder with their numbers."""
    places = [
        record.path.absolute() if isinstance(record.path, Path) else PurePosixPath(record.id) for record in records
    ]
    for number, record in zip(numbered(places), records, strict=True):
        yield replace(record, frame=Frame(sequence, number))
