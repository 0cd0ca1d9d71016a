"""Search on unlabeled images: the rule that certifies most own boxes for a few spurious boxes.

The images are split in two. On the first part every rule of a search space competes: it may be chosen for a price if
the upper end of the confidence interval of its spurious boxes per image does not exceed the price, and among these the
one wins whose mean certified share of own boxes (far, close, over) is highest. The rules that won are measured,
unchanged, on the other part. Nothing is skipped that could win: rules are certified in the order of an upper bound of
their gain, until the best one reaches every bound that remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar, cast

import numpy as np

from objectseeker.core.boxes import Floats, Ints
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe
from objectseeker.core.rules import Rule
from objectseeker.core.threats import Patch, PatchLocation, ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import DEFAULT_RULE, DEFAULT_SCHEDULE, Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.confidence_intervals import ConfidenceInterval, bootstrap_interval
from objectseeker.metrics.image_set import process_pool, restrict_images
from objectseeker.metrics.metric import CONFIDENCE, SAMPLES
from objectseeker.metrics.output_boxes import SUPPORT_THRESHOLDS, tune_support
from objectseeker.metrics.own_boxes import OwnBoxes, clustering_of
from objectseeker.metrics.search import (
    LOCATIONS,
    NO_GAIN,
    OnProgress,
    RecipeTrial,
    SearchSpace,
    TunedRule,
    Tuner,
    Tuning,
    format_interval,
)
from objectseeker.runs.run import Run

STEP = 0.01  # of mask thresholds
AT_ONCE = 12  # rules whose bounds are refined together
NORMAL_REACH = 1.96  # standard errors
FRONTIER = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)  # prices in addition to the requested one
MAX_OWN_BOXES = 100  # per image: more are not an operating point
QUICK_SPACE = SearchSpace((0.75,), (0.85,), (0.3,), (None,))  # recipes compete with these rules first


def mask_thresholds(base_threshold: float, floor: float) -> Floats:
    """Return the mask thresholds that compete: none below the base threshold."""
    first = int(np.ceil(round(max(base_threshold, floor) / STEP, 6)))
    return np.array([round(step * STEP, 2) for step in range(first, round(1 / STEP))])


# --- who computes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """The own boxes of some images: all in this process, or a part in each of several."""

    locations: Sequence[PatchLocation]
    own: OwnBoxes | None = None
    parts: Sequence[Callable[..., Future[Any]]] = ()

    def each(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what a method of `OwnBoxes` returns of every part of the images."""
        if self.own is not None:
            return [method(self.own, *arguments)]
        return [future.result() for future in [submit(method, *arguments) for submit in self.parts]]

    def objects(self) -> Ints:
        """Return the number of own boxes per image."""
        return np.concatenate(self.each(OwnBoxes.objects))

    def counts(self, method: Callable[..., Any], *arguments: Any) -> Ints:
        """Return counts of own boxes, of all images together."""
        return np.asarray(sum(self.each(method, *arguments)))


@contextmanager
def open_bench(
    images: Sequence[ObservedImage],
    index: Ints,
    threshold: float,
    floor: float,
    threat: ThreatModel,
    locations: Sequence[PatchLocation] = LOCATIONS,
    *,
    recipe: Recipe | None = None,
    processes: int = 1,
) -> Iterator[Bench]:
    """Open the own boxes of images number `index`, under the masks of `recipe` alone if there is one."""
    options = (threshold, floor, threat, locations)
    if processes == 1 or len(index) < 2 * processes:
        yield Bench(locations, _own_boxes(images, index, recipe, *options))
        return
    with ExitStack() as stack:
        pools = [
            process_pool(1, _own_boxes, images, part, recipe, *options) for part in np.array_split(index, processes)
        ]
        yield Bench(locations, parts=[stack.enter_context(pool) for pool in pools])


def _own_boxes(images: Sequence[ObservedImage], index: Ints, recipe: Recipe | None, *options: Any) -> OwnBoxes:
    return OwnBoxes(_some(images, index, recipe), *options)


def _some(images: Sequence[ObservedImage], index: Ints, recipe: Recipe | None) -> list[ObservedImage]:
    """Return images number `index`, under the masks of `recipe` alone if there is one."""
    chosen = [images[number] for number in index.tolist()]
    return chosen if recipe is None else restrict_images(chosen, recipe)


# --- measuring one rule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class OwnBoxMetrics:
    """Price and gain of a rule on some images, with 95 % confidence intervals; shares in percent."""

    rule: Rule
    images: int
    own_boxes: int
    spurious: ConfidenceInterval  # boxes that masks add, per image
    certified: dict[PatchLocation, ConfidenceInterval]  # share of the own boxes
    mean_certified: ConfidenceInterval
    schedule: ThresholdSchedule | None = None
    price_name: ClassVar[str] = "spurious"

    @property
    def cost(self) -> float:
        return self.spurious.value

    @property
    def gain(self) -> float:
        return self.mean_certified.value

    @property
    def _every(self) -> dict[str, ConfidenceInterval]:
        every = {str(location): share for location, share in self.certified.items()}
        return every | ({"mean": self.mean_certified} if len(every) > 1 else {})

    def shares(self) -> dict[str, float | None]:
        return {name: share.value if share.known else None for name, share in self._every.items()}

    def cells(self) -> dict[str, str]:
        shares = {name: format_interval(share, 1) for name, share in self._every.items()}
        return {"spurious boxes per image": format_interval(self.spurious, 2)} | shares

    def missed(self, price: float) -> str | None:
        spurious = self.spurious
        if spurious.value <= price:
            return None
        return (
            f"on {self.images} held-out images the rule adds {spurious.value:.2f} spurious boxes per image "
            f"(95 % interval {spurious.low:.2f} to {spurious.high:.2f}), more than the {price:g} requested: tune "
            "on more images, or accept more with --spurious"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "own_boxes": self.own_boxes,
            "spurious_per_image": self.spurious.to_dict(),
            "certified": {location: interval.to_dict() for location, interval in self.certified.items()},
            "mean_certified": self.mean_certified.to_dict(),
        }


def measure_rule(bench: Bench, rule: Rule, objects: Ints) -> OwnBoxMetrics:
    """Measure one rule on the images of a bench, with `objects` own boxes each."""
    spurious, certified = zip(*bench.each(OwnBoxes.per_image, rule), strict=True)
    counts = np.concatenate(certified, axis=1)
    return OwnBoxMetrics(
        rule=rule,
        images=len(objects),
        own_boxes=int(objects.sum()),
        spurious=spurious_interval(np.concatenate(spurious)),
        certified={
            location: share_interval(per_image, objects)
            for location, per_image in zip(bench.locations, counts, strict=True)
        },
        mean_certified=share_interval(counts.mean(axis=0), objects),
    )


def spurious_interval(counts: Ints) -> ConfidenceInterval:
    """Return the interval of the mean of counts per image."""
    return _ratio_interval(counts, np.ones(len(counts)), 1.0, max(float(counts.max(initial=0)), 1.0))


def share_interval(certified: Ints | Floats, objects: Ints) -> ConfidenceInterval:
    """Return the interval of the percentage of objects that is certified, from counts per image."""
    there = objects > 0  # images without own boxes say nothing about shares
    return _ratio_interval(certified[there], objects[there], 100.0, 100.0)


def _ratio_interval(part: Ints | Floats, whole: Ints | Floats, scale: float, most: float) -> ConfidenceInterval:
    def values(weights: Floats) -> Floats:
        of = weights @ whole
        ratio = np.full(len(of), np.nan)
        np.divide(scale * (weights @ part), of, out=ratio, where=of > 0)
        return ratio

    return bootstrap_interval(values, len(whole), confidence=CONFIDENCE, samples=SAMPLES, seed=0, bounds=(0.0, most))


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
    space: SearchSpace = field(default_factory=SearchSpace)
    on_progress: Callable[[int, int], None] = lambda done, total: None

    def __post_init__(self) -> None:
        self.objects = self.bench.objects()
        self.thresholds = mask_thresholds(self.base_threshold, self.floor)
        self.shapes = self.space.rules(self.base_threshold, self.floor)  # up to their mask thresholds
        self.trials = 0  # rules whose gain was found exactly
        self.gains: dict[Rule, float] = {}  # of the rules that won, in percent
        self._known: dict[tuple[int, int, int], float] = {}  # gains of entries, by level
        self._curves = self._price_curves()
        self._upper_end = cache(lambda shape, step: spurious_interval(self._curves[shape, step]).high)
        images = len(self.objects)
        mean = self._curves.mean(axis=2)
        error = self._curves.std(axis=2, ddof=1) / np.sqrt(images) if images > 1 else np.zeros_like(mean)
        self._least_upper = mean + NORMAL_REACH * error  # never chosen above this, so fewer intervals are needed
        pairs = sorted({(shape.filter_ioa, shape.edge_factor) for shape in self.shapes})
        lows = [shape.evidence_threshold for shape in self.shapes if shape.evidence_threshold is not None]
        self._levels = np.unique([*self.thresholds.tolist(), *lows])
        singles = self.bench.counts(OwnBoxes.single_view_counts, pairs, self._levels)
        self._singles = {pair: self._gain(counts) for pair, counts in zip(pairs, singles, strict=True)}

    def _price_curves(self) -> Ints:
        parts: list[Ints] = []
        by_clustering: dict[object, list[Rule]] = {}
        for shape in self.shapes:
            by_clustering.setdefault(clustering_of(shape), []).append(shape)
        for done, shapes in enumerate(by_clustering.values(), 1):
            parts.append(np.concatenate(self.bench.each(OwnBoxes.price_curves, shapes, self.thresholds), axis=2))
            self.on_progress(done, len(by_clustering))
        return np.concatenate(parts)

    def best(self, price: float) -> Rule | None:
        """Return the rule that certifies most for at most this price; None if none keeps it."""
        entries = self._entries(price)
        while entries:
            entries.sort(key=lambda entry: (-entry.gain, -entry.level, entry.shape, entry.step))
            if entries[0].level == 2:
                rule = self.rule(entries[0].shape, entries[0].step)
                self.gains[rule] = entries[0].gain
                return rule
            best = entries[0]  # exact values are dear: only of the one that would win
            some = [best] if best.level == 1 else [entry for entry in entries[:AT_ONCE] if entry.level == 0]
            entries = [entry for entry in entries if entry not in some] + self._refine(some, price)
        return None

    def rivals(self, price: float, count: int) -> list[Rule]:
        """Return the rules with the highest bounds of their gain among those that keep a price."""
        entries = self._entries(price)
        kept = self._refine(entries, price)
        kept.sort(key=lambda entry: -entry.gain)
        return [self.rule(entry.shape, entry.step) for entry in kept[:count]]

    def rule(self, shape: int, step: int) -> Rule:
        return self.shapes[shape].with_settings(mask_threshold=float(self.thresholds[step]))

    def least_price(self) -> float:
        """Return the lowest price that any rule keeps on these images: the upper end of its interval."""
        last = self._curves[:, -1]
        return spurious_interval(last[int(last.sum(axis=1).argmin())]).high

    def _entries(self, price: float) -> list[_Entry]:
        """Return each shape's rule with the lowest mask threshold that may keep the price."""
        entries = []
        for number, shape in enumerate(self.shapes):
            steps = np.flatnonzero(self._least_upper[number] <= price)
            if shape.evidence_threshold is not None:
                steps = steps[self.thresholds[steps] > shape.evidence_threshold]
            if len(steps):
                entries.append(self._at(number, int(steps[0])))
        return entries

    def _at(self, number: int, step: int) -> _Entry:
        shape = self.shapes[number]
        lowest = self.thresholds[step] if shape.evidence_threshold is None else shape.evidence_threshold
        singles = self._singles[shape.filter_ioa, shape.edge_factor]
        return _Entry(number, step, float(singles[int(np.searchsorted(self._levels, lowest))]), 0)

    def _refine(self, entries: Sequence[_Entry], price: float) -> list[_Entry]:
        """Bring every entry, all of one level, one level further; drop those that keep the price nowhere."""
        kept = [entry for entry in entries if entry.level or self._keeps(entry, price)]
        together = []
        for entry in kept:
            entry.level += 1
            if self.shapes[entry.shape].evidence_threshold is None:
                entry.level = 2  # single views are all there is
            else:
                together.append(entry)
        new = [entry for entry in together if (entry.level, entry.shape, entry.step) not in self._known]
        if new:
            verdicts = OwnBoxes.bound if new[0].level == 1 else OwnBoxes.certified
            rules = [self.rule(entry.shape, entry.step) for entry in new]
            counts = self.bench.counts(OwnBoxes.totals, verdicts, rules)
            self.trials += len(new) * (new[0].level - 1)
            for entry, gain in zip(new, self._gain(counts), strict=True):
                self._known[entry.level, entry.shape, entry.step] = float(gain)
        for entry in together:
            entry.gain = self._known[entry.level, entry.shape, entry.step]
        return kept

    def _keeps(self, entry: _Entry, price: float) -> bool:
        """Move the entry up to the first mask threshold that keeps the price; False without one."""
        for step in range(entry.step, len(self.thresholds)):
            if self._least_upper[entry.shape, step] <= price and self._upper_end(entry.shape, step) <= price:
                if step != entry.step:
                    moved = self._at(entry.shape, step)
                    entry.step, entry.gain = moved.step, moved.gain
                return True
        return False

    def _gain(self, counts: Ints) -> Floats:
        """Return the mean certified share in percent: counts (..., locations)."""
        return np.asarray(100 * counts.sum(axis=-1) / (counts.shape[-1] * max(int(self.objects.sum()), 1)))


@dataclass(frozen=True, slots=True, eq=False)
class OwnBoxTuner(Tuner):
    """The search on unlabeled images among the recipes of a run; processes share the images of each."""

    run: Run
    images: Sequence[ObservedImage]
    searched: Ints
    held_out: Ints
    threshold: float
    threshold_reason: str
    price: float
    threat: ThreatModel
    locations: tuple[PatchLocation, ...]
    space: SearchSpace
    processes: int
    on_progress: OnProgress
    close: ClassVar[float] = math.inf

    def try_out(self, recipes: Sequence[RecipeTrial]) -> Iterator[RecipeTrial]:
        """Try each recipe with the rules of QUICK_SPACE."""
        with self._open(self.searched) as bench:
            for trial in recipes:
                bench.each(OwnBoxes.restrict, trial.recipe)
                search = RuleSearch(bench, self.threshold, self._floor, QUICK_SPACE)
                rule = search.best(self.price)
                yield replace(trial, gain=NO_GAIN if rule is None else search.gains[rule])

    def search(self, recipe: RecipeTrial) -> Tuning:
        """Search all rules under one recipe for several prices, and measure the best on the held-out images.

        Raises:
            ObjectSeekerError: No rule keeps within the price, or there is too little to search.
        """
        masks = recipe.recipe
        prices = sorted({self.price, *FRONTIER})
        with self._open(self.searched, masks) as bench:
            told = partial(self.on_progress, "rules")
            search = RuleSearch(bench, self.threshold, self._floor, self.space, told)
            self._require_own_boxes(search.objects)
            rules = {price: rule for price in prices if (rule := search.best(price)) is not None}
            if self.price not in rules:
                least = search.least_price()
                raise ObjectSeekerError(
                    f"{len(self.searched)} searched images cannot show a rule with at most {self.price:g} spurious "
                    f"boxes per image: the least that they show is {least:.2f}. Use more images, or "
                    f"spurious={math.ceil(100 * least) / 100:g}."
                )
            untuned = _untuned_rule(self.run, self.threshold, self._floor)
            before = {rule: measure_rule(bench, rule, search.objects) for rule in (untuned, *rules.values())}
            sizes = set().union(*bench.each(OwnBoxes.sizes))
        best = before[rules[self.price]]
        if not best.gain:
            raise ObjectSeekerError(
                f"for at most {self.price:g} spurious boxes per image no rule certifies any of the "
                f"{best.own_boxes} own boxes: allow more, or use more masks"
            )
        chosen = self._with_support(best.rule, masks)
        with self._open(self.held_out, masks) as bench:
            objects = bench.objects()
            after = {rule: measure_rule(bench, rule, objects) for rule in (untuned, *rules.values())}
            sizes |= set().union(*bench.each(OwnBoxes.sizes))
        passes = max(masks.forward_passes(*size) for size in sizes)

        def point(price: float, rule: Rule) -> TunedRule:
            used = chosen if price == self.price else rule
            searched, held_out = (replace(metrics[rule], rule=used) for metrics in (before, after))
            return TunedRule(price, searched, held_out, masks, passes)

        frontier = {price: point(price, rule) for price, rule in rules.items()}
        return Tuning(
            best=frontier[self.price],
            frontier=tuple(frontier.values()),
            threat=self.threat,
            locations=self.locations,
            held_out=self.held_out,
            threshold_reason=self.threshold_reason,
            rules=len(search.shapes) * len(search.thresholds),
            certified_rules=search.trials,
            untuned=point(before[untuned].cost, untuned),
            certified_not_fabricated=self._not_fabricated(chosen, masks),
        )

    @property
    def _floor(self) -> float:
        return self.run.manifest.observation_settings.mask_floor

    def _restricting(self, masks: Recipe | None) -> Recipe | None:
        """Return the recipe if it is another one than the run's."""
        return None if masks == self.run.manifest.observation_settings.masks else masks

    def _open(self, index: Ints, masks: Recipe | None = None) -> AbstractContextManager[Bench]:
        return open_bench(
            self.images,
            index,
            self.threshold,
            self._floor,
            self.threat,
            self.locations,
            recipe=self._restricting(masks),
            processes=self.processes,
        )

    def _require_own_boxes(self, objects: Ints) -> None:
        total, images, threshold = int(objects.sum()), len(objects), self.threshold
        if not total:
            raise ObjectSeekerError(
                f"the detector finds no box of at least {threshold:g} in {images} searched images: lower the threshold"
            )
        if total > MAX_OWN_BOXES * images:
            raise ObjectSeekerError(
                f"the detector finds {total / images:.0f} boxes per image of at least {threshold:g}: that is not an "
                "operating point. Raise the threshold."
            )

    def _with_support(self, rule: Rule, recipe: Recipe) -> Rule:
        """Return the rule with the settings of fabrication certificates that suit the searched images.

        Hiding verdicts do not depend on them. A run that stores no masked box of a score to choose keeps those of the
        rule.
        """
        if self._floor > max(SUPPORT_THRESHOLDS):
            return rule
        seen = [image.observation for image in _some(self.images, self.searched, self._restricting(recipe))]
        return cast(Rule, tune_support(seen, rule, floor=self._floor, patch=self._patch))

    def _not_fabricated(self, rule: Rule, recipe: Recipe) -> ConfidenceInterval:
        """Return the percentage of the own boxes of the held-out images that is certified not fabricated."""
        certified, own = np.zeros((2, len(self.held_out)), np.int64)
        for number, image in enumerate(_some(self.images, self.held_out, self._restricting(recipe))):
            boxes = image.observation.base.with_min_score(rule.base_threshold)
            verdicts = rule.certify_not_fabricated(image.observation, boxes, self._patch)
            certified[number], own[number] = verdicts.certified.sum(), len(boxes)
        return share_interval(certified, own)

    @property
    def _patch(self) -> Patch:
        """The patch of fabrication certificates: anywhere, or at the one location."""
        location = self.locations[0] if len(self.locations) == 1 else "anywhere"
        return Patch(self.threat.area, self.threat.aspect, location, self.threat.count)


def _untuned_rule(run: Run, threshold: float, floor: float) -> Rule:
    """Return the default rule of the detector at this threshold, as far as the run stores its boxes."""
    spec, masks = run.manifest.detector_spec, run.manifest.observation_settings.masks
    default = Defense.for_detector(spec, masks=masks) if spec is not None else None
    rule, schedule = DEFAULT_RULE, DEFAULT_SCHEDULE
    if default is not None and isinstance(default.rule, Rule):
        rule, schedule = default.rule, default.resolved_schedule
    found = schedule.rule(rule, threshold)
    if found.evidence_threshold is not None and found.evidence_threshold < floor:
        found = found.with_settings(evidence_threshold=floor)
    return found
