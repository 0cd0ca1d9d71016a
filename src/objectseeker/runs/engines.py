"""Engines: which machines and detectors observe the images of a run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from typing import Any

from objectseeker import detectors
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError, require_count, require_number
from objectseeker.runs.tables import StoredBoxes
from objectseeker.runs.tasks import (
    DetectorDescription,
    Engine,
    ImageTask,
    ObservationJob,
    Reading,
    describe_detector,
    observe_tasks,
    prefetch_images,
)

STOP_TIMEOUT = 60.0  # seconds that detectors have to end their current batch, once the run is stopped
RAY_DECIMALS = 4  # what Ray counts in
START_TIMEOUT = 120.0


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
            raise ObjectSeekerError("a worker must request some CPU or GPU, got 0 of both")

    def resolved(self, on_gpu: bool) -> ClusterRequest:
        """Return the request with a number of GPUs, for a detector that runs on one or not."""
        return replace(self, gpus=float(on_gpu)) if self.gpus is None else self


def _require_amount(value: float, name: str) -> float:
    """Return cores or GPUs of a worker, as Ray can count them."""
    amount = require_number(value, name)
    if amount < 0:
        raise ObjectSeekerError(f"{name} must not be negative, got {amount!r}")
    if amount and round(amount, RAY_DECIMALS) != amount:
        raise ObjectSeekerError(f"{name} must have at most {RAY_DECIMALS} decimals, got {amount!r}")
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
    if "," in device or ":" in device:
        raise ObjectSeekerError(f"with --ray the device is cpu or cuda, Ray assigns the GPUs; got {device!r}")
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
