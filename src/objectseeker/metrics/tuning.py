"""Tune a defense on unlabeled images: the rule, and the masks within a budget of forward passes.

The user keeps the score threshold at which the detector is deployed. The price of a defense is then the spurious boxes
that it adds to clean images, its gain the certified share of the detector's own boxes (`rule_search`). With labels the
price may be clean AP, clean recall or FPPI instead (`ap_search`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.masks import Image
from objectseeker.core.observation import Observation, ObservedImage
from objectseeker.core.recipes import Bands, Halves, Recipe, parse_recipe
from objectseeker.core.rules import Rule
from objectseeker.core.seeker import Detector, detect_views
from objectseeker.core.threats import ALL_LOCATIONS, Patch, ThreatModel
from objectseeker.datasets import Dataset
from objectseeker.defense import BATCH, DEFAULT_RULE, DEFAULT_SCHEDULE, Defense, encode_images
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number
from objectseeker.metrics.ap_search import SearchSpace, Trial, TuningResult, tune_with_labels
from objectseeker.metrics.average_precision import undefended_curve
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.metrics.image_set import ImageSet, default_process_count, restrict_images
from objectseeker.metrics.output_boxes import SUPPORT_THRESHOLDS, tune_support
from objectseeker.metrics.own_boxes import LOCATIONS
from objectseeker.metrics.recipe_search import recipes_among, within_budget
from objectseeker.metrics.rule_search import (
    OwnBoxMetrics,
    RuleGrid,
    RuleSearch,
    measure_rule,
    open_bench,
    plain_interval,
    share_interval,
)
from objectseeker.metrics.settings import require_seed
from objectseeker.runs.observe import dataset_of, observe
from objectseeker.runs.run import MANIFEST, Run, open_run
from objectseeker.text import to_html

DEFAULT_THRESHOLD = 0.5  # of detectors whose file states none
DEFAULT_SPURIOUS = 0.25
DEFAULT_SAMPLE = 200  # images that are observed by default
FRONTIER = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)  # prices in addition to the requested one
MIN_IMAGES = 4
MAX_OWN_BOXES = 100  # per image: more are not an operating point
QUICK_GRID = RuleGrid((0.75,), (0.85,), (0.3,), (None,))  # recipes compete with these rules first,
FINALISTS = 2  # and the best with all rules
TIMED_SECONDS = 1.0

OnProgress = Callable[[str, int, int], None]  # what is done, how much of it, of how much (0: unknown)


@dataclass(frozen=True, slots=True, eq=False)
class PricedRule:
    """The rule that certifies most for a price, on the images searched and on the others."""

    price: float  # spurious boxes per image, at most
    rule: Rule
    searched: OwnBoxMetrics
    held_out: OwnBoxMetrics

    @property
    def broken_promise(self) -> str | None:
        """Return a sentence if the rule costs more than its price on the held-out images."""
        spurious = self.held_out.spurious
        if spurious.value <= self.price:
            return None
        return (
            f"on {self.held_out.images} held-out images the rule adds {spurious.value:.2f} spurious boxes per image "
            f"(95 % interval {spurious.low:.2f} to {spurious.high:.2f}), more than the {self.price:g} requested: tune "
            "on more images, or accept more with --spurious"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "spurious": self.price,
            "rule": self.rule.to_dict(),
            "search_split": self.searched.to_dict(),
            "held_out_split": self.held_out.to_dict(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """The result of `tune` on unlabeled images.

    Attributes:
        threshold: The score threshold at which the detector is deployed.
        threshold_reason: Why it is this one.
        masks: The recipe, and `forward_passes` what it needs for an image at most.
        best: The rule for the requested price.
        untuned: The default rule at the same threshold, as `best`; its price is what it costs.
        frontier: The rules for other prices, ascending.
        certified_not_fabricated: Percentage of the held-out own boxes that the best rule certifies not fabricated,
            against the threat's patch anywhere.
        defense: The detector with the best rule; None if it is unknown how its detector is loaded.
        caveats: Limits of the search.
    """

    threshold: float
    threshold_reason: str
    masks: Recipe
    forward_passes: int
    best: PricedRule
    untuned: PricedRule
    frontier: tuple[PricedRule, ...]
    certified_not_fabricated: ConfidenceInterval
    defense: Defense | None
    rules: int
    certified_rules: int
    seconds: float
    caveats: tuple[str, ...] = ()

    @property
    def broken_promise(self) -> str | None:
        return self.best.broken_promise

    def rows(self) -> list[dict[str, str]]:
        """Return a table of the held-out images: the untuned rule and the tuned one."""
        columns = {"untuned": self.untuned.held_out, "tuned": self.best.held_out}
        rows = [
            {"": "spurious boxes per image"} | {name: format_interval(m.spurious, 2) for name, m in columns.items()}
        ]
        for location in LOCATIONS:
            cells = {name: format_interval(metrics.certified[location], 1) for name, metrics in columns.items()}
            rows.append({"": f"own boxes certified {location}, %"} | cells)
        mean = {name: format_interval(metrics.mean_certified, 1) for name, metrics in columns.items()}
        fabrication = {"untuned": "-", "tuned": format_interval(self.certified_not_fabricated, 1)}
        return [*rows, {"": "mean, %"} | mean, {"": "own boxes certified not fabricated, %"} | fabrication]

    def _repr_html_(self) -> str:
        return to_html(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {
            "threshold": self.threshold,
            "threshold_reason": self.threshold_reason,
            "masks": str(self.masks),
            "forward_passes": self.forward_passes,
            "best": self.best.to_dict(),
            "untuned": self.untuned.to_dict(),
            "frontier": [point.to_dict() for point in self.frontier],
            "certified_not_fabricated": plain_interval(self.certified_not_fabricated),
            "defense": None if self.defense is None else self.defense.to_public_dict(),
            "rules": self.rules,
            "certified_rules": self.certified_rules,
            "broken_promise": self.broken_promise,
            "caveats": list(self.caveats),
        }


def format_interval(interval: ConfidenceInterval, digits: int) -> str:
    """Format a metric with the ends of its interval."""
    if not interval.known:
        return "-"
    value, low, high = (f"{getattr(interval, name):.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def tune(
    source: Run | str | Path | Dataset | Iterable[Image],
    *,
    threshold: float | None = None,
    spurious: float | None = None,
    detector: str | Defense | Detector | None = None,
    out: str | Path | None = None,
    masks: Recipe | str | None = None,
    passes: int | None = None,
    latency: float | None = None,
    threat: ThreatModel | None = None,
    limit: int | None = None,
    sample: int | None = None,
    split: float = 0.5,
    seed: int = 0,
    grid: RuleGrid | None = None,
    processes: int | None = None,
    max_ap_loss: float | None = None,
    clean_recall: float | None = None,
    fppi: float | None = None,
    search_space: SearchSpace | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Tuning | TuningResult:
    """Choose the rule that certifies most of a detector's own boxes for a few spurious ones.

    No annotations are needed. One part of the images is searched, the other measures exactly the chosen rule. With
    `max_ap_loss`, `clean_recall` or `fppi` the price is stated by labels instead, and an `ap_search.TuningResult` is
    returned.

    Args:
        source: A run; or images, which are observed first: a dataset, a folder, or RGB arrays.
        threshold: Score threshold at which the detector is deployed. Default: with labels that of the best F1, else
            0.5.
        spurious: Boxes that masks may add to a clean image, on average. Default: 0.25.
        detector: A SPEC, a `Defense` or a callable; of a run, only a callable that no SPEC names.
        out: Folder for the run of images that are observed. Default: a temporary one.
        masks: Recipe; of a run, one whose masks are among those of the run. Default: all of the run's.
        passes: Choose the masks, too: at most that many forward passes per image.
        latency: The same, as milliseconds per image on this machine.
        threat: The patch to certify against. Default: one square patch of 1 % of the image.
        limit: Observe that many images, the first ones.
        sample: Observe that many images, drawn at random. Default: 200.
        split: Share of the images that are searched.
        seed: Seed of the sample and of the split.
        grid: The rules that compete.
        processes: How many processes share the images. Default: as many as there are cores, if that pays.
        max_ap_loss: Points of AP50 that may be lost, by labels.
        clean_recall: Certify most at this clean recall, by labels.
        fppi: Certify most with at most this many false positives per image, by labels.
        search_space: With a price by labels: the values to choose from besides thresholds.
        on_trial: With a price by labels: called whenever a setting was tried.
        on_progress: Called with what is done, how much of it, and of how much.

    Returns:
        The rule on both parts of the images, the frontier, and `defense`, which can be saved.

    Raises:
        ObjectSeekerError: No rule keeps within the price, or there is too little to search.

    Example:
        >>> from objectseeker import open_run, tune
        >>> tune(open_run("runs/mine"), threshold=0.4, spurious=0.25).defense.save("defense.json")  # doctest: +SKIP
    """
    by_labels = {"max_ap_loss": max_ap_loss, "clean_recall": clean_recall, "fppi": fppi}
    asked = {name: value for name, value in by_labels.items() if value is not None}
    if asked and (spurious is not None or threshold is not None):
        raise ObjectSeekerError(
            f"one price at a time: got {', '.join(asked)} and a threshold or spurious boxes. Omit one of them."
        )
    with ExitStack() as stack:
        run = _as_run(source, detector, out, masks, passes, threat, (limit, sample, seed), on_progress, stack)
        if asked:
            return tune_with_labels(
                run, threat=threat, search_space=search_space, seed=seed, on_trial=on_trial, **asked
            )
        return _tune_run(
            run,
            threshold=threshold,
            price=_require_spurious(DEFAULT_SPURIOUS if spurious is None else spurious),
            masks=masks if isinstance(source, Run) or _is_run(source) else None,
            passes=budget_of(run, passes, latency),
            threat=ThreatModel() if threat is None else threat,
            split=split,
            seed=require_seed(seed),
            grid=RuleGrid() if grid is None else grid,
            processes=processes,
            on_progress=on_progress,
        )


def _is_run(source: object) -> bool:
    return isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file()


def _as_run(
    source: Run | str | Path | Dataset | Iterable[Image],
    detector: str | Defense | Detector | None,
    out: str | Path | None,
    masks: Recipe | str | None,
    passes: int | None,
    threat: ThreatModel | None,
    which: tuple[int | None, int | None, int],
    on_progress: OnProgress,
    stack: ExitStack,
) -> Run:
    if isinstance(source, Run):
        return source
    if isinstance(source, str | Path) and _is_run(source):
        return open_run(source, detector=None if isinstance(detector, str | Defense) else detector)
    if detector is None:
        raise ObjectSeekerError(f"images are observed with a detector: got {source!r:.80} alone. Add detector=SPEC.")
    if masks is None and passes is not None and not isinstance(detector, Defense):
        masks = masks_for_budget(passes, threat)
    folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
    limit, sample, seed = which
    if limit is not None and sample is not None:
        raise ObjectSeekerError(f"give limit or sample, one of them: got {limit!r} and {sample!r}")
    images = dataset_of(source, folder)
    count = limit or sample or DEFAULT_SAMPLE
    return observe(
        images,
        detector,
        out=folder,
        masks=masks,
        limit=count,
        seed=None if limit is not None or len(images) <= count else seed,
        on_progress=lambda done, total: on_progress("images observed", done, total),
    )


def masks_for_budget(passes: int | None, threat: ThreatModel | None = None) -> Recipe:
    """Return masks to observe, among which the best recipe within the passes is then chosen."""
    if passes is None:
        return Halves()
    area = (ThreatModel() if threat is None else threat).area
    lines = next((lines for lines in (29, 14, 9, 5, 4, 2) if 4 * lines < passes), 1)
    recipe: Recipe = Halves(lines)
    for bands in (Bands(area), Bands(area, spacing=2.0)):
        if len(bands.masks(640, 480)) < passes:
            recipe = recipe + bands
    return recipe


def budget_of(run: Run, passes: int | None, latency: float | None) -> int | None:
    """Return the forward passes per image within the budget; a latency is timed on this machine."""
    if passes is not None and latency is not None:
        raise ObjectSeekerError(f"give passes or latency, one of them: got {passes!r} and {latency!r}")
    if latency is None:
        return None if passes is None else require_count(passes, "passes")
    each = milliseconds_per_pass(run)
    allowed = math.floor(require_number(latency, "latency") / each)
    if allowed < 2:
        raise ObjectSeekerError(f"a forward pass takes {each:.1f} ms here, so {latency:g} ms allow no masks: ask more")
    return allowed


def milliseconds_per_pass(run: Run) -> float:
    """Time the run's detector on this machine, on gray images of the size of the run's first."""
    settings = run.manifest.observation_settings
    loaded: Any = run.defense().load_detector(trust_detector=True)
    seen = run.images()[0].observation
    image = np.full((seen.height, seen.width, 3), settings.fill, np.uint8)
    views = seen.masks.select_masks(slice(0, 2 * (settings.batch_size or BATCH)))
    options: dict[str, Any] = {"value": settings.fill, "batch_size": settings.batch_size or BATCH}
    detect_views(loaded, image, views, **options)  # not timed: the first call prepares the detector
    start, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - start < TIMED_SECONDS:
        detect_views(loaded, image, views, **options)
        passes += 1 + len(views)
    return 1000 * (time.perf_counter() - start) / passes


def _tune_run(
    run: Run,
    *,
    threshold: float | None,
    price: float,
    masks: Recipe | str | None,
    passes: int | None,
    threat: ThreatModel,
    split: float,
    seed: int,
    grid: RuleGrid,
    processes: int | None,
    on_progress: OnProgress,
) -> Tuning:
    start = time.perf_counter()
    if threat.count != 1:
        raise ObjectSeekerError(f"tune certifies against one patch: got patch_count={threat.count}. Use 1.")
    images = run.images()
    searched, held_out = split_by_share(len(images), split, seed)
    if threshold is None:
        threshold, why = default_threshold(run, images, searched)
    else:
        threshold, why = require_fraction(threshold, "threshold"), "as requested"
    floor = run.manifest.observation_settings.mask_floor
    run.require_scores(lowest_base=threshold)
    observed = run.manifest.observation_settings.masks
    workers = default_process_count(len(images)) if processes is None else processes
    shared: dict[str, Any] = {"processes": workers}
    recipe = parse_recipe(masks) if isinstance(masks, str) else masks
    if passes is not None:
        wanted = [] if recipe is None else [recipe]
        recipe = _choose_recipe(
            images, searched, observed, wanted, passes, threshold, floor, threat, price, grid, on_progress, shared
        )
    elif recipe is not None:
        (recipe,) = recipes_among(observed, [recipe])
    with open_bench(images, searched, threshold, floor, threat, recipe=recipe, **shared) as bench:
        search = RuleSearch(bench, threshold, floor, grid, lambda done, total: on_progress("rules", done, total))
        _require_own_boxes(search, threshold)
        prices = sorted({price, *FRONTIER})
        rules = {one: rule for one in prices if (rule := search.best(one)) is not None}
        if price not in rules:
            least = search.least_price()
            raise ObjectSeekerError(
                f"{len(searched)} searched images cannot show a rule with at most {price:g} spurious boxes per image: "
                f"the least that they show is {least:.2f}. Use more images, or "
                f"spurious={math.ceil(100 * least) / 100:g}."
            )
        untuned = _untuned_rule(run, threshold, floor)
        before = {one: measure_rule(bench, rule, search.objects) for one, rule in rules.items()}
        untuned_before = measure_rule(bench, untuned, search.objects)
        sizes = bench.sizes()
    if not before[price].mean_certified.value:
        raise ObjectSeekerError(
            f"for at most {price:g} spurious boxes per image no rule certifies any of the "
            f"{before[price].own_boxes} own boxes: allow more, or use more masks"
        )
    rules[price] = _tune_fabrication(images, searched, recipe, rules[price], floor, threat)
    with open_bench(images, held_out, threshold, floor, threat, recipe=recipe, **shared) as bench:
        objects = bench.objects()
        after = {one: measure_rule(bench, rule, objects) for one, rule in rules.items()}
        untuned_after = measure_rule(bench, untuned, objects)
        sizes |= bench.sizes()
    frontier = tuple(PricedRule(one, rule, before[one], after[one]) for one, rule in rules.items())
    best = next(point for point in frontier if point.price == price)
    hashes = run.file_hashes()
    chosen_by = encode_images([hashes[number] for number in searched.tolist()])
    return Tuning(
        threshold=threshold,
        threshold_reason=why,
        masks=recipe or observed,
        forward_passes=max((recipe or observed).forward_passes(*size) for size in sizes),
        best=best,
        untuned=PricedRule(untuned_before.spurious.value, untuned, untuned_before, untuned_after),
        frontier=frontier,
        certified_not_fabricated=_not_fabricated(images, held_out, recipe, best.rule, threat),
        defense=_defense(run, best.rule, recipe, chosen_by),
        rules=len(search.shapes) * len(search.thresholds),
        certified_rules=search.trials,
        seconds=time.perf_counter() - start,
        caveats=_caveats(run, recipe),
    )


def split_by_share(images: int, share: float, seed: int) -> tuple[Any, Any]:
    """Draw the images that are searched, and the others; each ascending."""
    if not 0 < require_fraction(share, "split") < 1:
        raise ObjectSeekerError(f"split must be a share between 0 and 1: got {share!r}")
    if images < MIN_IMAGES:
        raise ObjectSeekerError(f"tune needs at least {MIN_IMAGES} images: got {images}. Observe more of them.")
    order = np.random.default_rng(seed).permutation(images)
    first = min(max(round(share * images), 2), images - 2)
    return np.sort(order[:first]), np.sort(order[first:])


def default_threshold(run: Run, images: Sequence[ObservedImage], searched: Any) -> tuple[float, str]:
    """Return the threshold of the best F1 on the searched images, or 0.5, and the reason."""
    if not run.has_labels:
        return DEFAULT_THRESHOLD, "the usual one, since the images are unlabeled; --threshold sets it"
    chosen = [images[number] for number in searched.tolist()]
    if not any((~image.ignore).any() for image in chosen):
        return DEFAULT_THRESHOLD, "the usual one, since no searched image has an object; --threshold sets it"
    curve = undefended_curve(ImageSet.from_images(chosen, run.label_map))
    found, wrong = curve.true_positives.sum(axis=-1), curve.false_positives.sum(axis=-1)
    f1 = 2 * found / np.maximum(found + wrong + np.sum(curve.objects), 1)
    allowed = curve.base_thresholds >= run.manifest.observation_settings.base_floor
    best = int(np.argmax(np.where(allowed, f1, -1.0)))
    return float(curve.base_thresholds[best]), f"the best F1 by labels, {f1[best]:.2f}, on the searched images"


def _require_own_boxes(search: RuleSearch, threshold: float) -> None:
    total, images = int(search.objects.sum()), len(search.objects)
    if not total:
        raise ObjectSeekerError(
            f"the detector finds no box of at least {threshold:g} in {images} searched images: lower the threshold"
        )
    if total > MAX_OWN_BOXES * images:
        raise ObjectSeekerError(
            f"the detector finds {total / images:.0f} boxes per image of at least {threshold:g}: that is not an "
            "operating point. Raise the threshold."
        )


def _require_spurious(value: float) -> float:
    number = require_number(value, "spurious")
    if number <= 0:
        raise ObjectSeekerError(f"spurious must be above 0 boxes per image: got {value!r}")
    return number


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


def _choose_recipe(
    images: Sequence[ObservedImage],
    searched: Any,
    observed: Recipe,
    wanted: Sequence[Recipe],
    passes: int,
    threshold: float,
    floor: float,
    threat: ThreatModel,
    price: float,
    grid: RuleGrid,
    on_progress: OnProgress,
    shared: dict[str, Any],
) -> Recipe:
    """Return the recipe within the observed one, and within the passes, that certifies most."""
    chosen = [images[number] for number in searched.tolist()]
    candidates = within_budget(recipes_among(observed, wanted), chosen, [passes])
    every = np.arange(len(chosen))

    def gain(recipe: Recipe, rules: RuleGrid) -> float:
        with open_bench(chosen, every, threshold, floor, threat, recipe=recipe, **shared) as bench:
            search = RuleSearch(bench, threshold, floor, rules)
            rule = search.best(price)
            return -1.0 if rule is None else search.gains[rule]

    tried = []
    for number, candidate in enumerate(candidates, 1):
        tried.append((gain(candidate.recipe, QUICK_GRID), candidate))
        on_progress("masks", number, len(candidates))
    tried.sort(key=lambda one: (-one[0], one[1].forward_passes))
    finalists = [candidate for _, candidate in tried[:FINALISTS]]
    if len(finalists) == 1:
        return finalists[0].recipe
    return max(finalists, key=lambda one: gain(one.recipe, grid)).recipe


def _tune_fabrication(
    images: Sequence[ObservedImage],
    searched: Ints,
    recipe: Recipe | None,
    rule: Rule,
    floor: float,
    threat: ThreatModel,
) -> Rule:
    """Return the rule with the settings of fabrication certificates that suit the searched images.

    Hiding verdicts do not depend on them. A run that stores no masked box of a score to choose keeps those of the rule.
    """
    if floor > max(SUPPORT_THRESHOLDS):
        return rule
    chosen = tune_support(_observations(images, searched, recipe), rule, floor=floor, patch=_patch_anywhere(threat))
    return cast(Rule, chosen)


def _not_fabricated(
    images: Sequence[ObservedImage], index: Ints, recipe: Recipe | None, rule: Rule, threat: ThreatModel
) -> ConfidenceInterval:
    """Return the percentage of the own boxes of some images that is certified not fabricated."""
    certified, own = np.zeros((2, len(index)), np.int64)
    for number, observation in enumerate(_observations(images, index, recipe)):
        boxes = observation.base.with_min_score(rule.base_threshold)
        verdicts = rule.certify_not_fabricated(observation, boxes, _patch_anywhere(threat))
        certified[number], own[number] = verdicts.certified.sum(), len(boxes)
    return share_interval(certified, own)


def _observations(images: Sequence[ObservedImage], index: Ints, recipe: Recipe | None) -> list[Observation]:
    """Return the observations of images number `index`, under the masks of `recipe` alone if there is one."""
    chosen = [images[number] for number in index.tolist()]
    return [image.observation for image in (chosen if recipe is None else restrict_images(chosen, recipe))]


def _patch_anywhere(threat: ThreatModel) -> Patch:
    return threat.patches()[ALL_LOCATIONS.index("anywhere")]


def _defense(run: Run, rule: Rule, recipe: Recipe | None, chosen_by: str) -> Defense | None:
    if not run.has_detector:
        return None
    return replace(run.defense(rule), masks=recipe or run.manifest.observation_settings.masks, tuned_on=chosen_by)


def _caveats(run: Run, recipe: Recipe | None) -> tuple[str, ...]:
    observed = run.manifest.observation_settings.masks
    if recipe is None or recipe == observed:
        return ()
    return (f"estimated from a run with the masks {observed}: to certify {recipe}, observe again with the defense",)
