"""Search for a defense: the values to choose from, masks within a budget, and the result.

A search maximizes a gain for a price. From unlabeled images (`rule_search`) the gain is the certified share of the
detector's own boxes and the price spurious boxes per image; by labels (`ap_search`) the gain is certified recall and
the price points of AP50. One part of the images is searched; the other one measures exactly the rules that were chosen.

A run holds the views of every recipe within its own (`core.recipes.subrecipes`). Within a budget of forward passes each
of them is first tried with few settings, and the best of the budget are searched in full. That is an estimate, since it
is about another recipe than the run's own: a detector that sees several views at a time may give other last bits where
they are grouped otherwise. To certify it, observe with it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, Protocol

from objectseeker.core.boxes import Ints
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe, subrecipes
from objectseeker.core.rules import PruningRule, Rule
from objectseeker.core.threats import PatchLocation, ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.confidence_intervals import ConfidenceInterval
from objectseeker.metrics.settings import EvaluationSettings
from objectseeker.text import to_html

RuleKind = Literal["paper", "evidence"]
OnProgress = Callable[[str, int, int], None]  # what is done, how much of it, of how much (0: unknown)

NO_GAIN = -1.0  # of settings that do not keep the price or reach the operating point
FINALISTS = 2  # recipes of each budget that are searched in full, at most
LOCATIONS: tuple[PatchLocation, ...] = ("far", "close", "over")  # whose certified shares are averaged
CLUSTERING = ("filter_ioa", "edge_factor", "cluster_distance")

log = logging.getLogger("objectseeker")


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The values that a search chooses from besides thresholds.

    A search by labels starts from the first of each, moves to nearby ones, and has its own ways to choose evidence.
    """

    filter_ioa: tuple[float, ...] = (0.6, 0.7, 0.75, 0.8)
    edge_factor: tuple[float, ...] = (1.0, 0.85, 0.7)
    cluster_distance: tuple[float, ...] = (0.1, 0.3)
    evidence_threshold: tuple[float | None, ...] = (None, 0.15, 0.2, 0.3, 0.4)
    evidence_power: tuple[float, ...] = (1.0, 2.0)

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name):
                raise ObjectSeekerError(f"{each.name} must have at least one value to choose from: got none")

    def rules(self, base_threshold: float, floor: float) -> list[Rule]:
        """Return all rules up to their mask threshold that use no masked box below `floor`."""
        evidence: list[tuple[float | None, float]] = [
            (low, power)
            for low in self.evidence_threshold
            for power in (self.evidence_power if low is not None else (1.0,))
            if low is None or low >= floor
        ]
        plain = Rule(base_threshold=base_threshold, mask_threshold=1.0)
        return [
            plain.with_settings(
                **dict(zip(CLUSTERING, clustering, strict=True)), evidence_threshold=low, evidence_power=power
            )
            for clustering in product(self.filter_ioa, self.edge_factor, self.cluster_distance)
            for low, power in evidence
        ]

    def start(self, settings: EvaluationSettings) -> EvaluationSettings:
        """Return `settings` with the first of every choice."""
        return settings.with_rule(**{name: values[0] for name, values in self._choices(settings.rule).items()})

    def moves(self, settings: EvaluationSettings) -> Iterator[EvaluationSettings]:
        """Yield `settings` with one choice moved to the next value up or down."""
        used = settings.rule.settings()
        for name, choices in self._choices(settings.rule).items():
            values = sorted(choices)
            place = values.index(used[name])
            for next_place in (place - 1, place + 1):
                if 0 <= next_place < len(values):
                    yield settings.with_rule(**{name: values[next_place]})

    def _choices(self, rule: PruningRule) -> dict[str, tuple[float, ...]]:
        """Return the choices of settings that the rule has."""
        return {name: getattr(self, name) for name in CLUSTERING if name in rule.setting_names()}


LABELED_SPACE = SearchSpace((0.6, 0.5, 0.7), (0.85, 1.0, 0.7, 0.5), (0.1, 0.2, 0.3))


# --- The result -------------------------------------------------------------------------------------------------------


class Measured(Protocol):
    """Price and gain of one rule on some images."""

    price_name: ClassVar[str]  # the parameter of `tune` that limits the cost

    @property
    def rule(self) -> PruningRule: ...

    @property
    def schedule(self) -> ThresholdSchedule | None: ...

    @property
    def cost(self) -> float: ...

    @property
    def gain(self) -> float: ...

    def shares(self) -> dict[str, float | None]:
        """Return the certified shares in percent by location, and of several their mean, which is maximized."""

    def cells(self) -> dict[str, str]:
        """Return everything for a table, the cost first, the certified shares last."""

    def missed(self, price: float) -> str | None:
        """Say what the rule misses of what was requested, if it does."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False)
class TunedRule:
    """The rule that certifies most for a price, on the images searched and on the others.

    Attributes:
        price: What was allowed: spurious boxes per image, or points of AP50.
        masks: The recipe, and `forward_passes` what it needs for an image at most.
        budget: The forward passes that were allowed, if any were requested.
        defense: The detector with this rule and these masks; None if it is unknown how its detector is loaded.
    """

    price: float
    search_split: Measured
    held_out_split: Measured
    masks: Recipe | None = None
    forward_passes: int | None = None
    budget: int | None = None
    defense: Defense | None = None

    @property
    def rule(self) -> PruningRule:
        return self.search_split.rule

    @property
    def kind(self) -> RuleKind:
        return "paper" if self.rule.evidence_threshold is None else "evidence"

    @property
    def broken_promise(self) -> str | None:
        """Return a sentence if the rule misses on the held-out images what was requested."""
        return self.held_out_split.missed(self.price)

    def to_dict(self) -> dict[str, Any]:
        return {
            self.search_split.price_name: self.price,
            "masks": None if self.masks is None else str(self.masks),
            "forward_passes": self.forward_passes,
            "budget": self.budget,
            "rule": self.rule.to_dict(),
            "search_split": self.search_split.to_dict(),
            "held_out_split": self.held_out_split.to_dict(),
            "broken_promise": self.broken_promise,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """The result of `tune`.

    Attributes:
        best: The rule for the requested price, and of several budgets the largest.
        frontier: The rules for other prices and kinds of rules, ascending; of several budgets the best of each.
        threat: The patches that are certified against, at the `locations` whose mean is maximized.
        held_out: Which images were not searched.
        threshold_reason: Why the base threshold is what it is.
        untuned: The default rule at the same threshold, as `best`, if nothing but that rule may differ.
        certified_not_fabricated: Percentage of the held-out own boxes that the best rule certifies not fabricated,
            against the threat's patches anywhere, or at the one location.
        rules: How many rules competed, and `certified_rules` for how many of them the gain was found.
        trials: The settings that were tried by labels.
        recipes: The recipes that were tried, the best first.
        caveats: Limits of the search.
    """

    best: TunedRule
    frontier: tuple[TunedRule, ...]
    threat: ThreatModel
    locations: tuple[PatchLocation, ...]
    held_out: Ints
    threshold_reason: str
    rules: int
    certified_rules: int
    untuned: TunedRule | None = None
    certified_not_fabricated: ConfidenceInterval | None = None
    trials: tuple[Measured, ...] = ()
    recipes: tuple[RecipeTrial, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def threshold(self) -> float:
        return self.best.rule.base_threshold

    @property
    def masks(self) -> Recipe | None:
        return self.best.masks

    @property
    def forward_passes(self) -> int | None:
        return self.best.forward_passes

    @property
    def defense(self) -> Defense | None:
        return self.best.defense

    @property
    def broken_promise(self) -> str | None:
        return self.best.broken_promise

    def rows(self) -> list[dict[str, str]]:
        """Return a table of the best rule where it was searched and held out, and of the untuned one."""
        columns = {} if self.untuned is None else {"untuned": self.untuned.held_out_split.cells()}
        columns |= {"searched": self.best.search_split.cells(), "held out": self.best.held_out_split.cells()}
        labels = {name: f"certified {name}, %" for name in self.best.search_split.shares()}
        rows = [
            {"": labels.get(name, name)} | {of: cells[name] for of, cells in columns.items()}
            for name in columns["searched"]
        ]
        if self.certified_not_fabricated is not None:
            share = format_interval(self.certified_not_fabricated, 1)
            rows.append(
                {"": "own boxes certified not fabricated, %"} | dict.fromkeys(columns, "-") | {"held out": share}
            )
        return rows

    def _repr_html_(self) -> str:
        return to_html(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        share = self.certified_not_fabricated
        return {
            "threshold": self.threshold,
            "threshold_reason": self.threshold_reason,
            **self.threat.to_dict(self.best.rule),
            "locations": list(self.locations),
            "masks": None if self.masks is None else str(self.masks),
            "forward_passes": self.forward_passes,
            "best": self.best.to_dict(),
            "untuned": None if self.untuned is None else self.untuned.to_dict(),
            "frontier": [point.to_dict() for point in self.frontier],
            "certified_not_fabricated": None if share is None else share.to_dict(),
            "defense": None if self.defense is None else self.defense.to_public_dict(),
            "rules": self.rules,
            "certified_rules": self.certified_rules,
            "trials": [trial.to_dict() for trial in self.trials],
            "recipes": [trial.to_dict() for trial in self.recipes],
            "broken_promise": self.broken_promise,
            "caveats": list(self.caveats),
        }


def format_interval(interval: ConfidenceInterval, digits: int) -> str:
    """Format a metric with the ends of its interval."""
    if not interval.known:
        return "-"
    value, low, high = (f"{getattr(interval, name):.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


# --- Masks within a budget --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecipeTrial:
    """A recipe, and what few settings gave on the searched images, once tried.

    Attributes:
        forward_passes: The most that it needs for an image of the run.
        gain: The gain within the price, or NO_GAIN.
        cost: By labels the points of AP50 lost.
        settings: Where a search by labels begins.
    """

    recipe: Recipe
    forward_passes: int
    gain: float = NO_GAIN
    cost: float | None = None
    settings: EvaluationSettings | None = None

    @property
    def rank(self) -> tuple[float, ...]:
        """The best first; of those without a gain the ones that cost least."""
        worth = (0, -self.gain) if self.gain > NO_GAIN else (1, self.cost or 0.0)
        return (*worth, self.forward_passes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "masks": str(self.recipe),
            "forward_passes": self.forward_passes,
            "ap50_loss": self.cost,
            "mean_certified": None if self.gain == NO_GAIN else self.gain,
        }


class Tuner(ABC):
    """A search for rules under one recipe, or some of those of a run."""

    close: ClassVar[float]  # a recipe that certifies that many points less than the best is not searched in full

    @abstractmethod
    def try_out(self, recipes: Sequence[RecipeTrial]) -> Iterator[RecipeTrial]:
        """Try each recipe with few settings."""

    @abstractmethod
    def search(self, recipe: RecipeTrial) -> Tuning:
        """Search all settings under one recipe."""

    def search_each(self, recipes: Sequence[RecipeTrial]) -> Iterator[Tuning | str]:
        """Search all settings under each recipe; yield the result, or why there is none."""
        return map(partial(attempt, self), recipes)


def recipes_among(masks: Recipe, asked: Sequence[Recipe]) -> list[Recipe]:
    """Return the recipes within `masks`: all of them, or those requested."""
    known = subrecipes(masks)
    for recipe in asked:
        if recipe not in known:
            raise ObjectSeekerError(f"{recipe} is not within the run's masks {masks}: observe with a sum that holds it")
    return list(asked) or list(known)


def within_budget(
    recipes: Sequence[Recipe], images: Sequence[ObservedImage], budgets: Sequence[int]
) -> list[RecipeTrial]:
    """Return the recipes within the largest budget on every image; reject a budget that none keeps.

    Of recipes that make the same masks for all of the images, the shortest to write is taken.
    """
    sizes = sorted({(image.observation.width, image.observation.height) for image in images})
    found: dict[tuple[frozenset[bytes], ...], RecipeTrial] = {}
    for recipe in sorted(recipes, key=lambda one: len(str(one))):
        made = [recipe.masks(*size) for size in sizes]
        same = tuple(frozenset(masks.keys) for masks in made)
        found.setdefault(same, RecipeTrial(recipe, 1 + max(map(len, made))))
    fewest = min(found.values(), key=lambda one: one.forward_passes)
    if fewest.forward_passes > min(budgets):
        raise ObjectSeekerError(
            f"none of these masks needs at most {min(budgets)} passes on every image: the fewest are "
            f"{fewest.forward_passes}, with {fewest.recipe}"
        )
    return [one for one in found.values() if one.forward_passes <= max(budgets)]


def search_recipes(
    tuner: Tuner, candidates: Sequence[RecipeTrial], budgets: Sequence[int], on_progress: OnProgress
) -> Tuning:
    """Choose for every budget of passes the recipe that certifies most on the searched images.

    A larger budget never certifies less there.
    """
    tried: list[RecipeTrial] = []
    for trial in tuner.try_out(candidates):
        tried.append(trial)
        on_progress("masks tried", len(tried), len(candidates))
    tried.sort(key=lambda one: one.rank)
    wanted = finalists(tried, budgets, tuner.close)
    log.debug("recipes searched in full: %s", ", ".join(str(one.recipe) for one in wanted))
    searched: list[tuple[RecipeTrial, Tuning | str]] = []
    for trial, found in zip(wanted, tuner.search_each(wanted), strict=True):
        searched.append((trial, found))
        on_progress("masks searched in full", len(searched), len(wanted))
    chosen: list[tuple[int, Tuning]] = []
    missing: list[str] = []
    for budget in budgets:
        fit = [(one, found) for one, found in searched if one.forward_passes <= budget]
        tunings = [(one, found) for one, found in fit if isinstance(found, Tuning)]
        if tunings:
            best = max(tunings, key=lambda one: (one[1].best.search_split.gain, -one[0].forward_passes))[1]
            chosen.append((budget, best))
        else:
            missing.append(f"at most {budget} passes: {next(why for _, why in fit)}")
    if not chosen:
        raise ObjectSeekerError(missing[-1])
    budget, result = chosen[-1]
    frontier = [replace(found.best, budget=budget) for budget, found in chosen]
    broken = [f"at most {one.budget} passes: {one.broken_promise}" for one in frontier[:-1] if one.broken_promise]
    caveats = dict.fromkeys(caveat for _, found in chosen for caveat in found.caveats)
    return replace(
        result,
        best=frontier[-1],
        frontier=tuple(frontier if len(budgets) > 1 else (replace(one, budget=budget) for one in result.frontier)),
        recipes=tuple(tried),
        caveats=(*caveats, *missing, *broken),
    )


def finalists(tried: Sequence[RecipeTrial], budgets: Sequence[int], close: float) -> list[RecipeTrial]:
    """Return the best recipes of every budget together, those that take longest first."""
    wanted: dict[Recipe, RecipeTrial] = {}
    for budget in budgets:
        best, *others = [one for one in tried if one.forward_passes <= budget][:FINALISTS]
        wanted |= {one.recipe: one for one in (best, *others) if one.gain >= best.gain - close}
    return sorted(wanted.values(), key=lambda one: (-one.forward_passes, str(one.recipe)))


def attempt(tuner: Tuner, trial: RecipeTrial) -> Tuning | str:
    """Return the search of a recipe, or why there is none."""
    try:
        return tuner.search(trial)
    except ObjectSeekerError as error:
        return f"{trial.recipe}: {error}"
