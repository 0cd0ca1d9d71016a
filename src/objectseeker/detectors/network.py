"""A detector around a network that takes resized images: places, masks, runs, decodes, maps boxes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from objectseeker.boxes import Detections, Ints
from objectseeker.detectors.layouts import Array, Layout, normalise
from objectseeker.detectors.nms import nms
from objectseeker.detectors.preprocess import Placement, Size, place, prepare
from objectseeker.detectors.results import MOST_BOXES, SCORE_FLOOR, clean, finish
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction
from objectseeker.masks import Image
from objectseeker.seeker import as_image

Forward = Callable[[Array], Sequence[Sequence[Array]]]  # batch x 3 x H x W -> the outputs of each view


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkDetector:
    """Turns images into detections with `forward`, which must treat every view of a batch on its own.

    `forward` always gets exactly `batch` views of `input_size`, the last batch filled up with zeros: how a view is
    computed does not change with the number of others, nor, if `forward` keeps its word, with what they show.
    `input_size` is width, height.
    """

    names: tuple[str, ...]
    identity: str
    forward: Forward
    layout: Layout
    input_size: Size
    batch: int = 8
    dtype: str = "float32"
    score_floor: float = SCORE_FLOOR
    most_boxes: int = MOST_BOXES
    free_batch: bool = True  # forward takes batches of any size

    def __post_init__(self) -> None:
        require_count(self.batch, "batch")
        require_count(self.most_boxes, "most_boxes")
        require_fraction(self.score_floor, "score_floor")
        if any(require_count(side, "input_size") % self.layout.stride for side in self.input_size):
            width, height = self.input_size
            raise ObjectSeekerError(
                f"input_size {width}x{height} does not fit layout {self.layout.name}: "
                f"both sides must be multiples of {self.layout.stride}"
            )

    def with_batch(self, batch: int) -> NetworkDetector | None:
        """The same detector run with another number of views at a time; None where the network fixes it."""
        if not self.free_batch:
            return None
        settings = {field.name: getattr(self, field.name) for field in fields(NetworkDetector)}
        return NetworkDetector(**{**settings, "batch": batch})

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        """The boxes of each image."""
        images = [as_image(image) for image in images]
        placements = [self._place(image) for image in images]
        found: dict[int, Detections] = {}
        for size in dict.fromkeys(placement.size for placement in placements):  # one size, unless the layout trims
            members = [number for number, placement in enumerate(placements) if placement.size == size]

            def write(slot: Array, view: int, members: list[int] = members) -> None:
                number = members[view]
                slot[...] = self._prepare(images[number], placements[number])

            for number, outputs in zip(members, self._run(size, len(members), write), strict=True):
                found[number] = self._decode(outputs, placements[number])
        return [found[number] for number in range(len(images))]

    def detect_views(self, image: Image, removed: Ints, value: int) -> list[Detections]:
        """The boxes of `image` without the rectangles x1, y1, x2, y2 of each view: N x R x 4, empty ones remove nothing.

        Guarantee: entry i depends only on the pixels outside `removed[i]` (and on the image's size). The image is
        resized once and each view is masked on the network input, `preprocess` proves why that is enough.
        """
        image = as_image(image)
        removed = as_rectangles(removed)
        placement = self._place(image)
        prepared = self._prepare(image, placement)
        filling = normalise(np.full((1, 1, 3), value, np.uint8), self.layout, self.dtype)

        def write(slot: Array, view: int) -> None:
            slot[...] = prepared
            for rectangle in removed[view]:
                x1, y1, x2, y2 = placement.covered(rectangle)
                slot[:, y1:y2, x1:x2] = filling

        return [self._decode(outputs, placement) for outputs in self._run(placement.size, len(removed), write)]

    def _place(self, image: Image) -> Placement:
        height, width = image.shape[:2]
        stride = self.layout.stride if self.layout.trim else None
        return place((width, height), self.input_size, self.layout.fit, stride=stride)

    def _prepare(self, image: Image, placement: Placement) -> Array:
        return normalise(prepare(image, placement, pad=self.layout.pad), self.layout, self.dtype)

    def _run(self, size: Size, views: int, write: Callable[[Array, int], None]) -> Iterator[Sequence[Array]]:
        """The outputs of each view; `write(slot, view)` draws a view into its slot of the batch."""
        buffer = np.zeros((self.batch, 3, size[1], size[0]), self.dtype)
        for start in range(0, views, self.batch):
            used = min(self.batch, views - start)
            for slot in range(used):
                write(buffer[slot], start + slot)
            buffer[used:] = 0
            yield from self.forward(buffer)[:used]

    def _decode(self, outputs: Sequence[Array], placement: Placement) -> Detections:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is dropped right after
            found = self.layout.decode(outputs, placement.size, self.score_floor)
            boxes = clean(found._replace(label=found.label + self.layout.label_offset), floor=self.score_floor)
        if self.layout.nms is not None:
            boxes = boxes.take(nms(*boxes, threshold=self.layout.nms))
        return finish(boxes._replace(xyxy=placement.to_raw(boxes.xyxy)), most=self.most_boxes)


def as_rectangles(removed: Ints) -> Ints:
    """Removed rectangles as N x R x 4; N x 4 is one rectangle a view."""
    removed = np.asarray(removed, np.int64)
    return removed[:, None] if removed.ndim == 2 else removed


def as_size(size: int | tuple[int, int]) -> Size:
    """A side or width, height as width, height."""
    try:
        width, height = (size, size) if isinstance(size, int | np.integer) else size
    except (TypeError, ValueError):
        raise ObjectSeekerError(f"input_size must be a number of pixels or width, height, got {size!r}") from None
    return require_count(width, "input_size"), require_count(height, "input_size")
