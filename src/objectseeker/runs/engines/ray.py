"""A Ray cluster: long-lived workers that load the detector once, a driver that hands out images and takes findings.

At most `AHEAD` tasks of a worker are under way, so neither side ever holds more than a few images' worth. A worker that
dies costs what it had under way: these images go to others, one at a time, and a new worker takes its place. An image
that ends `STRIKES` workers is the cause, not the victim, and stops the run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any

from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.engines.ray_cluster import ClusterRequest, connect, first_line, import_ray, worker_capacity
from objectseeker.runs.engines.ray_worker import DetectorLoader, Worker, WorkerLocation, WorkerReady, WorkerResult
from objectseeker.runs.engines.tasks import DetectorDescription, ImageTask, ObservationJob
from objectseeker.runs.stored_boxes import StoredBoxes

QUEUED_TASKS = 2  # one task that a worker is at, and one that it can go on with at once
MAX_FAILURES = 3
TASK_SECONDS = 0.5  # cheap images share a task of about that length
MOST_ITEMS = 512  # of a task
LOOK_SECONDS = 5.0  # between two looks at how many workers the cluster has room for


@dataclass(slots=True, eq=False)
class _Slot:
    """One worker: what it is doing, oldest first. Tasks without items are its start."""

    actor: Any
    tasks: deque[tuple[Any, list[ImageTask]]] = field(default_factory=deque)
    place: WorkerLocation | None = None  # None until the cluster has found one
    ready: bool = False


class RayEngine:
    """An engine, and the context in which its cluster is there.

    `reference` is the detector that every worker must have; None takes the first worker's word for it, for a driver
    that cannot load it because it has no GPU.
    """

    def __init__(
        self,
        loading: DetectorLoader,
        request: ClusterRequest,
        reference: DetectorDescription | None = None,
        on_warning: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._loading, self._request, self._reference, self._warn = loading, request, reference, on_warning
        self._ray = import_ray(request.address)
        self._slots: list[_Slot] = []
        self._retry: deque[ImageTask] = deque()
        self._strikes: dict[int, int] = {}
        self._failed_starts = 0
        self._looked = -math.inf
        self._seconds: float | None = None  # that an image takes
        self._joined = False

    def __enter__(self) -> RayEngine:
        self._joined = connect(self._ray, self._request.address)
        self._idle_since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):  # a cluster that is gone cannot be told, and there is another error to show
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

    def observe(self, job: ObservationJob, items: Iterator[ImageTask]) -> Generator[StoredBoxes, None, None]:
        reference = self._ray.put(job)
        try:
            while True:
                self._start_workers()
                if not self._hand_out(reference, items):
                    return
                for slot, given, result in self._results():
                    if not isinstance(result, WorkerResult):
                        self._admit_worker(slot, result)
                        continue
                    yield from result.findings
                    if result.failure is not None:
                        raise ObjectSeekerError(result.failure)
                    self._measure(result, len(given))
        finally:
            self._drop_work()

    def _drop_work(self) -> None:
        """Leave nothing behind that another job would take for its own."""
        for slot in [slot for slot in self._slots if any(given for _, given in slot.tasks)]:
            with suppress(Exception):
                self._ray.kill(slot.actor)
            self._slots.remove(slot)
        self._retry.clear()
        self._strikes.clear()
        self._seconds = None

    def _start_workers(self) -> None:
        """Bring the number of workers to what is asked for and fits; no worker at all for too long is an error."""
        now = time.monotonic()
        if any(slot.place for slot in self._slots):
            self._idle_since = now
        elif now - self._idle_since > self._request.start_timeout:
            raise ObjectSeekerError(
                self._no_worker_error(f"could be started within {self._request.start_timeout:g} seconds")
            )
        if now - self._looked < LOOK_SECONDS and self._slots:
            return
        self._looked = now
        fitting = worker_capacity(self._ray.nodes(), self._request)
        if not fitting and not self._slots and self._request.address is None:  # nobody will bring another machine
            raise ObjectSeekerError(self._no_worker_error("fits on this machine"))
        wanted = fitting if self._request.workers is None else min(fitting, self._request.workers)
        remote = self._ray.remote(Worker)
        while len(self._slots) < wanted:
            actor = remote.options(
                num_cpus=self._request.cpus, num_gpus=self._request.gpus, max_restarts=0, max_task_retries=0
            ).remote()
            slot = _Slot(actor)
            slot.tasks.extend([(actor.where.remote(), []), (actor.start.remote(self._loading), [])])
            self._slots.append(slot)

    def _no_worker_error(self, what: str) -> str:
        there = self._ray.cluster_resources()
        return (
            f"no worker {what}: each asks for {self._request.cpus:g} CPUs and {self._request.gpus:g} GPUs of one "
            f"machine, and the cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs in all; "
            "finished images are kept"
        )

    def _admit_worker(self, slot: _Slot, news: WorkerLocation | WorkerReady) -> None:
        """Take a worker on, if it has the same detector and the same software as everywhere else."""
        if isinstance(news, WorkerLocation):
            slot.place = news
            return
        assert slot.place is not None
        started, host = news, slot.place.host
        if started.failure is not None:
            raise ObjectSeekerError(f"the worker on {host} cannot load the detector: {started.failure}")
        assert started.description is not None
        difference = _difference(started.description, self._reference or started.description)
        if difference:
            raise ObjectSeekerError(
                f"the worker on {host} must be left out, it would find other boxes: {difference}; "
                "install the same versions and files on every machine"
            )
        self._reference = self._reference or started.description
        slot.ready, self._failed_starts = True, 0

    def _hand_out(self, job_reference: Any, items: Iterator[ImageTask]) -> bool:
        """Give every worker something to do; whether anything is left to wait for."""
        for _ in range(QUEUED_TASKS):
            for slot in self._slots:
                if slot.ready and len(slot.tasks) < QUEUED_TASKS and (some := self._next(items)):
                    slot.tasks.append((slot.actor.observe.remote(job_reference, some), some))
        if self._retry or any(given for slot in self._slots for _, given in slot.tasks):
            return True
        if any(slot.ready for slot in self._slots):
            return False  # there was room, and nothing to put there
        self._retry.extend(islice(items, 1))  # nobody is there to take it yet: is there anything to do at all?
        return bool(self._retry)

    def _next(self, items: Iterator[ImageTask]) -> list[ImageTask]:
        if self._retry:
            return [self._retry.popleft()]  # alone, so that what ends a worker is told from what was next to it
        fitting = 1 if self._seconds is None else int(TASK_SECONDS / max(self._seconds, 1e-6))
        return list(islice(items, min(max(fitting, 1), MOST_ITEMS)))

    def _measure(self, answer: WorkerResult, images: int) -> None:
        latest = answer.seconds / images
        self._seconds = latest if self._seconds is None else 0.7 * self._seconds + 0.3 * latest

    def _results(self) -> Iterator[tuple[_Slot, list[ImageTask], Any]]:
        """What has come in since, once there is something or a moment has passed."""
        waiting = [slot.tasks[0][0] for slot in self._slots if slot.tasks]
        if not waiting:
            time.sleep(0.2)
            return
        done, _ = self._ray.wait(waiting, num_returns=1, timeout=1.0)
        if done:
            done, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        finished = set(done)
        for slot in list(self._slots):
            if slot.tasks and slot.tasks[0][0] in finished:
                reference, given = slot.tasks[0]
                try:
                    result = self._ray.get(reference)
                except self._ray.exceptions.RayTaskError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise ObjectSeekerError(f"a worker failed, which is a fault of objectseeker: {reason}") from error
                except self._ray.exceptions.RayError as error:
                    self._remove_worker(slot, error)
                    continue
                slot.tasks.popleft()
                yield slot, given, result

    def _remove_worker(self, slot: _Slot, error: Exception) -> None:
        """A worker is gone: its images go to others, and what ends worker after worker ends the run."""
        self._slots.remove(slot)
        self._looked = -math.inf  # look for a replacement at once
        self._ray.kill(slot.actor)  # it may only be out of reach
        (_, blamed), *behind = slot.tasks
        self._retry.extend(item for given in (*(given for _, given in behind), blamed) for item in given)
        who = "a worker" if slot.place is None else f"worker {slot.place.pid} on {slot.place.host}"
        self._warn(f"{who} was lost, its images are given to others: {first_line(error)}")
        if self._node_lost(slot):
            return  # with its whole machine: that says nothing about what it was doing
        if not slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILURES:
                raise ObjectSeekerError(
                    f"{MAX_FAILURES} workers in a row ended while they loaded the detector: {first_line(error)}"
                )
        for item in blamed:
            self._strikes[item.index] = self._strikes.get(item.index, 0) + 1
            if len(blamed) == 1 and self._strikes[item.index] >= MAX_FAILURES:
                raise ObjectSeekerError(
                    f"{item.path} ended {MAX_FAILURES} workers, so it is not given to another "
                    f"({first_line(error)}); take "
                    "it out of the dataset or find out what the detector does with it, finished images are kept"
                )

    def _node_lost(self, slot: _Slot) -> bool:
        """Whether the machine of a worker is no longer there."""
        up = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return slot.place is not None and slot.place.node not in up


def _difference(worker: DetectorDescription, reference: DetectorDescription) -> str:
    """What makes a worker's findings differ from the run's; empty if nothing does."""
    for name, theirs, ours in (
        ("its detector", worker.fingerprint, reference.fingerprint),
        ("its class names", worker.names, reference.names),
        ("that it makes its own batches", worker.own_batches, reference.own_batches),
    ):
        if theirs != ours:
            return f"{name} is {theirs}, here it is {ours}"
    for package in sorted((worker.software.keys() | reference.software.keys()) - {"python"}):
        theirs, ours = worker.software.get(package, "missing"), reference.software.get(package, "missing")
        if theirs != ours:
            return f"its {package} is {theirs}, here it is {ours}"
    return ""
