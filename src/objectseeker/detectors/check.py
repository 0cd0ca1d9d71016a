"""Check that a detector keeps the contract that certificates rest on, and what an image costs.

The proofs need this of a detector, at the batch shapes in use: the boxes of a view depend on that view's own pixels
only. Not on other images of the batch, not on earlier images, not on pixels that a mask removed. Tests cannot prove
that; they can catch every usual way of breaking it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from objectseeker.core.boxes import Detections, Ints, iou
from objectseeker.core.masks import DEFAULT_FILL, SIDES, Image, Masks, as_image
from objectseeker.core.recipes import Halves, Recipe, recipe_for_frame, require_recipe
from objectseeker.core.seeker import Detector, ViewDetector, detect_views
from objectseeker.detectors import LoadedDetector, load_detector, unverified_reason
from objectseeker.detectors.network.preprocess import shown_pixels
from objectseeker.errors import ObjectSeekerError

DEFAULT_MASKS = Halves(4)  # few, because every mask takes two rounds of all views
CONFIDENT_SCORE = 0.3  # boxes that count when the geometry of the coordinates is checked
MIN_BATCH, MAX_BATCH = 4, 16  # images passed at a time to a detector that makes its own batches
TIMED_VIEWS = 16  # of a defended image


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report; `passed` is None for a line that only informs."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class ImageCost:
    """Time per image on this machine: one undefended pass, and all views of the defended image."""

    width: int
    height: int
    masks: str
    forward_passes: int
    undefended_ms: float
    defended_ms: float

    def __str__(self) -> str:
        return (
            f"an image of {self.width}x{self.height} takes {_milliseconds(self.undefended_ms)} undefended and "
            f"{_milliseconds(self.defended_ms)} defended with {self.masks} ({self.forward_passes} forward passes)"
        )


@dataclass(frozen=True, slots=True)
class DetectorCheck:
    """The report on a detector: its fingerprint, the results of all checks, and the cost of an image.

    `cost` is None if the detector fails on the image.
    """

    detector: str
    masks: str
    fill: int
    checks: tuple[CheckResult, ...]
    cost: ImageCost | None
    unverified_reason: str | None = None

    @property
    def passed(self) -> bool:
        """Return whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the failed checks."""
        return tuple(result.name for result in self.checks if result.passed is False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; the gate reads them."""
        values = asdict(self)
        return {"passed": self.passed, "checks": values.pop("checks")} | values

    def __str__(self) -> str:
        marks = {True: "pass", False: "FAIL", None: "info"}
        lines = [f"{marks[result.passed]}  {result.name}: {result.detail}" for result in self.checks]
        return "\n".join([self.detector, *lines, *([] if self.cost is None else [f"cost  {self.cost}"])])


# From the name of a check and its number of runs to a progress bar: its `advance` is called with every run.
OpenProgress = Callable[[str, int], AbstractContextManager[Any]]


def check(
    detector: str | Detector,
    image: Image,
    *,
    masks: Recipe = DEFAULT_MASKS,
    deployed_masks: Recipe | None = None,
    batch_size: int = 8,
    fill: int = DEFAULT_FILL,
    open_progress: OpenProgress = lambda name, runs: nullcontext(),
    on_result: Callable[[CheckResult], None] = lambda result: None,
) -> DetectorCheck:
    """Check a detector on one image, and measure what a defended image costs.

    Args:
        detector: A SPEC or a callable.
        image: An image with clear objects.
        masks: The masks whose views are checked.
        deployed_masks: The masks whose cost is measured; default: `masks`.
        batch_size: Batch size of a detector that does not make its own batches. One that does may run several images of
            a smaller batch at the same time, and is checked with more than one image in any case.
        fill: Gray value of removed pixels.
        open_progress: Called before each check with its name and its number of runs; returns a context manager.
        on_result: Called with each result as soon as it exists.

    Returns:
        The report. A failed check is a result in it, not an exception.

    Raises:
        ObjectSeekerError: The detector cannot be loaded, or an argument is invalid.

    Example:
        >>> image = np.zeros((48, 64, 3), np.uint8)
        >>> def bright(images):
        ...     return [Detections([(0, 0, 9, 9)], [0.9], [0]) for _ in images]
        >>> check(bright, image, masks=Halves(1)).failed
        ('boxes are x1, y1, x2, y2 in raw pixels',)
    """
    loaded, image = load_detector(detector), as_image(image)
    require_recipe(masks)
    shown = min(max(batch_size, MIN_BATCH), MAX_BATCH) if isinstance(loaded, ViewDetector) else batch_size
    run = _CheckRun(loaded, image, shown, np.random.default_rng(0))
    views = 2 + 2 * len(masks.masks(image.shape[1], image.shape[0]))
    ignores_masked_pixels = partial(
        check_views, loaded, image, masks, batch_size=batch_size, fill=fill, rng=run.rng, advance=run.advance
    )
    checks: list[tuple[str, int, Callable[[], str]]] = [
        ("returns valid boxes", 1, run.valid),
        ("deterministic", 4, run.deterministic),
        ("no memory of earlier images", 7, run.stateless),
        ("independent of the other images in a batch", 5, run.batch_independent),
        ("independent of the position in a batch", shown, run.position_independent),
        ("boxes are x1, y1, x2, y2 in raw pixels", 3, run.raw_pixels),
        ("ignores removed pixels", views, ignores_masked_pixels),
    ]
    results: list[CheckResult] = []

    def add(result: CheckResult) -> None:
        results.append(result)
        on_result(result)

    for name, runs, test in checks:
        with open_progress(name, runs) as run.bar:
            result = _run_check(name, test)
        add(result)
    run.bar = None
    for size in sorted({1, 2, 2 * batch_size} - {batch_size}):
        add(_run_check(f"another batch size ({size})", partial(run.other_batch_size, size), informs=True))
    cost = None
    if results[0].passed:
        with suppress(Exception):  # the detector is foreign code; a check that runs all views has reported the reason
            cost = measure_cost(loaded, image, deployed_masks or masks, batch_size=batch_size, fill=fill)
    return DetectorCheck(loaded.fingerprint, str(masks), fill, tuple(results), cost, unverified_reason(loaded))


def measure_cost(detector: LoadedDetector, image: Image, recipe: Recipe, *, batch_size: int, fill: int) -> ImageCost:
    """Measure the time of an undefended and of a defended image on this machine.

    The defended time is extrapolated from some 16 views that are spread over all masks.
    """
    height, width = image.shape[:2]
    masks = recipe_for_frame(recipe, 0).masks(width, height)
    count = max(TIMED_VIEWS, 2 * int(getattr(detector, "batch_size", batch_size))) - 1  # besides the unmasked view
    timed = masks.select_masks(slice(None, None, max(-(-len(masks) // count), 1)))
    single = _with_batch_size(detector, 1) or detector
    undefended = _best_time(lambda: single([image]))
    defended = _best_time(lambda: detect_views(detector, image, timed, value=fill, batch_size=batch_size))
    per_view = defended / (1 + len(timed))
    passes = 1 + len(masks)
    return ImageCost(width, height, str(recipe), passes, undefended * 1000, per_view * passes * 1000)


def _best_time(call: Callable[[], object]) -> float:
    """Return the shortest of three runs, in seconds: the first one may prepare something."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def _milliseconds(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.3g} ms"


class _CheckFailedError(Exception):
    """A check found a violation."""


def _run_check(name: str, test: Callable[[], str], informs: bool = False) -> CheckResult:
    try:
        detail = test()
    except (_CheckFailedError, ObjectSeekerError) as error:
        return CheckResult(name, False, str(error))
    except Exception as error:  # the detector is foreign code: whatever it raises is a result, not a crash
        return CheckResult(name, False, f"the detector raised {type(error).__name__}: {error}")
    return CheckResult(name, None if informs or detail.startswith("not checked") else True, detail)


@dataclass(slots=True)
class _CheckRun:
    detector: Detector
    image: Image
    batch_size: int
    rng: np.random.Generator
    bar: Any = None

    def advance(self) -> None:
        if self.bar is not None:
            self.bar.advance()

    def run(self, images: Sequence[Image]) -> list[Detections]:
        results = list(self.detector(images))
        self.advance()
        if len(results) != len(images):
            raise _CheckFailedError(f"{len(results)} results for {len(images)} images")
        return results

    def valid(self) -> str:
        (boxes, *_) = self.run([self.image] * self.batch_size)
        if not isinstance(boxes, Detections):
            raise _CheckFailedError(f"returned {type(boxes).__name__}, not Detections")
        height, width = self.image.shape[:2]
        outside = (boxes.xyxy < -0.5).any() or (boxes.xyxy > np.array([width, height, width, height]) + 0.5).any()
        if outside:
            raise _CheckFailedError(f"boxes reach outside the {width}x{height} image, up to {boxes.xyxy.max():.1f}")
        names = tuple(getattr(self.detector, "names", ()))
        if len(boxes) and names and not 0 <= boxes.label.min() <= boxes.label.max() < len(names):
            labels = f"labels {boxes.label.min()} to {boxes.label.max()}"
            raise _CheckFailedError(f"{labels}, but its {len(names)} names are for 0 to {len(names) - 1}")
        confident = int((boxes.score >= CONFIDENT_SCORE).sum())
        return f"{len(boxes)} boxes, {confident} of them scored {CONFIDENT_SCORE} or more"

    def deterministic(self) -> str:
        first = self.run([self.image] * self.batch_size)
        for _ in range(3):
            _require_equal(first, self.run([self.image] * self.batch_size), "the same batch, run again")
        return "the same batch, run four times, is bit-identical"

    def stateless(self) -> str:
        first = self.run([self.image] * self.batch_size)
        for image in self._others()[:3]:
            self.run([image] * self.batch_size)
            _require_equal(first, self.run([self.image] * self.batch_size), "the same batch after other images")
        return "unchanged after other images"

    def batch_independent(self) -> str:
        if self.batch_size == 1:
            return "not checked: a batch of one has no other images"
        first, others = self.run([self.image] * self.batch_size)[0], self._others()
        for image in others:
            recomputed = self.run([self.image] + [image] * (self.batch_size - 1))[0]
            _require_equal([first], [recomputed], "the same image in a batch with others")
        return f"unchanged in a batch with {len(others)} kinds of other images, {self.batch_size} per batch"

    def position_independent(self) -> str:
        if self.batch_size == 1:
            return "not checked: a batch of one has one position"
        others = [self._others()[0]] * self.batch_size
        first = self.run([self.image, *others[1:]])[0]
        for slot in range(1, self.batch_size):
            recomputed = self.run([*others[:slot], self.image, *others[slot + 1 :]])[slot]
            _require_equal([first], [recomputed], f"the same image at position {slot} of the batch")
        return f"unchanged at all {self.batch_size} positions"

    def raw_pixels(self) -> str:
        """Move and enlarge the image: boxes must follow. Boxes in network pixels, fractions or xywh do not."""
        height, width = self.image.shape[:2]
        original = self.run([self.image] * self.batch_size)[0].with_min_score(CONFIDENT_SCORE)
        if not len(original):
            return f"not checked: no box scores {CONFIDENT_SCORE} or more in this image; pass one with clear objects"
        dx, dy = width // 3, height // 4
        canvas = np.full((height + dy, width + dx, 3), DEFAULT_FILL, np.uint8)
        canvas[dy:, dx:] = self.image
        enlarged = self.image.repeat(2, axis=0).repeat(2, axis=1)
        for change, changed, expected in (
            (f"moved by ({dx}, {dy})", canvas, original.xyxy + np.array([dx, dy, dx, dy])),
            ("enlarged twofold", enlarged, original.xyxy * 2),
        ):
            actual = self.run([changed] * self.batch_size)[0]
            followed = (iou(expected, actual.xyxy).max(axis=1, initial=0) > 0.5).mean()
            if followed < 0.5:
                raise _CheckFailedError(f"only {followed:.0%} of {len(original)} boxes follow if the image is {change}")
        return f"{len(original)} boxes follow if the image is moved or enlarged"

    def other_batch_size(self, size: int) -> str:
        first = self.run([self.image] * self.batch_size)[0]
        resized = _with_batch_size(self.detector, size)
        if resized is None:
            return "this detector's batch size is fixed"
        second = next(iter(resized([self.image] * size)))
        return "bit-identical" if second == first else _describe_change(first, second)

    def _others(self) -> list[Image]:
        noise = self.rng.integers(0, 256, self.image.shape, dtype=np.uint8)
        black, white = np.zeros_like(self.image), np.full_like(self.image, 255)
        return [noise, self.image[::-1, ::-1].copy(), black, white]


def check_views(
    detector: Detector,
    image: Image,
    recipe: Recipe,
    *,
    batch_size: int,
    fill: int,
    rng: np.random.Generator,
    advance: Callable[[], object] = lambda: None,
) -> str:
    """Rewrite what a mask removes, run all views as in use, and raise if the view of that mask changes.

    This is done twice per mask: with everything it removes, and with only the row or column next to each of its lines,
    where a resize would leak. The other views of the batch show what was rewritten, so this also tests independence of
    the other images of a batch, at the shapes in use. At the end the first image must have the same boxes again.
    """
    masks = recipe.masks(image.shape[1], image.shape[0])

    def detect(shown: Image) -> list[Detections]:
        views = detect_views(detector, shown, masks, value=fill, batch_size=batch_size)
        advance()
        return views

    clean = detect(image)
    if not any(len(view) for view in clean[1:]):
        raise _CheckFailedError("no masked view has a box, so nothing can be checked: use an image with objects")
    for number in range(len(masks)):
        for rectangles in (masks.removed[number], _line_borders(masks, number)):
            view = detect(_rewritten(image, rectangles, rng))[number + 1]
            removed = _describe_removed(masks, number)
            _require_equal([clean[number + 1]], [view], f"the view without {removed}, after removed pixels changed")
    _require_equal(clean, detect(image), "the same views, run again after others")
    how = "the detector masks its own input" if isinstance(detector, ViewDetector) else "raw pixels are masked"
    return f"{len(masks)} masks, removed pixels rewritten in two ways each: bit-identical ({how})"


def _line_borders(masks: Masks, number: int) -> Ints:
    """Return the removed row or column at every line of a mask: (lines, 4)."""
    borders = []
    for edge in np.flatnonzero(masks.is_line[number]).tolist():
        border = np.array([0, 0, masks.width, masks.height])
        is_after = (edge >= 2) != masks.is_band[number]  # the removed pixels follow the line
        border[edge % 2] = masks.rectangle[number, edge] - (not is_after)
        border[edge % 2 + 2] = border[edge % 2] + 1
        borders.append(border)
    return np.array(borders)


def _rewritten(image: Image, rectangles: Ints, rng: np.random.Generator) -> Image:
    """Return `image` with other pixels in these rectangles."""
    inside = ~shown_pixels(rectangles, image.shape[1], image.shape[0])
    changed, area = image.copy(), image[inside]
    # The opposite extreme of each pixel is the largest possible change.
    changed[inside] = np.where(area > 127, 0, 255) if rng.random() < 0.5 else rng.integers(0, 256, area.shape)
    return changed


def _describe_removed(masks: Masks, number: int) -> str:
    lines = [(edge, int(masks.rectangle[number, edge])) for edge in np.flatnonzero(masks.is_line[number]).tolist()]
    if masks.is_band[number]:
        (edge, start), (_, end) = lines
        return f"{('columns', 'rows')[edge]} {start} to {end - 1}"
    return " and ".join(f"the {SIDES[edge]} side up to line {line}" for edge, line in lines)


def _require_equal(expected: Sequence[Detections], actual: Sequence[Detections], description: str) -> None:
    for first, second in zip(expected, actual, strict=True):
        if first != second:
            raise _CheckFailedError(f"{description}: {_describe_change(first, second)}")


def _describe_change(first: Detections, second: Detections) -> str:
    if len(first) != len(second):
        return f"{len(second)} boxes instead of {len(first)}"
    moved, score = np.abs(second.xyxy - first.xyxy).max(), np.abs(second.score - first.score).max()
    return f"boxes move by up to {moved:.2g} pixels, scores by up to {score:.2g}"


def _with_batch_size(detector: Detector, size: int) -> Detector | None:
    """Return the same detector at another batch size; None if its batch size is fixed."""
    if hasattr(detector, "with_batch"):
        resized: Detector | None = detector.with_batch(size)
        return resized
    return None if isinstance(detector, ViewDetector) else detector
