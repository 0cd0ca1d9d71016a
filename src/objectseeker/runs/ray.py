"""A Ray cluster: workers that load the detector once, and a driver that assigns them images.

At most `QUEUED_TASKS` tasks of a worker are under way, so neither side ever holds more than a few images' worth. A
worker that dies costs what it had under way: these images go to others, one at a time, and a new worker replaces it. An
image that ends `MAX_FAILURES` workers is the cause, not the victim, and stops the run.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
import textwrap
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from objectseeker import detectors
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.engines import (
    ClusterRequest,
    DetectorDescription,
    ImageTask,
    ObservationJob,
    describe_detector,
    observe_tasks,
    prefetch_images,
)
from objectseeker.runs.tables import StoredBoxes

QUEUED_TASKS = 2  # one task that a worker runs, and one that it can start at once
MAX_FAILURES = 3
TASK_SECONDS = 0.5  # cheap images share a task of about that length
MAX_TASK_IMAGES = 512
RESCALE_SECONDS = 5.0  # between two checks of how many workers fit into the cluster

CONNECT_TIMEOUT = 5.0  # seconds
MIN_RAY_VERSION = (2, 52)  # older ones ignore the token: anyone who reaches a port may run code
STORE_BYTES = 256 * 2**20  # Ray's memory for boxes on their way, if the cluster is ours


@dataclass(frozen=True, slots=True)
class DetectorLoader:
    """The arguments of `load_detector` for a worker. Weights are never sent, only where to find them."""

    spec: str
    options: Mapping[str, Any]
    folder: str  # that paths are relative to, if a worker has it too
    cores: int  # for a detector on the CPU

    @property
    def on_gpu(self) -> bool:
        return (self.options.get("device") or "cpu") != "cpu"

    def load(self) -> detectors.LoadedDetector:
        """Load the detector for a process that has `cores` cores to itself."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        if self.on_gpu:
            return detectors.load_detector(self.spec, **self.options)
        with _few_cores(self.cores):
            return detectors.load_detector(self.spec, **self.options)

    def describe(self, detector: detectors.LoadedDetector) -> DetectorDescription:
        """Describe what `load` returned."""
        return describe_detector(detector, self.spec, self.options)


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """The process and machine of a worker."""

    host: str
    pid: int
    node: str  # Ray's name for the machine


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The boxes of some tasks, per part. With a `failure`, only of those before the one that failed."""

    stored: list[StoredBoxes]
    seconds: float
    failure: str | None


class Worker:
    """Loads the detector once, then observes images."""

    def locate(self) -> WorkerLocation:
        import ray

        return WorkerLocation(socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id())

    def start(self, loader: DetectorLoader) -> DetectorDescription | str:
        """Load the detector; return its description, or why it cannot be loaded."""
        try:
            self._detector = loader.load()
            return loader.describe(self._detector)
        except ObjectSeekerError as error:
            return str(error)

    def observe(self, job: ObservationJob, tasks: list[ImageTask]) -> WorkerResult:
        start = time.perf_counter()
        by_part: dict[int, list[StoredBoxes]] = {}
        failure = None
        try:
            for stored in observe_tasks(self._detector, job, prefetch_images(tasks)):
                (index,) = stored.indices
                by_part.setdefault(index // job.images_per_part, []).append(stored)
        except ObjectSeekerError as error:
            failure = f"{error} (on {socket.gethostname()})"
        joined = [StoredBoxes.join(pieces) for _, pieces in sorted(by_part.items())]
        return WorkerResult(joined, time.perf_counter() - start, failure)


@contextmanager
def _few_cores(cores: int) -> Iterator[None]:
    """Show the detector only `cores` cores while it loads: it will use that many, one view on each.

    Ray counts cores but does not assign particular ones, so afterwards the process may run on any of them again.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(slots=True, eq=False)
class _Slot:
    """One worker and its calls, oldest first. Calls without images are its start."""

    actor: Any
    calls: deque[tuple[Any, list[ImageTask]]] = field(default_factory=deque)
    location: WorkerLocation | None = None  # None until the cluster has placed it
    ready: bool = False


class RayEngine:
    """An engine on a Ray cluster, which it joins or starts as a context manager.

    `reference` is the detector that every worker must have; None takes that of the first worker, for a driver that
    cannot load it because it has no GPU.
    """

    def __init__(
        self,
        loader: DetectorLoader,
        request: ClusterRequest,
        reference: DetectorDescription | None = None,
        on_warning: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._loader, self._request = loader, request.resolved(loader.on_gpu)
        self._reference, self._warn = reference, on_warning
        self._ray = import_ray(request.address)
        self._slots: list[_Slot] = []
        self._retry: deque[ImageTask] = deque()
        self._failures: dict[int, int] = {}  # by image
        self._failed_starts = 0
        self._rescaled_at = -math.inf
        self._seconds: float | None = None  # per image
        self._joined = False

    def __enter__(self) -> RayEngine:
        self._joined = connect(self._ray, self._request.address)
        self._idle_since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):  # a lost cluster does not respond, and there is another error to show
            for slot in self._slots:
                self._ray.kill(slot.actor)
        self._slots.clear()
        if self._joined:
            self._ray.shutdown()

    def describe(self) -> DetectorDescription:
        while self._reference is None:
            self._start_workers()
            for slot, _, result in self._results():
                self._admit_worker(slot, result)
        return self._reference

    def observe(self, job: ObservationJob, tasks: Iterator[ImageTask]) -> Generator[StoredBoxes, None, None]:
        reference = self._ray.put(job)
        try:
            while True:
                self._start_workers()
                if not self._assign_tasks(reference, tasks):
                    return
                for slot, images, result in self._results():
                    if not isinstance(result, WorkerResult):
                        self._admit_worker(slot, result)
                        continue
                    yield from result.stored
                    if result.failure is not None:
                        raise ObjectSeekerError(result.failure)
                    self._measure(result, len(images))
        finally:
            self._drop_work()

    def _drop_work(self) -> None:
        """Leave nothing that another job would take for its own."""
        for slot in [slot for slot in self._slots if any(images for _, images in slot.calls)]:
            with suppress(Exception):
                self._ray.kill(slot.actor)
            self._slots.remove(slot)
        self._retry.clear()
        self._failures.clear()
        self._seconds = None

    def _start_workers(self) -> None:
        """Start as many workers as are requested and fit; no worker at all for too long is an error."""
        now = time.monotonic()
        if any(slot.location for slot in self._slots):
            self._idle_since = now
        elif now - self._idle_since > self._request.start_timeout:
            raise ObjectSeekerError(
                self._no_worker_error(f"could be started within {self._request.start_timeout:g} seconds")
            )
        if now - self._rescaled_at < RESCALE_SECONDS and self._slots:
            return
        self._rescaled_at = now
        fitting = worker_capacity(self._ray.nodes(), self._request)
        if not fitting and not self._slots and self._request.address is None:  # no machine will be added
            raise ObjectSeekerError(self._no_worker_error("fits on this machine"))
        target = fitting if self._request.workers is None else min(fitting, self._request.workers)
        remote = self._ray.remote(Worker)
        while len(self._slots) < target:
            actor = remote.options(
                num_cpus=self._request.cpus, num_gpus=self._request.gpus, max_restarts=0, max_task_retries=0
            ).remote()
            slot = _Slot(actor)
            slot.calls.extend([(actor.locate.remote(), []), (actor.start.remote(self._loader), [])])
            self._slots.append(slot)

    def _no_worker_error(self, reason: str) -> str:
        resources = self._ray.cluster_resources()
        return (
            f"no worker {reason}: each requests {self._request.cpus:g} CPUs and {self._request.gpus:g} GPUs of one "
            f"machine, and the cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs in "
            "all; finished images are kept"
        )

    def _admit_worker(self, slot: _Slot, started: WorkerLocation | DetectorDescription | str) -> None:
        """Accept a worker if it has the same detector and the same software as all others."""
        if isinstance(started, WorkerLocation):
            slot.location = started
            return
        assert slot.location is not None
        host = slot.location.host
        if isinstance(started, str):
            raise ObjectSeekerError(f"the worker on {host} cannot load the detector: {started}: install it there")
        self._reference = self._reference or started
        if difference := _difference(started, self._reference):
            raise ObjectSeekerError(
                f"the worker on {host} cannot be used, it would find other boxes: {difference}; "
                "install the same versions and files on every machine"
            )
        slot.ready, self._failed_starts = True, 0

    def _assign_tasks(self, job_reference: Any, tasks: Iterator[ImageTask]) -> bool:
        """Give every worker something to do; return whether anything is left to wait for."""
        for _ in range(QUEUED_TASKS):
            for slot in self._slots:
                if slot.ready and len(slot.calls) < QUEUED_TASKS and (chunk := self._next_chunk(tasks)):
                    slot.calls.append((slot.actor.observe.remote(job_reference, chunk), chunk))
        if self._retry or any(images for slot in self._slots for _, images in slot.calls):
            return True
        if any(slot.ready for slot in self._slots):
            return False  # a worker was free, and nothing is left for it
        self._retry.extend(islice(tasks, 1))  # no worker is ready yet: is there anything to do at all?
        return bool(self._retry)

    def _next_chunk(self, tasks: Iterator[ImageTask]) -> list[ImageTask]:
        if self._retry:
            return [self._retry.popleft()]  # on its own, so that an image that ends a worker is identified
        fitting = 1 if self._seconds is None else int(TASK_SECONDS / max(self._seconds, 1e-6))
        return list(islice(tasks, min(max(fitting, 1), MAX_TASK_IMAGES)))

    def _measure(self, result: WorkerResult, images: int) -> None:
        latest = result.seconds / images
        self._seconds = latest if self._seconds is None else 0.7 * self._seconds + 0.3 * latest

    def _results(self) -> Iterator[tuple[_Slot, list[ImageTask], Any]]:
        """Yield results that have arrived; wait a moment for the first."""
        waiting = [slot.calls[0][0] for slot in self._slots if slot.calls]
        if not waiting:
            time.sleep(0.2)
            return
        done, _ = self._ray.wait(waiting, num_returns=1, timeout=1.0)
        if done:
            done, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        finished = set(done)
        for slot in list(self._slots):
            if slot.calls and slot.calls[0][0] in finished:
                reference, images = slot.calls[0]
                try:
                    result = self._ray.get(reference)
                except self._ray.exceptions.RayTaskError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise ObjectSeekerError(
                        f"a worker failed, which is an internal error of objectseeker: {reason}"
                    ) from error
                except self._ray.exceptions.RayError as error:
                    self._remove_worker(slot, error)
                    continue
                slot.calls.popleft()
                yield slot, images, result

    def _remove_worker(self, slot: _Slot, error: Exception) -> None:
        """Reassign the images of a lost worker; end the run if an image, or loading, ends worker after worker."""
        self._slots.remove(slot)
        self._rescaled_at = -math.inf  # replace it at once
        self._ray.kill(slot.actor)  # it may only be unreachable
        (_, blamed), *behind = slot.calls
        self._retry.extend(task for images in (*(images for _, images in behind), blamed) for task in images)
        who = "a worker" if slot.location is None else f"worker {slot.location.pid} on {slot.location.host}"
        self._warn(f"{who} was lost, its images go to others: {first_line(error)}")
        if self._node_lost(slot):
            return  # with its whole machine: its task is not the cause
        if not slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILURES:
                raise ObjectSeekerError(
                    f"{MAX_FAILURES} workers in a row ended while they loaded the detector: {first_line(error)}"
                )
        for task in blamed:
            self._failures[task.index] = self._failures.get(task.index, 0) + 1
            if len(blamed) == 1 and self._failures[task.index] >= MAX_FAILURES:
                raise ObjectSeekerError(
                    f"{task.path} ended {MAX_FAILURES} workers, so no other gets it ({first_line(error)}): remove it "
                    "from the dataset or find out what the detector does with it, finished images are kept"
                )

    def _node_lost(self, slot: _Slot) -> bool:
        """Return whether the machine of a worker is lost."""
        up = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return slot.location is not None and slot.location.node not in up


def _difference(worker: DetectorDescription, reference: DetectorDescription) -> str:
    """Name what would make a worker's boxes differ from the run's; empty if nothing does."""
    for name, actual, expected in (
        ("its detector", worker.fingerprint, reference.fingerprint),
        ("its class names", worker.names, reference.names),
        ("whether it makes its own batches", worker.own_batches, reference.own_batches),
    ):
        if actual != expected:
            return f"{name} is {actual}, here it is {expected}"
    for package in sorted((worker.software.keys() | reference.software.keys()) - {"python"}):
        actual, expected = worker.software.get(package, "missing"), reference.software.get(package, "missing")
        if actual != expected:
            return f"its {package} is {actual}, here it is {expected}"
    return ""


# Connecting to a cluster


def import_ray(address: str | None) -> Any:
    """Import Ray with the settings that it reads only on import."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no usage reports
    if address is None:
        # Ray's switch for clusters of several machines, despite its name: without them it listens at 127.0.0.1 only,
        # where no other machine reaches it.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if address is None and not os.environ.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        # The workers of our own cluster authenticate with a token that is never stored; by default Ray would make one
        # and leave it in the home folder.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # do not hide GPUs from a worker that requests none
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ObjectSeekerError("--ray needs Ray: pip install 'objectseeker[ray]'") from None
    _require_authentication(ray.__version__)
    return ray


def _require_authentication(version: str) -> None:
    """Reject a version of Ray that anyone can control."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < MIN_RAY_VERSION:
        raise ObjectSeekerError(
            f"Ray {version} lets anyone who reaches it run code, since it requires no token: install "
            f"{'.'.join(map(str, MIN_RAY_VERSION))} or later on every machine, pip install 'objectseeker[ray]'"
        )


def connect(ray: Any, address: str | None) -> bool:
    """Connect to a cluster, or start one; return whether that was necessary."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        try:
            ray.init(address="local", include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        except Exception as error:  # Ray has no exception class for a start that takes too long
            raise ObjectSeekerError(
                f"Ray could not be started on this machine, free memory or try again: {first_line(error)}"
            ) from None
        return True
    _require_answer(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        rejected = "InvalidAuthToken" in f"{error} {error.__cause__}"
        reason = "it requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" if rejected else first_line(error)
        raise ObjectSeekerError(f"cannot join the Ray cluster at {address}: {reason}") from None
    return True


def _require_answer(address: str) -> None:
    """Fail fast: Ray itself would try for a minute and then print pages."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # auto, local
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ObjectSeekerError(
            f"no Ray cluster answers at {address} ({error}): start one with ray start --head, or use --ray local"
        ) from None


def worker_capacity(nodes: list[dict[str, Any]], request: ClusterRequest) -> int:
    """Return how many workers fit on the machines that are up, if nothing else used them."""
    amounts = {"CPU": request.cpus, "GPU": request.gpus or 0.0}
    return sum(
        min((int(node["Resources"].get(kind, 0) // amount) for kind, amount in amounts.items() if amount), default=1)
        for node in nodes
        if node["Alive"]
    )


def first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return textwrap.shorten(line, 200, placeholder=" ...")
