"""Admission and the queue: a bounded number of requests, and one worker per device.

A request is admitted before its body is read and counts until its response, so memory is bounded by requests times
bytes; a server at its limit rejects immediately. Images wait in one queue. A worker has one device and processes one
image at a time, with all of its views: batch shapes are those that were checked, whatever else is waiting.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from objectseeker.core.masks import Image
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import ThreatModel
from objectseeker.defense import Defense
from objectseeker.detectors import LoadedDetector
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.results import ImageResult, detect_image
from objectseeker.runs.engines import all_gpus
from objectseeker.serve.limits import ClientDisconnectedError, RequestRejectedError, ServerLimits
from objectseeker.serve.monitoring import Metrics

_T = TypeVar("_T")


def load_seekers(defense: Defense, device: str | None, *, trust_detector: bool = False) -> list[ObjectSeeker]:
    """Load the defended detector on each device; its fingerprint must be the same on all.

    Raises:
        ObjectSeekerError: The detector cannot be loaded, or the devices differ.
    """
    devices = all_gpus() if device == "cuda" else [None] if device is None else device.split(",")
    seekers = [defense.build(name, trust_detector=trust_detector) for name in devices]
    loaded = [cast(LoadedDetector, seeker.detector) for seeker in seekers]
    for name, detector in zip(devices, loaded, strict=True):
        if detector.fingerprint != loaded[0].fingerprint:
            raise ObjectSeekerError(
                f"--device must name devices that are alike: got {name}, which differs from {devices[0]}. "
                "Certificates do not carry over. Serve each from its own process."
            )
    return seekers


class InferenceResult(NamedTuple):
    """The result for one image, and how long it was queued and processed."""

    image: ImageResult
    queue_seconds: float
    inference_seconds: float


class _QueuedImage:
    """An image in the queue. An executor keeps even canceled work, so `drop` releases the image's bytes."""

    def __init__(self, load: Callable[[], Image], threat: ThreatModel | None) -> None:
        self.load, self.threat, self.enqueued = load, threat, time.monotonic()

    def drop(self) -> None:
        del self.load


class Workers:
    """The defended detectors, one per device, and their queue. Call its methods from one event loop only."""

    def __init__(self, seekers: Sequence[ObjectSeeker], limits: ServerLimits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._idle: SimpleQueue[ObjectSeeker] = SimpleQueue()
        for seeker in seekers:
            self._idle.put(seeker)
        self._devices = ThreadPoolExecutor(len(seekers), "device")
        self._reader = ThreadPoolExecutor(1, "reader")  # one thread: what it parses may be large
        self._device_count, self._in_flight, self._mean_seconds = len(seekers), 0, 1.0
        metrics.request_slots.set(limits.max_concurrent_requests)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request as in flight during the block; reject it with 503 if the server is at its limit."""
        if self._in_flight >= self._limits.max_concurrent_requests:
            raise RequestRejectedError(
                503,
                f"the server is busy: {self._in_flight} requests are in flight. Retry later.",
                retry_after=math.ceil(self._in_flight * self._mean_seconds / self._device_count),
            )
        self._in_flight += 1
        self._metrics.requests_in_flight.set(self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1
            self._metrics.requests_in_flight.set(self._in_flight)

    async def run_blocking(self, work: Callable[[], _T]) -> _T:
        """Run in a thread what would block the event loop, such as parsing a request."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def detect_upload(
        self, load: Callable[[], Image], threat: ThreatModel | None, disconnected: Awaitable[None]
    ) -> InferenceResult:
        """Detect in an image, which is loaded when its turn comes.

        Detection does not start if `disconnected` completes first, or after `queue_timeout` seconds.
        """
        queued = _QueuedImage(load, threat)
        work = self._devices.submit(self._detect, queued)
        result = asyncio.wrap_future(work)
        left = asyncio.ensure_future(disconnected)
        try:
            either: set[asyncio.Future[Any]] = {result, left}
            await asyncio.wait(either, timeout=self._limits.queue_timeout, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and _cancel(work, queued):
                raise ClientDisconnectedError
            if not result.done() and not left.done() and _cancel(work, queued):
                raise RequestRejectedError(
                    504,
                    f"detection did not start within {self._limits.queue_timeout:g} seconds. Retry later.",
                    retry_after=math.ceil(self._mean_seconds),
                )
            inference = await result
        finally:
            left.cancel()
        self._mean_seconds += 0.2 * (inference.inference_seconds - self._mean_seconds)
        return inference

    def _detect(self, queued: _QueuedImage) -> InferenceResult:
        """Runs in a thread; there are as many threads as seekers."""
        start = time.monotonic()
        queue_seconds = start - queued.enqueued
        self._metrics.queue_seconds.observe(queue_seconds)
        image = queued.load()
        queued.drop()
        seeker = self._idle.get()
        try:
            result = detect_image(seeker, image, threat=queued.threat)
        finally:
            self._idle.put(seeker)
        inference_seconds = time.monotonic() - start
        self._metrics.inference_seconds.observe(inference_seconds)
        self._count(result)
        return InferenceResult(result, queue_seconds, inference_seconds)

    def _count(self, result: ImageResult) -> None:
        self._metrics.images.inc()
        self._metrics.forward_passes.inc(result.forward_passes)
        self._metrics.boxes.labels("base").inc(result.base_boxes)
        self._metrics.boxes.labels("recovered").inc(result.recovered_boxes)
        if result.alert:
            self._metrics.alerts.inc()

    def close(self) -> None:
        """Finish what has started; start nothing else."""
        self._reader.shutdown(cancel_futures=True)
        self._devices.shutdown(cancel_futures=True)


def _cancel(work: Future[InferenceResult], queued: _QueuedImage) -> bool:
    """Cancel an image and release its bytes; return False if detection has already started."""
    is_cancelled = work.cancel()
    if is_cancelled:
        queued.drop()
    return is_cancelled
