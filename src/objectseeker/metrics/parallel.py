"""Process the images of a run in parts, in one process or in several.

What some images give does not depend on the process that looks at them, and what was found comes back in the order of
the images: with any number of processes it is the same, bit for bit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.detectors.onnx import available_cores
from objectseeker.errors import require_count
from objectseeker.metrics.image_set import ImageSet

IMAGES_AT_A_TIME = 256  # images that a process has in memory at a time,
BOXES_AT_A_TIME = 2**20  # or as few as have that many masked boxes
TURNS = 4  # parts that each process gets, so that none is long done before the others
MIN_IMAGES_PER_PROCESS = 100  # images: with fewer, starting a process takes longer than looking at them
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of one process; cores have one each already
SPAWN = get_context("spawn")  # a forked process would hold the locks of threads that it does not have

Argument = TypeVar("Argument")
Found = TypeVar("Found")
Work = Callable[[Iterable[ImageSet], Argument], Found]
OnImage = Callable[[], None]  # called for every image that was gone through


def default_process_count(images: int) -> int:
    """As many as there are cores, but none that is not worth starting."""
    return max(1, min(available_cores(), images // MIN_IMAGES_PER_PROCESS))


def iter_image_sets(images: Iterable[ObservedImage], vocabulary: LabelMap) -> Iterator[ImageSet]:
    """Some images after the other, no more at a time than memory is sure to hold."""
    some: list[ObservedImage] = []
    boxes = 0
    for image in images:
        some.append(image)
        boxes += len(image.observation.all_masked)
        if len(some) == IMAGES_AT_A_TIME or boxes >= BOXES_AT_A_TIME:
            yield ImageSet.part(some, vocabulary)
            some, boxes = [], 0
    if some:
        yield ImageSet.part(some, vocabulary)


class ImageWorkers:
    """The images, and who looks at them: this process, or those of a pool."""

    def __init__(
        self,
        images: Sequence[ObservedImage],
        vocabulary: LabelMap,
        processes: int,
        pool: ProcessPoolExecutor | None,
        on_image: OnImage,
    ) -> None:
        self._images, self._vocabulary, self._pool, self._on_image = images, vocabulary, pool, on_image
        size = max(1, min(IMAGES_AT_A_TIME, -(-len(images) // (TURNS * processes))))
        self._parts = [range(len(images))[start : start + size] for start in range(0, len(images), size)]

    def each(self, work: Work[Argument, Found], argument: Argument) -> Iterator[Found]:
        """Yield the result of `work` for each part of the images, in order."""
        if self._pool is None:
            for scene in iter_image_sets(self._images, self._vocabulary):
                yield work([scene], argument)
                self._tell(len(scene.images))
            return
        waiting = [self._pool.submit(_process_images, work, some, argument) for some in self._parts]
        for some, future in zip(self._parts, waiting, strict=True):
            yield future.result()
            self._tell(len(some))

    def _tell(self, images: int) -> None:
        for _ in range(images):
            self._on_image()


@contextmanager
def open_workers(
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    *,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> Iterator[ImageWorkers]:
    """Open workers for the images, usable repeatedly; each process reads its images itself."""
    if require_count(processes, "processes") == 1:
        yield ImageWorkers(images, vocabulary, 1, None, on_image)
        return
    with process_pool(processes, _begin, (images, vocabulary)) as pool:
        yield ImageWorkers(images, vocabulary, processes, pool, on_image)


@contextmanager
def process_pool(processes: int, begin: Callable[..., None], given: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    """Open processes of one thread each that begin with `begin(*given)`; a failure stops new work."""
    with _one_thread_each(), ProcessPoolExecutor(processes, SPAWN, _start, (begin, given)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(begin: Callable[..., None], given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once; the waiting process reports it
    begin(*given)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that begin meanwhile compute with one thread: more would wait for the cores of each other."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_given: tuple[Sequence[ObservedImage], LabelMap]  # what a process of the pool looks at


def _begin(images: Sequence[ObservedImage], vocabulary: LabelMap) -> None:
    global _given
    _given = images, vocabulary


def _process_images(work: Work[Argument, Found], some: range, argument: Argument) -> Found:
    images, vocabulary = _given
    return work(iter_image_sets(map(images.__getitem__, some), vocabulary), argument)
