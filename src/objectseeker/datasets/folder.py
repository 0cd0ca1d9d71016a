"""A plain folder of images (or one image), on disk or at an address: no ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from objectseeker.core.observation import Frame
from objectseeker.datasets.dataset import Box, Dataset, Record, build, stream
from objectseeker.datasets.sequences import link, natural, numbered
from objectseeker.datasets.skip_log import Notes
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image, no_image_in, walk_images
from objectseeker.files.remote import Url, is_folder, is_url, walk_url

# Any data set as sequences: the images of each folder in the order of their names, numbers counted as numbers.
#
# Objects are linked by overlap (`sequences.link`), since other formats have no tracks.


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


Listed = tuple[str, Path | Url, int | None]


def read(spec: str, rest: str, notes: Notes) -> Dataset:
    """Every image below the folder; its id is its path relative to the folder."""
    if is_url(rest):
        url = Url(rest)
        alone: Listed | None = None if is_folder(rest) else (url.name, url, None)
        walk: Callable[[Notes], Iterator[Listed]] = partial(_at_address, rest)
    else:
        root = Path(rest).expanduser()
        alone = None if root.is_dir() else (root.name, root, root.stat().st_size)
        walk = partial(_on_disk, root)
    if alone is not None:
        return stream(spec, lambda _: iter([alone]), notes)
    if next(walk(Notes(strict=notes.strict)), None) is None:
        raise ObjectSeekerError(no_image_in(rest))
    return stream(spec, walk, notes)


def _on_disk(root: Path, notes: Notes) -> Iterator[Listed]:
    start = len(str(root / "x")) - 1
    for path in filter(notes.storable, walk_images(root)):
        yield path.as_posix()[start:], path, path.stat().st_size


def _at_address(url: str, notes: Notes) -> Iterator[Listed]:
    for below, address, size in walk_url(url):
        hidden = any(part.startswith(".") for part in below.split("/"))
        if looks_like_image(below) and not hidden and notes.storable(Url(address)):
            yield below, Url(address), size
