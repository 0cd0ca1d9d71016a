"""The long job: show a detector every view of every image of a dataset, and store what it finds.

It may be stopped at any moment and started again: finished images are never computed twice, and the run ends with the
same bytes as one that was left alone.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from objectseeker.core.masks import Image
from objectseeker.core.recipes import Rolling, recipe_for_frame
from objectseeker.core.seeker import ViewDetector, detect_views
from objectseeker.datasets import Dataset, DatasetImage, match_classes
from objectseeker.datasets.dataset import LazySequence
from objectseeker.defense import BATCH, spec_relative_to
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.images import resolve_path
from objectseeker.runs.engines import DetectorDescription, Engine, ImageTask, LocalEngine, ObservationJob
from objectseeker.runs.manifest import Manifest, ObservationSettings
from objectseeker.runs.run import Run, open_run
from objectseeker.runs.writer import open_writer

DEFAULT = ObservationSettings()
SAMPLED_VIEWS = 24  # of an image are timed for an estimate, by detectors that make their own batches

# A run of a dataset of up to SMALL_RUN images has a file for each of them, of a larger one a file for PART images:
# whatever the limit, so that a run that has grown is the run that was made at once.
SMALL_RUN, PART = 10_000, 256

Progress = Callable[[int, int], None]
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How much there is to do: `passes` is the number of views (see `Observing.cost`)."""

    images: int
    views_per_image: int
    passes: int
    why: str  # one sentence on where the views come from


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """How long a plan takes on this machine."""

    plan: RunPlan
    seconds_per_view: float

    @property
    def seconds(self) -> float:
        return self.plan.passes * self.seconds_per_view

    @property
    def hours(self) -> float:
        return self.seconds / 3600


def plan_run(dataset: Dataset, observing: ObservationSettings = DEFAULT, *, limit: int | None = None) -> RunPlan:
    """The size of the job, without doing anything; refuses rolling masks for images that are no frames."""
    if isinstance(observing.masks, Rolling) and next(iter(dataset.entries)).frame is None:
        raise ObjectSeekerError(
            f"{observing.masks} is for sequences, and {dataset.spec} has none: take {observing.masks.recipe}, or put "
            "frames: before it if its images are the frames of a sequence in order"
        )
    views, why = observing.cost()
    images = _count(dataset, limit)
    return RunPlan(images, views, images * views, why)


def estimate(
    dataset: Dataset,
    detector: LoadedDetector,
    observing: ObservationSettings = DEFAULT,
    *,
    limit: int | None = None,
    seed: int | None = None,
    sample: int = 2,
) -> TimeEstimate:
    """Time two batches of views of each of the first `sample` readable images of those that `observe` would take."""
    images = _first_images(dataset, limit, seed, require_count(sample, "sample"))
    batch = observing.batch or BATCH

    def time_views(image: Image) -> tuple[float, int]:
        height, width = image.shape[:2]
        every = recipe_for_frame(observing.masks, 0).masks(width, height)
        own = max(SAMPLED_VIEWS, 2 * int(getattr(detector, "batch", 1)))
        others = (own if isinstance(detector, ViewDetector) else 2 * batch) - 1  # than the untouched view
        timed = every.subset(slice(None, None, max(-(-len(every) // others), 1)))  # spread: some masks leave less
        begin = time.perf_counter()
        detect_views(detector, image, timed, value=observing.fill, batch=batch)
        return time.perf_counter() - begin, 1 + len(timed)

    time_views(images[0])  # not counted: the first call of all also prepares the detector
    seconds, views = zip(*(time_views(image) for image in images), strict=True)
    return TimeEstimate(plan_run(dataset, observing, limit=limit), sum(seconds) / sum(views))


def observe(
    dataset: Dataset,
    detector: LoadedDetector | Engine,
    out: str | Path,
    observing: ObservationSettings = DEFAULT,
    *,
    limit: int | None = None,
    seed: int | None = None,
    class_map: Mapping[str, str] | None = None,
    images_per_part: int | None = None,
    trust_detector: bool = False,
    on_progress: Progress = lambda done, total: None,
    on_warning: Warn = lambda sentence: None,
) -> Run:
    """Observe the first `limit` images of `dataset` (all by default) into the folder `out`, or go on with it.

    With a `seed` the images are taken in an order that is drawn by it, so that the first are a sample of all. A run
    that is there already grows if `limit` is larger than before, and ends as one that was made at once; it is never
    made smaller. A run whose detector cannot be told from another goes on only with `trust_detector`.

    `class_map` says which detector class stands for which of the dataset's, where names do not tell.
    `on_progress(done, total)` is called once at the start, when images of an earlier start may be done already, and
    after every image. An image that cannot be read is recorded as broken and skipped.

    `detector` may be an engine, which shares the images out among detectors or machines: the run is the same, to the
    last bit. Only an engine from `open_engine` knows the detector's SPEC, which `Run.defense` needs.
    """
    engine = detector if isinstance(detector, Engine) else LocalEngine((detector,))
    description = engine.describe()
    options: dict[str, Any] = {"limit": limit, "seed": seed, "class_map": class_map, "images_per_part": images_per_part}
    if description.spec is not None:  # as seen from the run, so that it does not matter where a command is called
        description = replace(description, spec=spec_relative_to(description.spec, Path(out)))
    manifest = make_manifest(dataset, description, observing, **options)
    if manifest.unmatched_classes:
        for sentence in match_classes(dataset.names, description.names, class_map=class_map).warnings:
            on_warning(sentence)
    with open_writer(out, replace(manifest, detector_trusted=trust_detector)) as writer:
        run = writer.run
        if description.unverified_reason and not run.complete:
            trusted = "the run goes on on your word that it is the same"
            fresh = "once stopped, the run goes on only with --trust-detector"
            on_warning(f"{description.unverified_reason}; {trusted if run.finished else fresh}")
        for file in run.damaged:
            on_warning(f"{file.name} was damaged: {_what_was_in(run)} observed again")
        done, total = run.finished, len(run.manifest.images)
        on_progress(done, total)
        if not run.complete:
            with closing(engine.observe(job_of(run.manifest), _pending_images(run, dataset))) as stream:
                for findings in stream:
                    writer.add(findings)
                    for _ in findings.images:
                        done += 1
                        on_progress(done, total)
    run = open_run(out)
    for image in run.broken:
        on_warning(f"left out (objects lost: {image.objects}): {image.reason}")
    return run


def make_manifest(
    dataset: Dataset,
    detector: DetectorDescription,
    observing: ObservationSettings,
    *,
    limit: int | None = None,
    seed: int | None = None,
    class_map: Mapping[str, str] | None = None,
    images_per_part: int | None = None,
) -> Manifest:
    """What the run is, before anything is computed; refuses what cannot work."""
    match = match_classes(dataset.names, detector.names, class_map=class_map) if dataset.annotated else None
    count = plan_run(dataset, observing, limit=limit).images
    return Manifest(
        detector=detector.fingerprint,
        detector_spec=detector.spec,
        detector_options=detector.options,
        detector_names=detector.names,
        observing=replace(observing, batch=None if detector.own_batches else observing.batch or BATCH),
        dataset=dataset.spec,
        dataset_identity=dataset.identity,
        dataset_names=dataset.names,
        limit=count if count < len(dataset) else None,
        to_dataset=None if match is None else tuple(match.to_dataset.tolist()),
        unmatched_classes=() if match is None else match.unknown,
        software=detector.software,
        images=LazySequence(lambda: _select_images(dataset, count, seed), count),
        images_per_part=images_per_part or (1 if len(dataset) <= SMALL_RUN else PART),
        seed=seed if seed is None else int(seed),
        detector_unverified=detector.unverified_reason,
    )


def job_of(manifest: Manifest) -> ObservationJob:
    return ObservationJob(manifest.observing, manifest.detector_names, manifest.images_per_part)


def _pending_images(run: Run, dataset: Dataset) -> Iterator[ImageTask]:
    """The images that are not finished, one after the other, from where they lie now."""
    entries = _select_images(dataset, len(run.manifest.images), run.manifest.seed)
    for index, (known, entry) in enumerate(zip(run.manifest.ids(), entries, strict=False)):
        if known != entry.id:  # a folder is listed anew: a file that came or went would give others a wrong number
            raise ObjectSeekerError(f"{dataset.spec} has changed: image {index} was {known!r} and is {entry.id!r} now")
        if not run.is_finished(index):
            yield ImageTask(index, str(resolve_path(entry.path)), entry.size, entry.frame_number)


def _what_was_in(run: Run) -> str:
    return "its image is" if run.manifest.images_per_part == 1 else "its images are"


def _count(dataset: Dataset, limit: int | None) -> int:
    return len(dataset) if limit is None else min(require_count(limit, "limit"), len(dataset))


def _select_images(dataset: Dataset, count: int, seed: int | None) -> Iterator[DatasetImage]:
    """The first `count` images in the run's order, which does not depend on how many there are to be."""
    if seed is None:
        return islice(dataset.entries, count if count < len(dataset) else None)

    def draw(entry: DatasetImage) -> bytes:
        return hashlib.blake2b(f"{seed} {entry.id}".encode()).digest()

    return iter(heapq.nsmallest(count, dataset.entries, key=draw))


def _first_images(dataset: Dataset, limit: int | None, seed: int | None, count: int) -> list[Image]:
    images = []
    for entry in _select_images(dataset, _count(dataset, limit), seed):
        try:
            images.append(entry.load())
        except ObjectSeekerError:
            continue  # the job itself skips it too
        if len(images) == count:
            break
    if not images:
        total = _count(dataset, limit)
        first = next(_select_images(dataset, total, seed)).path
        raise ObjectSeekerError(f"none of the {total} images can be read, the first is {first}")
    return images
