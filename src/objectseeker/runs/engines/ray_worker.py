"""What runs in a worker process of a Ray cluster."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from objectseeker import detectors
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.engines.tasks import (
    DetectorDescription,
    ImageTask,
    ObservationJob,
    describe_detector,
    observe_items,
    prefetch_images,
)
from objectseeker.runs.stored_boxes import StoredBoxes


@dataclass(frozen=True, slots=True)
class DetectorLoader:
    """How to load the detector: what `detectors.load_detector` takes. Weights never travel, only where to find them."""

    spec: str
    options: Mapping[str, Any]
    folder: str  # where paths start, if a worker has it too
    cores: int  # for a detector on the CPU

    @property
    def on_gpu(self) -> bool:
        return (self.options.get("device") or "cpu") != "cpu"

    def load(self) -> detectors.LoadedDetector:
        """The detector, for a process that has `cores` cores to itself."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        if self.on_gpu:
            return detectors.load_detector(self.spec, **self.options)
        with _few_cores(self.cores):
            return detectors.load_detector(self.spec, **self.options)

    def describe(self, detector: detectors.LoadedDetector) -> DetectorDescription:
        """What `load` gave."""
        return describe_detector(detector, self.spec, self.options)


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """Where a worker runs."""

    host: str
    pid: int
    node: str  # Ray's name for the machine


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """What a worker has loaded, or why it cannot."""

    description: DetectorDescription | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What was found on some items, part by part. With a `failure`, only on those before the one that failed."""

    findings: list[StoredBoxes]
    seconds: float
    failure: str | None


class Worker:
    """Loads the detector once, then observes what it is given."""

    def where(self) -> WorkerLocation:
        import ray

        return WorkerLocation(socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id())

    def start(self, loading: DetectorLoader) -> WorkerReady:
        try:
            self._detector = loading.load()
            return WorkerReady(loading.describe(self._detector), None)
        except ObjectSeekerError as error:
            return WorkerReady(None, str(error))

    def observe(self, job: ObservationJob, items: list[ImageTask]) -> WorkerResult:
        begin = time.perf_counter()
        found: list[tuple[int, StoredBoxes]] = []
        failure = None
        try:
            for findings in observe_items(self._detector, job, prefetch_images(items)):
                (index,) = findings.images
                found.append((index // job.images_per_part, findings))
        except ObjectSeekerError as error:
            failure = f"{error} (on {socket.gethostname()})"
        parts = groupby(sorted(found, key=lambda one: one[0]), key=lambda one: one[0])
        joined = [StoredBoxes.join([one for _, one in part]) for _, part in parts]
        return WorkerResult(joined, time.perf_counter() - begin, failure)


@contextmanager
def _few_cores(cores: int) -> Iterator[None]:
    """Let the detector find only so many cores while it loads: it will use as many, one view on each.

    Ray counts cores but does not hand out particular ones, so afterwards the process may run on any of them again.
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
