"""Observe images with a detector: the work (`ImageTask`, `ObservationJob`) and `observe_tasks`."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, runtime_checkable

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image, Masks
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.core.seeker import ViewDetector, detect_all_views
from objectseeker.detectors import OPTIONS, LoadedDetector, unverified_reason
from objectseeker.errors import ObjectSeekerError, is_out_of_memory
from objectseeker.files.images import ImageUnavailableError, load_with_hash, require_size, resolve_path
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.tables import StoredBoxes, check_labels

# What may change boxes. Versions are those installed, not those imported: one environment always makes the same run,
# whatever else the process has imported.
PACKAGES = ("objectseeker", "numpy", "pillow", "pyarrow", "onnxruntime", "torch", "torchvision", "transformers")

READ_AHEAD = 4  # images that are read at the same time, before the detector is free for them


@dataclass(frozen=True, slots=True)
class ImageTask:
    """One image: its number in the run, its path, and its size if an annotation states it.

    `frame` is its number in its sequence, None for an image that is not a frame.
    """

    index: int
    path: str
    size: tuple[int, int] | None
    frame: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LoadedImage:
    """An image, and the hash of its file."""

    image: Image
    file_hash: str


Reading = Future[LoadedImage | StoredBoxes]  # the latter says that the image is unreadable


@dataclass(frozen=True, slots=True)
class ObservationJob:
    """The settings that all images of a run share; `names` are the detector's."""

    settings: ObservationSettings
    names: tuple[str, ...]
    images_per_part: int = 1


@dataclass(frozen=True, slots=True)
class DetectorDescription:
    """The detector of a run, and the environment it runs in.

    `spec` and `options` are what `load_detector` made it of, without what only says where it runs (device, workers);
    spec is None for a detector that was passed as an object. `unverified_reason` says why its fingerprint may not tell
    it from another detector, if so.
    """

    fingerprint: str
    names: tuple[str, ...]
    own_batches: bool  # it makes its own batches of views
    software: dict[str, str]
    spec: str | None
    options: dict[str, Any]
    unverified_reason: str | None = None


@runtime_checkable
class Engine(Protocol):
    """Observes images anywhere. Only the process that called `observe` writes the run."""

    def describe(self) -> DetectorDescription:
        """Describe the detector that is used."""
        ...

    def observe(self, job: ObservationJob, tasks: Iterator[ImageTask]) -> Generator[StoredBoxes, None, None]:
        """Yield the boxes of the tasks, in any order; each result is about images of one part.

        Tasks are taken only when the previous ones are done, and closing the generator ends the work.
        """
        ...


def describe_detector(
    detector: LoadedDetector, spec: str | None = None, options: Mapping[str, Any] | None = None
) -> DetectorDescription:
    """Describe what `load_detector(spec, **options)` returned, or a detector that was passed as an object."""
    own_batches = isinstance(detector, ViewDetector)
    decisive = set(OPTIONS) if own_batches else set(OPTIONS) - {"batch_size"}  # else `ObservationSettings` has it
    return DetectorDescription(
        fingerprint=detector.fingerprint,
        names=tuple(detector.names),
        own_batches=own_batches,
        software=installed_versions(),
        spec=spec,
        options={name: value for name, value in (options or {}).items() if name in decisive},
        unverified_reason=unverified_reason(detector),
    )


def prefetch_images(tasks: Iterable[ImageTask]) -> Iterator[tuple[ImageTask, Reading]]:
    """Iterate over tasks with the result of `load_task`, reading ahead while the detector works.

    These threads never block: neither when this generator is closed, in whatever thread, nor when the process ends. A
    storage that does not answer must not keep it.
    """
    queue: SimpleQueue[tuple[ImageTask, Reading] | None] = SimpleQueue()
    for _ in range(READ_AHEAD):
        Thread(target=_read, args=(queue,), daemon=True).start()
    waiting: deque[tuple[ImageTask, Reading]] = deque()
    try:
        for task in tasks:
            waiting.append((task, Future()))
            queue.put(waiting[-1])
            if len(waiting) > READ_AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()
        for _ in range(READ_AHEAD):
            queue.put(None)


def _read(queue: SimpleQueue[tuple[ImageTask, Reading] | None]) -> None:
    while (following := queue.get()) is not None:
        task, future = following
        if future.cancelled():
            continue
        try:
            finish = partial(future.set_result, load_task(task))
        except BaseException as error:  # raised again where the image is used
            finish = partial(future.set_exception, error)
        with suppress(InvalidStateError):  # canceled meanwhile
            finish()


def load_task(task: ImageTask) -> LoadedImage | StoredBoxes:
    """Load the image, or record that it is unreadable."""
    try:
        image, file_hash = load_with_hash(resolve_path(task.path))
        require_size(image, task.path, task.size)
        return LoadedImage(image, file_hash)
    except ImageUnavailableError as error:  # the disk is gone: all images after it would be recorded as unreadable
        raise ObjectSeekerError(f"{error}: restore it and start again, finished images are kept") from None
    except ObjectSeekerError as error:
        return StoredBoxes.unreadable_image(task.index, str(error))


def observe_tasks(
    detector: LoadedDetector, job: ObservationJob, images: Iterable[tuple[ImageTask, Reading]]
) -> Generator[StoredBoxes, None, None]:
    """Run the detector on every view of every image. Boxes follow from the image, job and detector alone.

    A detector that can do so starts with the next image before the boxes of the last one are there. An image on which
    it fails is skipped, with the reason. But if it fails on the first of all images it is broken, and if it runs out of
    memory that says nothing about the image: either ends the job.
    """
    settings = job.settings
    images = iter(images)
    started: deque[tuple[ImageTask, LoadedImage, Masks]] = deque()
    unreadable: deque[StoredBoxes] = deque()
    read_errors: list[Exception] = []
    observed = 0

    def pairs() -> Iterator[tuple[Image, Masks]]:
        while True:
            try:
                following = next(images, None)
                if following is None:
                    return
                task, future = following
                loaded = future.result()
            except Exception as error:
                read_errors.append(error)
                raise
            if isinstance(loaded, StoredBoxes):
                unreadable.append(loaded)
                continue
            height, width = loaded.image.shape[:2]
            started.append((task, loaded, recipe_for_frame(settings.masks, task.frame).masks(width, height)))
            yield loaded.image, started[-1][2]

    def detect(views_of: Iterable[tuple[Image, Masks]]) -> Iterator[list[Detections]]:
        # A detector that makes its own batches ignores the batch size.
        return detect_all_views(detector, views_of, value=settings.fill, batch_size=settings.batch_size or 1)

    def store(task: ImageTask, loaded: LoadedImage, masks: Masks, views: Sequence[Detections]) -> StoredBoxes:
        return boxes_to_store(job, task.index, (masks.width, masks.height), views, loaded.file_hash)

    results = detect(pairs())
    while True:
        try:
            views = next(results, None)
        except Exception as error:  # foreign code may raise anything: on which image did it fail?
            if error in read_errors or not started:
                raise
            while started:
                task, loaded, masks = started.popleft()
                try:
                    (views,) = detect([(loaded.image, masks)])
                except Exception as reason:
                    message = f"the detector failed on {task.path}: {str(reason) or type(reason).__name__}"
                    if not observed or is_out_of_memory(reason):
                        raise ObjectSeekerError(message) from reason
                    unreadable.append(StoredBoxes.unreadable_image(task.index, message))
                else:
                    observed += 1
                    yield store(task, loaded, masks, views)
            results = detect(pairs())
            continue
        if views is None:
            break
        observed += 1
        yield store(*started.popleft(), views)
        while unreadable:
            yield unreadable.popleft()
    yield from unreadable


def boxes_to_store(
    job: ObservationJob, index: int, size: tuple[int, int], views: Sequence[Detections], file_hash: str = ""
) -> StoredBoxes:
    """Keep the boxes down to the job's score floors, and the hash of the image's file."""
    stored = StoredBoxes.from_views(index, size, file_hash, views, (job.settings.base_floor, job.settings.mask_floor))
    check_labels(stored.boxes.label, job.names)
    return stored


def installed_versions() -> dict[str, str]:
    """Return the versions of all PACKAGES that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
