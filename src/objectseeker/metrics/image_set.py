"""The images of a run in a few flat arrays, a part at a time, in one process or in several.

Images hold boxes in the detector's labels, in which they are pruned and certified. The flat arrays have one row per
object and per base box, with the dataset's labels, in which they are counted. Results do not depend on the process that
computes them and come back in the order of the images: with any number of processes they are the same, bit for bit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
from typing import Any, Self, TypeVar

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats, Ints
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
class Rows:
    """Columns of equal length.

    Each field is an array whose first axis is the rows, or a mapping to such arrays.

    Attributes:
        image: The image of each row.
    """

    image: Ints

    def columns(self) -> dict[tuple[str, Any], Any]:
        """Return every column by its field, and by its key where the field is a mapping."""
        known: dict[tuple[str, Any], Any] = {}
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            known |= {(name, key): value[key] for key in value} if isinstance(value, Mapping) else {(name, None): value}
        return known

    def with_columns(self, columns: Mapping[tuple[str, Any], Any]) -> Self:
        """Return the rows with other columns, named as `columns` names them."""
        values: dict[str, Any] = {}
        for (name, key), column in columns.items():
            values[name] = column if key is None else values.get(name, {}) | {key: column}
        return replace(self, **values)

    @classmethod
    def concatenate(cls, parts: Sequence[Self], starts: Sequence[int]) -> Self:
        """Join the rows of consecutive images; the images of each part begin at its start."""
        moved = [replace(part, image=part.image + start).columns() for part, start in zip(parts, starts, strict=True)]
        return parts[0].with_columns({name: np.concatenate([one[name] for one in moved]) for name in moved[0]})

    def select(self, kept: Bools | Ints) -> Self:
        return self.with_columns({name: column[kept] for name, column in self.columns().items()})

    def of_images(self, place: Ints) -> Self:
        """Return the rows of the images whose `place` is not -1, as images of these numbers."""
        part = self.select(place[self.image] >= 0)
        return replace(part, image=place[part.image])

    def summed(self, keys: Collection[str], counts: Collection[str]) -> Self:
        """Return rows that differ in `keys`, as of one image, with the sums of `counts`.

        Other columns mean nothing then.
        """
        columns = self.columns()
        compared = [column for (name, _), column in columns.items() if name in keys]
        _, first, kind = np.unique(
            np.column_stack([np.zeros(len(self.image), np.int64), *compared]),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        sums = {
            name: np.bincount(kind.ravel(), weights=column, minlength=len(first)).astype(np.int64)
            for name, column in columns.items()
            if name[0] in counts
        }
        chosen = {name: column[first] for name, column in columns.items()}
        return self.with_columns(chosen | {("image", None): np.zeros(len(first), np.int64)} | sums)


@dataclass(frozen=True, slots=True, eq=False)
class CountedRows(Rows):
    """Rows that count equal things: `count` is 1, unless summed."""

    count: Ints

    def per_image(self, images: int, holds: Bools | None = None) -> Floats:
        """Count what each image has, or that of which something holds."""
        chosen = slice(None) if holds is None else holds
        return np.asarray(np.bincount(self.image[chosen], self.count[chosen], images), np.float64)


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


def with_objects(image: ObservedImage, boxes: Detections) -> ObservedImage:
    """Return the image with these boxes as its objects, all of which count."""
    none = np.zeros(len(boxes), np.bool_)
    return replace(image, ground_truth=boxes, ignore=none, crowd=none, track=np.empty(0, np.int64))


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

Found = TypeVar("Found")
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


def map_images(
    work: Callable[[ImageSet], Found],
    images: Sequence[ObservedImage],
    label_map: LabelMap,
    *,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> Iterator[Found]:
    """Yield the result of `work` for consecutive images, in order; each process reads its images itself."""

    def tell(count: int) -> None:
        for _ in range(count):
            on_image()

    if require_count(processes, "processes") == 1:
        for image_set in iter_image_sets(images, label_map):
            yield work(image_set)
            tell(len(image_set.images))
        return
    size = max(1, min(IMAGES_AT_A_TIME, -(-len(images) // (TURNS * processes))))
    parts = [range(len(images))[start : start + size] for start in range(0, len(images), size)]
    with process_pool(processes, tuple, (images, label_map)) as submit:
        waiting = [submit(_process_images, work, part) for part in parts]
        for part, future in zip(parts, waiting, strict=True):
            yield from future.result()
            tell(len(part))


def _process_images(
    given: tuple[Sequence[ObservedImage], LabelMap], work: Callable[[ImageSet], Found], part: range
) -> list[Found]:
    images, label_map = given
    return [work(image_set) for image_set in iter_image_sets(map(images.__getitem__, part), label_map)]


_held: Any  # what a process of a pool computes with


@contextmanager
def process_pool(processes: int, make: Callable[..., Any], *given: Any) -> Iterator[Callable[..., Future[Any]]]:
    """Open processes of one thread each that hold `make(*given)`; a failure stops new work.

    What is yielded submits `work(held, *arguments)` and returns its future.
    """
    with _one_thread_each(), ProcessPoolExecutor(processes, SPAWN, _start, (make, given)) as pool:
        try:
            yield lambda work, *arguments: pool.submit(_work, work, *arguments)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(make: Callable[..., Any], given: tuple[Any, ...]) -> None:
    global _held
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once; the waiting process reports it
    _held = make(*given)


def _work(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(_held, *arguments)


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
