"""The long job: show a detector every view of every image of a dataset, and store what it finds.

It may be stopped at any moment and started again: finished images are never computed twice, and the run ends with the
same bytes as one that was left alone.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

import numpy as np

from objectseeker.datasets import Dataset, Entry, match_classes
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.images import image_size
from objectseeker.manifest import ImageRecord, Manifest
from objectseeker.masks import GREY, Image, MaskChoice, make_masks, pair_counts, require_choice
from objectseeker.seeker import ViewDetector, detect_views
from objectseeker.store import MOST_LINES, Run, open_run, write_boxes, write_broken, writing

BASE_FLOOR, MASK_FLOOR = 0.01, 0.1
SAMPLED_VIEWS = 24  # of an image are timed for an estimate, by detectors that make their own batches

# What may have a hand in the boxes. Versions are those installed, not those loaded: one environment always makes the
# same run, whatever else the process has imported.
PACKAGES = ("objectseeker", "numpy", "pillow", "pyarrow", "onnxruntime", "torch", "torchvision", "transformers")

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
    images = len(_entries(dataset, limit))
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
    images = _first_images(_entries(dataset, limit), require_count(sample, "sample"))

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
    detector: LoadedDetector,
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
    on_progress: Progress = lambda done, total: None,
    on_warning: Warn = lambda sentence: None,
) -> Run:
    """Observe the first `limit` images of `dataset` (all by default) into the folder `out`, or go on with it.

    Boxes scored below the floors are not stored. `batch` is for detectors that do not make their own batches.
    `on_progress(done, total)` is called once at the start, when images of an earlier start may be done already, and
    after every image. An image that cannot be read is recorded as broken and skipped.

    Images are shared out among `detector` and `others`, one thread each: the same detector on several GPUs. Which of
    them observes an image changes nothing, so they must have the same identity.
    """
    for other in others:
        if other.identity != detector.identity:
            raise ObjectSeekerError(f"detectors that share a run must be the same, got {other.identity}")
    manifest = describe(
        dataset,
        detector,
        lines=lines,
        masks=masks,
        fill=fill,
        base_floor=base_floor,
        mask_floor=mask_floor,
        batch=batch,
        limit=limit,
    )
    if manifest.excluded:
        on_warning(f"classes left out because the detector does not know them: {', '.join(manifest.excluded)}")
    with writing(out, manifest) as run:
        for file in run.damaged:
            on_warning(f"{file.name} was damaged: its image is observed again")
        done, total = run.finished, len(run.manifest.images)
        on_progress(done, total)
        todo = [
            (index, entry)
            for index, entry in enumerate(_entries(dataset, limit))
            if index not in run.parts and index not in run.unreadable
        ]
        writer = Lock()
        for _ in _share_out(lambda item, free: _observe_image(run, *item, free, writer), todo, (detector, *others)):
            done += 1
            on_progress(done, total)
    run = open_run(out)
    for image in run.broken:
        on_warning(f"left out (objects lost: {image.objects}): {image.reason}")
    return run


def describe(
    dataset: Dataset,
    detector: LoadedDetector,
    *,
    lines: int,
    masks: MaskChoice,
    fill: int,
    base_floor: float,
    mask_floor: float,
    batch: int,
    limit: int | None,
) -> Manifest:
    """What a run of these settings is, before anything is computed; refuses settings that cannot work."""
    if isinstance(fill, bool) or not isinstance(fill, int | np.integer) or not 0 <= fill <= 255:
        raise ObjectSeekerError(f"fill must be a grey value within 0 to 255, got {fill!r}")
    batch = require_count(batch, "batch")
    match = match_classes(dataset.names, detector.names) if dataset.annotated else None
    entries = _entries(dataset, limit)
    return Manifest(
        detector=detector.identity,
        detector_names=tuple(detector.names),
        lines=_require_lines(lines, masks),
        masks=masks,
        fill=int(fill),
        batch=None if isinstance(detector, ViewDetector) else batch,
        base_floor=require_fraction(base_floor, "base_floor"),
        mask_floor=require_fraction(mask_floor, "mask_floor"),
        dataset=dataset.spec,
        dataset_identity=dataset.identity,
        dataset_names=dataset.names,
        limit=len(entries) if len(entries) < len(dataset) else None,
        to_dataset=None if match is None else tuple(match.to_dataset.tolist()),
        excluded=() if match is None else match.unknown,
        software=_software(),
        images=tuple(
            ImageRecord(entry.id, entry.path.absolute(), _size(entry), entry.truth, entry.ignore, entry.crowd)
            for entry in entries
        ),
    )


_Item = TypeVar("_Item")


def _share_out(
    job: Callable[[_Item, LoadedDetector], None], items: Sequence[_Item], detectors: Sequence[LoadedDetector]
) -> Iterator[None]:
    """Do `job` on every item with whichever detector is free; yields after each."""
    free: SimpleQueue[LoadedDetector] = SimpleQueue()
    for detector in detectors:
        free.put(detector)

    def run(item: _Item) -> None:
        detector = free.get()
        try:
            job(item, detector)
        finally:
            free.put(detector)

    if len(detectors) == 1:
        yield from map(run, items)
        return
    pool = ThreadPoolExecutor(len(detectors))
    try:
        yield from pool.map(run, items)
    finally:
        pool.shutdown(cancel_futures=True)  # what failed or was interrupted must not wait for the rest


def _observe_image(run: Run, index: int, entry: Entry, detector: LoadedDetector, writer: Lock) -> None:
    try:
        image = entry.load()
        height, width = image.shape[:2]
        _require_size(run.manifest.images[index], (width, height))
    except ObjectSeekerError as error:
        if not entry.path.is_file():  # the disk went away: everything after it would be recorded as broken
            raise ObjectSeekerError(f"{error}: bring it back and start again, finished images are kept") from None
        with writer:
            write_broken(run, index, str(error))
        return
    masks = make_masks(run.manifest.masks, width, height, run.manifest.lines)
    batch = run.manifest.batch or 1  # without one the detector makes its own batches, and this is not looked at
    try:
        base, *masked = detect_views(detector, image, masks, value=run.manifest.fill, batch=batch)
    except Exception as error:  # foreign code: whatever it raises, say where
        raise ObjectSeekerError(f"the detector failed on {entry.path}: {str(error) or type(error).__name__}") from error
    with writer:
        write_boxes(run, index, base, masked)


def _entries(dataset: Dataset, limit: int | None) -> tuple[Entry, ...]:
    return dataset.entries[: None if limit is None else require_count(limit, "limit")]


def _first_images(entries: tuple[Entry, ...], count: int) -> list[Image]:
    images = []
    for entry in entries:
        try:
            images.append(entry.load())
        except ObjectSeekerError:
            continue  # the job itself skips it too
        if len(images) == count:
            break
    if not images:
        raise ObjectSeekerError(f"none of the {len(entries)} images can be read, the first is {entries[0].path}")
    return images


def _size(entry: Entry) -> tuple[int, int] | None:
    """The image's width and height; None if the file cannot be read."""
    if entry.size is not None:
        return entry.size
    try:
        return image_size(entry.path)
    except ObjectSeekerError:
        return None


def _require_size(record: ImageRecord, size: tuple[int, int]) -> None:
    if record.size != size:
        before = "unreadable" if record.size is None else f"{record.size[0]}x{record.size[1]} pixels"
        raise ObjectSeekerError(f"{record.path} is {size[0]}x{size[1]} pixels but was {before} when the run began")


def _require_lines(lines: int, masks: MaskChoice) -> int:
    count, most = require_count(lines, "lines"), MOST_LINES[require_choice(masks)]
    if count > most:
        raise ObjectSeekerError(f"lines must be at most {most}, got {lines}")
    return count


def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
