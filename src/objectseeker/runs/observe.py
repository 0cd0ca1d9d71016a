"""The long job: run a detector on every view of every image of a dataset, and store its boxes.

It can be interrupted at any time and resumed: finished images are never computed twice, and the run ends with the same
bytes as one that was not interrupted.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.core.recipes import Recipe, Rolling, parse_recipe, recipe_for_frame
from objectseeker.core.seeker import Detector, ViewDetector, detect_views
from objectseeker.datasets import Dataset, DatasetImage, match_classes, open_dataset
from objectseeker.datasets.dataset import LazySequence
from objectseeker.datasets.maite import PYTHON, import_maite_dataset, is_maite_dataset, store_image, store_maite_dataset
from objectseeker.defense import BATCH, Defense, spec_relative_to
from objectseeker.detectors import LoadedDetector, load_detector
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.images import hash_of, resolve_path
from objectseeker.runs.engines import (
    ClusterRequest,
    DetectorDescription,
    Engine,
    ImageTask,
    LocalEngine,
    ObservationJob,
    open_engine,
)
from objectseeker.runs.manifest import BASE_FLOOR, MASK_FLOOR, Manifest, ObservationSettings
from objectseeker.runs.run import Run, open_run
from objectseeker.runs.writer import open_writer

DEFAULT_SETTINGS = ObservationSettings()
TIMED_IMAGES = 2  # for an estimate
TIMED_VIEWS = 24  # per image for an estimate, by detectors that make their own batches

# A run of a dataset of up to SMALL_DATASET images has one file per image, of a larger one a file per PART_SIZE images:
# whatever the limit, so that a run that has grown is the run that was made at once.
SMALL_DATASET, PART_SIZE = 10_000, 256
IMAGES = "images"  # folder for images that were passed as arrays

Progress = Callable[[int, int], None]
Warn = Callable[[str], None]


def observe(
    images: str | Path | Dataset | Iterable[Image],
    detector: str | Defense | Detector | Engine,
    *,
    out: str | Path,
    masks: Recipe | str | None = None,
    fill: int | None = None,
    batch_size: int | None = None,
    base_floor: float = BASE_FLOOR,
    mask_floor: float = MASK_FLOOR,
    limit: int | None = None,
    seed: int | None = None,
    exclude: Iterable[Run | str | Path] = (),
    class_map: Mapping[str, str] | None = None,
    device: str | None = None,
    cluster: ClusterRequest | None = None,
    trust_detector: bool = False,
    images_per_part: int | None = None,
    on_progress: Progress = lambda done, total: None,
    on_warning: Warn = lambda message: None,
) -> Run:
    """Run a detector on every view of every image and store its boxes, for all that follows.

    It can be interrupted at any time: call it again with the same arguments to resume. A run grows if `limit` is larger
    than before, and ends as one that was made at once; it is never made smaller.

    Args:
        images: A dataset such as `coco:annotations.json:images`, a folder of images, a `Dataset`; or a MAITE dataset,
            python:MODULE:NAME of one, or RGB images as arrays of uint8: these are stored in the run as lossless files.
        detector: A SPEC such as `onnx:model.onnx`; a `Defense`, whose masks, fill and batch size are used and which
            rejects a detector other than its own; or a detector in memory, as `load_detector` takes it: a callable, a
            MAITE model, a YOLO of ultralytics, a pipeline of transformers.
        out: Folder of the run, new or one to resume.
        masks: Mask recipe, such as `Halves(30)` or "halves:30". Default: half masks of 30 lines.
        fill: Gray value of removed pixels.
        batch_size: Views per call of the detector.
        base_floor: Lowest score that is stored for boxes of the unmasked image. No base threshold can be below it.
        mask_floor: Lowest score that is stored for boxes of masked views.
        limit: Number of images to observe. Default: all.
        seed: Draw the images in a random order with this seed, so that the first ones are a sample of all.
        exclude: Runs whose images are skipped: by the content of their files, whatever their names.
        class_map: Dataset class by detector class, for names that do not match.
        device: cpu, cuda or cuda:1; several with commas. Only for a SPEC or a defense.
        cluster: Observe on a Ray cluster; the run is bit-identical. Only for a SPEC or a defense.
        trust_detector: Confirm that the detector is the one that the run was started with, if its fingerprint may not
            tell it from another one.
        images_per_part: Images per file. Default: 1, or 256 for datasets of more than 10,000 images.
        on_progress: Called as `on_progress(done, total)` at the start, where images may be done already, and after
            every image.
        on_warning: Called with one-line messages. An image that cannot be read is skipped and recorded.

    Returns:
        The run. `run.broken` lists the images that could not be read.

    Raises:
        ObjectSeekerError: Something passed cannot be used, `out` holds another run, or no image could be read.

    Example:
        >>> from objectseeker import observe
        >>> run = observe("images/", "builtin", out="run", masks="halves:10", limit=100)  # doctest: +SKIP
    """
    dataset = without_images_of(dataset_of(images, out), exclude)
    options = {"masks": masks, "fill": fill, "batch_size": batch_size}
    defense, settings = _defense_and_settings(detector, options, base_floor, mask_floor)
    if defense is None and (device is not None or cluster is not None):
        raise ObjectSeekerError("device and cluster need a SPEC or a Defense: got a loaded detector, omit them")
    with _engine_of(detector, defense, device, cluster, on_warning) as engine:
        description = engine.describe()
        if defense is not None:
            defense.require_detector(description.fingerprint)
        if description.spec is not None:  # relative to the run, so that it does not matter where a command is called
            description = replace(description, spec=spec_relative_to(description.spec, Path(out)))
        manifest = make_manifest(
            dataset,
            description,
            settings,
            limit=limit,
            seed=seed,
            class_map=class_map,
            images_per_part=images_per_part,
        )
        if manifest.unmatched_classes:
            for message in match_classes(dataset.names, description.names, class_map=class_map).warnings:
                on_warning(message)
        with open_writer(out, replace(manifest, detector_trusted=trust_detector)) as writer:
            run = writer.run
            _warn_at_start(run, description, on_warning)
            done, total = run.finished, len(run.manifest.images)
            on_progress(done, total)
            if not run.complete:
                with closing(engine.observe(job_of(run.manifest), _pending_images(run, dataset))) as results:
                    for stored in results:
                        writer.add(stored)
                        for _ in stored.indices:
                            done += 1
                            on_progress(done, total)
    run = open_run(out)
    if run.manifest.detector_spec is None:
        held = defense.detector if defense is not None else detector
        run = replace(run, detector=held if callable(held) else None)
    for image in run.broken:
        on_warning(f"image skipped (objects lost: {image.objects}): {image.reason}")
    if not run.files:
        raise ObjectSeekerError(
            f"none of the {total:,} images could be read, the first: {run.broken[0].reason}. Replace them."
        )
    return run


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The size of a job; `reason` explains the number of views."""

    images: int
    views_per_image: int
    forward_passes: int
    reason: str


def plan_run(
    dataset: Dataset, settings: ObservationSettings = DEFAULT_SETTINGS, *, limit: int | None = None
) -> RunPlan:
    """Return the size of the job without running it; reject rolling masks for images without frames."""
    if isinstance(settings.masks, Rolling) and next(iter(dataset.images)).frame is None:
        raise ObjectSeekerError(
            f"{settings.masks} is for sequences, and {dataset.spec} has none: use {settings.masks.recipe}, or put "
            "frames: before it if its images are the frames of a sequence in order"
        )
    views, reason = settings.views_per_image()
    images = len(dataset) if limit is None else min(require_count(limit, "limit"), len(dataset))
    return RunPlan(images, views, images * views, reason)


def time_view(
    dataset: Dataset,
    detector: LoadedDetector,
    settings: ObservationSettings = DEFAULT_SETTINGS,
    *,
    limit: int | None = None,
    seed: int | None = None,
) -> float:
    """Return the seconds of a forward pass on this machine, of the first images that `observe` would take.

    Two batches of views are timed of each of `TIMED_IMAGES` readable images.
    """
    count = plan_run(dataset, settings, limit=limit).images
    images: list[Image] = []
    reason: ObjectSeekerError | None = None
    for entry in select_images(dataset, count, seed):
        try:
            images.append(entry.load())
        except ObjectSeekerError as error:  # the job itself skips it too
            reason = error
        if len(images) == TIMED_IMAGES:
            break
    if not images:
        raise ObjectSeekerError(f"none of the {count} images can be read, the last: {reason}")
    return seconds_per_view(detector, images, settings)


def seconds_per_view(detector: LoadedDetector, images: Sequence[Image], settings: ObservationSettings) -> float:
    """Time two batches of views of each image on this machine."""
    batch_size = settings.batch_size or BATCH

    def time_views(image: Image) -> tuple[float, int]:
        height, width = image.shape[:2]
        every = recipe_for_frame(settings.masks, 0).masks(width, height)
        own = max(TIMED_VIEWS, 2 * int(getattr(detector, "batch_size", 1)))
        masked = (own if isinstance(detector, ViewDetector) else 2 * batch_size) - 1  # besides the unmasked view
        views = every.select_masks(slice(None, None, max(-(-len(every) // masked), 1)))  # spread: some masks leave less
        start = time.perf_counter()
        detect_views(detector, image, views, value=settings.fill, batch_size=batch_size)
        return time.perf_counter() - start, 1 + len(views)

    time_views(images[0])  # not counted: the first call of all also prepares the detector
    timed = [time_views(image) for image in images]
    return sum(seconds for seconds, _ in timed) / sum(views for _, views in timed)


def make_manifest(
    dataset: Dataset,
    detector: DetectorDescription,
    settings: ObservationSettings,
    *,
    limit: int | None = None,
    seed: int | None = None,
    class_map: Mapping[str, str] | None = None,
    images_per_part: int | None = None,
) -> Manifest:
    """Return what the run will be, before anything is computed; reject what cannot work."""
    match = match_classes(dataset.names, detector.names, class_map=class_map) if dataset.has_ground_truth else None
    count = plan_run(dataset, settings, limit=limit).images
    return Manifest(
        detector_fingerprint=detector.fingerprint,
        detector_spec=detector.spec,
        detector_options=detector.options,
        detector_names=detector.names,
        observation_settings=replace(
            settings, batch_size=None if detector.own_batches else settings.batch_size or BATCH
        ),
        dataset=dataset.spec,
        dataset_fingerprint=dataset.fingerprint,
        dataset_names=dataset.names,
        limit=count if count < len(dataset) else None,
        dataset_labels=None if match is None else tuple(match.dataset_labels.tolist()),
        unmatched_classes=() if match is None else match.unmatched_dataset,
        software=detector.software,
        images=LazySequence(lambda: select_images(dataset, count, seed), count),
        images_per_part=images_per_part or (1 if len(dataset) <= SMALL_DATASET else PART_SIZE),
        seed=seed if seed is None else int(seed),
        unverified_reason=detector.unverified_reason,
    )


def job_of(manifest: Manifest) -> ObservationJob:
    return ObservationJob(manifest.observation_settings, manifest.detector_names, manifest.images_per_part)


def without_images_of(dataset: Dataset, runs: Iterable[Run | str | Path]) -> Dataset:
    """Return the dataset without the images of these runs, which content tells, whatever their names."""
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    if not opened:
        return dataset
    known = {file_hash for run in opened for file_hash in run.file_hashes()}

    def is_new(image: DatasetImage) -> bool:
        try:
            return hash_of(resolve_path(image.path)) not in known
        except ObjectSeekerError:  # observing it says why
            return True

    kept = tuple(filter(is_new, dataset.images))
    if not kept:
        raise ObjectSeekerError(f"the excluded runs hold all {len(dataset)} images of {dataset.spec}: take others")
    content = json.dumps([dataset.fingerprint, [image.id for image in kept]])
    return replace(dataset, images=kept, fingerprint=hashlib.sha256(content.encode()).hexdigest())


def dataset_of(images: Any, out: str | Path, **options: bool) -> Dataset:
    """Return the dataset of what `observe` is given; images in memory are stored in the folder `out`.

    `options` are those of `open_dataset`.
    """
    if isinstance(images, Dataset):
        return images
    folder = Path(out) / IMAGES
    if isinstance(images, str) and images.startswith(PYTHON):
        images = import_maite_dataset(images)
    if is_maite_dataset(images):
        return store_maite_dataset(images, folder)
    if isinstance(images, str | Path):
        return open_dataset(images, **options)
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ObjectSeekerError(
                f"image {number} must be an RGB array of uint8, height x width x 3: got {type(image).__name__}: pass "
                "such arrays, a MAITE dataset, or a dataset or a folder of images"
            )
        store_image(image, folder / f"{number:06d}.png")
    return open_dataset(folder)


def _defense_and_settings(
    detector: str | Defense | Detector | Engine, options: Mapping[str, Any], base_floor: float, mask_floor: float
) -> tuple[Defense | None, ObservationSettings]:
    """Return the defense to observe, if its detector can be loaded again, and the observation settings."""
    requested = {name: value for name, value in options.items() if value is not None}
    if isinstance(requested.get("masks"), str):
        requested["masks"] = parse_recipe(requested["masks"])
    if isinstance(detector, Defense) and requested:
        raise ObjectSeekerError(f"the defense has its own {', '.join(requested)}: omit them, or change the defense")
    if isinstance(detector, str):
        detector = Defense.for_detector(detector, **requested)
    if isinstance(detector, Defense):
        return detector, ObservationSettings.from_defense(detector, base_floor=base_floor, mask_floor=mask_floor)
    return None, ObservationSettings(**requested, base_floor=base_floor, mask_floor=mask_floor)


def _engine_of(
    detector: str | Defense | Detector | Engine,
    defense: Defense | None,
    device: str | None,
    cluster: ClusterRequest | None,
    on_warning: Warn,
) -> AbstractContextManager[Engine]:
    if defense is not None and isinstance(defense.detector, str):
        options = defense.options | {"device": device}
        return open_engine(defense.detector, options, cluster=cluster, on_warning=on_warning)
    if defense is not None:
        if cluster is not None:
            raise ObjectSeekerError(f"a cluster needs the SPEC of a detector: got {defense.detector_name}: use python:")
        return nullcontext(LocalEngine((defense.load_detector(device),)))
    if isinstance(detector, Engine):
        return nullcontext(detector)
    assert not isinstance(detector, str | Defense)  # those have a defense
    return nullcontext(LocalEngine((load_detector(detector),)))


def _warn_at_start(run: Run, description: DetectorDescription, on_warning: Warn) -> None:
    if description.unverified_reason and not run.complete:
        trusted = "the run resumes because you confirmed that it is the same"
        fresh = "once stopped, the run resumes only with --trust-detector"
        on_warning(f"{description.unverified_reason}; {trusted if run.finished else fresh}")
    affected = "its image is" if run.manifest.images_per_part == 1 else "its images are"
    for file in run.damaged:
        on_warning(f"{file.name} was damaged: {affected} observed again")


def _pending_images(run: Run, dataset: Dataset) -> Iterator[ImageTask]:
    """Iterate over the images that are not finished, where they are now."""
    entries = select_images(dataset, len(run.manifest.images), run.manifest.seed)
    for index, (known, entry) in enumerate(zip(run.manifest.ids(), entries, strict=False)):
        if known != entry.id:  # a folder is listed again: an added or removed file would give others a wrong number
            raise ObjectSeekerError(
                f"{dataset.spec} has changed: image {index} was {known!r} and is {entry.id!r} now: restore it"
            )
        if not run.is_finished(index):
            yield ImageTask(index, str(resolve_path(entry.path)), entry.size, entry.frame_number)


def select_images(dataset: Dataset, count: int, seed: int | None) -> Iterator[DatasetImage]:
    """Yield `count` images: the first ones, or with a seed a random sample, of which a larger one has all."""
    if seed is None:
        return islice(dataset.images, count if count < len(dataset) else None)

    def draw(entry: DatasetImage) -> bytes:
        return hashlib.blake2b(f"{seed} {entry.id}".encode()).digest()

    return iter(heapq.nsmallest(count, dataset.images, key=draw))
