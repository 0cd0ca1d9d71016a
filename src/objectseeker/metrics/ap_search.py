"""Search by labels: the most certified recall for a given loss of clean AP.

The images are split in two. Settings are searched on one half, a coarse grid first and then ever smaller steps around
the best, and what was found is measured on the other half, which the search has not seen. This is done for the paper's
rule and for the evidence rule, and for several losses: the frontier of what AP can be traded for. Everything that
settings share is computed once; one setting then costs a curve and its certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, ClassVar, TypeVar, cast, get_args

from objectseeker.core.boxes import Bools, Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.recipes import Recipe
from objectseeker.core.rules import PruningRule, Rule
from objectseeker.core.threats import ALL_LOCATIONS, Patch, PatchLocation, ThreatModel
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number
from objectseeker.metrics.average_precision import Curve, undefended_curve
from objectseeker.metrics.defended_images import DefendedImageSet, DefendedOutcome, operating_row_of
from objectseeker.metrics.image_set import ImageSet, process_pool, restrict_images, split_images
from objectseeker.metrics.search import (
    LABELED_SPACE,
    LOCATIONS,
    NO_GAIN,
    RecipeTrial,
    RuleKind,
    SearchSpace,
    TunedRule,
    Tuner,
    Tuning,
    attempt,
)
from objectseeker.metrics.settings import (
    BASE_THRESHOLDS,
    EvaluationSettings,
    describe_fppi,
    describe_point,
    require_seed,
)
from objectseeker.text import per_image, percent

RULE_KINDS: tuple[RuleKind, ...] = get_args(RuleKind)
DEFAULT_CLEAN_RECALL = 0.8  # where no other clean recall is requested
MAX_USUAL_FPPI = 10  # an image

# The coarse grid: alphas and betas, and for the evidence rule, which has more to choose, fewer of them. Its
# evidence_alpha and evidence_beta start as shares of its alpha and beta.
GRID: dict[RuleKind, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "paper": ((0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9), (0.0, 0.1, 0.25, 0.4, 0.55, 0.7)),
    "evidence": ((0.2, 0.35, 0.5, 0.65, 0.8), (0.05, 0.25, 0.45, 0.65)),
}
LOW_SHARES = (0.4, 0.7)
POWERS = (1.0, 2.0)

LOSSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # the frontier's points of AP

# The refinement: all alphas and betas move by a step, power by POWER_STEP times as much, choices to the next one.
STEPS = (0.1, 0.05, 0.02)
POWER_STEP = 5.0
SMALLEST_POWER = 0.25
STARTS = 2  # how many of the best settings are moved
MOST_ROUNDS = 3  # of moves of one step

# The line of settings along which every recipe is tried.
CAREFUL, BOLD, HALVINGS = 0.9, 0.1, 6
BETA_SHARE, LOW_SHARE = 0.6, 0.5

COARSE = 4  # while searching, a curve has every fourth base_threshold


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One setting and what it gave on some images."""

    settings: EvaluationSettings
    outcome: DefendedOutcome
    undefended_ap50: float
    ap_loss: float  # the points of AP50 that the defense costs
    # Over every location; None without the requested operating point, or if the setting loses more than any loss that
    # is searched for: only what could be chosen is certified.
    mean_certified_recall: float | None
    undefended_clean_recall: float | None = None  # of the undefended detector at the same point
    locations: tuple[PatchLocation, ...] = LOCATIONS  # of the mean
    price_name: ClassVar[str] = "max_ap_loss"

    @property
    def kind(self) -> RuleKind:
        return rule_kind_of(self.settings)

    @property
    def rule(self) -> PruningRule:
        """Return the rule at the operating point."""
        return self.outcome.rule or self.settings.rule

    @property
    def schedule(self) -> ThresholdSchedule:
        return self.settings.threshold_schedule

    @property
    def cost(self) -> float:
        return self.ap_loss

    @property
    def gain(self) -> float:
        return NO_GAIN if self.mean_certified_recall is None else self.mean_certified_recall

    def shares(self) -> dict[str, float | None]:
        certified = self.outcome.certified_recall()
        shares: dict[str, float | None] = {location: certified[location] for location in self.locations}
        return shares | ({"mean": self.mean_certified_recall} if len(shares) > 1 else {})

    def cells(self) -> dict[str, str]:
        return {
            "AP50 lost": percent(self.ap_loss),
            "AP50": percent(self.outcome.ap50),
            "AP50 undefended": percent(self.undefended_ap50),
            "clean recall, %": percent(self.outcome.clean_recall),
            "FPPI": per_image(self.outcome.fppi),
            **{name: percent(share) for name, share in self.shares().items()},
        }

    def missed(self, price: float) -> str | None:
        missed, recall, reached = [], self.settings.clean_recall, self.outcome.clean_recall
        if self.ap_loss > price:
            missed.append(f"loses {self.ap_loss:.1f} points of AP50 instead of at most {price:g}")
        most, fppi = self.settings.fppi, self.outcome.fppi
        if most is not None and fppi is not None and fppi > most:
            missed.append(f"gives {fppi:.2f} false positives per image instead of at most {most:g}")
        if recall is not None and reached is not None and reached < 100 * recall:
            missed.append(f"reaches a clean recall of {reached:.1f} % instead of {100 * recall:g} %")
        return f"on the half that was not searched the rule {' and '.join(missed)}" if missed else None

    @property
    def fppi_warning(self) -> str | None:
        """Return a sentence on a clean recall that costs too many false positives."""
        outcome = self.outcome
        if outcome.fppi is None or outcome.fppi <= MAX_USUAL_FPPI or self.settings.fppi is not None:
            return None
        return (
            f"{describe_point(self.settings)} needs a base threshold of {outcome.base_threshold:g} with "
            f"{outcome.fppi:.0f} false positives per image: ask for a lower clean_recall, or for fppi=1"
        )

    def to_dict(self) -> dict[str, Any]:
        names = ("undefended_ap50", "undefended_clean_recall", "mean_certified_recall")
        more = {name: getattr(self, name) for name in names} | {"ap50_loss": self.ap_loss}
        return self.settings.to_dict() | self.outcome.to_row() | more


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """The objective of a search by labels, and the settings it chooses from.

    What is maximized is the mean certified recall over `locations` against `threat` at `clean_recall`, or with at most
    `fppi` false positives per image (see `EvaluationSettings`), among the settings that lose at most `max_ap_loss`
    points of AP50 against the undefended detector, and for the frontier at most each of `losses`. No masked score below
    `mask_floor`, where the run's stored boxes end, is used. The search is among the settings of `rule`; it begins with
    a coarse grid and `starts`. `seed` splits the images, `half`, 0 or 1, is the half that is searched. Without a clean
    recall it is DEFAULT_CLEAN_RECALL, or what the undefended detector reaches on both halves if that is less.
    """

    mask_floor: float
    threat: ThreatModel = field(default_factory=ThreatModel)
    clean_recall: float | None = None
    fppi: float | None = None
    base_floor: float = 0.0
    max_ap_loss: float = 1.0
    losses: tuple[float, ...] = LOSSES
    rule: PruningRule = field(default_factory=Rule)
    rule_kinds: tuple[RuleKind, ...] = RULE_KINDS
    locations: tuple[PatchLocation, ...] = LOCATIONS
    search_space: SearchSpace = LABELED_SPACE
    starts: tuple[EvaluationSettings, ...] = ()
    seed: int = 0
    half: int = 0

    def __post_init__(self) -> None:
        require_fraction(self.mask_floor, "mask_floor")
        require_fraction(self.recall, "clean_recall")
        if self.fppi is not None and self.clean_recall is not None:
            both = f"fppi={self.fppi!r}, clean_recall={self.clean_recall!r}"
            raise ObjectSeekerError(f"give clean_recall or fppi, one of them: got {both}")
        for loss in (self.max_ap_loss, *self.losses):
            require_number(loss, "max_ap_loss")
        _require_some(self.rule_kinds, RULE_KINDS, "rule_kinds")
        if "evidence" in self.rule_kinds and "evidence_threshold" not in self.rule.setting_names():
            raise ObjectSeekerError(
                f"the {self.rule.name} rule has no evidence_threshold: got rule_kinds={self.rule_kinds!r}. "
                "Use rule_kinds=('paper',)."
            )
        _require_some(self.locations, ALL_LOCATIONS, "locations")
        require_seed(self.seed)
        if self.half not in (0, 1):
            raise ObjectSeekerError(f"half must be 0 or 1: got {self.half!r}")

    @property
    def recall(self) -> float:
        """The clean recall to search at."""
        return DEFAULT_CLEAN_RECALL if self.clean_recall is None else self.clean_recall

    @property
    def every_loss(self) -> list[float]:
        return sorted({self.max_ap_loss, *self.losses})

    def choices_of(self, kind: RuleKind) -> SearchSpace:
        """The paper's rule knows neither an edge_factor nor another cluster_distance than its own."""
        return SearchSpace(self.search_space.filter_ioa, (1.0,), (0.1,)) if kind == "paper" else self.search_space

    def settings(self) -> EvaluationSettings:
        """Return where a search starts from."""
        recall = self.recall if self.fppi is None else None
        point: dict[str, Any] = {"clean_recall": recall, "fppi": self.fppi, "base_floor": self.base_floor}
        threat = self.threat.at_all_locations("outside" in self.locations)
        return EvaluationSettings.from_schedule(ThresholdSchedule(), self.rule, threat=threat, **point)


def tune_images(
    images: Sequence[ObservedImage],
    label_map: LabelMap,
    search: SearchSpec,
    *,
    on_trial: Callable[[Trial], None] | None = None,
) -> Tuning:
    """Search the settings of the paper's rule and of the evidence rule.

    Args:
        images: The observations.
        label_map: Maps the detector's labels to those of the dataset.
        search: What to search, and where.
        on_trial: Called after every setting.

    Returns:
        Everything that was tried, and the best of each kind of rule, without masks and defenses.

    Example:
        >>> tune_images(run.images(), run.label_map, SearchSpec()).best.rule  # doctest: +SKIP
    """
    image_set = ImageSet.from_images(images, label_map)
    index = split_images(len(image_set.images), 2, search.seed)
    halves = [image_set.subset(part) for part in index]
    search, caveats = relax_target(search, halves)
    both = [SettingsScorer(half, search) for half in halves]
    seen, held_out = both[search.half], both[1 - search.half]
    climb = HillClimb(seen, search, on_trial)
    frontier: list[TunedRule] = []
    for kind in search.rule_kinds:
        climb.run(kind)
        best = {loss: climb.pick(kind, loss) for loss in search.every_loss}
        chosen = {loss: settings for loss, settings in best.items() if settings is not None}
        for loss, settings in chosen.items():
            found = seen.full(settings)
            frontier.append(TunedRule(loss, found, held_out.full(settings, found)))
        if len(chosen) > 1 and len(set(chosen.values())) == 1:
            caveats.append(f"{kind} rule: every allowed loss leads to the same setting, so AP is not the limit")
    tuned = [point for point in frontier if point.price == search.max_ap_loss]
    if not tuned:
        raise ObjectSeekerError(climb.why_nothing())
    winner = max(tuned, key=lambda point: point.search_split.gain)
    warning = cast(Trial, winner.search_split).fppi_warning
    trials = tuple(climb.trials.values())
    return Tuning(
        best=winner,
        frontier=tuple(frontier),
        threat=search.threat,
        locations=search.locations,
        held_out=index[1 - search.half],
        threshold_reason=describe_point(search.settings()),
        rules=len(trials),
        certified_rules=sum(trial.mean_certified_recall is not None for trial in trials),
        trials=trials,
        caveats=(*caveats, *([warning] if warning else [])),
    )


def relax_target(search: SearchSpec, halves: Sequence[ImageSet]) -> tuple[SearchSpec, list[str]]:
    """Return the search at a clean recall that is reached, unless one was requested; and caveats."""
    if search.clean_recall is not None or search.fppi is not None:
        return search, []
    highest = min(undefended_curve(half).max_clean_recall for half in halves)
    if highest >= 100 * DEFAULT_CLEAN_RECALL:
        return search, []
    instead = int(highest) / 100  # a whole percentage, to be requested again
    caveat = f"clean recall {DEFAULT_CLEAN_RECALL:.0%} is not reached: searched at the highest that is, {instead:.0%}"
    return replace(search, clean_recall=instead), [caveat]


A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class LabelTuner(Tuner):
    """The search by labels among the recipes of a run, in one process or several."""

    images: Sequence[ObservedImage]
    label_map: LabelMap
    spec: SearchSpec
    masks: Recipe  # of the run
    processes: int = 1
    on_trial: Callable[[Trial], None] | None = None  # in this process only
    close: ClassVar[float] = 2.0  # a full search adds one or two

    def try_out(self, recipes: Sequence[RecipeTrial]) -> Iterator[RecipeTrial]:
        return self._each(LabelTuner._try_line, recipes)

    def search_each(self, recipes: Sequence[RecipeTrial]) -> Iterator[Tuning | str]:
        return self._each(attempt, recipes)

    def _try_line(self, trial: RecipeTrial) -> RecipeTrial:
        """Try a line of settings: the boldest within the loss, if bolder ones lose more.

        The line is the same for all recipes. Alpha goes from careful to bold in HALVINGS steps, each of which halves
        what is left.
        """
        image_set, spec = ImageSet.from_images(self._restricted_to(trial.recipe), self.label_map), self._relaxed
        scorer = SettingsScorer(image_set.subset(self._halves[spec.half]), spec)
        careful, bold = CAREFUL, max(BOLD, spec.mask_floor)
        for _ in range(HALVINGS):
            middle = (careful + bold) / 2
            if scorer.loss(settings_at_alpha(spec, middle)) <= spec.max_ap_loss:
                careful = middle
            else:
                bold = middle
        best = scorer.coarse(settings_at_alpha(spec, careful))
        gain = best.gain if best.cost <= spec.max_ap_loss else NO_GAIN
        return replace(trial, gain=gain, cost=best.cost, settings=best.settings)

    def search(self, recipe: RecipeTrial) -> Tuning:
        """Search all settings under one recipe, beginning with those of the line where it was tried."""
        masks, starts = recipe.recipe, () if recipe.settings is None else (recipe.settings,)
        spec = replace(self.spec, starts=starts)
        images = self._restricted_to(masks)
        found = tune_images(images, self.label_map, spec, on_trial=self.on_trial)
        sizes = {(image.observation.width, image.observation.height) for image in images}
        passes = max(masks.forward_passes(*size) for size in sizes)
        best, *frontier = (replace(one, masks=masks, forward_passes=passes) for one in (found.best, *found.frontier))
        trials = () if starts else found.trials  # large, and one recipe's among many
        return replace(found, best=best, frontier=tuple(frontier), trials=trials)

    def _restricted_to(self, recipe: Recipe) -> list[ObservedImage]:
        return list(self.images) if recipe == self.masks else restrict_images(self.images, recipe)

    @cached_property
    def _halves(self) -> list[Ints]:
        return split_images(len(self.images), 2, self.spec.seed)

    @cached_property
    def _relaxed(self) -> SearchSpec:
        image_set = ImageSet.from_images(self.images, self.label_map)
        return relax_target(self.spec, [image_set.subset(half) for half in self._halves])[0]

    def _each(self, work: Callable[[LabelTuner, RecipeTrial], A], recipes: Sequence[RecipeTrial]) -> Iterator[A]:
        if self.processes == 1:
            yield from map(partial(work, self), recipes)
            return
        with process_pool(self.processes, replace, replace(self, processes=1, on_trial=None)) as submit:
            for future in [submit(work, recipe) for recipe in recipes]:
                yield future.result()


def settings_at_alpha(search: SearchSpec, alpha: float) -> EvaluationSettings:
    """Return the settings of the line at this alpha: beta and the low scores are shares of it."""
    kind: RuleKind = "evidence" if "evidence" in search.rule_kinds else "paper"
    start, beta = search.choices_of(kind).start(search.settings()), BETA_SHARE * alpha
    low = (LOW_SHARE * alpha, LOW_SHARE * beta) if kind == "evidence" else None
    return with_scores(start, search.mask_floor, alpha, beta, low, POWERS[0])


class CachedImageSet(DefendedImageSet):
    """Certifies a rule once for all base thresholds: many settings differ in that alone."""

    @cached_property
    def _known(self) -> dict[tuple[PruningRule, ThreatModel], tuple[Bools, Bools]]:
        return {}

    def certified(
        self, rule: PruningRule, threat: ThreatModel, patches: list[Patch] | None = None
    ) -> tuple[Bools, Bools]:
        if patches is not None:
            return super().certified(rule, threat, patches)
        key = rule.with_thresholds(0.0, rule.mask_threshold, rule.evidence_threshold), threat
        if key not in self._known:
            self._known[key] = super().certified(rule, threat)
        return self._known[key]


class SettingsScorer:
    """Measures settings on one image_set, and keeps what they share."""

    def __init__(self, image_set: ImageSet, search: SearchSpec) -> None:
        self._scene = image_set
        self._search = search
        self._replayed: dict[tuple[object, ...], DefendedImageSet] = {}
        self._undefended_ap50: dict[int, float] = {}

    def full(self, settings: EvaluationSettings, found: Trial | None = None) -> Trial:
        """By the full protocol; at the rule that was found on other images, if any was."""
        defended = self._shared(settings)
        curve = defended.curve(settings)
        if found is None:
            point = defended.at_operating_point(settings, curve)
        else:
            assert found.outcome.rule is not None  # otherwise it would not have been chosen
            point = defended.at(settings, found.outcome.rule)
        return replace(self._trial(settings, curve, point), undefended_clean_recall=self._undefended_clean_recall)

    def coarse(self, settings: EvaluationSettings) -> Trial:
        """Measure AP at every COARSE-th base threshold; recalls where the full protocol has them."""
        defended = self._shared(settings)
        curve = defended.curve(settings, BASE_THRESHOLDS[::COARSE])
        if self._loss(curve) > self._search.every_loss[-1]:  # certifying takes most of the time
            return self._trial(settings, curve, None)
        return self._trial(settings, curve, self._between(settings, defended, curve))

    def _between(
        self, settings: EvaluationSettings, defended: DefendedImageSet, curve: Curve
    ) -> DefendedOutcome | None:
        """The operating point among the base_thresholds next to that of a coarse curve.

        False positives may be too many between two points of the coarse curve, too: that is for `full`.
        """
        row = operating_row_of(settings, curve)
        if settings.fppi is None:
            if row is None:
                return None
            nearby = BASE_THRESHOLDS[row * COARSE : (row + 1) * COARSE]
        else:
            row = len(curve.base_thresholds) if row is None else row
            nearby = BASE_THRESHOLDS[max(0, (row - 1) * COARSE + 1) : row * COARSE + 1]
        return defended.at_operating_point(settings, defended.curve(settings, nearby))

    def loss(self, settings: EvaluationSettings) -> float:
        """The points of AP50 that settings cost, as `coarse` measures them, without a certificate."""
        return self._loss(self._shared(settings).curve(settings, BASE_THRESHOLDS[::COARSE]))

    @cached_property
    def _undefended_clean_recall(self) -> float | None:
        """Return the undefended clean recall at the operating point that is searched at."""
        curve = undefended_curve(self._scene)
        row = operating_row_of(self._search.settings(), curve)
        return None if row is None else float(curve.clean_recall[row])

    def _trial(self, settings: EvaluationSettings, curve: Curve, point: DefendedOutcome | None) -> Trial:
        outcome = replace(DefendedOutcome(settings=settings, curve=curve) if point is None else point, curve=curve)
        locations = self._search.locations
        certified = [outcome.certified_recall()[where] for where in locations]
        known = [share for share in certified if share is not None]
        mean = sum(known) / len(known) if known else None
        return Trial(settings, outcome, self._undefended_by(curve), self._loss(curve), mean, locations=locations)

    def _loss(self, curve: Curve) -> float:
        return self._undefended_by(curve) - curve.mean_ap50

    def _undefended_by(self, curve: Curve) -> float:
        """The undefended AP50 at the same base_thresholds."""
        size = len(curve.base_thresholds)
        if size not in self._undefended_ap50:
            self._undefended_ap50[size] = undefended_curve(self._scene, curve.base_thresholds).mean_ap50
        return self._undefended_ap50[size]

    def _shared(self, settings: EvaluationSettings) -> DefendedImageSet:
        key = (settings.rule.kind, *settings.rule.candidate_key.items())
        if key not in self._replayed:
            self._replayed[key] = CachedImageSet.from_settings(self._scene, settings, floor=self._search.mask_floor)
        return self._replayed[key]


class HillClimb:
    """The settings tried so far, and which to try next."""

    def __init__(
        self, bench: SettingsScorer, search: SearchSpec, on_trial: Callable[[Trial], None] | None = None
    ) -> None:
        self.trials: dict[EvaluationSettings, Trial] = {}
        self._bench = bench
        self._search = search
        self._on_attempt = on_trial

    def run(self, kind: RuleKind) -> None:
        """Try the grid, then for each loss steps from the best settings within it, for as long as they help."""
        choices, floor = self._search.choices_of(kind), self._search.mask_floor
        self._try(grid(choices.start(self._search.settings()), kind, floor))
        self._try(start for start in self._search.starts if rule_kind_of(start) == kind)
        for step, loss in product(STEPS, self._search.every_loss):
            for _ in range(MOST_ROUNDS):
                best = self._ranked(kind, loss)[:STARTS]
                for start in best:
                    self._try(choices.moves(start.settings))
                    self._try(moves(start.settings, step, floor))
                if self._ranked(kind, loss)[0] is best[0]:
                    break

    def pick(self, kind: RuleKind, loss: float) -> EvaluationSettings | None:
        """The best settings that keep within the loss by the full protocol, too."""
        for trial in self._ranked(kind, loss):
            if _within(trial, loss) and _within(self._bench.full(trial.settings), loss):
                return trial.settings
        return None

    def why_nothing(self) -> str:
        """A sentence for a search in which no kind has a setting within the loss."""
        trials = self.trials.values()
        reached = [one.ap_loss for one in trials if operating_row_of(one.settings, one.outcome.curve) is not None]
        if reached:
            return (
                f"no setting loses at most {self._search.max_ap_loss:g} points of AP50; "
                f"the smallest loss found is {min(reached):.2f}, so allow more"
            )
        if self._search.fppi is not None:
            fewest = min(float(trial.outcome.curve.fppi[-1]) for trial in trials)
            most = describe_fppi(self._search.fppi)
            return f"no setting gives {most}; the fewest at the highest base_threshold are {fewest:.3g}, so allow more"
        wanted = 100 * self._search.recall
        highest = max(trial.outcome.max_clean_recall for trial in trials)
        return f"no setting reaches a clean recall of {wanted:g} %; the highest is {highest:.2f} %, so ask for less"

    def _try(self, candidates: Iterable[EvaluationSettings]) -> None:
        for settings in candidates:
            if settings not in self.trials:
                self.trials[settings] = trial = self._bench.coarse(settings)
                if self._on_attempt is not None:
                    self._on_attempt(trial)

    def _ranked(self, kind: RuleKind, loss: float) -> list[Trial]:
        """The kind's trials: those within the loss by falling gain, then the others by rising loss."""
        mine = [trial for trial in self.trials.values() if trial.kind == kind]
        return sorted(mine, key=lambda one: (0, -one.gain, one.ap_loss) if _within(one, loss) else (1, one.ap_loss, 0))


def rule_kind_of(settings: EvaluationSettings) -> RuleKind:
    return "paper" if settings.threshold_schedule.evidence_alpha is None else "evidence"


def _within(trial: Trial, loss: float) -> bool:
    return trial.gain > NO_GAIN and trial.ap_loss <= loss


def grid(settings: EvaluationSettings, kind: RuleKind, floor: float) -> Iterator[EvaluationSettings]:
    """Yield the settings that a search begins with."""
    power = power_of(settings.rule)
    for alpha, beta in product(*GRID[kind]):
        if kind == "paper":
            yield with_scores(settings, floor, alpha, beta, None, power)
        else:
            for share, tried in product(LOW_SHARES, POWERS):
                yield with_scores(settings, floor, alpha, beta, (share * alpha, share * beta), tried)


def moves(settings: EvaluationSettings, step: float, floor: float) -> Iterator[EvaluationSettings]:
    """The settings one step away, one value at a time."""
    follow, power = settings.threshold_schedule, power_of(settings.rule)
    alpha, beta = follow.alpha, follow.beta
    for by in (-step, step):
        if follow.evidence_alpha is None or follow.evidence_beta is None:
            yield with_scores(settings, floor, alpha + by, beta, None, power)
            yield with_scores(settings, floor, alpha, beta + by, None, power)
        else:
            evidence_alpha, evidence_beta = follow.evidence_alpha, follow.evidence_beta
            yield with_scores(settings, floor, alpha + by, beta, (evidence_alpha, evidence_beta), power)
            yield with_scores(settings, floor, alpha, beta + by, (evidence_alpha, evidence_beta), power)
            yield with_scores(settings, floor, alpha, beta, (evidence_alpha + by, evidence_beta), power)
            yield with_scores(settings, floor, alpha, beta, (evidence_alpha, evidence_beta + by), power)
            yield with_scores(settings, floor, alpha, beta, (evidence_alpha, evidence_beta), power + POWER_STEP * by)


def power_of(rule: PruningRule) -> float:
    """The exponent of evidence; 1 for rules that have none."""
    return float(rule.settings().get("evidence_power", 1.0))


def with_scores(
    settings: EvaluationSettings, floor: float, alpha: float, beta: float, low: tuple[float, float] | None, power: float
) -> EvaluationSettings:
    """Return `settings` with these values, rounded and within their limits."""
    alpha, beta = _clip(alpha, floor, 1.0), _clip(beta, 0.0, 1.0)
    if low is None:
        return settings.with_schedule(alpha=alpha, beta=beta, evidence_alpha=None, evidence_beta=None)
    evidence_alpha, evidence_beta = _clip(low[0], floor, alpha), _clip(low[1], 0.0, beta)
    chosen = settings.with_rule(evidence_power=max(round(power, 4), SMALLEST_POWER))
    return chosen.with_schedule(alpha=alpha, beta=beta, evidence_alpha=evidence_alpha, evidence_beta=evidence_beta)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(round(value, 4), low), high)


def _require_some(values: Collection[str], known: Collection[str], name: str) -> None:
    if not values or not set(values) <= set(known):
        raise ObjectSeekerError(f"{name} must be some of {', '.join(known)}: got {list(values)!r}")
