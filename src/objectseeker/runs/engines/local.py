"""This machine: one thread for every detector, each with cores or a GPU of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError
from objectseeker.runs.engines.tasks import (
    DetectorDescription,
    ImageTask,
    ObservationJob,
    Reading,
    describe_detector,
    observe_items,
    prefetch_images,
)
from objectseeker.runs.stored_boxes import StoredBoxes

PATIENCE = 60.0  # seconds that detectors have to end what they are at, once the run is stopped


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Shares the images out among `detectors`: the same one on several GPUs, or just one.

    Which of them observes an image changes nothing, so they must have the same fingerprint. `spec` and `options` are
    the arguments of `detectors.load_detector` that made them, if it did.
    """

    detectors: Sequence[LoadedDetector]
    spec: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, *others = self.detectors
        for other in others:
            if other.fingerprint != first.fingerprint:
                raise ObjectSeekerError(f"detectors that share a run must be the same, got {other.fingerprint}")

    def describe(self) -> DetectorDescription:
        return describe_detector(self.detectors[0], self.spec, self.options)

    def observe(self, job: ObservationJob, items: Iterator[ImageTask]) -> Generator[StoredBoxes, None, None]:
        if len(self.detectors) == 1:
            return observe_items(self.detectors[0], job, prefetch_images(items))
        return _dispatch(self.detectors, job, items)


def _dispatch(
    detectors: Sequence[LoadedDetector], job: ObservationJob, items: Iterator[ImageTask]
) -> Generator[StoredBoxes, None, None]:
    """Every item with whichever detector is free. What failed or was interrupted does not wait for the rest."""
    lock, stopped, images = threading.Lock(), threading.Event(), prefetch_images(items)
    found: Queue[StoredBoxes | BaseException | None] = Queue(maxsize=2 * len(detectors))
    awaited: dict[int, Reading] = {}  # by thread: what it may be waiting for

    def own_share() -> Iterator[tuple[ImageTask, Reading]]:
        while not stopped.is_set():
            with lock:
                following = next(images, None)
            if following is None:
                return
            awaited[threading.get_ident()] = following[1]
            yield following

    def work(detector: LoadedDetector) -> None:
        try:
            for findings in observe_items(detector, job, own_share()):
                found.put(findings)
            found.put(None)
        except BaseException as error:  # raised again where the findings are taken
            found.put(error)

    threads = [threading.Thread(target=work, args=(detector,), daemon=True) for detector in detectors]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            match found.get():
                case None:
                    working -= 1
                case BaseException() as error:
                    raise error
                case findings:
                    yield findings
    finally:
        stopped.set()
        until = time.monotonic() + PATIENCE  # one that waits for a storage to list a folder is left behind
        while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
            for reading in [*awaited.values()]:  # those that wait for an image must get on,
                reading.cancel()
            while not found.empty():  # and those that wait for room in the queue
                found.get()
            for thread in threads:
                thread.join(0.01)
