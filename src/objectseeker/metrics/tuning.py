"""Tune a defense on unlabeled images: the rule, and the masks within a budget of forward passes.

The user keeps the score threshold at which the detector is deployed. The price of a defense is then the spurious boxes
that it adds to clean images, its gain the certified share of the detector's own boxes (`rule_search`). With labels the
price may be clean AP, clean recall or FPPI instead (`ap_search`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Bands, Halves, Pairs, Recipe, Windows, pair_counts, parse_recipe
from objectseeker.core.seeker import Detector
from objectseeker.core.threats import Patch, PatchLocation, ThreatModel
from objectseeker.datasets import Dataset
from objectseeker.defense import Defense, encode_images
from objectseeker.errors import ObjectSeekerError, require_count, require_fraction, require_number
from objectseeker.metrics.ap_search import LabelTuner, SearchSpec, Trial
from objectseeker.metrics.average_precision import undefended_curve
from objectseeker.metrics.image_set import ImageSet, default_process_count
from objectseeker.metrics.rule_search import OwnBoxTuner
from objectseeker.metrics.search import (
    LABELED_SPACE,
    LOCATIONS,
    OnProgress,
    RecipeTrial,
    SearchSpace,
    TunedRule,
    Tuning,
    recipes_among,
    search_recipes,
    within_budget,
)
from objectseeker.metrics.settings import require_seed
from objectseeker.runs.observe import dataset_of, observe, seconds_per_view
from objectseeker.runs.run import MANIFEST, Run, open_run

DEFAULT_THRESHOLD = 0.5  # of detectors whose file states none
DEFAULT_SPURIOUS = 0.25
DEFAULT_SAMPLE = 200  # images that are observed by default
MIN_IMAGES = 4
TIMED_IMAGES = 4  # gray images of the size of the run's first, for a latency


def tune(
    source: Run | str | Path | Dataset | Iterable[Image],
    *,
    threshold: float | None = None,
    spurious: float | None = None,
    detector: str | Defense | Detector | None = None,
    out: str | Path | None = None,
    masks: Recipe | str | Sequence[Recipe | str] | None = None,
    passes: int | Sequence[int] | None = None,
    latency: float | None = None,
    threat: ThreatModel | None = None,
    location: PatchLocation | None = None,
    limit: int | None = None,
    sample: int | None = None,
    split: float = 0.5,
    seed: int = 0,
    search_space: SearchSpace | None = None,
    processes: int | None = None,
    max_ap_loss: float | None = None,
    clean_recall: float | None = None,
    fppi: float | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Tuning:
    """Choose the rule that certifies most of a detector's own boxes for a few spurious ones.

    No annotations are needed. One part of the images is searched, the other measures exactly the chosen rule. With
    `max_ap_loss`, `clean_recall` or `fppi` the price is stated by labels instead, in points of AP50 and at one half of
    the images each, and what is maximized is certified recall.

    Args:
        source: A run; or images, which are observed first: a dataset, a folder, or RGB arrays.
        threshold: Score threshold at which the detector is deployed. Default: with labels that of the best F1, else
            0.5.
        spurious: Boxes that masks may add to a clean image, on average. Default: 0.25.
        detector: A SPEC, a `Defense` or a callable; of a run, only a callable that no SPEC names.
        out: Folder for the run of images that are observed. Default: a temporary one.
        masks: Recipe; of a run, one whose masks are among those of the run. Default: all of the run's. With `passes`
            those to choose from.
        passes: Choose the masks, too: at most that many forward passes per image, for one budget or several.
        latency: The same, as milliseconds per image on this machine.
        threat: The patch to certify against, or several. Default: one square patch of 1 % of the image.
        location: Certify most at this location. Default: the mean of far, close and over.
        limit: Observe that many images, the first ones.
        sample: Observe that many images, drawn at random. Default: 200.
        split: Share of the images that are searched.
        seed: Seed of the sample and of the split.
        search_space: The values to choose from besides thresholds.
        processes: How many processes share the images. Default: as many as there are cores, if that pays.
        max_ap_loss: Points of AP50 that may be lost, by labels.
        clean_recall: Certify most at this clean recall, by labels.
        fppi: Certify most with at most this many false positives per image, by labels.
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
    listed = [masks] if isinstance(masks, Recipe | str) else list(masks or ())
    recipes = [parse_recipe(one) if isinstance(one, str) else one for one in listed]
    threat = ThreatModel() if threat is None else threat
    locations = LOCATIONS if location is None else (Patch(location=location).location,)
    with ExitStack() as stack:
        if isinstance(source, Run):
            run = source
        elif isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file():
            run = open_run(source, detector=None if isinstance(detector, str | Defense) else detector)
        else:
            folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
            wanted, which = masks_to_observe(passes, threat, location), (limit, sample, seed)
            run = _observe(source, detector, folder, recipes, wanted, which, on_progress)
            recipes = []  # they are what was observed
        budgets = budgets_of(run, passes, latency)
        observed = run.manifest.observation_settings.masks
        candidates = recipes_among(observed, recipes) if recipes or budgets else [observed]
        if len(candidates) > 1 and not budgets:
            several = ", ".join(map(str, candidates))
            raise ObjectSeekerError(f"one of several masks is chosen within a budget: got {several}. Add passes.")
        images = list(run.images()) if budgets else run.images()
        tuner: LabelTuner | OwnBoxTuner
        processes = default_process_count(len(images)) if processes is None else processes
        if asked:
            stored = run.manifest.observation_settings
            space = LABELED_SPACE if search_space is None else search_space
            limits: dict[str, Any] = {"threat": threat, "search_space": space, "seed": seed, **asked}
            limits["locations"] = locations
            if budgets:
                limits["losses"] = ()
            spec = SearchSpec(mask_floor=stored.mask_floor, base_floor=stored.base_floor, **limits)
            tuner = LabelTuner(images, run.label_map, spec, observed, processes, _counting(on_trial, on_progress))
        else:
            searched, held_out = split_by_share(len(images), split, require_seed(seed))
            if threshold is None:
                threshold, reason = default_threshold(run, images, searched)
            else:
                threshold, reason = require_fraction(threshold, "threshold"), "as requested"
            run.require_scores(lowest_base=threshold)
            tuner = OwnBoxTuner(
                run=run,
                images=images,
                searched=searched,
                held_out=held_out,
                threshold=threshold,
                threshold_reason=reason,
                price=_require_spurious(DEFAULT_SPURIOUS if spurious is None else spurious),
                threat=threat,
                locations=locations,
                space=SearchSpace() if search_space is None else search_space,
                processes=processes,
                on_progress=on_progress,
            )
        if budgets:
            found = search_recipes(tuner, within_budget(candidates, images, budgets), budgets, on_progress)
        else:
            found = tuner.search(RecipeTrial(candidates[0], 0))
            best = found.best.search_split
            if isinstance(best, Trial) and run.has_detector and best.fppi_warning is not None:
                raise ObjectSeekerError(best.fppi_warning)
        return _with_defenses(run, found)


def _observe(
    source: str | Path | Dataset | Iterable[Image],
    detector: str | Defense | Detector | None,
    folder: Path,
    recipes: Sequence[Recipe],
    wanted: Recipe | None,
    which: tuple[int | None, int | None, int],
    on_progress: OnProgress,
) -> Run:
    """Observe images with the recipe that is given, the detector's own, or the one `wanted`."""
    limit, sample, seed = which
    if detector is None:
        raise ObjectSeekerError(f"images are observed with a detector: got {source!r:.80} alone. Add detector=SPEC.")
    if len(recipes) > 1:
        raise ObjectSeekerError(f"images are observed with one recipe, give one: got {', '.join(map(str, recipes))}")
    if limit is not None and sample is not None:
        raise ObjectSeekerError(f"give limit or sample, one of them: got {limit!r} and {sample!r}")
    images = dataset_of(source, folder)
    most = limit or sample or DEFAULT_SAMPLE
    return observe(
        images,
        detector,
        out=folder,
        masks=recipes[0] if recipes else None if isinstance(detector, Defense) else wanted,
        limit=most,
        seed=None if limit is not None or len(images) <= most else seed,
        on_progress=lambda done, total: on_progress("images observed", done, total),
    )


def masks_to_observe(
    passes: int | Sequence[int] | None, threat: ThreatModel, location: PatchLocation | None
) -> Recipe | None:
    """Return masks among which the best recipe within the passes is then chosen; None: the detector's own.

    Windows withstand the outside, half masks and bands a patch, and pairs of half masks several; of each kind the
    largest that fits the budget, and of others all that fit.
    """
    budget = max(_counts(passes), default=None)
    if budget is None:
        return Windows(Fraction(1, 2)) + Windows(Fraction(1, 3)) if location == "outside" else None
    lines = [(29, 14, 9, 5, 4, 2), (10, 5, 4, 3, 2)]
    halves = Halves(next((count for count in lines[0] if 4 * count < budget), 1))
    windows: list[Recipe] = [Windows(Fraction(1, parts)) for parts in (2, 3, 4)]
    kinds: list[Recipe] = [Bands(threat.area), Bands(threat.area, spacing=2.0)]
    recipe: Recipe = halves
    if location == "outside":
        recipe, *kinds = windows
    elif threat.count > 1:
        recipe = Pairs(next((count for count in lines[1] if pair_counts(count)[1] < budget), 1))
        kinds = [halves, *kinds, *windows]
    for kind in kinds:
        if len(kind.masks(640, 480)) < budget:
            recipe = recipe + kind
    return recipe


def budgets_of(run: Run, passes: int | Sequence[int] | None, latency: float | None) -> list[int]:
    """Return the budgets in forward passes per image, ascending; a latency is timed on this machine."""
    if passes is not None and latency is not None:
        raise ObjectSeekerError(f"give passes or latency, one of them: got {passes!r} and {latency!r}")
    if latency is None:
        return _counts(passes)
    settings, seen = run.manifest.observation_settings, run.images()[0].observation
    image = np.full((seen.height, seen.width, 3), settings.fill, np.uint8)
    each = 1000 * seconds_per_view(run.defense().load_detector(trust_detector=True), [image] * TIMED_IMAGES, settings)
    allowed = math.floor(require_number(latency, "latency") / each)
    if allowed < 2:
        raise ObjectSeekerError(f"a forward pass takes {each:.1f} ms here, so {latency:g} ms allow no masks: ask more")
    return [allowed]


def _counts(passes: int | Sequence[int] | None) -> list[int]:
    every = [] if passes is None else [passes] if isinstance(passes, int) else passes
    return sorted({require_count(one, "passes") for one in every})


def _counting(on_trial: Callable[[Trial], None] | None, on_progress: OnProgress) -> Callable[[Trial], None]:
    """Return what counts settings that were tried."""
    tried = count(1)

    def told(trial: Trial) -> None:
        on_progress("settings tried", next(tried), 0)
        if on_trial is not None:
            on_trial(trial)

    return told


def _with_defenses(run: Run, found: Tuning) -> Tuning:
    """Return the tuning with every rule's defense, where the run says how its detector is loaded."""
    observed, best = run.manifest.observation_settings.masks, found.best
    if best.masks != observed:
        caveat = (
            f"estimated from a run with the masks {observed}: to certify {best.masks}, observe again with the defense"
        )
        found = replace(found, caveats=(*found.caveats, caveat))
    if not run.has_detector:
        return found
    hashes = run.file_hashes()
    searched = np.setdiff1d(np.arange(len(hashes)), found.held_out)
    chosen_by = encode_images([hashes[number] for number in searched.tolist()])

    def deployed(point: TunedRule) -> TunedRule:
        defense = run.defense(point.rule, point.search_split.schedule)
        return replace(point, defense=replace(defense, masks=point.masks or observed, tuned_on=chosen_by))

    return replace(found, best=deployed(best), frontier=tuple(map(deployed, found.frontier)))


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


def _require_spurious(value: float) -> float:
    number = require_number(value, "spurious")
    if number <= 0:
        raise ObjectSeekerError(f"spurious must be above 0 boxes per image: got {value!r}")
    return number
