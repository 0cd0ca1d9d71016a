"""The long job: show a detector every view of every image of a dataset, and store what it finds.

It may be stopped at any moment and started again: finished images are never computed twice, and the run ends with the
same bytes as one that was left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from objectseeker.core.image import GREY, Image
from objectseeker.core.masks import MaskChoice, make_masks, require_choice
from objectseeker.core.recipes import pair_counts
from objectseeker.core.seeker import ViewDetector, detect_views
from objectseeker.datasets import Dataset, Entry, match_classes
from objectseeker.datasets.dataset import Streamed
from objectseeker.detectors import LoadedDetector
from objectseeker.runs.engines import Description, Engine, Item, Job, LocalEngine
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.files.images import location
from objectseeker.runs.listing import ImageRecord
from objectseeker.runs.manifest import Manifest
from objectseeker.runs.run import MOST_LINES, Run, open_run
from objectseeker.runs.writer import writing

BASE_FLOOR, MASK_FLOOR = 0.01, 0.1
SAMPLED_VIEWS = 24  # of an image are timed for an estimate, by detectors that make their own batches

# A run of up to SMALL_RUN images has a file for each of them; a larger one has a file for PART images.
SMALL_RUN, PART = 10_000, 256

Progress = Callable[[int, int], None]
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much there is to do: `passes` is the number of views (fewer on images of at most `lines` pixels a side)."""

    images: int
    views_per_image: int
    passes: int
    why: str  # one sentence on where the views come from


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a plan takes on this machine."""

    plan: Plan
    seconds_per_view: float

    @property
    def hours(self) -> float:
        return self.plan.passes * self.seconds_per_view / 3600


def plan(dataset: Dataset, *, lines: int = 30, masks: MaskChoice = "halves", limit: int | None = None) -> Plan:
    """The size of the job, without doing anything."""
    half_masks = 4 * _require_lines(lines, masks)
    views, why = 1 + half_masks, f"{lines} lines per axis are {half_masks} half masks"
    if masks == "pairs":
        unordered, distinct = pair_counts(lines)
        views = 1 + distinct
        why += f", {unordered:,} pairs of them, {distinct:,} of which remove something different and leave something"
    images = _count(dataset, limit)
    return Plan(images, views, images * views, why)


def estimate(
    dataset: Dataset,
    detector: LoadedDetector,
    *,
    lines: int = 30,
    masks: MaskChoice = "halves",
    fill: int = GREY,
    batch: int = 8,
    limit: int | None = None,
    sample: int = 2,
) -> Estimate:
    """Time two batches of views of each of the first `sample` readable images."""
    images = _first_images(dataset, limit, require_count(sample, "sample"))

    def time_views(image: Image) -> tuple[float, int]:
        height, width = image.shape[:2]
        every = make_masks(masks, width, height, lines)
        own = max(SAMPLED_VIEWS, 2 * int(getattr(detector, "batch", 1)))
        others = (own if isinstance(detector, ViewDetector) else 2 * batch) - 1  # than the untouched view
        timed = every.subset(slice(None, None, max(-(-len(every) // others), 1)))  # spread: some masks leave less
        begin = time.perf_counter()
        detect_views(detector, image, timed, value=fill, batch=batch)
        return time.perf_counter() - begin, 1 + len(timed)

    time_views(images[0])  # not counted: the first call of all also prepares the detector
    seconds, views = zip(*(time_views(image) for image in images), strict=True)
    return Estimate(plan(dataset, lines=lines, masks=masks, limit=limit), sum(seconds) / sum(views))


def observe(
    dataset: Dataset,
    detector: LoadedDetector | Engine,
    out: str | Path,
    *,
    others: Sequence[LoadedDetector] = (),
    lines: int = 30,
    masks: MaskChoice = "halves",
    fill: int = GREY,
    base_floor: float = BASE_FLOOR,
    mask_floor: float = MASK_FLOOR,
    batch: int = 8,
    limit: int | None = None,
    images_per_part: int | None = None,
    on_progress: Progress = lambda done, total: None,
    on_warning: Warn = lambda sentence: None,
) -> Run:
    """Observe the first `limit` images of `dataset` (all by default) into the folder `out`, or go on with it.

    Boxes scored below the floors are not stored. `batch` is for detectors that do not make their own batches.
    `on_progress(done, total)` is called once at the start, when images of an earlier start may be done already, and
    after every image. An image that cannot be read is recorded as broken and skipped.

    Images are shared out among `detector` and `others`, one thread each: the same detector on several GPUs. Or
    `detector` is an engine, which may share them out among machines. The run is the same, to the last bit.
    """
    engine = detector if isinstance(detector, Engine) else LocalEngine((detector, *others))
    manifest = describe(
        dataset,
        engine.describe(),
        lines=lines,
        masks=masks,
        fill=fill,
        base_floor=base_floor,
        mask_floor=mask_floor,
        batch=batch,
        limit=limit,
        images_per_part=images_per_part,
    )
    if manifest.excluded:
        on_warning(f"classes left out because the detector does not know them: {', '.join(manifest.excluded)}")
    with writing(out, manifest) as writer:
        run = writer.run
        for file in run.damaged:
            on_warning(f"{file.name} was damaged: {_what_was_in(run)} observed again")
        done, total = run.finished, len(run.manifest.images)
        on_progress(done, total)
        if not run.complete:
            with closing(engine.observe(job_of(run.manifest), _todo(run, dataset))) as found:
                for findings in found:
                    writer.add(findings)
                    for _ in findings.images:
                        done += 1
                        on_progress(done, total)
    run = open_run(out)
    for image in run.broken:
        on_warning(f"left out (objects lost: {image.objects}): {image.reason}")
    return run


def describe(
    dataset: Dataset,
    detector: Description,
    *,
    lines: int,
    masks: MaskChoice,
    fill: int,
    base_floor: float,
    mask_floor: float,
    batch: int,
    limit: int | None,
    images_per_part: int | None = None,
) -> Manifest:
    """What a run of these settings is, before anything is computed; refuses settings that cannot work."""
    if isinstance(fill, bool) or not isinstance(fill, int | np.integer) or not 0 <= fill <= 255:
        raise ObjectSeekerError(f"fill must be a grey value within 0 to 255, got {fill!r}")
    batch = require_count(batch, "batch")
    match = match_classes(dataset.names, detector.names) if dataset.annotated else None
    count = _count(dataset, limit)
    chosen = count if count < len(dataset) else None
    return Manifest(
        detector=detector.identity,
        detector_names=detector.names,
        lines=_require_lines(lines, masks),
        masks=masks,
        fill=int(fill),
        batch=None if detector.own_batches else batch,
        base_floor=require_fraction(base_floor, "base_floor"),
        mask_floor=require_fraction(mask_floor, "mask_floor"),
        dataset=dataset.spec,
        dataset_identity=dataset.identity,
        dataset_names=dataset.names,
        limit=chosen,
        to_dataset=None if match is None else tuple(match.to_dataset.tolist()),
        excluded=() if match is None else match.unknown,
        software=detector.software,
        images=Streamed(lambda: islice(map(_record, dataset.entries), chosen), count),
        images_per_part=images_per_part or (1 if count <= SMALL_RUN else PART),
    )


def job_of(manifest: Manifest) -> Job:
    return Job(
        lines=manifest.lines,
        masks=manifest.masks,
        fill=manifest.fill,
        batch=manifest.batch,
        base_floor=manifest.base_floor,
        mask_floor=manifest.mask_floor,
        names=manifest.detector_names,
        images_per_part=manifest.images_per_part,
    )


def _todo(run: Run, dataset: Dataset) -> Iterator[Item]:
    """The images that are not finished, one after the other, from where they lie now."""
    for index, (known, entry) in enumerate(zip(run.manifest.ids(), dataset.entries, strict=False)):
        if known != entry.id:  # a folder is listed anew: a file that came or went would give others a wrong number
            raise ObjectSeekerError(f"{dataset.spec} has changed: image {index} was {known!r} and is {entry.id!r} now")
        if not run.is_finished(index):
            yield Item(index, str(location(entry.path)), entry.size)


def _what_was_in(run: Run) -> str:
    return "its image is" if run.manifest.images_per_part == 1 else "its images are"


def _record(entry: Entry) -> ImageRecord:
    return ImageRecord(entry.id, location(entry.path), entry.size, entry.truth, entry.ignore, entry.crowd)


def _count(dataset: Dataset, limit: int | None) -> int:
    return len(dataset) if limit is None else min(require_count(limit, "limit"), len(dataset))


def _first_images(dataset: Dataset, limit: int | None, count: int) -> list[Image]:
    images = []
    for entry in islice(dataset.entries, _count(dataset, limit)):
        try:
            images.append(entry.load())
        except ObjectSeekerError:
            continue  # the job itself skips it too
        if len(images) == count:
            break
    if not images:
        first, total = dataset.entries[0].path, _count(dataset, limit)
        raise ObjectSeekerError(f"none of the {total} images can be read, the first is {first}")
    return images


def _require_lines(lines: int, masks: MaskChoice) -> int:
    count, most = require_count(lines, "lines"), MOST_LINES[require_choice(masks)]
    if count > most:
        raise ObjectSeekerError(f"lines must be at most {most}, got {lines}")
    return count
