"""Whether the images are still those that were observed, without reading all of them again.

With its boxes a run keeps a hash of every image's file. A file that changed since its boxes were written, or shortly
before, by what the file system says, is read again and must have that hash; so must a few others, spread over the run,
in case a whole folder took the place of another. Images at addresses are not asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path

from objectseeker.datasets import DatasetImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import ImageUnavailableError, hash_of
from objectseeker.files.remote import Url
from objectseeker.runs.manifest import Manifest, setting_differences, software_differences
from objectseeker.runs.run import Run
from objectseeker.text import readable

RECENT_SECONDS = 3600.0  # seconds: for the time between reading and writing, and for clocks that disagree
SPOT_CHECKS = 32  # images that are read again in any case


def first_changed_image(run: Run, entries: Iterable[DatasetImage]) -> Path | None:
    """The first image that is not what was observed; `entries` are the images of the run, from where they lie now."""
    if not run.parts:
        return None
    step = max(len(run.manifest.images) // SPOT_CHECKS, 1)
    size = run.manifest.images_per_part
    numbered = enumerate(islice(entries, len(run.manifest.images)))
    for number, part in groupby(numbered, key=lambda pair: pair[0] // size):
        if number not in run.parts.whole and number not in run.parts.begun:
            continue
        written = {file: file.stat().st_mtime for file in run.parts.files_of(number)}
        suspects = [
            (index, path)
            for index, path, file in _finished(run, number, part)
            if index % step == 0 or _changed(path) > written[file] - RECENT_SECONDS
        ]
        hashes = run.hashes(number) if suspects else {}
        for index, path in suspects:
            if _differs(path, hashes[index]):
                return path
    return None


def _finished(run: Run, number: int, part: Iterable[tuple[int, DatasetImage]]) -> Iterator[tuple[int, Path, Path]]:
    """The finished images of a part that lie on a disk, each with the file that its boxes are in."""
    finished = set(run.parts.images_of(number))
    for index, entry in part:
        if index in finished and not isinstance(entry.path, Url):
            yield index, entry.path, run.parts.file_of(number, index)


def _changed(path: Path) -> float:
    """When the file was last written, renamed or put in place of another; 0 if it is not there to be asked."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def _differs(path: Path, known: str) -> bool:
    try:
        return bool(known) and hash_of(path) != known
    except ImageUnavailableError:  # what is not there is not mixed with anything
        return False


# Whether a run may go on with what is asked for, and what it becomes.


def resumed_manifest(run: Run, asked: Manifest) -> Manifest:
    """The manifest with which `run` goes on as `asked`: its own, but for more images and more trust.

    Anything that would mix two detectors, two datasets or two ways of observing in one run is refused.
    """
    have, wanted = len(run.manifest.images), len(asked.images)
    grows = wanted > have
    computes = grows or not run.complete
    differences = [*setting_differences(run.manifest, asked), *_of_dataset(run, asked)]
    if computes:
        differences += software_differences(run.manifest, asked)
    if differences:
        raise ObjectSeekerError(
            f"{run.folder} holds another run ({'; '.join(differences)}): use what it was begun with, or another folder"
        )
    if wanted < have:
        raise ObjectSeekerError(
            f"{run.folder} is a run of {have:,} images, and {wanted:,} are fewer: a run can only grow, so ask for as "
            "many or more, or use another folder"
        )
    if (path := first_changed_image(run, asked.images)) is not None:
        raise ObjectSeekerError(
            f"{readable(path)} is another image than the one that was observed into {run.folder}: put that one back, "
            "or use another folder"
        )
    manifest = run.manifest
    unverified = asked.detector_unverified or manifest.detector_unverified
    if unverified and computes and run.finished:
        if not asked.detector_trusted:
            raise ObjectSeekerError(
                f"{run.folder} has {run.finished:,} finished images, and {unverified}; if this is the detector that "
                "they were observed with, say so with --trust-detector, else use another folder"
            )
        manifest = replace(manifest, detector_trusted=True)
    return replace(manifest, limit=asked.limit, images=asked.images) if grows else manifest


def _of_dataset(run: Run, asked: Manifest) -> Iterator[str]:
    """How the dataset differs from the one that was observed, as far as that can be told."""
    old = run.manifest
    if old.dataset_identity == asked.dataset_identity:
        return
    if old.dataset_names != asked.dataset_names:
        yield f"the dataset had {len(old.dataset_names)} classes, now {len(asked.dataset_names)} or others"
        return
    for number, (before, now) in enumerate(zip(old.images, asked.images, strict=False)):
        if before.id != now.id:
            yield f"image {number} of the dataset was {readable(before.id)}, now {readable(now.id)}"
            return
        if not _same_objects(before, now):
            yield f"the dataset has other objects for image {readable(before.id)}"
            return
    path = first_changed_image(run, asked.images)
    if path is not None:
        yield f"{readable(path)} is another image now"
    elif old.limit is None and len(asked.images) != len(old.images):
        yield f"the dataset had {len(old.images):,} images, now {len(asked.images):,}"
    else:
        yield "annotations or image files of the dataset have changed, or there are others"


def _same_objects(before: DatasetImage, now: DatasetImage) -> bool:
    return (
        before.truth == now.truth
        and before.ignore.tolist() == now.ignore.tolist()
        and before.crowd.tolist() == now.crowd.tolist()
        and before.size == now.size
    )
