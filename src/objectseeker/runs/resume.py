"""Resume a run: may the requested settings continue it, and what it becomes.

A check decides, without reading all images again, whether they are still those that were observed. A run stores a hash
of every image's file with its boxes. A file that changed since its boxes were written, or shortly before, according to
the file system, is read again and must have that hash; so must a few others, spread over the run, in case a whole
folder was replaced. Images at addresses are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import groupby, islice, zip_longest
from pathlib import Path

from objectseeker.datasets import DatasetImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import ImageUnavailableError, hash_of
from objectseeker.files.remote import Url
from objectseeker.runs.manifest import Manifest, ObservationSettings
from objectseeker.runs.run import Run
from objectseeker.text import display_path

RECENT_SECONDS = 3600.0  # for the time between reading and writing, and for clocks that disagree
SPOT_CHECKS = 32  # images that are read again in any case


def resumed_manifest(run: Run, requested: Manifest) -> Manifest:
    """Return the manifest with which `run` resumes: its own, except for more images and more trust.

    Raises:
        ObjectSeekerError: Two detectors, two datasets or two ways of observing would be mixed in one run. The message
            names each difference.
    """
    have, wanted = len(run.manifest.images), len(requested.images)
    grows = wanted > have
    computes = grows or not run.complete
    differences = [*_setting_differences(run.manifest, requested), *_dataset_differences(run, requested)]
    if computes:
        differences += _software_differences(run.manifest, requested)
    if differences:
        raise ObjectSeekerError(
            f"{run.folder} holds another run ({'; '.join(differences)}): use the settings it was started with, or "
            "another folder"
        )
    if wanted < have:
        raise ObjectSeekerError(
            f"{run.folder} is a run of {have:,} images, and {wanted:,} are fewer: a run can only grow, so request as "
            "many or more, or use another folder"
        )
    if (path := first_changed_image(run, requested.images)) is not None:
        raise ObjectSeekerError(
            f"{display_path(path)} is another image than the one that was observed into {run.folder}: restore that "
            "one, or use another folder"
        )
    manifest = run.manifest
    unverified = requested.unverified_reason or manifest.unverified_reason
    if unverified and computes and run.finished:
        if not requested.detector_trusted:
            raise ObjectSeekerError(
                f"{run.folder} has {run.finished:,} finished images, and {unverified}; if this is the detector that "
                "they were observed with, confirm it with --trust-detector, else use another folder"
            )
        manifest = replace(manifest, detector_trusted=True)
    return replace(manifest, limit=requested.limit, images=requested.images) if grows else manifest


def first_changed_image(run: Run, entries: Iterable[DatasetImage]) -> Path | None:
    """Return the first image that is not the one observed; `entries` are the images as of now."""
    if not run.parts:
        return None
    step = max(len(run.manifest.images) // SPOT_CHECKS, 1)
    size = run.manifest.images_per_part
    numbered = enumerate(islice(entries, len(run.manifest.images)))
    for number, part in groupby(numbered, key=lambda pair: pair[0] // size):
        if number not in run.parts.full_parts and number not in run.parts.partial_parts:
            continue
        written = {file: file.stat().st_mtime for file in run.parts.files_of(number)}
        suspects = [
            (index, path)
            for index, path, file in _finished(run, number, part)
            if index % step == 0 or _changed_at(path) > written[file] - RECENT_SECONDS
        ]
        hashes = run.hashes(number) if suspects else {}
        for index, path in suspects:
            if _differs(path, hashes[index]):
                return path
    return None


def _finished(run: Run, number: int, part: Iterable[tuple[int, DatasetImage]]) -> Iterator[tuple[int, Path, Path]]:
    """Iterate over a part's finished images that are local files, each with the file with its boxes."""
    finished = set(run.parts.images_of(number))
    for index, entry in part:
        if index in finished and not isinstance(entry.path, Url):
            yield index, entry.path, run.parts.file_of(number, index)


def _changed_at(path: Path) -> float:
    """Return when the file was last written, renamed or put in place of another; 0 if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def _differs(path: Path, known: str) -> bool:
    try:
        return bool(known) and hash_of(path) != known
    except ImageUnavailableError:  # a missing file cannot be mixed with another
        return False


def _setting_differences(old: Manifest, new: Manifest) -> list[str]:
    """Name what makes `new` another run than `old`."""
    pairs = zip(_identifying_settings(old).items(), _identifying_settings(new).values(), strict=True)
    named = [
        f"{name} was {_format(expected)}, now {_format(actual)}"
        for (name, expected), actual in pairs
        if expected != actual
    ]
    if old.detector_names == new.detector_names and old.dataset_labels != new.dataset_labels:
        named.append("the class map was another one")
    return named + _class_differences(old.detector_names, new.detector_names)


def _identifying_settings(manifest: Manifest) -> dict[str, object]:
    """Return the settings that must be equal to resume a run; all others follow or only inform."""
    observed = {
        item.name.replace("_", " "): getattr(manifest.observation_settings, item.name)
        for item in fields(ObservationSettings)
    }
    order = "the dataset's" if manifest.seed is None else f"drawn with seed {manifest.seed}"
    return {"detector": manifest.detector_fingerprint, **observed, "order": order}


def _class_differences(old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    """Name only the first difference: a detector may have hundreds of classes."""
    for label, (expected, actual) in enumerate(zip_longest(old, new)):
        if expected != actual:
            counts = f"{len(old)} classes, now {len(new)}"
            return [f"detector class {label} was {_format(expected)}, now {_format(actual)} ({counts})"]
    return []


def _software_differences(old: Manifest, new: Manifest) -> list[str]:
    """Name packages of another version than when the run began: rounding or bytes may differ.

    A package that only one side has installed was not used. Python itself computes nothing here.
    """
    shared = sorted((old.software.keys() & new.software.keys()) - {"python"})
    pairs = ((name, old.software[name], new.software[name]) for name in shared)
    return [f"{name} was {expected}, now {actual}" for name, expected, actual in pairs if expected != actual]


def _dataset_differences(run: Run, requested: Manifest) -> Iterator[str]:
    """Name how the dataset differs from the one that was observed, as far as that is known."""
    old = run.manifest
    if old.dataset_fingerprint == requested.dataset_fingerprint:
        return
    if old.dataset_names != requested.dataset_names:
        yield f"the dataset had {len(old.dataset_names)} classes, now {len(requested.dataset_names)} or others"
        return
    for number, (expected, actual) in enumerate(zip(old.images, requested.images, strict=False)):
        if expected.id != actual.id:
            yield f"image {number} of the dataset was {display_path(expected.id)}, now {display_path(actual.id)}"
            return
        if not _same_objects(expected, actual):
            yield f"the dataset has other objects for image {display_path(expected.id)}"
            return
    path = first_changed_image(run, requested.images)
    if path is not None:
        yield f"{display_path(path)} is another image now"
    elif old.limit is None and len(requested.images) != len(old.images):
        yield f"the dataset had {len(old.images):,} images, now {len(requested.images):,}"
    else:
        yield "annotations or image files of the dataset have changed, or there are others"


def _same_objects(first: DatasetImage, second: DatasetImage) -> bool:
    return (
        first.ground_truth == second.ground_truth
        and first.ignore.tolist() == second.ignore.tolist()
        and first.crowd.tolist() == second.crowd.tolist()
        and first.size == second.size
    )


def _format(value: object) -> str:
    return "none" if value is None else display_path(str(value))
