"""The defended detector: look at the image and at every masked view of it, then prune."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.certification import Certificates
from objectseeker.core.image import GREY, Image, as_image, fill, require_grey
from objectseeker.core.iou_variant import AnyRule
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Halves, Recipe, require_recipe
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError, require_count

Detector = Callable[[Sequence[Image]], Sequence[Detections]]

UNTOUCHED = (0, 0, 0, 0)  # the removed rectangle of the view that shows everything


@runtime_checkable
class ViewDetector(Protocol):
    """A detector that masks by itself, usually after its own resize.

    `removed` is N x R x 4: view i does not show the R rectangles x1, y1, x2, y2 of `removed[i]`; an empty rectangle
    removes nothing. Guarantee asked of it: entry i of the result depends only on the pixels of `image` outside all
    of them (and on the image's size), whatever the other views are.
    """

    def detect_views(self, image: Image, removed: Ints, value: int) -> Sequence[Detections]: ...


@runtime_checkable
class RowDetector(ViewDetector, Protocol):
    """A view detector that may begin with the next image before it is done with the last.

    `images` are pairs of an image and the `removed` of its views; entry i is what `detect_views` gives for pair i.
    """

    def detect_views_of(self, images: Iterable[tuple[Image, Ints]], value: int) -> Iterator[Sequence[Detections]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Defended:
    """One image as a defended detector sees it: the base boxes, and the boxes that only masking found."""

    image: Image
    observation: Observation
    base: Detections
    recovered: Detections

    @property
    def detections(self) -> Detections:
        """The robust detections: base boxes first."""
        return Detections.concatenate([self.base, self.recovered])

    @property
    def alert(self) -> bool:
        """Whether masking found something that the base boxes do not explain: the mark of a hiding attack.

        Guarantee: if an object is certified for the rule in use, then whatever the attacker draws into an allowed
        patch, the image is flagged or the base boxes alone still find the object (by more than T, as certified). For
        the output contains a box that does, and it is a base box or one of `recovered`.
        """
        return len(self.recovered) > 0


@dataclass(frozen=True, slots=True)
class ObjectSeeker:
    """Wraps a detector: a callable from a sequence of H x W x 3 uint8 RGB arrays to one `Detections` per image.

    Guarantee: if `certify`, with this object's observation of an image, certifies an object against a patch threat,
    then on that image with any pixels drawn into any one allowed patch (any two, if the threat's count is 2), the boxes
    this object returns contain one of the object's label that covers more than `threshold` of it (with an `IouRule`:
    whose IoU with it exceeds `threshold`). It rests on the detector being a pure function of each image at the batch
    shape used here (`objectseeker check-detector`).

    `rule` is what prunes and what certifies: a `Rule`, or an `IouRule`. `masks` is a recipe: `Halves(30)` against one
    patch of any size, `Pairs(10)` against two, `Bands(0.01)` against one of at most that size.

    Every batch holds exactly `batch` views, the last one padded, always in the same order: the computation of a
    view does not change with what the other views show.
    """

    detector: Detector
    rule: AnyRule
    masks: Recipe = field(default_factory=Halves, kw_only=True)
    fill: int = field(default=GREY, kw_only=True)
    batch: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.detector):
            raise ObjectSeekerError(f"detector must be callable, got {self.detector!r}")
        if not isinstance(self.rule, AnyRule):
            raise ObjectSeekerError(f"rule must be a Rule or an IouRule, got {self.rule!r}")
        require_recipe(self.masks)
        require_count(self.batch, "batch")
        require_grey(self.fill)

    def __call__(self, images: Iterable[Image]) -> list[Detections]:
        """The robust detections of each image."""
        return list(self.stream(images))

    def stream(self, frames: Iterable[Image]) -> Iterator[Detections]:
        """The robust detections of one image after the other, each as soon as it is there; none is kept."""
        return map(self.rule.prune, self._observe(frames))

    def observe(self, images: Iterable[Image]) -> list[Observation]:
        """Everything the detector sees of each image: under no mask and under every mask."""
        return list(self._observe(images))

    def defend(self, image: Image) -> Defended:
        """The robust detections of one image, kept apart by who found them."""
        (observation,) = self._observe([image])
        boxes = self.rule.prune(observation)
        count = len(observation.base.at_least(self.rule.base_score))
        return Defended(image, observation, boxes[:count], boxes[count:])

    def certify(
        self,
        observation: Observation,
        truth: Detections,
        patches: Patch | Sequence[Patch],
        *,
        threshold: float | None = None,
        bound: Bound = "exact",
    ) -> Certificates:
        """`rule.certify`, for an observation under this object's own masks; any other is refused.

        `threshold` is 0 unless given, with an `IouRule` 0.5.
        """
        if observation.masks != self.masks.masks(observation.width, observation.height):
            raise ObjectSeekerError(
                f"the observation has other masks than {self.masks}, which this detector is defended with: observe it "
                "with this object"
            )
        given = {} if threshold is None else {"threshold": threshold}
        return self.rule.certify(observation, truth, patches, bound=bound, **given)

    def _observe(self, images: Iterable[Image]) -> Iterator[Observation]:
        begun: deque[Masks] = deque()

        def given() -> Iterator[tuple[Image, Masks]]:
            for image in map(as_image, images):
                height, width = image.shape[:2]
                begun.append(self.masks.masks(width, height))
                yield image, begun[-1]

        for base, *masked in detect_all_views(self.detector, given(), value=self.fill, batch=self.batch):
            masks = begun.popleft()
            yield Observation(masks.width, masks.height, masks, base, masked)


def detect_views(
    detector: Detector, image: Image, masks: Masks, *, value: int = GREY, batch: int = 8
) -> list[Detections]:
    """Detections on the untouched image, then on the image under each mask."""
    (found,) = detect_all_views(detector, [(image, masks)], value=value, batch=batch)
    return found


def detect_all_views(
    detector: Detector, images: Iterable[tuple[Image, Masks]], *, value: int = GREY, batch: int = 8
) -> Iterator[list[Detections]]:
    """`detect_views` of one image after the other; a detector that can may be one image ahead."""
    counts: deque[int] = deque()

    def given() -> Iterator[tuple[Image, Ints]]:
        for image, masks in images:
            removed = removed_of(masks)
            counts.append(len(removed))
            yield image, removed

    if isinstance(detector, RowDetector):
        rows = detector.detect_views_of(given(), value)
    elif isinstance(detector, ViewDetector):
        rows = (detector.detect_views(image, removed, value) for image, removed in given())
    else:
        rows = (_detect_filled(detector, image, removed, value, batch) for image, removed in given())
    for row in rows:
        found, views = list(row), counts.popleft() if counts else 0
        if len(found) != views:
            raise ObjectSeekerError(f"the detector returned {len(found)} results for {views} views")
        yield found
    if counts:
        raise ObjectSeekerError(f"the detector returned no results for the last {len(counts)} images")


def removed_of(masks: Masks) -> Ints:
    """The views of an image: untouched, then without the rectangles of each mask; N x R x 4."""
    masked = masks.removed.reshape(len(masks), -1, 4) if len(masks) else np.empty((0, 1, 4), np.int64)
    return np.concatenate([np.broadcast_to(UNTOUCHED, (1, *masked.shape[1:])), masked])


def _detect_filled(detector: Detector, image: Image, removed: Ints, value: int, batch: int) -> list[Detections]:
    found = []
    for start in range(0, len(removed), batch):
        views = [fill(image, rectangles, value) for rectangles in removed[start : start + batch]]
        padded = views + [np.full_like(image, value)] * (batch - len(views))
        found += _detect(detector, padded)[: len(views)]
    return found


def _detect(detector: Detector, images: list[Image]) -> list[Detections]:
    found = list(detector(images))
    if len(found) != len(images):
        raise ObjectSeekerError(f"the detector returned {len(found)} results for {len(images)} images")
    for entry in found:
        if not isinstance(entry, Detections):
            raise ObjectSeekerError(f"the detector must return Detections, got {type(entry).__name__}")
    return found
