"""The best recipe within a budget of forward passes, from one run of a sum of recipes.

A run holds the views of every recipe within its own (`core.recipes.within`). Each of them that fits is first tried
along one line of settings, the same for all: the boldest setting on it within the loss is certified, only that.
Then `tune` searches the best few of each budget in full. Only the searched half of the images decides; what is reported
was measured on the other half.

What is found is an estimate, since it is about another recipe than the run's own: a detector that sees several views at
a time may give other last bits where they are grouped otherwise. To certify it, observe with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe, subrecipes
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.metrics.ap_search import (
    NO_GAIN,
    RuleKind,
    SearchSpec,
    SettingsScorer,
    TunedRule,
    TuningResult,
    relax_target,
    tune_images,
    with_scores,
)
from objectseeker.metrics.image_set import SPAWN, ImageSet, process_pool, restrict_images, split_images
from objectseeker.metrics.settings import EvaluationSettings
from objectseeker.runs.run import Run, open_run

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

SEARCHED = 2  # recipes of each budget that are searched in full, at most,
CLOSE = 2.0  # and only those that certify at most that many points less than the best: a full search adds one or two
BETWEEN_LOOKS = 1.0  # seconds, at what the processes have done

# The line of settings along which every recipe is tried: alpha goes from careful to bold in HALVINGS steps, each of
# which halves what is left; beta and the low scores are shares of it.
CAREFUL, BOLD, HALVINGS = 0.9, 0.1, 6
BETA_SHARE, LOW_SHARE, POWER = 0.6, 0.5, 1.0

OnProgress = Callable[[str, int, int], None]  # what is done, how much of it, of how much (0: unknown)
T = TypeVar("T")
log = logging.getLogger("objectseeker")


@dataclass(frozen=True, slots=True)
class RecipeCandidate:
    """A recipe, and the most passes that it needs for an image of the run."""

    recipe: Recipe
    forward_passes: int


@dataclass(frozen=True, slots=True)
class RecipeTrial:
    """The metrics of a candidate along the line of settings, on the searched half."""

    candidate: RecipeCandidate
    settings: EvaluationSettings
    ap_loss: float
    gain: float  # mean certified recall; NO_GAIN if nothing on the line keeps the loss and reaches the clean recall

    @property
    def rank(self) -> tuple[float, ...]:
        """The best first; of those without a gain the ones that lose least."""
        return (0, -self.gain, self.candidate.forward_passes) if self.gain > NO_GAIN else (1, self.ap_loss, 0)

    def to_dict(self) -> dict[str, Any]:
        gain = None if self.gain == NO_GAIN else self.gain
        return {
            "masks": str(self.candidate.recipe),
            "forward_passes": self.candidate.forward_passes,
            "ap50_loss": self.ap_loss,
            "mean_certified_recall": gain,
        }


@dataclass(frozen=True, slots=True, eq=False)
class RecipeChoice:
    """The choice for a budget: a recipe, its tuning, and the better rule of these."""

    budget: int
    candidate: RecipeCandidate
    tuning: TuningResult

    @property
    def best(self) -> TunedRule:
        return self.tuning.best

    @property
    def kind(self) -> RuleKind:
        return self.best.search_split.kind

    def to_dict(self) -> dict[str, Any]:
        found = {
            "budget": self.budget,
            "masks": str(self.candidate.recipe),
            "forward_passes": self.candidate.forward_passes,
        }
        return found | {"rule": self.kind} | self.best.to_dict()


@dataclass(frozen=True, slots=True, eq=False)
class RecipeSearchResult:
    """The choice for every budget, ascending, and all recipes that were tried, the best first."""

    search: SearchSpec
    chosen: tuple[RecipeChoice, ...]
    tried: tuple[RecipeTrial, ...]
    caveats: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "budgets": [one.to_dict() for one in self.chosen],
            "recipes": [one.to_dict() for one in self.tried],
            "caveats": list(self.caveats),
        }


def search_recipes(
    run: Run,
    search: SearchSpec,
    budgets: Sequence[int],
    *,
    recipes: Sequence[Recipe] = (),
    processes: int = 1,
    on_progress: OnProgress | None = None,
) -> RecipeSearchResult:
    """Choose for every budget of passes the recipe, within the run's, that certifies most.

    Where `recipes` are given, it is one of these. For the same `search` a larger budget never certifies less on the
    searched half. Losses other than `max_ap_loss` are not searched for.
    """
    images, report = list(run.images()), on_progress or (lambda what, done, total: None)
    allowed = sorted({require_count(budget, "passes") for budget in budgets})
    candidates = within_budget(recipes_among(run.manifest.observation_settings.masks, recipes), images, allowed)
    image_set = ImageSet.from_images(images, run.label_map)
    halves = [image_set.subset(index) for index in split_images(len(images), 2, search.seed)]
    search, caveats = relax_target(replace(search, losses=()), halves)
    with open_executor(run, images, search, processes) as executor:
        tried = executor.each(
            RecipeSearcher.try_out, candidates, lambda done, _: report("recipes tried", done, len(candidates))
        )
        tried.sort(key=lambda one: one.rank)
        wanted = _finalists(tried, allowed)
        log.debug("recipes searched in full: %s", ", ".join(str(one.candidate.recipe) for one in wanted))
        what = f"settings tried of {len(wanted)} recipe{'s' * (len(wanted) > 1)}"
        found = executor.each(RecipeSearcher.search_all, wanted, lambda _, settings: report(what, settings, 0))
    searched = list(zip((one.candidate for one in wanted), found, strict=True))
    tunings = {one: tuning for one, tuning in searched if isinstance(tuning, TuningResult)}
    chosen, missing = [], []
    for budget in allowed:
        fit = {one: tuning for one, tuning in tunings.items() if one.forward_passes <= budget}
        if fit:
            best = max(fit, key=lambda one: (fit[one].best.search_split.gain, -one.forward_passes))
            chosen.append(RecipeChoice(budget, best, fit[best]))
        else:
            why = next(str(why) for one, why in searched if one.forward_passes <= budget)
            missing.append(f"at most {budget} passes: {why}")
    if not chosen:
        raise ObjectSeekerError(missing[-1])
    return RecipeSearchResult(search, tuple(chosen), tuple(tried), (*caveats, *missing))


def recipes_among(masks: Recipe, asked: Sequence[Recipe]) -> list[Recipe]:
    """Return the recipes within `masks`: all of them, or those requested."""
    known = subrecipes(masks)
    for recipe in asked:
        if recipe not in known:
            raise ObjectSeekerError(f"{recipe} is not within the run's masks {masks}: observe with a sum that holds it")
    return list(asked) or list(known)


def within_budget(
    recipes: Sequence[Recipe], images: Sequence[ObservedImage], budgets: Sequence[int]
) -> list[RecipeCandidate]:
    """Return the recipes within the largest budget on every image; reject a budget that none keeps.

    Of recipes that make the same masks for all of the images, the shortest to write is taken.
    """
    sizes = sorted({(image.observation.width, image.observation.height) for image in images})
    found: dict[tuple[frozenset[bytes], ...], RecipeCandidate] = {}
    for recipe in sorted(recipes, key=lambda one: len(str(one))):
        made = [recipe.masks(*size) for size in sizes]
        same = tuple(frozenset(masks.keys) for masks in made)
        found.setdefault(same, RecipeCandidate(recipe, 1 + max(map(len, made))))
    fewest = min(found.values(), key=lambda one: one.forward_passes)
    if fewest.forward_passes > min(budgets):
        raise ObjectSeekerError(
            f"none of these masks needs at most {min(budgets)} passes on every image: the fewest are "
            f"{fewest.forward_passes}, with {fewest.recipe}"
        )
    return [one for one in found.values() if one.forward_passes <= max(budgets)]


def _finalists(tried: Sequence[RecipeTrial], budgets: Sequence[int]) -> list[RecipeTrial]:
    """The best of every budget, those of all budgets together; the ones that take longest first."""
    wanted: dict[RecipeCandidate, RecipeTrial] = {}
    for budget in budgets:
        best, *others = [one for one in tried if one.candidate.forward_passes <= budget][:SEARCHED]
        wanted |= {one.candidate: one for one in (best, *others) if one.gain >= best.gain - CLOSE}
    return sorted(wanted.values(), key=lambda one: (-one.candidate.forward_passes, str(one.candidate.recipe)))


class RecipeSearcher:
    """Tries and searches recipes on the images of one run; one in every process."""

    def __init__(
        self,
        images: Sequence[ObservedImage],
        label_map: LabelMap,
        search: SearchSpec,
        on_setting: Callable[[object], None] | None = None,
    ) -> None:
        self._images, self._vocabulary, self._search, self._on_setting = images, label_map, search, on_setting

    def try_out(self, candidate: RecipeCandidate) -> RecipeTrial:
        """Along the line of settings: the boldest within the loss, if bolder ones lose more."""
        seen = ImageSet.from_images(restrict_images(self._images, candidate.recipe), self._vocabulary).subset(
            split_images(len(self._images), 2, self._search.seed)[self._search.half]
        )
        bench, careful, bold = SettingsScorer(seen, self._search), CAREFUL, max(BOLD, self._search.mask_floor)
        for _ in range(HALVINGS):
            middle = (careful + bold) / 2
            if bench.loss(settings_at_alpha(self._search, middle)) <= self._search.max_ap_loss:
                careful = middle
            else:
                bold = middle
        best = bench.coarse(settings_at_alpha(self._search, careful))
        kept = best.ap_loss <= self._search.max_ap_loss
        return RecipeTrial(candidate, best.settings, best.ap_loss, best.gain if kept else NO_GAIN)

    def search_all(self, tried: RecipeTrial) -> TuningResult | str:
        """Return the tuning that begins with the settings of the line, or why there is none."""
        recipe, search = tried.candidate.recipe, replace(self._search, starts=(tried.settings,))
        try:
            found = tune_images(
                restrict_images(self._images, recipe), self._vocabulary, search, on_trial=self._on_setting
            )
        except ObjectSeekerError as error:
            return f"{recipe}: {error}"
        return replace(found, trials=())  # large, and of no use to anybody who waits for it


def settings_at_alpha(search: SearchSpec, alpha: float) -> EvaluationSettings:
    """The settings of the line at this alpha."""
    kind: RuleKind = "evidence" if "evidence" in search.rule_kinds else "paper"
    start, beta = search.choices_of(kind).start(search.settings()), BETA_SHARE * alpha
    low = (LOW_SHARE * alpha, LOW_SHARE * beta) if kind == "evidence" else None
    return with_scores(start, search.mask_floor, alpha, beta, low, POWER)


# --- processes --------------------------------------------------------------------------------------------------------

Advance = Callable[[int, int], None]  # how much of the work is done, and how many settings were tried
W = TypeVar("W", RecipeCandidate, RecipeTrial)


class SerialExecutor:
    """Works through recipes in this process."""

    def __init__(self, run: Run, images: Sequence[ObservedImage], search: SearchSpec) -> None:
        self._bench = partial(RecipeSearcher, images, run.label_map, search)

    def each(self, work: Callable[[RecipeSearcher, W], T], items: Sequence[W], advance: Advance) -> list[T]:
        done: list[T] = []
        tried = 0

        def one_more(_: object) -> None:
            nonlocal tried
            tried += 1
            advance(len(done), tried)

        bench = self._bench(one_more)
        for item in items:
            done.append(work(bench, item))
            advance(len(done), tried)
        return done


_bench: RecipeSearcher  # of a process of the pool


class ProcessExecutor:
    """Works through recipes in several processes, each of which reads the run anew: nothing large travels."""

    def __init__(self, pool: ProcessPoolExecutor, tried: Synchronized[int]) -> None:
        self._pool, self._tried = pool, tried

    def each(self, work: Callable[[RecipeSearcher, W], T], items: Sequence[W], advance: Advance) -> list[T]:
        waiting = [self._pool.submit(_work, work, item) for item in items]
        left: set[Future[T]] = set(waiting)
        while left:
            done, left = wait(left, BETWEEN_LOOKS, FIRST_COMPLETED)
            for future in done:
                future.result()  # raises what went wrong, at once
            advance(len(waiting) - len(left), self._tried.value)
        return [future.result() for future in waiting]


@contextmanager
def open_executor(
    run: Run, images: Sequence[ObservedImage], search: SearchSpec, processes: int
) -> Iterator[SerialExecutor | ProcessExecutor]:
    """Open the executor: this process, or several others."""
    if require_count(processes, "processes") == 1:
        yield SerialExecutor(run, images, search)
        return
    tried = SPAWN.Value("q", 0)
    with process_pool(processes, _begin, (run.folder, search, tried)) as pool:
        yield ProcessExecutor(pool, tried)


def _begin(folder: Path, search: SearchSpec, tried: Synchronized[int]) -> None:
    global _bench

    def one_more(_: object) -> None:
        with tried.get_lock():
            tried.value += 1

    run = open_run(folder)
    _bench = RecipeSearcher(list(run.images()), run.label_map, search, one_more)


def _work(work: Callable[[RecipeSearcher, W], T], item: W) -> T:
    return work(_bench, item)
