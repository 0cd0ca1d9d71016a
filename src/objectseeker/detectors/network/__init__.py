"""A detector around a network: it resizes, masks, runs, decodes and maps boxes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.masks import Image, as_image
from objectseeker.core.seeker import keep_successful_views, try_view
from objectseeker.detectors.network.layouts import Array, Layout, normalize
from objectseeker.detectors.network.preprocess import (
    InputPlacement,
    MaskMode,
    Size,
    ViewPlan,
    cached_view_plan,
    prepare,
)
from objectseeker.detectors.network.raw_boxes import (
    SCORE_FLOOR,
    RawBoxes,
    count_invalid,
    drop_invalid,
    keep_best,
    log_invalid,
    nms,
    to_image_detections,
)
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction

# What may be asked of any detector around a network, however the network is run.


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The options of a network detector.

    `layout` (a name for `parse_layout`, or a `Layout`), `input_size` (a side, or width, height) and `batch_size` are up
    to the network and the device if they are None. Boxes scored below `score_floor` are not returned; `preprocess`
    explains `mask_mode`.
    """

    layout: str | Layout | None = None
    input_size: int | tuple[int, int] | None = None
    score_floor: float = SCORE_FLOOR
    batch_size: int | None = None
    device: str = "cpu"
    mask_mode: MaskMode = "fill"

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            require_count(self.batch_size, "batch_size")

    def describe(self, layout: Layout, size: Size, batch: int) -> str:
        """Describe the settings that determine boxes, besides weights and device, for a fingerprint."""
        return f"{layout.describe()} {size[0]}x{size[1]} {self.mask_mode} batch={batch} floor={self.score_floor:g}"


# A detector that processes each image on its own: it resizes, suppresses and maps boxes back.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SingleImageDetector:
    """Detects in one image at a time with `find`, which returns boxes in raw pixels.

    The libraries behind it pad the images of a batch to a common size, so that batch-mates would change the result.
    """

    one_by_one: ClassVar[bool] = True  # so the seeker makes no batches for it

    names: tuple[str, ...]
    fingerprint: str
    detect_one: Callable[[Image], RawBoxes]
    score_floor: float

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        images = [as_image(image) for image in images]
        return self.to_detections(images, [self.detect_one(image) for image in images])

    def to_detections(self, images: Iterable[Image], raw_boxes: Sequence[RawBoxes]) -> list[Detections]:
        """Validate the boxes of every image, and log how many are invalid."""
        log_invalid(sum(count_invalid(raw, floor=self.score_floor) for raw in raw_boxes))
        return [
            to_image_detections(raw, image, floor=self.score_floor)
            for raw, image in zip(raw_boxes, images, strict=True)
        ]


# Begins with the views of an image; the function that it returns waits for their boxes and returns them.
StartViews = Callable[[Image, InputPlacement, ViewPlan, int], Callable[[], list[Detections]]]
Forward = Callable[[Array], Sequence[Sequence[Array]]]  # batch x 3 x H x W -> the outputs of each view
Predict = Callable[[Any], tuple[Any, Any]]  # tensors N x 3 x H x W -> boxes N x A x 4, scores N x A x classes

MAX_BATCH_BYTES = 2**32  # of network input at a time

_Decoded = tuple[Detections, int]  # the valid boxes of a view, and the number of invalid ones


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkDetector:
    """Turns images into detections with `forward`, which must treat every view of a batch on its own.

    `forward` always gets exactly `batch` views of one size, a batch that is not full filled up with zeros: how a view
    is computed does not change with the number of others, nor, if `forward` keeps its word, with what they show. Which
    views share a batch follows from the sizes of image and network and from the masks. `input_size` is width, height.

    `workers` threads call `forward` at the same time, each with a buffer of its own. They take whole batches and share
    nothing, so their number changes the time, not the result. `mask_mode` is explained in `views`.

    Detectors of all frameworks are objects of this one class, made by functions such as `onnx.load_onnx`, so that
    `dataclasses.replace` changes a setting. It does not change `fingerprint`, nor what `start_views` was made with:
    batch, floor and layout. `predict` is the network as a differentiable function, where it is one, on `device`:
    `attack` follows it.
    """

    names: tuple[str, ...]
    fingerprint: str
    forward: Forward
    layout: Layout
    input_size: Size
    batch_size: int = 8
    dtype: str = "float32"
    score_floor: float = SCORE_FLOOR
    dynamic_batch: bool = True  # forward takes batches of any size
    mask_mode: MaskMode = "fill"
    crop_stride: int = 1  # sides of a cropped view are multiples of this many strides
    workers: int = 1
    start_views: StartViews | None = None  # takes the place of `forward` for the views of an image
    predict: Predict | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_count(self.batch_size, "batch_size")
        require_count(self.workers, "workers")
        require_fraction(self.score_floor, "score_floor")
        if self.mask_mode not in get_args(MaskMode):
            instead = "; YOLOS and RF-DETR of transformers drop tokens" if str(self.mask_mode) == "drop" else ""
            modes = ", ".join(get_args(MaskMode))
            raise ObjectSeekerError(f"mask_mode must be one of {modes}: got {self.mask_mode!r}{instead}")
        width, height = self.input_size
        if any(require_count(side, "input_size") % self.layout.stride for side in self.input_size):
            raise ObjectSeekerError(
                f"input_size {width}x{height} does not fit layout {self.layout.name}: "
                f"both sides must be multiples of {self.layout.stride}"
            )
        batch_bytes = self.batch_size * 3 * width * height * np.dtype(self.dtype).itemsize
        if batch_bytes > MAX_BATCH_BYTES:
            raise ObjectSeekerError(
                f"a batch of {self.batch_size} views of {width}x{height} takes {batch_bytes / 2**30:.1f} GB, more than "
                f"{MAX_BATCH_BYTES / 2**30:g}: choose a smaller batch"
            )

    def with_batch(self, batch: int) -> NetworkDetector | None:
        """Return this detector by `forward` with another batch size; None if the network fixes it."""
        return replace(self, batch_size=batch, start_views=None) if self.dynamic_batch else None

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        """Detect on each image."""
        images = [as_image(image) for image in images]
        placements = [self._place(image) for image in images]
        sizes = [placement.size for placement in placements]
        groups = [  # one group, unless the layout trims
            (size, np.flatnonzero([each == size for each in sizes])) for size in dict.fromkeys(sizes)
        ]

        def write(slot: Array, number: int) -> None:
            slot[...] = self._prepare(images[number], placements[number])

        def decode(outputs: Sequence[Array], number: int) -> _Decoded:
            return self._decode(outputs, placements[number], sizes[number], whole=True)

        return self._run(groups, write, decode)

    def detect_views(self, image: Image, removed: Ints, value: int) -> list[Detections]:
        """The boxes of `image` without the R rectangles of each view: N x R x 4, an empty one removes nothing.

        Guarantee: entry i depends only on the pixels outside `removed[i]` (and on the image's size). The image is
        resized once and each view is masked on the network input: `preprocess` proves why that is enough, `views` why a
        window of it is.
        """
        image = as_image(image)
        placement, views = self.plan(image, removed)
        if self.start_views is not None:
            return self.start_views(image, placement, views, value)()
        prepared = self._prepare(image, placement)
        filling = normalize(np.full((1, 1, 3), value, np.uint8), self.layout, self.dtype)
        window, filled, whole = views.window.tolist(), views.filled.tolist(), views.shows_all.tolist()

        def write(slot: Array, view: int) -> None:
            left, top, right, bottom = window[view]
            slot[...] = prepared[:, top:bottom, left:right]
            for x1, y1, x2, y2 in filled[view]:
                slot[:, max(y1 - top, 0) : max(y2 - top, 0), max(x1 - left, 0) : max(x2 - left, 0)] = filling

        def decode(outputs: Sequence[Array], view: int) -> _Decoded:
            left, top, right, bottom = window[view]
            return self._decode(outputs, placement, (right - left, bottom - top), (left, top), whole=whole[view])

        return self._run(list(views.by_size()), write, decode)

    def detect_views_of(self, images: Iterable[tuple[Image, Ints]], value: int) -> Iterator[list[Detections]]:
        """`detect_views` of one image after the other, with the same boxes.

        On a GPU the next image is taken from `images` and begun before the boxes of this one are waited for: the device
        then never waits for the host. At most two images are held at a time.
        """
        if self.start_views is None:
            yield from (self.detect_views(image, removed, value) for image, removed in images)
            return
        begun: list[Callable[[], list[Detections]]] = []
        for image, removed in images:
            image = as_image(image)
            begun.append(self.start_views(image, *self.plan(image, removed), value))
            if len(begun) == 2:
                yield begun.pop(0)()
        yield from (wait() for wait in begun)

    def plan(self, image: Image, removed: Ints) -> tuple[InputPlacement, ViewPlan]:
        """Place the image on the network input, and plan which part of it each view shows."""
        placement, removed, stride = self._place(image), as_rectangles(removed), self.layout.stride
        step = stride * self.crop_stride
        return placement, cached_view_plan(placement, removed.tobytes(), removed.shape, self.mask_mode, stride, step)

    def _place(self, image: Image) -> InputPlacement:
        height, width = image.shape[:2]
        return self.layout.place((width, height), self.input_size)

    def _prepare(self, image: Image, placement: InputPlacement) -> Array:
        return normalize(prepare(image, placement, pad=self.layout.pad), self.layout, self.dtype)

    def _run(
        self,
        groups: Sequence[tuple[Size, Ints]],
        write: Callable[[Array, int], None],
        decode: Callable[[Sequence[Array], int], _Decoded],
    ) -> list[Detections]:
        """The boxes of every view; `groups` lists the views of each size, `write` draws one into its slot.

        A batch on which the network fails is taken apart as `core.seeker` says: each view alone, at its own slot.
        """
        batches = [
            (size, members[start : start + self.batch_size].tolist())
            for size, members in groups
            for start in range(0, len(members), self.batch_size)
        ]
        workers = min(self.workers, len(batches))
        largest = max((width * height for (width, height), _ in groups), default=0)
        buffers: SimpleQueue[Array] = SimpleQueue()
        for _ in range(workers):
            buffers.put(np.empty(self.batch_size * 3 * largest, self.dtype))

        def run(task: tuple[Size, list[int]]) -> list[tuple[int, _Decoded | BaseException]]:
            (width, height), members = task
            buffer = buffers.get()
            try:
                batch = buffer[: self.batch_size * 3 * height * width].reshape(self.batch_size, 3, height, width)
                for slot, view in enumerate(members):
                    write(batch[slot], view)
                batch[len(members) :] = 0
                try:
                    outputs = self.forward(batch)
                except Exception:
                    return [(view, alone(batch, slot, view)) for slot, view in enumerate(members)]
                return [(view, decode(outputs[slot], view)) for slot, view in enumerate(members)]
            finally:
                buffers.put(buffer)  # in any case, also out of memory: other workers wait for it

        def alone(batch: Array, slot: int, view: int) -> _Decoded | BaseException:
            for position in range(len(batch)):
                write(batch[position], view)
            return try_view(lambda: decode(self.forward(batch)[slot], view))

        def retry(view: int) -> _Decoded | BaseException:
            size = next(size for size, members in batches if view in members)
            ((_, result),) = run((size, [view]))
            return result

        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                done = list(pool.map(run, batches))
        else:
            done = list(map(run, batches))
        by_view = dict(result for results in done for result in results)
        nothing: _Decoded = (Detections.empty(), 0)
        decoded = keep_successful_views([by_view[view] for view in range(len(by_view))], retry, nothing)
        log_invalid(sum(invalid for _, invalid in decoded))
        return [boxes for boxes, _ in decoded]

    def _decode(
        self,
        outputs: Sequence[Array],
        placement: InputPlacement,
        size: Size,
        corner: tuple[int, int] = (0, 0),
        *,
        whole: bool,
    ) -> _Decoded:
        """Return the boxes in the outputs of a view of `size` with its top left at `corner` of the input."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is dropped right after
            raw = self._read(outputs, size, whole and self.layout.every_class)
            invalid = count_invalid(raw, floor=self.score_floor)
            boxes = drop_invalid(raw._replace(label=raw.label + self.layout.label_offset), floor=self.score_floor)
        if self.layout.nms is not None:
            boxes = boxes.take(nms(*boxes, threshold=self.layout.nms))
        return keep_best(boxes._replace(xyxy=placement.to_raw(boxes.xyxy + np.tile(corner, 2)))), invalid

    def _read(self, outputs: Sequence[Array], size: Size, every_class: bool) -> RawBoxes:
        try:
            raw = self.layout.read(outputs, size, self.score_floor, every_class)
            if raw.xyxy.shape != (*raw.score.shape, 4) or raw.label.shape != raw.score.shape:
                raise ValueError
            return raw
        except (IndexError, ValueError, TypeError) as error:  # by the shapes of the outputs, never by what is in them
            if isinstance(error, ObjectSeekerError):
                raise
            shapes = ", ".join("x".join(map(str, np.shape(output))) for output in outputs)
            raise ObjectSeekerError(
                f"layout {self.layout.name} cannot read outputs of {shapes}: choose another layout"
            ) from None


_View = TypeVar("_View")


def detect_each_view(count: int, detect: Callable[[int], _View], nothing: _View) -> list[_View]:
    """Run every view on its own; return `nothing` where that fails, as `core.seeker` says."""

    def attempt(view: int) -> _View | BaseException:
        return try_view(lambda: detect(view))

    return keep_successful_views([attempt(view) for view in range(count)], attempt, nothing)


def as_rectangles(removed: Ints) -> Ints:
    """Return removed rectangles as N x R x 4; N x 4 is one rectangle per view."""
    removed = np.asarray(removed, np.int64)
    return removed[:, None] if removed.ndim == 2 else removed


def parse_size(size: int | tuple[int, int]) -> Size:
    """Return a side, or width and height, as width and height."""
    try:
        width, height = (size, size) if isinstance(size, int | np.integer) else size
    except (TypeError, ValueError):
        raise ObjectSeekerError(f"input_size must be a number of pixels or width, height: got {size!r}") from None
    return require_count(width, "input_size"), require_count(height, "input_size")
