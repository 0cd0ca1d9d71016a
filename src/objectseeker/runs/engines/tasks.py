"""What is to be done to an image (`Item`, `Job`), how it is done (`observe_items`), and what an engine is."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, runtime_checkable

from objectseeker.core.boxes import Detections
from objectseeker.core.masks import Image, Masks
from objectseeker.core.recipes import recipe_for_frame
from objectseeker.core.seeker import ViewDetector, detect_all_views
from objectseeker.detectors import OPTIONS, LoadedDetector, unverified_reason
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import ImageUnavailableError, load_with_hash, require_size, resolve_path
from objectseeker.runs.manifest import ObservationSettings
from objectseeker.runs.stored_boxes import StoredBoxes, check_labels

# What may have a hand in the boxes. Versions are those installed, not those loaded: one environment always makes the
# same run, whatever else the process has imported.
PACKAGES = ("objectseeker", "numpy", "pillow", "pyarrow", "onnxruntime", "torch", "torchvision", "transformers")

READ_AHEAD = 4  # images that are read at a time, before the detector is free for them


@dataclass(frozen=True, slots=True)
class ImageTask:
    """One image: its number in the run, where it lies, and its size where an annotation states it.

    `frame` is its number in its sequence, None of an image that is no frame.
    """

    index: int
    path: str
    size: tuple[int, int] | None
    frame: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LoadedImage:
    """An image as it was read, and the hash of its file."""

    image: Image
    file: str


Reading = Future[LoadedImage | StoredBoxes]  # or that it is broken


@dataclass(frozen=True, slots=True)
class ObservationJob:
    """What all images of a run have in common; `names` are the detector's."""

    observing: ObservationSettings
    names: tuple[str, ...]
    images_per_part: int = 1


@dataclass(frozen=True, slots=True)
class DetectorDescription:
    """What a run says about its detector, and about the environment that computes with it.

    `spec` and `options` are the arguments of `detectors.load_detector` that made it, without those that only say where
    it runs (device, workers); spec is None for a detector that was passed as an object. `unverified_reason` says why
    its fingerprint may not distinguish it from another detector.
    """

    fingerprint: str
    names: tuple[str, ...]
    own_batches: bool  # it makes its own batches of views
    software: dict[str, str]
    spec: str | None
    options: dict[str, Any]
    unverified_reason: str | None = None


@runtime_checkable
class Engine(Protocol):
    """Observes images, somewhere."""

    def describe(self) -> DetectorDescription:
        """The detector that is used."""
        ...

    def observe(self, job: ObservationJob, items: Iterator[ImageTask]) -> Generator[StoredBoxes, None, None]:
        """What is found on the items, in any order; each of the findings is about images of one part.

        Items are taken only as fast as they are dealt with, and closing the generator ends the work.
        """
        ...


def describe_detector(
    detector: LoadedDetector, spec: str | None = None, options: Mapping[str, Any] | None = None
) -> DetectorDescription:
    """What `detectors.load_detector(spec, **options)` gave, or a detector that came some other way."""
    own_batches = isinstance(detector, ViewDetector)
    decides = set(OPTIONS) if own_batches else set(OPTIONS) - {"batch"}  # else `Observing` says how large they are
    return DetectorDescription(
        fingerprint=detector.fingerprint,
        names=tuple(detector.names),
        own_batches=own_batches,
        software=software(),
        spec=spec,
        options={name: value for name, value in (options or {}).items() if name in decides},
        unverified_reason=unverified_reason(detector),
    )


def prefetch_images(items: Iterable[ImageTask]) -> Iterator[tuple[ImageTask, Reading]]:
    """Every item with what `read_item` gives; the next few are read while the detector is at one.

    Nobody ever waits for these threads, neither when this generator is closed, in whatever thread, nor when the process
    ends: a storage that does not answer must not keep it.
    """
    todo: SimpleQueue[tuple[ImageTask, Reading] | None] = SimpleQueue()
    for _ in range(READ_AHEAD):
        Thread(target=_read, args=(todo,), daemon=True).start()
    waiting: deque[tuple[ImageTask, Reading]] = deque()
    try:
        for item in items:
            waiting.append((item, Future()))
            todo.put(waiting[-1])
            if len(waiting) > READ_AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()
        for _ in range(READ_AHEAD):
            todo.put(None)


def _read(todo: SimpleQueue[tuple[ImageTask, Reading] | None]) -> None:
    while (following := todo.get()) is not None:
        item, future = following
        if future.cancelled():
            continue
        try:
            finish = partial(future.set_result, read_item(item))
        except BaseException as error:  # raised again where the image is asked for
            finish = partial(future.set_exception, error)
        with suppress(InvalidStateError):  # cancelled meanwhile: nobody wants it any more
            finish()


def read_item(item: ImageTask) -> LoadedImage | StoredBoxes:
    """The image, or that it is broken."""
    try:
        image, file = load_with_hash(resolve_path(item.path))
        require_size(image, item.path, item.size)
        return LoadedImage(image, file)
    except ImageUnavailableError as error:  # the disk went away: everything after it would be recorded as broken
        raise ObjectSeekerError(f"{error}: bring it back and start again, finished images are kept") from None
    except ObjectSeekerError as error:
        return StoredBoxes.unreadable(item.index, str(error))


def observe_items(
    detector: LoadedDetector, job: ObservationJob, images: Iterable[tuple[ImageTask, Reading]]
) -> Generator[StoredBoxes, None, None]:
    """Show the detector every view of every image. What is found follows from the image, job and detector alone.

    A detector that can begins with the next image before the boxes of the last are there. An image on which it fails
    altogether is left out, with the reason; but if that is the first of all, the detector is broken and the job ends.
    """
    observing = job.observing
    images = iter(images)
    begun: deque[tuple[ImageTask, LoadedImage, Masks]] = deque()
    broken: deque[StoredBoxes] = deque()
    unread: list[Exception] = []
    seen = 0

    def given() -> Iterator[tuple[Image, Masks]]:
        while True:
            try:
                following = next(images, None)
                if following is None:
                    return
                item, future = following
                read = future.result()
            except Exception as error:
                unread.append(error)
                raise
            if isinstance(read, StoredBoxes):
                broken.append(read)
                continue
            height, width = read.image.shape[:2]
            begun.append((item, read, recipe_for_frame(observing.masks, item.frame).masks(width, height)))
            yield read.image, begun[-1][2]

    def look(at: Iterable[tuple[Image, Masks]]) -> Iterator[list[Detections]]:
        # Without a batch the detector makes its own, and this is not looked at.
        return detect_all_views(detector, at, value=observing.fill, batch=observing.batch or 1)

    def found(item: ImageTask, read: LoadedImage, masks: Masks, views: Sequence[Detections]) -> StoredBoxes:
        return kept(job, item.index, (masks.width, masks.height), views, read.file)

    observed = look(given())
    while True:
        try:
            views = next(observed, None)
        except Exception as error:  # foreign code, whatever it raises: which of the images was it?
            if error in unread or not begun:
                raise
            while begun:
                item, read, masks = begun.popleft()
                try:
                    (views,) = look([(read.image, masks)])
                except Exception as reason:
                    said = f"the detector failed on {item.path}: {str(reason) or type(reason).__name__}"
                    if not seen or isinstance(reason, MemoryError):
                        raise ObjectSeekerError(said) from reason
                    broken.append(StoredBoxes.unreadable(item.index, said))
                else:
                    seen += 1
                    yield found(item, read, masks, views)
            observed = look(given())
            continue
        if views is None:
            break
        seen += 1
        yield found(*begun.popleft(), views)
        while broken:
            yield broken.popleft()
    yield from broken


def kept(
    job: ObservationJob, index: int, size: tuple[int, int], views: Sequence[Detections], file: str = ""
) -> StoredBoxes:
    """What is stored of what was found: the boxes down to the job's score floors, and the hash of the image's file."""
    observing = job.observing
    findings = StoredBoxes.of_image(index, size, file, views, (observing.base_floor, observing.mask_floor))
    check_labels(findings.boxes.label, job.names)
    return findings


def software() -> dict[str, str]:
    """The versions of everything in PACKAGES that is installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
