"""The defended detector: look at the image and at every masked view of it, then prune."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from objectseeker.core.boxes import Detections, Ints
from objectseeker.core.iou_variant import AnyRule, IouRule
from objectseeker.core.masks import GREY, Image, MaskChoice, Masks, fill, make_masks, require_choice
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import Rule
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


@dataclass(frozen=True, slots=True)
class ObjectSeeker:
    """Wraps a detector: a callable from a sequence of H x W x 3 uint8 RGB arrays to one `Detections` per image.

    Guarantee: if `certify`, with the same settings and this object's observation of an image, certifies an object
    against a patch threat, then on that image with any pixels drawn into any one allowed patch (any two, if the
    threat's count is 2), the boxes this object returns contain one of the object's label that covers more than
    `threshold` of it. It rests on the detector being a pure function of each image at the batch shape used here
    (`objectseeker check-detector`).

    `tau_iou` chooses the IoU variant (`objectseeker.core.iou_variant`), whose certificates are those of `iou_certify`.
    `strategy` is the rule of the output: `rule` or, with `tau_iou`, an `IouRule` around it.

    `masks` is "halves", against one patch, or "pairs", against two: 5 * lines**2 + 3 * lines views, so use fewer lines.

    Every batch holds exactly `batch` views, the last one padded, always in the same order: the computation of a
    view does not change with what the other views show.
    """

    detector: Detector
    lines: int = 30
    base_score: float = 0.5
    mask_score: float = 0.7
    filter_ioa: float = 0.6
    classwise: bool = True
    low_score: float | None = None
    power: float = 1.0
    edge_factor: float = 1.0
    cluster_distance: float = 0.1
    tau_iou: float | None = None
    fill: int = GREY
    batch: int = 8
    masks: MaskChoice = "halves"
    rule: Rule = field(init=False, repr=False)
    strategy: AnyRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.detector):
            raise ObjectSeekerError(f"detector must be callable, got {self.detector!r}")
        require_count(self.lines, "lines")
        require_count(self.batch, "batch")
        require_choice(self.masks)
        if not 0 <= self.fill <= 255:
            raise ObjectSeekerError(f"fill must be a grey value within [0, 255], got {self.fill!r}")
        rule = Rule(
            base_score=self.base_score,
            mask_score=self.mask_score,
            filter_ioa=self.filter_ioa,
            classwise=self.classwise,
            low_score=self.low_score,
            power=self.power,
            edge_factor=self.edge_factor,
            cluster_distance=self.cluster_distance,
        )
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "strategy", rule if self.tau_iou is None else IouRule(ioa=rule, tau_iou=self.tau_iou))

    @classmethod
    def with_rule(
        cls,
        detector: Detector,
        rule: AnyRule,
        *,
        lines: int = 30,
        fill: int = GREY,
        batch: int = 8,
        masks: MaskChoice = "halves",
    ) -> ObjectSeeker:
        """A seeker whose output rule is `rule`."""
        options = asdict(rule) if isinstance(rule, Rule) else asdict(rule.ioa) | {"tau_iou": rule.tau_iou}
        return cls(detector, lines=lines, fill=fill, batch=batch, masks=masks, **options)

    def __call__(self, images: Iterable[Image]) -> list[Detections]:
        """The robust detections of each image."""
        return [self.strategy.prune(observation) for observation in self._observe(images)]

    def observe(self, images: Iterable[Image]) -> list[Observation]:
        """Everything the detector sees of each image: under no mask and under every mask."""
        return list(self._observe(images))

    def _observe(self, images: Iterable[Image]) -> Iterator[Observation]:
        begun: deque[Masks] = deque()

        def given() -> Iterator[tuple[Image, Masks]]:
            for image in map(as_image, images):
                height, width = image.shape[:2]
                begun.append(make_masks(self.masks, width, height, self.lines))
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


def as_image(image: Image) -> Image:
    """`image`, checked to be H x W x 3 uint8 with at least one pixel."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise ObjectSeekerError(
            f"an image must be a non-empty H x W x 3 uint8 array, got {image.dtype} of shape {image.shape}"
        )
    return image


def _detect(detector: Detector, images: list[Image]) -> list[Detections]:
    found = list(detector(images))
    if len(found) != len(images):
        raise ObjectSeekerError(f"the detector returned {len(found)} results for {len(images)} images")
    for entry in found:
        if not isinstance(entry, Detections):
            raise ObjectSeekerError(f"the detector must return Detections, got {type(entry).__name__}")
    return found
