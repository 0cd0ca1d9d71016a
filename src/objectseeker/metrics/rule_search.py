"""Choose the rule that certifies most of a detector's own boxes for a few spurious boxes.

The images are split in two. On the first part every rule of a grid competes: it may be chosen for a price if the upper
end of the confidence interval of its spurious boxes per image does not exceed the price, and among these the one wins
whose mean certified share of own boxes (far, close, over) is highest. The rules that won are measured, unchanged, on
the other part. Nothing is skipped that could win: rules are certified in the order of an upper bound of their gain,
until the best one reaches every bound that remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe
from objectseeker.core.rules import Rule
from objectseeker.core.threats import PatchLocation, ThreatModel
from objectseeker.metrics.confidence_intervals import ConfidenceInterval, bootstrap_interval
from objectseeker.metrics.image_set import process_pool, restrict_images
from objectseeker.metrics.metric import CONFIDENCE, SAMPLES
from objectseeker.metrics.own_boxes import LOCATIONS, OwnBoxes, RuleShape

STEP = 0.01  # of mask thresholds
AT_ONCE = 12  # rules whose bounds are refined together
NORMAL_REACH = 1.96  # standard errors


@dataclass(frozen=True, slots=True)
class RuleGrid:
    """The settings that compete, besides the mask threshold, whose steps are STEP."""

    filter_ioa: tuple[float, ...] = (0.6, 0.7, 0.75, 0.8)
    edge_factor: tuple[float, ...] = (1.0, 0.85, 0.7)
    cluster_distance: tuple[float, ...] = (0.1, 0.3)
    evidence_threshold: tuple[float | None, ...] = (None, 0.15, 0.2, 0.3, 0.4)
    evidence_power: tuple[float, ...] = (1.0, 2.0)

    def shapes(self, floor: float) -> list[RuleShape]:
        """Return all rules up to their mask threshold that use no masked box below `floor`."""
        evidence: list[tuple[float | None, float]] = [
            (low, power)
            for low in self.evidence_threshold
            for power in (self.evidence_power if low is not None else (1.0,))
            if low is None or low >= floor
        ]
        return [
            RuleShape(*clustering, *each)
            for clustering in product(self.filter_ioa, self.edge_factor, self.cluster_distance)
            for each in evidence
        ]


def mask_thresholds(base_threshold: float, floor: float) -> Floats:
    """Return the mask thresholds that compete: none below the base threshold."""
    first = int(np.ceil(round(max(base_threshold, floor) / STEP, 6)))
    return np.array([round(step * STEP, 2) for step in range(first, round(1 / STEP))])


# --- who computes -----------------------------------------------------------------------------------------------------


class Bench:
    """The own boxes of some images, in this process or shared among several."""

    def __init__(self, parts: Sequence[Callable[[str, tuple[Any, ...]], Callable[[], Any]]]) -> None:
        self._parts = parts

    def _each(self, method: str, *arguments: Any) -> list[Any]:
        started = [part(method, arguments) for part in self._parts]
        return [finish() for finish in started]

    def objects(self) -> Ints:
        """Return the number of own boxes per image."""
        return np.concatenate(self._each("objects"))

    def sizes(self) -> set[tuple[int, int]]:
        """Return the sizes of the images."""
        return set().union(*self._each("sizes"))

    def price_curves(self, shapes: Sequence[RuleShape], thresholds: Floats) -> Ints:
        return np.concatenate(self._each("price_curves", shapes, thresholds), axis=2)

    def single_view_counts(self, settings: Sequence[tuple[float, float]], thresholds: Floats) -> Ints:
        return np.asarray(sum(self._each("single_view_counts", settings, thresholds)))

    def counts(self, method: str, rules: Sequence[Rule]) -> Ints:
        return np.asarray(sum(self._each(method, rules)))

    def per_image(self, rule: Rule) -> tuple[Ints, Ints]:
        spurious, certified = zip(*self._each("per_image", rule), strict=True)
        return np.concatenate(spurious), np.concatenate(certified, axis=1)


@contextmanager
def open_bench(
    images: Sequence[ObservedImage],
    index: Ints,
    threshold: float,
    floor: float,
    threat: ThreatModel,
    *,
    recipe: Recipe | None = None,
    processes: int = 1,
) -> Iterator[Bench]:
    """Open the own boxes of images number `index`, under the masks of `recipe` alone if there is one."""
    shared = (threshold, floor, threat, recipe)
    if processes == 1 or len(index) < 2 * processes:
        own = _own_boxes(images, index, *shared)
        yield Bench([lambda method, arguments: lambda: _call(own, method, arguments)])
        return
    with ExitStack() as stack:
        pools = [
            stack.enter_context(process_pool(1, _begin, (images, part, *shared)))
            for part in np.array_split(index, processes)
        ]
        yield Bench([_remote(pool) for pool in pools])


def _remote(pool: ProcessPoolExecutor) -> Callable[[str, tuple[Any, ...]], Callable[[], Any]]:
    return lambda method, arguments: pool.submit(_call_here, method, arguments).result


def _own_boxes(
    images: Sequence[ObservedImage],
    index: Ints,
    threshold: float,
    floor: float,
    threat: ThreatModel,
    recipe: Recipe | None,
) -> OwnBoxes:
    chosen = [images[number] for number in index.tolist()]
    return OwnBoxes(chosen if recipe is None else restrict_images(chosen, recipe), threshold, floor, threat)


_own: OwnBoxes  # of a process of a pool


def _begin(*arguments: Any) -> None:
    global _own
    _own = _own_boxes(*arguments)


def _call_here(method: str, arguments: tuple[Any, ...]) -> Any:
    return _call(_own, method, arguments)


def _call(own: OwnBoxes, method: str, arguments: tuple[Any, ...]) -> Any:
    value = getattr(own, method)
    return value(*arguments) if callable(value) else value


# --- measuring one rule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class OwnBoxMetrics:
    """Price and gain of a rule on some images, with 95 % confidence intervals; shares in percent."""

    images: int
    own_boxes: int
    spurious: ConfidenceInterval  # boxes that masks add, per image
    certified: dict[PatchLocation, ConfidenceInterval]  # share of the own boxes
    mean_certified: ConfidenceInterval

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "own_boxes": self.own_boxes,
            "spurious_per_image": plain_interval(self.spurious),
            "certified": {location: plain_interval(interval) for location, interval in self.certified.items()},
            "mean_certified": plain_interval(self.mean_certified),
        }


def plain_interval(interval: ConfidenceInterval) -> dict[str, float | None]:
    """Return a metric and the ends of its interval as JSON; None if unknown."""
    return {name: getattr(interval, name) if interval.known else None for name in ("value", "low", "high")}


def measure_rule(bench: Bench, rule: Rule, objects: Ints) -> OwnBoxMetrics:
    """Measure one rule on the images of a bench, with `objects` own boxes each."""
    spurious, certified = bench.per_image(rule)
    return OwnBoxMetrics(
        images=len(objects),
        own_boxes=int(objects.sum()),
        spurious=spurious_interval(spurious),
        certified={
            location: share_interval(counts, objects) for location, counts in zip(LOCATIONS, certified, strict=True)
        },
        mean_certified=share_interval(certified.mean(axis=0), objects),
    )


def spurious_interval(counts: Ints) -> ConfidenceInterval:
    """Return the interval of the mean of counts per image."""
    images = len(counts)
    return bootstrap_interval(
        lambda weights: np.asarray(weights @ counts / weights.sum(axis=1)),
        images,
        confidence=CONFIDENCE,
        samples=SAMPLES,
        seed=0,
        bounds=(0.0, max(float(counts.max(initial=0)), 1.0)),
    )


def share_interval(certified: Ints | Floats, objects: Ints) -> ConfidenceInterval:
    """Return the interval of the percentage of objects that is certified, from counts per image."""
    there = objects > 0  # images without own boxes say nothing about shares

    def values(weights: Floats) -> Floats:
        of = weights @ objects[there]
        share = np.full(len(of), np.nan)
        np.divide(100 * (weights @ certified[there]), of, out=share, where=of > 0)
        return share

    return bootstrap_interval(
        values, int(there.sum()), confidence=CONFIDENCE, samples=SAMPLES, seed=0, bounds=(0.0, 100.0)
    )


# --- the search -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Entry:
    """A rule that competes for a price. `gain` is an upper bound until `level` says that it is exact."""

    shape: int
    step: int  # of the mask threshold
    gain: float
    level: int  # 0: bound by single views, 1: bound by all views, 2: exact


@dataclass(eq=False)
class RuleSearch:
    """The rules of a grid on the images of a bench.

    Example:
        >>> search.best(0.25)  # doctest: +SKIP
        Rule(base_threshold=0.5, mask_threshold=0.63, ...)
    """

    bench: Bench
    base_threshold: float
    floor: float
    grid: RuleGrid = field(default_factory=RuleGrid)
    on_progress: Callable[[int, int], None] = lambda done, total: None

    def __post_init__(self) -> None:
        self.objects = self.bench.objects()
        self.thresholds = mask_thresholds(self.base_threshold, self.floor)
        self.shapes = self.grid.shapes(self.floor)
        self.trials = 0  # rules whose gain was found exactly
        self.gains: dict[Rule, float] = {}  # of the rules that won, in percent
        self._exact: dict[tuple[int, int], float] = {}
        self._bounds: dict[tuple[int, int], float] = {}
        self._upper: dict[tuple[int, int], float] = {}
        self._curves = self._price_curves()
        images = len(self.objects)
        mean = self._curves.mean(axis=2)
        error = self._curves.std(axis=2, ddof=1) / np.sqrt(images) if images > 1 else np.zeros_like(mean)
        self._least_upper = mean + NORMAL_REACH * error  # never chosen above this, so fewer intervals are needed
        pairs = sorted({(shape.filter_ioa, shape.edge_factor) for shape in self.shapes})
        lows = [shape.evidence_threshold for shape in self.shapes if shape.evidence_threshold is not None]
        self._levels = np.unique([*self.thresholds.tolist(), *lows])
        singles = self.bench.single_view_counts(pairs, self._levels)
        self._singles = {pair: self._gain(counts) for pair, counts in zip(pairs, singles, strict=True)}

    def _price_curves(self) -> Ints:
        parts = []
        total = len(self.shapes)
        by_clustering: dict[tuple[float, float, float], list[RuleShape]] = {}
        for shape in self.shapes:
            by_clustering.setdefault(shape.clustering, []).append(shape)
        done = 0
        for shapes in by_clustering.values():
            parts.append(self.bench.price_curves(shapes, self.thresholds))
            done += len(shapes)
            self.on_progress(done, total)
        return np.concatenate(parts)

    def best(self, price: float) -> Rule | None:
        """Return the rule that certifies most for at most this price; None if none keeps it."""
        entries = [entry for number in range(len(self.shapes)) if (entry := self._entry(number, price)) is not None]
        while entries:
            entries.sort(key=lambda entry: (-entry.gain, -entry.level, entry.shape, entry.step))
            if entries[0].level == 2:
                rule = self.rule(entries[0].shape, entries[0].step)
                self.gains[rule] = entries[0].gain
                return rule
            best = entries[0]  # exact values are dear: only of the one that would win
            some = [best] if best.level == 1 else [entry for entry in entries[:AT_ONCE] if entry.level == 0]
            dropped = self._refine(some, price)
            entries = [entry for entry in entries if entry not in dropped]
        return None

    def rivals(self, price: float, count: int) -> list[Rule]:
        """Return the rules with the highest bounds of their gain among those that keep a price."""
        entries = [entry for number in range(len(self.shapes)) if (entry := self._entry(number, price)) is not None]
        kept = [entry for entry in entries if self._keeps(entry, price)]
        self._refine(kept, price)
        kept.sort(key=lambda entry: -entry.gain)
        return [self.rule(entry.shape, entry.step) for entry in kept[:count]]

    def rule(self, shape: int, step: int) -> Rule:
        return self.shapes[shape].rule(self.base_threshold, float(self.thresholds[step]))

    def least_price(self) -> float:
        """Return the lowest price that any rule keeps on these images: the upper end of its interval."""
        last = self._curves[:, -1]
        return spurious_interval(last[int(last.sum(axis=1).argmin())]).high

    def _entry(self, shape: int, price: float) -> _Entry | None:
        """Return the shape's rule with the lowest mask threshold that may keep the price."""
        steps = np.flatnonzero(self._least_upper[shape] <= price)
        low = self.shapes[shape].evidence_threshold
        if low is not None:
            steps = steps[self.thresholds[steps] > low]
        return self._at(shape, int(steps[0])) if len(steps) else None

    def _at(self, number: int, step: int) -> _Entry:
        shape = self.shapes[number]
        singles = self._singles[shape.filter_ioa, shape.edge_factor]
        if shape.evidence_threshold is None:
            gain = singles[int(np.searchsorted(self._levels, self.thresholds[step]))]
            return _Entry(number, step, float(gain), 0)
        gain = singles[int(np.searchsorted(self._levels, shape.evidence_threshold))]
        return _Entry(number, step, float(gain), 0)

    def _refine(self, entries: Sequence[_Entry], price: float) -> list[_Entry]:
        """Bring every entry one level further; return those that keep the price nowhere."""
        dropped, kept = [], []
        for entry in entries:
            if entry.level == 0 and not self._keeps(entry, price):
                dropped.append(entry)
            else:
                kept.append(entry)
        for entry in [entry for entry in kept if self.shapes[entry.shape].evidence_threshold is None]:
            entry.level = 2
        for level, method, known in ((0, "bound_counts", self._bounds), (1, "certified_counts", self._exact)):
            some = [
                entry
                for entry in kept
                if entry.level == level and self.shapes[entry.shape].evidence_threshold is not None
            ]
            new = [entry for entry in some if (entry.shape, entry.step) not in known]
            if new:
                counts = self.bench.counts(method, [self.rule(entry.shape, entry.step) for entry in new])
                self.trials += len(new) * level
                for entry, gain in zip(new, self._gain(counts), strict=True):
                    known[entry.shape, entry.step] = float(gain)
            for entry in some:
                entry.gain, entry.level = known[entry.shape, entry.step], level + 1
            if some:
                break
        return dropped

    def _keeps(self, entry: _Entry, price: float) -> bool:
        """Move the entry up to the first mask threshold that keeps the price; False without one."""
        for step in range(entry.step, len(self.thresholds)):
            if self._least_upper[entry.shape, step] <= price and self._upper_end(entry.shape, step) <= price:
                if step != entry.step:
                    moved = self._at(entry.shape, step)
                    entry.step, entry.gain = moved.step, moved.gain
                return True
        return False

    def _upper_end(self, shape: int, step: int) -> float:
        key = shape, step
        if key not in self._upper:
            self._upper[key] = spurious_interval(self._curves[shape, step]).high
        return self._upper[key]

    def _gain(self, counts: Ints) -> Floats:
        """Return the mean certified share in percent: counts (..., LOCATIONS)."""
        return np.asarray(100 * counts.sum(axis=-1) / (len(LOCATIONS) * max(int(self.objects.sum()), 1)))
