"""Engines: which machines and detectors observe the images of a run, and what each of them does."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import Any, Protocol, runtime_checkable

import numpy as np

from objectseeker import detectors
from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image, Masks
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.core.seeker import ViewDetector, detect_all_views
from objectseeker.detectors import OPTIONS, LoadedDetector, unverified_reason
from objectseeker.errors import ObjectSeekerError, is_out_of_memory, require_count, require_number
from objectseeker.files.images import ImageUnavailableError, load_with_hash, require_size, resolve_path
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.tables import MAX_STORED_LABEL, StoredBoxes

# What may change boxes. Versions are those installed, not those imported: one environment always makes the same run,
# whatever else the process has imported.
PACKAGES = ("objectseeker", "numpy", "pillow", "pyarrow", "onnxruntime", "torch", "torchvision", "transformers")

READ_AHEAD = 4  # images that are read at the same time, before the detector is free for them
STOP_TIMEOUT = 60.0  # seconds that detectors have to end their current batch, once the run is stopped
RAY_DECIMALS = 4  # what Ray counts in
START_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class ImageTask:
    """One image: its number in the run, its path, and its size if an annotation states it.

    `frame` is its number in its sequence, None for an image that is not a frame.
    """

    index: int
    path: str
    size: tuple[int, int] | None
    frame: int | None = None


Reading = Future[tuple[Image, str] | StoredBoxes]  # an image and its file's hash, or that it is unreadable


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
        threading.Thread(target=_read, args=(queue,), daemon=True).start()
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


def load_task(task: ImageTask) -> tuple[Image, str] | StoredBoxes:
    """Load the image, or record that it is unreadable."""
    try:
        image, file_hash = load_with_hash(resolve_path(task.path))
        require_size(image, task.path, task.size)
        return image, file_hash
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
    started: deque[tuple[ImageTask, Image, str, Masks]] = deque()
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
            image, file_hash = loaded
            height, width = image.shape[:2]
            masks = recipe_for_frame(settings.masks, task.frame).masks(width, height)
            started.append((task, image, file_hash, masks))
            yield image, masks

    def detect(views_of: Iterable[tuple[Image, Masks]]) -> Iterator[list[Detections]]:
        # A detector that makes its own batches ignores the batch size.
        return detect_all_views(detector, views_of, value=settings.fill, batch_size=settings.batch_size or 1)

    results = detect(pairs())
    while True:
        try:
            views = next(results, None)
        except Exception as error:  # foreign code may raise anything: on which image did it fail?
            if error in read_errors or not started:
                raise
            while started:
                task, image, file_hash, masks = started.popleft()
                try:
                    (views,) = detect([(image, masks)])
                except Exception as reason:
                    message = f"the detector failed on {task.path}: {str(reason) or type(reason).__name__}"
                    if not observed or is_out_of_memory(reason):
                        raise ObjectSeekerError(message) from reason
                    unreadable.append(StoredBoxes.unreadable_image(task.index, message))
                else:
                    observed += 1
                    yield boxes_to_store(job, task.index, views, masks, file_hash)
            results = detect(pairs())
            continue
        if views is None:
            break
        observed += 1
        task, _, file_hash, masks = started.popleft()
        yield boxes_to_store(job, task.index, views, masks, file_hash)
        while unreadable:
            yield unreadable.popleft()
    yield from unreadable


def boxes_to_store(
    job: ObservationJob, index: int, views: Sequence[Detections], masks: Masks, file_hash: str = ""
) -> StoredBoxes:
    """Keep the boxes, of the unmasked view and then of each mask, that reach the job's score floors.

    Labels that could not be translated when the run is read are rejected here, at the first image.
    """
    boxes = Detections.concatenate(views)
    mask = np.repeat(np.arange(-1, len(views) - 1), [len(view) for view in views])
    kept = boxes.score >= np.where(mask < 0, job.settings.base_floor, job.settings.mask_floor)
    mask, boxes = mask[kept], boxes[kept]
    largest = len(job.names) - 1 if job.names else MAX_STORED_LABEL
    if len(boxes) and not 0 <= boxes.label.min() <= boxes.label.max() <= largest:
        raise ObjectSeekerError(
            f"the detector returned the labels {boxes.label.min()} to {boxes.label.max()}; they must be within 0 to "
            f"{largest}" + (", one for each of its class names" if job.names else "")
        )
    return StoredBoxes(
        np.full(len(boxes), index), mask, boxes, {index: (masks.width, masks.height, file_hash)}, broken={}
    )


def installed_versions() -> dict[str, str]:
    """Return the versions of all PACKAGES that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """The Ray cluster to observe on.

    Attributes:
        address: Where the cluster is; None starts one on this machine alone, and stops it at the end.
        workers: None: as many as fit, also when machines are added or removed.
        cpus: Cores per worker.
        gpus: GPUs per worker; None: one if the detector runs on a GPU.
        start_timeout: Seconds to wait while there is no worker at all.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float | None = None
    start_timeout: float = START_TIMEOUT

    def __post_init__(self) -> None:
        if self.workers is not None:
            object.__setattr__(self, "workers", require_count(self.workers, "workers"))
        for name in ("cpus", "gpus"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _require_amount(getattr(self, name), name))
        if self.cpus == self.gpus == 0:
            raise ObjectSeekerError("a worker must request some CPU or GPU: got 0 of both")

    def resolved(self, on_gpu: bool) -> ClusterRequest:
        """Return the request with a number of GPUs, for a detector that runs on one or not."""
        return replace(self, gpus=float(on_gpu)) if self.gpus is None else self


def _require_amount(value: float, name: str) -> float:
    """Return cores or GPUs of a worker, as Ray can count them."""
    amount = require_number(value, name)
    if amount < 0:
        raise ObjectSeekerError(f"{name} must not be negative: got {amount!r}")
    if amount and round(amount, RAY_DECIMALS) != amount:
        raise ObjectSeekerError(f"{name} must have at most {RAY_DECIMALS} decimals: got {amount!r}")
    return amount


@contextmanager
def open_engine(
    spec: str,
    options: Mapping[str, Any] | None = None,
    *,
    cluster: ClusterRequest | None = None,
    on_warning: Callable[[str], None] = lambda message: None,
) -> Iterator[Engine]:
    """Open the engine for the detector `load_detector(spec, **options)`: this machine, or a Ray cluster.

    The option `device` may name several devices of this machine, with commas; cuda means all GPUs.
    """
    options = {key: value for key, value in (options or {}).items() if value is not None}
    if cluster is None:
        devices = all_gpus() if options.get("device") == "cuda" else options.get("device", "").split(",")
        options.pop("device", None)
        each = [{**options, "device": device} if device else options for device in devices]
        yield LocalEngine(tuple(detectors.load_detector(spec, **own) for own in each), spec, options)
        return
    # Whenever a worker is lost Ray prints pages to where results belong; they are in its logs too.
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        _ray_engine(spec, options, cluster, on_warning) as engine,
    ):
        yield engine


def all_gpus() -> list[str]:
    """Return the CUDA devices of this machine by name; plain cuda if there is one, or torch is missing."""
    if find_spec("torch") is None:
        return ["cuda"]
    import torch

    count = int(torch.cuda.device_count())
    return ["cuda"] if count < 2 else [f"cuda:{number}" for number in range(count)]


def _ray_engine(
    spec: str, options: Mapping[str, Any], cluster: ClusterRequest, on_warning: Callable[[str], None]
) -> Any:
    from objectseeker.runs.ray import DetectorLoader, RayEngine

    device = options.get("device", "cpu")
    if device not in ("cpu", "cuda"):
        raise ObjectSeekerError(f"with --ray the device must be cpu or cuda, Ray assigns the GPUs: got {device!r}")
    if device == "cpu" and cluster.gpus:
        raise ObjectSeekerError(f"workers of {cluster.gpus:g} GPUs would not use them: add --device cuda")
    loader = DetectorLoader(spec, options, str(Path.cwd()), cores=max(int(cluster.cpus), 1))
    # A driver need not have a GPU: then the first worker describes the detector.
    reference = None if loader.on_gpu else loader.describe(loader.load())
    return RayEngine(loader, cluster, reference, on_warning)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Distributes images over `detectors`, the same detector on each GPU, with one thread for each.

    Which of them observes an image changes nothing, so they must have the same fingerprint. `spec` and `options` are
    the arguments of `load_detector` that made them, if it did.
    """

    detectors: Sequence[LoadedDetector]
    spec: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, *others = self.detectors
        for other in others:
            if other.fingerprint != first.fingerprint:
                raise ObjectSeekerError(f"detectors that share a run must be the same: got {other.fingerprint}")

    def describe(self) -> DetectorDescription:
        return describe_detector(self.detectors[0], self.spec, self.options)

    def observe(self, job: ObservationJob, tasks: Iterator[ImageTask]) -> Generator[StoredBoxes, None, None]:
        if len(self.detectors) == 1:
            return observe_tasks(self.detectors[0], job, prefetch_images(tasks))
        return _dispatch(self.detectors, job, tasks)


def _dispatch(
    detectors: Sequence[LoadedDetector], job: ObservationJob, tasks: Iterator[ImageTask]
) -> Generator[StoredBoxes, None, None]:
    """Observe every task with any free detector. A failure or an interrupt does not wait for the rest."""
    lock, stopped, images = threading.Lock(), threading.Event(), prefetch_images(tasks)
    results: Queue[StoredBoxes | BaseException | None] = Queue(maxsize=2 * len(detectors))
    awaited: dict[int, Reading] = {}  # by thread: the image it may be waiting for

    def own_tasks() -> Iterator[tuple[ImageTask, Reading]]:
        while not stopped.is_set():
            with lock:
                following = next(images, None)
            if following is None:
                return
            awaited[threading.get_ident()] = following[1]
            yield following

    def work(detector: LoadedDetector) -> None:
        try:
            for stored in observe_tasks(detector, job, own_tasks()):
                results.put(stored)
            results.put(None)
        except BaseException as error:  # raised again where results are used
            results.put(error)

    threads = [threading.Thread(target=work, args=(detector,), daemon=True) for detector in detectors]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            match results.get():
                case None:
                    working -= 1
                case BaseException() as error:
                    raise error
                case stored:
                    yield stored
    finally:
        stopped.set()
        deadline = time.monotonic() + STOP_TIMEOUT  # a thread that waits for a storage to list a folder is abandoned
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            for reading in [*awaited.values()]:  # threads that wait for an image must continue,
                reading.cancel()
            while not results.empty():  # and so must threads that wait for space in the queue
                results.get()
            for thread in threads:
                thread.join(0.01)
