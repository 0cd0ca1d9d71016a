"""The defended detector: look at the image and at every masked view of it, then prune.

A detector may fail on a view: raise, or return boxes that are none. The attacker decides what the views show that show
the patch, so nothing of that may reach the others. The rule, which `observe` and `detect` share:

- A batch that raises, or that does not return one `Detections` for each of its images, is taken apart: each of its
  views is run again in a batch of the same shape, at its own place, that holds nothing but copies of that view. A view
  that fails there has no boxes.
- A box whose label is not a class of the detector (negative, or not below the number of its `names`) is dropped.
- A view that runs out of memory on its own is an error: that says nothing about the view, and an answer that is not
  there is better than a wrong one. (So a detector must not need more memory than there is, whatever a view shows.)
- An image whose views all fail, or all of whose boxes have such labels, is an error: the detector is broken, or named
  wrongly, and must not look like one that sees nothing. So is one after which a view fails that had not.

Guarantee: the rule takes no certificate away. Let a box in view v prove an object, and let v remove the patch: v shows
the same pixels in deployment as when it was observed. It did not fail then, so copies of it do not fail now; a detector
that is pure gives it the same boxes at this batch shape, next to any other views and next to itself; and which of its
boxes are dropped is a function of that box alone. So v has its boxes, and for the same reason neither error is raised.
The copies are drawn anew: a detector that writes into what it is given spoils nothing. A batch that is taken apart
costs `batch` passes more for each view, whatever the attacker draws.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, repeat
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np

from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import Detections, Floats, Ints
from objectseeker.core.certification import Certificates
from objectseeker.core.masks import DEFAULT_FILL, Image, Masks, as_image, fill_rectangles, require_gray
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Halves, Recipe, recipe_for_frame, require_recipe
from objectseeker.core.rules import PruningRule
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError, is_out_of_memory, require_count

if TYPE_CHECKING:
    from objectseeker.core.maite import MaiteModel

# Reading while something else works: the next item of an iterator is made in a thread.


_T = TypeVar("_T")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()


def prefetch_one(source: Iterable[_T]) -> Generator[_T]:
    """The items of `source`, in order; while one is in use the next is made, and no more than that.

    What `source` raises is raised here, after the items before it. Closing this generator ends the thread, as soon as
    the item that it is at is made: no one waits for that, a camera that does not answer must not keep anyone.
    """
    asked: SimpleQueue[bool] = SimpleQueue()
    made: SimpleQueue[object] = SimpleQueue()
    Thread(target=_produce, args=(source, asked, made), daemon=True).start()
    try:
        asked.put(True)
        while (item := made.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            asked.put(True)
            yield item  # type: ignore[misc]  # what came out of `source`
    finally:
        asked.put(False)


def _produce(source: Iterable[object], asked: SimpleQueue[bool], made: SimpleQueue[object]) -> None:
    """Produce an item per request; a generator is closed in the thread that runs it."""
    try:
        items = iter(source)
        try:
            while asked.get():
                made.put(next(items, _END))
        finally:
            if isinstance(items, Generator):
                items.close()
    except BaseException as error:  # raised where the item is awaited
        made.put(_Failure(error))


# Views on which a detector fails: the rule that `seeker` states and proves, for everyone who shows views.


T = TypeVar("T")
log = logging.getLogger("objectseeker")


def try_view(see: Callable[[], T]) -> T | BaseException:
    """Return the result of one view or its exception; out of memory is raised: it is not about the view."""
    try:
        return see()
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        return error


def keep_successful_views(
    found: Sequence[T | BaseException], again: Callable[[int], T | BaseException], nothing: T
) -> list[T]:
    """Return the results of an image's views, `nothing` where one failed, with a warning.

    An error if all failed; or if one that had worked, tried `again` by its number, does not any more: after a failure
    that stays, whatever is left to do would look empty.
    """
    failures = [entry for entry in found if isinstance(entry, BaseException)]
    if failures:
        worked = next((view for view, entry in enumerate(found) if not isinstance(entry, BaseException)), None)
        if worked is None or isinstance(again(worked), BaseException):
            raise failures[0]
        reason = (str(failures[0]) or type(failures[0]).__name__).splitlines()[0]
        log.warning(
            "the detector failed on %d of %d views of an image, which count as empty: %s",
            len(failures), len(found), reason[:200],
        )  # fmt: skip
    return [nothing if isinstance(entry, BaseException) else entry for entry in found]


Detector = Callable[[Sequence[Image]], Sequence[Detections]]

LARGEST_LABEL = 2**15  # labels at and above it are not classes, whatever the detector

UNTOUCHED = (0, 0, 0, 0)  # the removed rectangle of the view that shows everything


@runtime_checkable
class ViewDetector(Protocol):
    """A detector that masks on its own, usually after its own resize.

    `removed` is N x R x 4: view i does not show the R rectangles x1, y1, x2, y2 of `removed[i]`; an empty rectangle
    removes nothing. Guarantee asked of it: entry i of the result depends only on the pixels of `image` outside all
    of them (and on the image's size), whatever the other views are. It must not raise because of what a view shows:
    the views of an image come from one call, which cannot be taken apart.
    """

    def detect_views(self, image: Image, removed: Ints, value: int) -> Sequence[Detections]: ...


@runtime_checkable
class PipelinedViewDetector(ViewDetector, Protocol):
    """A view detector that may begin with the next image before it is done with the last.

    `images` are pairs of an image and the `removed` of its views; entry i is what `detect_views` gives for pair i.
    """

    def detect_views_of(self, images: Iterable[tuple[Image, Ints]], value: int) -> Iterator[Sequence[Detections]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class DefendedImage:
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
        """Return whether masking recovered a box that no base box filters: the mark of a hiding attack.

        Guarantee: if an object is certified for the rule in use, then whatever the attacker draws into an allowed
        patch, the image is flagged or the base boxes alone still find the object (by more than T, as certified). For
        the output contains a box that does, and it is a base box or one of `recovered`.
        """
        return len(self.recovered) > 0


@dataclass(frozen=True, slots=True)
class ObjectSeeker:
    """A defended detector: a callable from H x W x 3 uint8 RGB arrays to one `Detections` per image.

    Guarantee: if `certify`, with this object's observation of an image, certifies an object against a patch threat,
    then on that image with any pixels drawn into any one allowed patch (any two, if the threat's count is 2), the boxes
    this object returns contain one of the object's label that covers more than `threshold` of it (with an `IouRule`:
    whose IoU with it exceeds `threshold`). It rests on the detector being a pure function of each image at the batch
    shape used here (`objectseeker check`).

    `rule` is what prunes and what certifies: a `Rule`, or an `IouRule`. `masks` is a recipe: `Halves(30)` against one
    patch of any size, `Pairs(10)` against two, `Bands(0.01)` against one of at most that size. With `Rolling` masks
    frame t of a stream is shown its share of them, and a single image is an error.

    Every batch holds exactly `batch` views, the last one padded, always in the same order: the computation of a
    view does not change with what the other views show. A detector whose `one_by_one` is true gets views singly.

    Example:
        >>> import numpy as np
        >>> from objectseeker import Detections, Halves, ObjectSeeker, Patch, Rule
        >>> def find_bright(images):
        ...     box, nothing = Detections([[0, 0, 9, 9]], [0.9], [0]), Detections([], [], [])
        ...     return [box if image.max() > 200 else nothing for image in images]
        >>> image = np.full((60, 60, 3), 255, np.uint8)
        >>> seeker = ObjectSeeker(find_bright, Rule(base_threshold=0.5, mask_threshold=0.6), masks=Halves(3))
        >>> (detections,) = seeker([image])
        >>> len(detections)
        1
    """

    detector: Detector
    rule: PruningRule
    masks: Recipe = field(default_factory=Halves, kw_only=True)
    fill: int = field(default=DEFAULT_FILL, kw_only=True)
    batch_size: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.detector):
            raise ObjectSeekerError(f"detector must be callable: got {self.detector!r}")
        if not isinstance(self.rule, PruningRule):
            raise ObjectSeekerError(f"rule must be a Rule, an IouRule or another PruningRule: got {self.rule!r}")
        require_recipe(self.masks)
        require_count(self.batch_size, "batch_size")
        require_gray(self.fill)

    def __call__(self, images: Iterable[Image]) -> list[Detections]:
        """The robust detections of each image."""
        return [self.rule.prune(observation) for _, observation in self._observe(zip(repeat(None), images))]

    def stream(self, frames: Iterable[Image | tuple[int, Image]]) -> Generator[Detections]:
        """The robust detections of one frame after the other: `watch`, without what they were made of."""
        with closing(self.defend_stream(frames)) as watched:
            for defended in watched:
                yield defended.detections

    def defend_stream(
        self, frames: Iterable[Image | tuple[int, Image]], *, prefetch: bool = True
    ) -> Generator[DefendedImage]:
        """Everything about one frame after the other, each as soon as it is there; none is kept.

        The next frame is read in a thread while the detector is at this one, unless `ahead` is False; a detector that
        can be an image ahead is. Closing the iterator ends the reading.

        Frames are images, counted from 0, or pairs of a number and an image: with `Rolling` masks the number decides
        which share of them the frame is shown. Where frames may be lost, give pairs: only if each has the number that
        it has in a run are the run's certificates over time about this stream.

        Guarantee: for frame t it returns, bit for bit, what `for_frame(t).defend` returns for that image alone.
        """
        own = map(_copy_frame, count(), frames)
        with closing(prefetch_one(own)) if prefetch else nullcontext(own) as numbered:
            for image, observation in self._observe(numbered):
                yield self._defended(image, observation)

    def for_frame(self, number: int) -> ObjectSeeker:
        """Return the defense of frame `number` of a stream as of a single image; with `certify` for it only."""
        return replace(self, masks=recipe_for_frame(self.masks, number))

    def observe(self, images: Iterable[Image]) -> list[Observation]:
        """Everything the detector sees of each image: under no mask and under every mask."""
        return [observation for _, observation in self._observe(zip(repeat(None), images))]

    def defend(self, image: Image) -> DefendedImage:
        """The robust detections of one image, kept apart by who found them."""
        ((image, observation),) = self._observe([(None, image)])
        return self._defended(image, observation)

    def _defended(self, image: Image, observation: Observation) -> DefendedImage:
        boxes = self.rule.prune(observation)
        base = len(observation.base.with_min_score(self.rule.base_threshold))
        return DefendedImage(image, observation, boxes[:base], boxes[base:])

    def certify(
        self,
        observation: Observation,
        objects: Detections,
        patches: Patch | Sequence[Patch],
        *,
        certification_threshold: float | None = None,
        bound: Bound = "exact",
    ) -> Certificates:
        """Certify objects by the rule, for an observation under the masks of this defended detector.

        The guarantee is that of `rule.certify`. `certification_threshold` is the rule's own unless given. An
        observation under other masks is an error.
        """
        self._require_own_masks(observation)
        return self.rule.certify(
            observation, objects, patches, certification_threshold=certification_threshold, bound=bound
        )

    def certify_not_fabricated(
        self, observation: Observation, detections: Detections, patches: Patch | Sequence[Patch]
    ) -> Certificates:
        """Certify which output boxes no allowed patch can have made, attacked or not.

        The guarantee is that of `rule.certify_not_fabricated`. An observation under other masks is an error.
        """
        self._require_own_masks(observation)
        return self.rule.certify_not_fabricated(observation, detections, patches)

    def certified_scores(self, observation: Observation, detections: Detections, patch: Patch) -> Floats:
        """Return the score of each output box that no such patch can have made, as `rule.certified_scores`."""
        self._require_own_masks(observation)
        return self.rule.certified_scores(observation, detections, patch)

    def _require_own_masks(self, observation: Observation) -> None:
        if observation.masks != self.masks.masks(observation.width, observation.height):
            raise ObjectSeekerError(
                f"the observation has other masks than {self.masks}, which this detector is defended with: observe it "
                "with this object"
            )

    def as_maite(
        self,
        *,
        index2label: Mapping[int, str] | None = None,
        class_map: Mapping[str, str] | None = None,
        patches: Patch | Sequence[Patch] = (),
        white: float = 1.0,
    ) -> MaiteModel:
        """Return this defended detector as a MAITE object detection Model.

        Args:
            index2label: Class names by label of a dataset, as its metadata has them: targets then have the dataset's
                labels, and no boxes of classes that it does not have. Default: the detector's own labels.
            class_map: Dataset class by detector class, for names that do not match.
            patches: Certify the boxes of every target against these.
            white: The value of white in images that are not integers.

        Example:
            >>> from objectseeker.core.rules import Rule
            >>> detector = lambda images: [Detections([[2, 2, 9, 9]], [0.9], [0]) for _ in images]
            >>> detector.names = ("car",)
            >>> model = ObjectSeeker(detector, Rule(), masks=Halves(2)).as_maite(index2label={3: "car"})
            >>> (target,) = model([np.zeros((3, 16, 16), np.uint8)])
            >>> target.boxes.tolist(), target.labels.tolist()
            ([[2.0, 2.0, 9.0, 9.0]], [3])
        """
        from objectseeker.core.maite import to_maite_model

        return to_maite_model(self, index2label=index2label, class_map=class_map, patches=patches, white=white)

    def _observe(self, images: Iterable[tuple[int | None, Image]]) -> Generator[tuple[Image, Observation]]:
        """Every image with what was seen of it; with its number, where it is a frame."""
        begun: deque[tuple[Image, Masks]] = deque()

        def given() -> Iterator[tuple[Image, Masks]]:
            for number, pixels in images:
                image = as_image(pixels)
                height, width = image.shape[:2]
                begun.append((image, recipe_for_frame(self.masks, number).masks(width, height)))
                yield begun[-1]

        for base, *masked in detect_all_views(self.detector, given(), value=self.fill, batch_size=self.batch_size):
            image, masks = begun.popleft()
            yield image, Observation(masks.width, masks.height, masks, base, masked)


def _copy_frame(place: int, frame: Image | tuple[int, Image]) -> tuple[int, Image]:
    """A frame and its number, in memory of its own: a source may read every frame into the same."""
    number, image = frame if isinstance(frame, tuple) else (place, frame)
    return number, as_image(image).copy()


def detect_views(
    detector: Detector, image: Image, masks: Masks, *, value: int = DEFAULT_FILL, batch_size: int = 8
) -> list[Detections]:
    """Detections on the untouched image, then on the image under each mask."""
    (found,) = detect_all_views(detector, [(image, masks)], value=value, batch_size=batch_size)
    return found


def detect_all_views(
    detector: Detector, images: Iterable[tuple[Image, Masks]], *, value: int = DEFAULT_FILL, batch_size: int = 8
) -> Iterator[list[Detections]]:
    """`detect_views` of one image after the other; a detector that can may be one image ahead."""
    counts: deque[int] = deque()

    def given() -> Iterator[tuple[Image, Ints]]:
        for image, masks in images:
            removed = view_rectangles(masks)
            counts.append(len(removed))
            yield image, removed

    if isinstance(detector, PipelinedViewDetector):
        rows = detector.detect_views_of(given(), value)
    elif isinstance(detector, ViewDetector):
        rows = (detector.detect_views(image, removed, value) for image, removed in given())
    else:
        # One that looks at each image alone gains nothing from a batch, and would lose what pads the last one.
        batch_size = 1 if getattr(detector, "one_by_one", False) else batch_size
        rows = (_detect_filled(detector, image, removed, value, batch_size) for image, removed in given())
    for row in rows:
        if not counts:
            raise ObjectSeekerError("the detector must return results for every image once: got more")
        found = _require_results(row, counts.popleft(), "views")
        yield _drop_unknown_labels(found, getattr(detector, "names", ()))
    if counts:
        raise ObjectSeekerError(
            f"the detector must return results for every image: got none for the last {len(counts)}"
        )


def view_rectangles(masks: Masks) -> Ints:
    """The views of an image: untouched, then without the rectangles of each mask; N x R x 4."""
    return np.concatenate([np.broadcast_to(UNTOUCHED, (1, *masks.removed.shape[1:])), masks.removed])


def _detect_filled(detector: Detector, image: Image, removed: Ints, value: int, batch_size: int) -> list[Detections]:
    """Every view from a full batch; what happens to one that fails is said at the top of this module."""
    found: list[Detections | BaseException] = []
    alone = partial(_detect_isolated, detector, image, removed, value, batch_size)
    for start in range(0, len(removed), batch_size):
        views = [fill_rectangles(image, rectangles, value) for rectangles in removed[start : start + batch_size]]
        padded = views + [np.full_like(image, value) for _ in range(batch_size - len(views))]
        try:
            found += _detect(detector, padded)[: len(views)]
        except (Exception, SystemExit):
            found += [alone(start + place) for place in range(len(views))]
    return keep_successful_views(found, alone, Detections.empty())


def _detect_isolated(
    detector: Detector, image: Image, removed: Ints, value: int, batch_size: int, number: int
) -> Detections | BaseException:
    """Return the boxes of a view in a batch of copies of itself, or the exception."""
    return try_view(
        lambda: _detect(detector, [fill_rectangles(image, removed[number], value) for _ in range(batch_size)])[
            number % batch_size
        ]
    )


def _detect(detector: Detector, images: list[Image]) -> list[Detections]:
    count = len(images)  # before the detector has the list
    return _require_results(detector(images), count, "images")


def _require_results(results: Sequence[Detections], count: int, of: str) -> list[Detections]:
    """Return the results for `count` images or views; raise an error unless there is one for each."""
    if isinstance(results, Detections) or not isinstance(results, Iterable):
        raise ObjectSeekerError(
            f"the detector must return one Detections for each of its {of}: got {type(results).__name__}"
        )
    found = list(results)
    if len(found) != count:
        raise ObjectSeekerError(f"the detector must return {count} results for {count} {of}: got {len(found)}")
    for entry in found:
        if not isinstance(entry, Detections):
            raise ObjectSeekerError(
                f"the detector must return Detections: got {type(entry).__name__}. Make a detector of an object of "
                "another library with objectseeker.detectors.load_detector."
            )
    return found


def _drop_unknown_labels(found: list[Detections], names: object) -> list[Detections]:
    """Drop the boxes whose label is not a class; raise an error if that leaves none of them."""
    known = len(names) if isinstance(names, tuple | list) else 0
    end = known or LARGEST_LABEL
    every = np.concatenate([boxes.label for boxes in found])
    labels = every[(every < 0) | (every >= end)]  # of all views at once: most images have none
    if not len(labels):
        return found
    what = f"labels {labels.min()} to {labels.max()}, but its classes are 0 to {end - 1}"
    what += ", one for each of its names" if known else ""
    if len(labels) == len(every):
        raise ObjectSeekerError(f"the detector must return known labels: got {what}")
    log.warning("dropped %d boxes of an image: the detector returned %s", len(labels), what)
    return [boxes[(boxes.label >= 0) & (boxes.label < end)] for boxes in found]
