"""Requests and what does their work: a number of places, and one worker a device.

A request takes a place before its body is read and keeps it until it is answered, so memory is bounded by places times
bytes; without a free place it is refused at once. Images wait in one queue. A worker has one device and takes one image
at a time, with all of its views: batches are those that were checked, whatever else is waiting.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from objectseeker.core.masks import Image
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.inference.images import Found, look
from objectseeker.metrics.settings import ThreatModel
from objectseeker.serve.limits import Limits, Refused
from objectseeker.serve.monitoring import Metrics
from objectseeker.serve.uploads import GoneError

_Result = TypeVar("_Result")


class Done(NamedTuple):
    """What was found in an image, and how long it waited and took, in seconds."""

    found: Found
    waited: float
    took: float


class _Waiting:
    """An image that waits for its turn. An executor keeps even what was cancelled, so `drop` lets go of the bytes."""

    def __init__(self, load: Callable[[], Image], threat: ThreatModel | None) -> None:
        self.load, self.threat, self.begin = load, threat, time.monotonic()

    def drop(self) -> None:
        del self.load


class Workers:
    """The seekers, and everybody who waits for one. Its methods are called from one event loop alone."""

    def __init__(self, seekers: Sequence[ObjectSeeker], limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._free: SimpleQueue[ObjectSeeker] = SimpleQueue()
        for seeker in seekers:
            self._free.put(seeker)
        self._devices = ThreadPoolExecutor(len(seekers), "device")
        self._reader = ThreadPoolExecutor(1, "reader")  # one: what is read at a time may be large
        self._count, self._taken, self._usual = len(seekers), 0, 1.0
        metrics.places.set(limits.places)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for the time of the block, or a refusal."""
        if self._taken >= self._limits.places:
            raise Refused(
                503,
                f"all {self._limits.places} places are taken: try again later",
                retry_after=math.ceil(self._taken * self._usual / self._count),
            )
        self._taken += 1
        self._metrics.taken.set(self._taken)
        try:
            yield
        finally:
            self._taken -= 1
            self._metrics.taken.set(self._taken)

    async def read(self, work: Callable[[], _Result]) -> _Result:
        """Do what would hold up the event loop: look into what was received."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def look(self, load: Callable[[], Image], threat: ThreatModel | None, gone: Awaitable[None]) -> Done:
        """What is found in an image that is loaded when its turn comes; not begun with if its client is `gone`."""
        waiting = _Waiting(load, threat)
        work = self._devices.submit(self._work, waiting)
        result = asyncio.wrap_future(work)
        left = asyncio.ensure_future(gone)
        try:
            either: set[asyncio.Future[Any]] = {result, left}
            await asyncio.wait(either, timeout=self._limits.wait, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and _dropped(work, waiting):
                raise GoneError
            if not result.done() and not left.done() and _dropped(work, waiting):
                raise Refused(
                    504,
                    f"the image waited {self._limits.wait:g} seconds without being begun with: try again later",
                    retry_after=math.ceil(self._usual),
                )
            done = await result
        finally:
            left.cancel()
        self._usual += 0.2 * (done.took - self._usual)
        return done

    def _work(self, waiting: _Waiting) -> Done:
        """In a thread: there are as many as seekers."""
        start = time.monotonic()
        waited = start - waiting.begin
        self._metrics.waited.observe(waited)
        image = waiting.load()
        waiting.drop()
        seeker = self._free.get()
        try:
            found = look(seeker, image, "", waiting.threat)
        finally:
            self._free.put(seeker)
        took = time.monotonic() - start
        self._metrics.worked.observe(took)
        self._count_found(found, seeker.masks.passes(*found.size))
        return Done(found, waited, took)

    def _count_found(self, found: Found, views: int) -> None:
        self._metrics.images.inc()
        self._metrics.passes.inc(views)
        self._metrics.boxes.labels("image").inc(found.base)
        self._metrics.boxes.labels("masks").inc(found.recovered)
        if found.recovered:
            self._metrics.alerts.inc()

    def close(self) -> None:
        """Finish what was begun, and nothing else."""
        self._reader.shutdown(cancel_futures=True)
        self._devices.shutdown(cancel_futures=True)


def _dropped(work: Future[Done], waiting: _Waiting) -> bool:
    """Whether the image was still waiting; it will not be looked at then, and its bytes are let go."""
    dropped = work.cancel()
    if dropped:
        waiting.drop()
    return dropped
