"""A plain folder of images (or one image), on disk or at an address: no ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from objectseeker.core.observation import FrameIndex
from objectseeker.datasets.dataset import Annotation, Dataset, ImageRecord, build_dataset, stream_dataset
from objectseeker.datasets.parsing import SkipLog
from objectseeker.datasets.sequences import link_by_overlap, natural_sort_key, number_frames
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import looks_like_image, no_image_in, walk_images
from objectseeker.files.remote import Url, is_folder, is_url, walk_url

# Any dataset as sequences: the images of each folder in the order of their names, numbers counted as numbers.
#
# Objects are linked by overlap (`sequences.link`), since other formats have no tracks.


def as_sequences(spec: str, dataset: Dataset, skip_log: SkipLog) -> Dataset:
    """`dataset`, whose images are frames."""
    folders: dict[str, list[ImageRecord]] = {}
    for entry in sorted(dataset.entries, key=lambda entry: natural_sort_key(entry.id)):
        boxes = [
            Annotation(dataset.names[label], tuple(xyxy), f"image {entry.id}", ignore, crowd)
            for xyxy, label, ignore, crowd in zip(
                entry.truth.xyxy.tolist(),
                np.asarray(entry.truth.label).tolist(),
                entry.ignore.tolist(),
                entry.crowd.tolist(),
                strict=True,
            )
        ]
        records = folders.setdefault(PurePosixPath(entry.id).parent.as_posix(), [])
        records.append(ImageRecord(entry.id, entry.path, entry.size, boxes))
    own = PurePosixPath(dataset.spec).name
    names = {folder: own if folder == "." and own not in folders else folder for folder in folders}
    linked = [
        record
        for folder, records in folders.items()
        for record in link_by_overlap(list(_framed(names[folder], records)))
    ]
    return replace(build_dataset(spec, dataset.names, linked, skip_log), warnings=dataset.warnings)


def _framed(sequence: str, records: Sequence[ImageRecord]) -> Iterator[ImageRecord]:
    """The images of a folder with their numbers."""
    places = [
        record.path.absolute() if isinstance(record.path, Path) else PurePosixPath(record.id) for record in records
    ]
    for number, record in zip(number_frames(places), records, strict=True):
        yield replace(record, frame=FrameIndex(sequence, number))


Listed = tuple[str, Path | Url, int | None]


def read(spec: str, path_spec: str, skip_log: SkipLog) -> Dataset:
    """Every image below the folder; its id is its path relative to the folder."""
    if is_url(path_spec):
        url = Url(path_spec)
        alone: Listed | None = None if is_folder(path_spec) else (url.name, url, None)
        walk: Callable[[SkipLog], Iterator[Listed]] = partial(_at_address, path_spec)
    else:
        root = Path(path_spec).expanduser()
        alone = None if root.is_dir() else (root.name, root, root.stat().st_size)
        walk = partial(_on_disk, root)
    if alone is not None:
        return stream_dataset(spec, lambda _: iter([alone]), skip_log)
    if next(walk(SkipLog(strict=skip_log.strict)), None) is None:
        raise ObjectSeekerError(no_image_in(path_spec))
    return stream_dataset(spec, walk, skip_log)


def _on_disk(root: Path, skip_log: SkipLog) -> Iterator[Listed]:
    start = len(str(root / "x")) - 1
    for path in filter(skip_log.check_storable, walk_images(root)):
        yield path.as_posix()[start:], path, path.stat().st_size


def _at_address(url: str, skip_log: SkipLog) -> Iterator[Listed]:
    for below, address, size in walk_url(url):
        hidden = any(part.startswith(".") for part in below.split("/"))
        if looks_like_image(below) and not hidden and skip_log.check_storable(Url(address)):
            yield below, Url(address), size
