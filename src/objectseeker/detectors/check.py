"""`check-detector`: does a detector keep the contract the certificates rest on?

The proof needs this of a detector, at the batch shapes in use: the boxes of a view depend on that view's own pixels
only. Not on other images of the batch, not on what came before, not on pixels a mask removed. Tests cannot prove that;
they can catch every usual way of breaking it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from objectseeker.core.boxes import Detections, Ints, iou
from objectseeker.core.masks import DEFAULT_FILL, NO_SIDE, SIDES, Image, MaskSet, as_image
from objectseeker.core.recipes import Halves, Recipe, require_recipe
from objectseeker.core.seeker import Detector, ViewDetector, detect_views
from objectseeker.errors import ObjectSeekerError

MASKS = Halves(4)  # few: every mask takes two rounds of all views
CONFIDENT = 0.3  # boxes that count when the geometry of the coordinates is checked
FEWEST_MATES, MOST_MATES = 4, 16  # images given at a time to a detector that makes its own batches


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the result. `passed` is None for a line that only informs."""

    name: str
    passed: bool | None
    detail: str


def check_detector(
    detector: Detector,
    image: Image,
    masks: Recipe = MASKS,
    *,
    batch: int = 8,
    value: int = DEFAULT_FILL,
    seed: int = 0,
    watch: Watch = lambda name, runs: nullcontext(NoProgress()),
) -> Iterator[CheckResult]:
    """Check `detector` on one image, finding by finding.

    `masks` are those whose views are checked, `batch` is the batch shape of detectors that do not batch by themselves.
    Those that do may run several images of a smaller batch at the same time, and are checked with more than one anyway.
    `watch` is told the name of each check before it begins, and how often it runs the detector.
    """
    image = as_image(image)
    require_recipe(masks)
    rng = np.random.default_rng(seed)
    given = min(max(batch, FEWEST_MATES), MOST_MATES) if isinstance(detector, ViewDetector) else batch
    trial = _CheckRun(detector, image, given, rng, NoProgress())
    views = 2 + 2 * len(masks.masks(image.shape[1], image.shape[0]))
    checks: list[tuple[str, int, Callable[[_CheckRun], str]]] = [
        ("returns valid boxes", 1, _CheckRun.valid),
        ("deterministic", 4, _CheckRun.deterministic),
        ("no memory of earlier images", 7, _CheckRun.stateless),
        ("independent of the other images in a batch", 5, _CheckRun.batch_independent),
        ("independent of the place in a batch", given, _CheckRun.order),
        ("boxes are x1, y1, x2, y2 in raw pixels", 3, _CheckRun.raw_pixels),
        ("blind to removed pixels", views, partial(_CheckRun.blind, masks=masks, batch=batch, value=value)),
    ]
    for name, runs, test in checks:
        with watch(name, runs) as bar:
            finding = _run_check(name, partial(test, replace(trial, bar=bar)))
        yield finding
    for size in sorted({1, 2, 2 * batch} - {batch}):
        yield _run_check(f"another batch size ({size})", partial(trial.other_batch, size), informs=True)


class ProgressStep(Protocol):
    """What is told of every run of the detector."""

    def advance(self) -> None: ...


class NoProgress:
    """Nobody is told."""

    def advance(self) -> None:
        pass


Watch = Callable[[str, int], AbstractContextManager[ProgressStep]]


class _CheckFailedError(Exception):
    """A check found what it was looking for."""


def _run_check(name: str, test: Callable[[], str], informs: bool = False) -> CheckResult:
    try:
        detail = test()
    except _CheckFailedError as failure:
        return CheckResult(name, False, str(failure))
    except ObjectSeekerError as error:
        return CheckResult(name, False, str(error))
    except Exception as error:  # the detector is foreign code: whatever it raises is a finding, not a crash
        return CheckResult(name, False, f"the detector raised {type(error).__name__}: {error}")
    return CheckResult(name, None if informs or detail.startswith("not checked") else True, detail)


@dataclass(frozen=True, slots=True)
class _CheckRun:
    detector: Detector
    image: Image
    batch: int
    rng: np.random.Generator
    bar: ProgressStep

    def run(self, images: Sequence[Image]) -> list[Detections]:
        results = list(self.detector(images))
        self.bar.advance()
        if len(results) != len(images):
            raise _CheckFailedError(f"{len(results)} results for {len(images)} images")
        return results

    def valid(self) -> str:
        (boxes, *_) = self.run([self.image] * self.batch)
        if not isinstance(boxes, Detections):
            raise _CheckFailedError(f"returned {type(boxes).__name__}, not Detections")
        height, width = self.image.shape[:2]
        outside = (boxes.xyxy < -0.5).any() or (boxes.xyxy > np.array([width, height, width, height]) + 0.5).any()
        if outside:
            raise _CheckFailedError(f"boxes reach outside the {width}x{height} image, up to {boxes.xyxy.max():.1f}")
        names = tuple(getattr(self.detector, "names", ()))
        if len(boxes) and names and not 0 <= boxes.label.min() <= boxes.label.max() < len(names):
            seen = f"labels {boxes.label.min()} to {boxes.label.max()}"
            raise _CheckFailedError(f"{seen}, but its {len(names)} names are for 0 to {len(names) - 1}")
        return f"{len(boxes)} boxes, {int((boxes.score >= CONFIDENT).sum())} of them scored {CONFIDENT} or more"

    def deterministic(self) -> str:
        first = self.run([self.image] * self.batch)
        for _ in range(3):
            _require_equal(first, self.run([self.image] * self.batch), "the same batch, run again")
        return "the same batch four times, equal to the last bit"

    def stateless(self) -> str:
        first = self.run([self.image] * self.batch)
        for other in self._others()[:3]:
            self.run([other] * self.batch)
            _require_equal(first, self.run([self.image] * self.batch), "the same batch after other images")
        return "unchanged after other images in between"

    def batch_independent(self) -> str:
        if self.batch == 1:
            return "not checked: one image a batch has no mates"
        first, others = self.run([self.image] * self.batch)[0], self._others()
        for other in others:
            again = self.run([self.image] + [other] * (self.batch - 1))[0]
            _require_equal([first], [again], "the same image beside others")
        return f"unchanged beside {len(others)} kinds of other images, {self.batch} a batch"

    def order(self) -> str:
        if self.batch == 1:
            return "not checked: one image a batch has one place"
        others = [self._others()[0]] * self.batch
        first = self.run([self.image, *others[1:]])[0]
        for slot in range(1, self.batch):
            again = self.run([*others[:slot], self.image, *others[slot + 1 :]])[slot]
            _require_equal([first], [again], f"the same image at place {slot} of the batch")
        return f"unchanged at all {self.batch} places"

    def raw_pixels(self) -> str:
        """Move and enlarge the image: boxes must follow. Boxes in network pixels, fractions or xywh do not."""
        height, width = self.image.shape[:2]
        before = self.run([self.image] * self.batch)[0].at_least(CONFIDENT)
        if not len(before):
            return f"not checked: nothing scored {CONFIDENT} or more in this image, give one with clear objects"
        dx, dy = width // 3, height // 4
        canvas = np.full((height + dy, width + dx, 3), DEFAULT_FILL, np.uint8)
        canvas[dy:, dx:] = self.image
        enlarged = self.image.repeat(2, axis=0).repeat(2, axis=1)
        for change, picture, expected in (
            (f"moved by ({dx}, {dy})", canvas, before.xyxy + np.array([dx, dy, dx, dy])),
            ("enlarged twofold", enlarged, before.xyxy * 2),
        ):
            after = self.run([picture] * self.batch)[0]
            followed = (iou(expected, after.xyxy).max(axis=1, initial=0) > 0.5).mean()
            if followed < 0.5:
                raise _CheckFailedError(f"only {followed:.0%} of {len(before)} boxes follow when the image is {change}")
        return f"{len(before)} boxes follow when the image is moved or enlarged"

    def blind(self, *, masks: Recipe, batch: int, value: int) -> str:
        return check_views(self.detector, self.image, masks, batch=batch, value=value, rng=self.rng, bar=self.bar)

    def other_batch(self, size: int) -> str:
        first = self.run([self.image] * self.batch)[0]
        resized = _with_batch(self.detector, size)
        if resized is None:
            return "this detector's batch is fixed"
        other = next(iter(resized([self.image] * size)))
        if other == first:
            return "equal to the last bit"
        if len(other) != len(first):
            return f"{len(other)} boxes instead of {len(first)}"
        moved, score = np.abs(other.xyxy - first.xyxy).max(), np.abs(other.score - first.score).max()
        return f"boxes move by up to {moved:.2g} pixels, scores by up to {score:.2g}"

    def _others(self) -> list[Image]:
        noise = self.rng.integers(0, 256, self.image.shape, dtype=np.uint8)
        black, white = np.zeros_like(self.image), np.full_like(self.image, 255)
        return [noise, self.image[::-1, ::-1].copy(), black, white]


def check_views(
    detector: Detector,
    image: Image,
    recipe: Recipe,
    *,
    batch: int,
    value: int,
    rng: np.random.Generator,
    bar: ProgressStep,
) -> str:
    """Rewrite what a mask removes, run all views as in use, and compare the view of that mask; raises if it changed.

    Done twice per mask: all that it removes, and only the row or column beside each of its lines, where a resize would
    leak. The other views of the batch show what was rewritten, so this is also a test of batch-mates at the shapes in
    use. At the end the first image must give the same boxes again.
    """
    masks = recipe.masks(image.shape[1], image.shape[0])
    strips = masks.strips
    beside = _beside_lines(strips)

    def seen(shown: Image) -> list[Detections]:
        views = detect_views(detector, shown, masks, value=value, batch=batch)
        bar.advance()
        return views

    clean = seen(image)
    if not any(len(view) for view in clean[1:]):
        raise _CheckFailedError(
            "no box is found in any masked view, so nothing can be told: give an image with objects"
        )
    for number, members in enumerate(masks.members):
        for rectangles in (strips.removed[members], beside[members].reshape(-1, 4)):
            view = seen(_rewritten(image, rectangles, rng))[number + 1]
            removed = " and ".join(dict.fromkeys(_named(strips, member) for member in members))
            what = f"the view without {removed}, after pixels changed in there"
            _require_equal([clean[number + 1]], [view], what)
    _require_equal(clean, seen(image), "the same views, run again after others")
    how = "masked by the detector itself" if isinstance(detector, ViewDetector) else "raw pixels masked"
    return f"{len(masks)} masks, what each removes rewritten in two ways, equal to the last bit ({how})"


def _beside_lines(strips: MaskSet) -> Ints:
    """The removed row or column at the start and at the end of every strip, (M, 2, 4); empty at a border."""
    rows, axis, (inside, _) = np.arange(len(strips)), strips.axis, strips.lines
    beside = np.stack([strips.removed, strips.removed], axis=1)
    beside[rows, 0, axis + 2] = strips.start + inside[:, 0]
    beside[rows, 1, axis] = strips.end - inside[:, 1]
    return beside


def _rewritten(image: Image, rectangles: Ints, rng: np.random.Generator) -> Image:
    """`image` with other pixels in these rectangles."""
    inside = np.zeros(image.shape[:2], bool)
    for x1, y1, x2, y2 in rectangles.tolist():
        inside[y1:y2, x1:x2] = True
    changed, area = image.copy(), image[inside]
    # Extremes against what is there: the largest change a pixel can make.
    changed[inside] = np.where(area > 127, 0, 255) if rng.random() < 0.5 else rng.integers(0, 256, area.shape)
    return changed


def _named(strips: MaskSet, number: int) -> str:
    if strips.side[number] == NO_SIDE:
        return f"{('columns', 'rows')[strips.axis[number]]} {strips.start[number]} to {strips.end[number] - 1}"
    return f"the {SIDES[strips.side[number]]} side up to line {strips.line[number]}"


def _require_equal(first: Sequence[Detections], second: Sequence[Detections], what: str) -> None:
    for a, b in zip(first, second, strict=True):
        if a != b:
            if len(a) != len(b):
                raise _CheckFailedError(f"{what}: {len(b)} boxes instead of {len(a)}")
            score = np.abs(a.score - b.score).max()
            moved = np.abs(a.xyxy - b.xyxy).max()
            raise _CheckFailedError(f"{what}: boxes move by up to {moved:.2g} pixels and scores by up to {score:.2g}")


def _with_batch(detector: Any, size: int) -> Detector | None:
    """The same detector at another batch size; None where that cannot be."""
    change = getattr(detector, "with_batch", None)
    if change is not None:
        changed: Detector | None = change(size)
        return changed
    return None if isinstance(detector, ViewDetector) else detector
