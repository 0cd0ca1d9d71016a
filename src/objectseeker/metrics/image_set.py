"""The images of a run in a few flat arrays, a part at a time, in one process or in several.

Images hold boxes in the detector's labels, in which they are pruned and certified. The flat arrays have one row per
object and per base box, with the dataset's labels, in which they are counted. Results do not depend on the process that
computes them and come back in the order of the images: with any number of processes they are the same, bit for bit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe
from objectseeker.detectors.onnx import available_cores
from objectseeker.errors import ObjectSeekerError, require_count

NO_IMAGES = "there are no images to evaluate; observe some first"


@dataclass(frozen=True, slots=True, eq=False)
class BoxTable:
    """Boxes of many images, image by image; `image` says which one each belongs to."""

    detections: Detections
    image: Ints

    @classmethod
    def concatenate(cls, parts: Sequence[Detections]) -> BoxTable:
        return cls(Detections.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.image)

    def select(self, index: Ints | Bools) -> BoxTable:
        return BoxTable(self.detections[index], self.image[index])

    def map_to_dataset(self, label_map: LabelMap) -> BoxTable:
        """Return boxes with the dataset's labels, without those of classes that it does not have."""
        label = label_map.dataset_labels[self.detections.label] if len(self) else self.detections.label
        kept = label >= 0
        return BoxTable(label_map.map_to_dataset(self.detections), self.image[kept])

    def followed_by(self, other: BoxTable) -> BoxTable:
        """Both, these first; no longer image by image."""
        return BoxTable(
            Detections.concatenate([self.detections, other.detections]), np.concatenate([self.image, other.image])
        )


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """A run's images with everything that does not depend on the settings."""

    images: tuple[ObservedImage, ...]
    label_map: LabelMap
    width: Ints  # per image
    height: Ints
    base: BoxTable  # in the dataset's labels, like `ground_truth`
    ground_truth: BoxTable
    ignore: Bools  # per object
    crowd: Bools

    @classmethod
    def from_images(cls, images: Sequence[ObservedImage], label_map: LabelMap) -> ImageSet:
        image_set = cls.from_part(images, label_map)
        if not len(image_set.counted):
            raise ObjectSeekerError(nothing_counts(len(image_set.images)))
        return image_set

    @classmethod
    def from_part(cls, images: Sequence[ObservedImage], label_map: LabelMap) -> ImageSet:
        """The image_set of some of many images: it may have no objects."""
        images = tuple(images)  # those of a stored run are read anew on every iteration
        if not images:
            raise ObjectSeekerError(NO_IMAGES)
        _check(images, label_map)
        return cls(
            images=images,
            label_map=label_map,
            width=np.array([image.observation.width for image in images]),
            height=np.array([image.observation.height for image in images]),
            base=BoxTable.concatenate([image.observation.base for image in images]).map_to_dataset(label_map),
            ground_truth=BoxTable.concatenate([image.ground_truth for image in images]),
            ignore=np.concatenate([np.asarray(image.ignore, dtype=np.bool_) for image in images]),
            crowd=np.concatenate([np.asarray(image.crowd, dtype=np.bool_) for image in images]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The classes of the dataset."""
        return self.label_map.dataset_names

    @property
    def image_count(self) -> int:
        return len(self.images)

    @property
    def counted(self) -> Ints:
        """The objects that count: all but the ignored ones."""
        return np.flatnonzero(~self.ignore)

    @property
    def objects_per_class(self) -> Ints:
        return np.bincount(self.ground_truth.detections.label[self.counted], minlength=len(self.names))

    def subset(self, index: Sequence[int] | Ints) -> ImageSet:
        """The image_set of some of the images."""
        return ImageSet.from_images([self.images[int(i)] for i in index], self.label_map)


def nothing_counts(images: int) -> str:
    return (
        f"none of the {images} images has an object that counts. Use a run with annotations, or write the certificates "
        "of its output boxes with evaluate RUN --objects FILE."
    )


def _check(images: Sequence[ObservedImage], label_map: LabelMap) -> None:
    for image in images:
        flags = len(image.ignore), len(image.crowd)
        if flags != (len(image.ground_truth),) * 2:
            raise ObjectSeekerError(
                f"ignore and crowd must have one entry per object, {len(image.ground_truth)} in image {image.id!r}: "
                f"got {flags[0]} and {flags[1]}"
            )
        seen = image.observation
        for boxes, known, whose in (
            (image.ground_truth, len(label_map.dataset_names), "objects"),
            (seen.base, len(label_map.dataset_labels), "boxes"),
            (seen.all_masked, len(label_map.dataset_labels), "boxes"),
        ):
            label = boxes.label
            if len(label) and not 0 <= label.min() <= label.max() < known:
                raise ObjectSeekerError(
                    f"image {image.id!r} has {whose} with labels from {label.min()} to {label.max()} "
                    f"but there are {known} class names: add the others"
                )


def split_images(images: int, parts: int, seed: int) -> list[Ints]:
    """Draw disjoint parts of nearly equal size of the images 0, 1, ...; each is ascending."""
    if parts > images:
        raise ObjectSeekerError(f"{images} images cannot be split into {parts} parts; observe more of them")
    order = np.random.default_rng(seed).permutation(images)
    return [np.sort(part) for part in np.array_split(order, parts)]


def restrict_images(images: Iterable[ObservedImage], recipe: Recipe) -> list[ObservedImage]:
    """Restrict images to a recipe, as if observed with it only; its masks must have been observed.

    Results must say so: a detector may return other last bits if these views share batches with others.
    """
    views = [(image, image.observation) for image in images]
    return [
        replace(image, observation=seen.restricted_to(recipe.masks(seen.width, seen.height))) for image, seen in views
    ]


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


def iter_image_sets(images: Iterable[ObservedImage], label_map: LabelMap) -> Iterator[ImageSet]:
    """Some images after the other, no more at a time than memory is sure to hold."""
    some: list[ObservedImage] = []
    boxes = 0
    for image in images:
        some.append(image)
        boxes += len(image.observation.all_masked)
        if len(some) == IMAGES_AT_A_TIME or boxes >= BOXES_AT_A_TIME:
            yield ImageSet.from_part(some, label_map)
            some, boxes = [], 0
    if some:
        yield ImageSet.from_part(some, label_map)


class ImageWorkers:
    """The images, and who looks at them: this process, or those of a pool."""

    def __init__(
        self,
        images: Sequence[ObservedImage],
        label_map: LabelMap,
        processes: int,
        pool: ProcessPoolExecutor | None,
        on_image: OnImage,
    ) -> None:
        self._images, self._vocabulary, self._pool, self._on_image = images, label_map, pool, on_image
        size = max(1, min(IMAGES_AT_A_TIME, -(-len(images) // (TURNS * processes))))
        self._parts = [range(len(images))[start : start + size] for start in range(0, len(images), size)]

    def each(self, work: Work[Argument, Found], argument: Argument) -> Iterator[Found]:
        """Yield the result of `work` for each part of the images, in order."""
        if self._pool is None:
            for image_set in iter_image_sets(self._images, self._vocabulary):
                yield work([image_set], argument)
                self._tell(len(image_set.images))
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
    label_map: LabelMap,
    *,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> Iterator[ImageWorkers]:
    """Open workers for the images, usable repeatedly; each process reads its images itself."""
    if require_count(processes, "processes") == 1:
        yield ImageWorkers(images, label_map, 1, None, on_image)
        return
    with process_pool(processes, _begin, (images, label_map)) as pool:
        yield ImageWorkers(images, label_map, processes, pool, on_image)


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


def _begin(images: Sequence[ObservedImage], label_map: LabelMap) -> None:
    global _given
    _given = images, label_map


def _process_images(work: Work[Argument, Found], some: range, argument: Argument) -> Found:
    images, label_map = _given
    return work(iter_image_sets(map(images.__getitem__, some), label_map), argument)
