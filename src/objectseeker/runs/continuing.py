"""Whether a run may go on with what is asked for, and what it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from objectseeker.datasets import Entry
from objectseeker.datasets.shown import readable
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.manifest import Manifest, setting_differences, software_differences
from objectseeker.runs.replaced import first_replaced
from objectseeker.runs.run import Run


def continued(run: Run, asked: Manifest) -> Manifest:
    """The manifest with which `run` goes on as `asked`: its own, but for more images and more trust.

    Anything that would mix two detectors, two data sets or two ways of observing in one run is refused.
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
    if (path := first_replaced(run, asked.images)) is not None:
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
    """How the data set differs from the one that was observed, as far as that can be told."""
    old = run.manifest
    if old.dataset_identity == asked.dataset_identity:
        return
    if old.dataset_names != asked.dataset_names:
        yield f"the data set had {len(old.dataset_names)} classes, now {len(asked.dataset_names)} or others"
        return
    for number, (before, now) in enumerate(zip(old.images, asked.images, strict=False)):
        if before.id != now.id:
            yield f"image {number} of the data set was {readable(before.id)}, now {readable(now.id)}"
            return
        if not _same_objects(before, now):
            yield f"the data set has other objects for image {readable(before.id)}"
            return
    path = first_replaced(run, asked.images)
    if path is not None:
        yield f"{readable(path)} is another image now"
    elif old.limit is None and len(asked.images) != len(old.images):
        yield f"the data set had {len(old.images):,} images, now {len(asked.images):,}"
    else:
        yield "annotations or image files of the data set have changed, or there are others"


def _same_objects(before: Entry, now: Entry) -> bool:
    return (
        before.truth == now.truth
        and before.ignore.tolist() == now.ignore.tolist()
        and before.crowd.tolist() == now.crowd.tolist()
        and before.size == now.size
    )
