"""Finding settings: the most certified recall for a given loss of clean AP.

The images are split in two. Settings are searched on one half, a coarse grid first and then ever smaller steps around
the best, and what was found is measured on the other half, which the search has not seen. This is done for the paper's
rule and for the evidence rule, and for several losses: the frontier of what AP can be traded for. Everything that
settings share is computed once; one setting then costs a curve and its certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Literal, get_args

from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import WHERES, Where
from objectseeker.errors import ObjectSeekerError, require_fraction, require_number
from objectseeker.evaluation.curves import Curve, vanilla_curve
from objectseeker.evaluation.defence import Defence, OperatingPoint
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import BASE_SCORES, Settings
from objectseeker.evaluation.summary import Row
from objectseeker.evaluation.sweeps import outcome, split

Family = Literal["paper", "evidence"]
RecallOf = Literal["defended", "vanilla"]

FAMILIES: tuple[Family, ...] = get_args(Family)
NOT_REACHED = -1.0

# The coarse grid: alphas and betas, and for the evidence rule, which has more to choose, fewer of them. Its low_alpha
# and low_beta start as shares of its alpha and beta.
GRID: dict[Family, tuple[tuple[float, ...], tuple[float, ...]]] = {
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

STRIDE = 4  # while searching, a curve has every fourth base_score


@dataclass(frozen=True, slots=True)
class Attempt:
    """One setting and what it gave: the columns of the sweeps and those of `Bench`."""

    settings: Settings
    row: Row

    @property
    def family(self) -> Family:
        return "paper" if self.settings.low_alpha is None else "evidence"

    @property
    def loss(self) -> float:
        return float(self.row["ap50_loss"])

    @property
    def gain(self) -> float:
        mean = self.row["certified_mean"]
        return NOT_REACHED if mean is None else float(mean)

    def to_row(self) -> Row:
        return asdict(self.settings) | self.row


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best setting of one family within an allowed loss, measured by the full protocol."""

    most_loss: float
    settings: Settings
    searched: Row  # on the half that was searched
    held_out: Row  # on the other half


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune` found: the best of each family, its frontier by ascending loss, and everything that was tried."""

    families: dict[Family, Tuned]
    frontier: dict[Family, tuple[Tuned, ...]]
    attempts: tuple[Attempt, ...]

    @property
    def best(self) -> Tuned:
        return max(self.families.values(), key=lambda tuned: float(tuned.searched["certified_mean"]))

    def to_json(self) -> Row:
        return {
            "best": asdict(self.best),
            "families": {family: asdict(tuned) for family, tuned in self.families.items()},
            "frontier": {family: [asdict(one) for one in found] for family, found in self.frontier.items()},
            "attempts": [attempt.to_row() for attempt in self.attempts],
        }


@dataclass(frozen=True, slots=True)
class Choices:
    """The values a search may choose from, besides scores and power. It starts from the first of each."""

    filter_ioa: tuple[float, ...] = (0.6, 0.5, 0.7)
    edge_factor: tuple[float, ...] = (0.85, 1.0, 0.7, 0.5)
    cluster_distance: tuple[float, ...] = (0.1, 0.2, 0.3)

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name):
                raise ObjectSeekerError(f"{field.name} must have at least one value to choose from, got none")

    def start(self, settings: Settings) -> Settings:
        """`settings` with the first of every choice."""
        return replace(
            settings,
            filter_ioa=self.filter_ioa[0],
            edge_factor=self.edge_factor[0],
            cluster_distance=self.cluster_distance[0],
        )

    def moves(self, settings: Settings) -> Iterator[Settings]:
        """`settings` with one choice moved to the next value up or down."""
        for name in ("filter_ioa", "edge_factor", "cluster_distance"):
            values = sorted(getattr(self, name))
            place = values.index(getattr(settings, name))
            for next_place in (place - 1, place + 1):
                if 0 <= next_place < len(values):
                    yield replace(settings, **{name: values[next_place]})


def tune(
    images: Sequence[ObservedImage],
    names: Sequence[str],
    settings: Settings,
    *,
    mask_floor: float,
    families: Sequence[Family] = FAMILIES,
    wheres: Sequence[Where] = ("far", "close", "over"),
    most_loss: float = 1.0,
    losses: Sequence[float] = LOSSES,
    choices: Choices | None = None,
    recall_of: RecallOf = "defended",
    seed: int = 0,
    half: int = 0,
    on_attempt: Callable[[Attempt], None] | None = None,
) -> Tuning:
    """Search alpha, beta and filter_ioa and, for the evidence rule, low_alpha, low_beta, power and the other choices.

    The paper's rule knows neither an edge_factor nor another cluster_distance than its own.

    What is maximised is the mean certified recall over `wheres` at `settings.clean_recall`, among the settings that
    lose at most `most_loss` points of AP50 against the undefended detector, and for the frontier at most each of
    `losses`. Everything else is as in `settings`. No masked score below `mask_floor`, where the run's stored boxes
    end, is used. `on_attempt` is called after every setting. With `recall_of` "vanilla" the clean recall is that of the
    undefended detector: masks find objects, too, so this is at a lower base_score. `seed` splits the images, `half`, 0
    or 1, is the half that is searched.
    """
    require_fraction(mask_floor, "mask_floor")
    losses = sorted({require_number(loss, "most_loss") for loss in (most_loss, *losses)})
    _require_some(families, FAMILIES, "families")
    _require_some(wheres, WHERES, "wheres")
    _require_some([recall_of], get_args(RecallOf), "recall_of")
    choices = choices or Choices()
    by_family: dict[Family, Choices] = {
        "paper": Choices(choices.filter_ioa, (1.0,), (0.1,)),
        "evidence": choices,
    }
    scene = Scene.of(images, names)
    both = [Bench(scene.subset(index), mask_floor, wheres, recall_of) for index in split(len(scene.images), 2, seed)]
    seen, unseen = both[half], both[1 - half]
    search = Search(seen, settings, by_family, on_attempt)
    frontier: dict[Family, tuple[Tuned, ...]] = {}
    for family in families:
        search.run(family, losses)
        best = {loss: search.pick(family, loss) for loss in losses}
        frontier[family] = tuple(
            Tuned(loss, found, seen.full(found).row, unseen.full(found).row)
            for loss, found in best.items()
            if found is not None
        )
    tuned = {family: one for family, found in frontier.items() for one in found if one.most_loss == most_loss}
    if not tuned:
        raise ObjectSeekerError(search.why_nothing(most_loss))
    return Tuning(tuned, frontier, tuple(search.attempts.values()))


class Bench:
    """Measures settings on one scene, and keeps what they share.

    A row has the columns of the sweeps and vanilla_ap50, ap50_loss (the points of AP50 that the defence costs) and
    certified_mean (over the chosen places; None if the clean recall is not reached).
    """

    def __init__(
        self, scene: Scene, mask_floor: float, wheres: Sequence[Where], recall_of: RecallOf = "defended"
    ) -> None:
        self.mask_floor = mask_floor
        self._scene = scene
        self._wheres = tuple(wheres)
        self._defences: dict[tuple[float, float, float], Defence] = {}
        self._vanilla: dict[int, float] = {}
        self._undefended = vanilla_curve(scene) if recall_of == "vanilla" else None

    def full(self, settings: Settings) -> Attempt:
        """By the full protocol."""
        defence = self._defence(settings)
        curve = defence.curve(settings)
        point = defence.at_recall(settings, curve) if self._undefended is None else self._at_vanilla(settings, defence)
        return self._attempt(settings, curve, point)

    def coarse(self, settings: Settings) -> Attempt:
        """AP at every STRIDE-th base_score, defended and undefended; recalls where the full protocol has them."""
        defence = self._defence(settings)
        curve = defence.curve(settings, BASE_SCORES[::STRIDE])
        if self._undefended is not None:
            return self._attempt(settings, curve, self._at_vanilla(settings, defence))
        row, point = curve.row_at_recall(settings.clean_recall), None
        if row is not None:
            rest = defence.curve(settings, BASE_SCORES[row * STRIDE : (row + 1) * STRIDE])
            point = defence.at_recall(settings, rest)
        return self._attempt(settings, curve, point)

    def _at_vanilla(self, settings: Settings, defence: Defence) -> OperatingPoint | None:
        """Where the undefended detector reaches the clean recall."""
        assert self._undefended is not None
        row = self._undefended.row_at_recall(settings.clean_recall)
        if row is None:
            return None
        return defence.at(settings, defence.curve(settings, self._undefended.base_scores[[row]]), 0)

    def _attempt(self, settings: Settings, curve: Curve, point: OperatingPoint | None) -> Attempt:
        size = len(curve.base_scores)
        if size not in self._vanilla:
            self._vanilla[size] = vanilla_curve(self._scene, curve.base_scores).mean_ap50
        row = outcome(curve, point)
        certified = [row[f"certified_{where}"] for where in self._wheres]
        row["vanilla_ap50"] = self._vanilla[size]
        row["ap50_loss"] = self._vanilla[size] - row["ap50"]
        row["certified_mean"] = None if point is None else sum(certified) / len(certified)
        return Attempt(settings, row)

    def _defence(self, settings: Settings) -> Defence:
        key = settings.filter_ioa, settings.edge_factor, settings.cluster_distance
        if key not in self._defences:
            self._defences[key] = Defence.prepare(self._scene, settings, floor=self.mask_floor)
        return self._defences[key]


class Search:
    """The settings tried so far, and which to try next."""

    def __init__(
        self,
        bench: Bench,
        settings: Settings,
        choices: Mapping[Family, Choices],
        on_attempt: Callable[[Attempt], None] | None,
    ) -> None:
        self.attempts: dict[Settings, Attempt] = {}
        self._bench = bench
        self._settings = settings
        self._choices = choices
        self._on_attempt = on_attempt

    def run(self, family: Family, losses: Sequence[float]) -> None:
        """Try the grid, then for each loss steps from the best settings within it, for as long as they help."""
        choices, floor = self._choices[family], self._bench.mask_floor
        self._try(grid(choices.start(self._settings), family, floor))
        for step, loss in product(STEPS, losses):
            for _ in range(MOST_ROUNDS):
                best = self._ranked(family, loss)[:STARTS]
                for start in best:
                    self._try(choices.moves(start.settings))
                    self._try(moves(start.settings, step, floor))
                if self._ranked(family, loss)[0] is best[0]:
                    break

    def pick(self, family: Family, loss: float) -> Settings | None:
        """The best settings that keep within the loss by the full protocol, too."""
        for attempt in self._ranked(family, loss):
            if _within(attempt, loss) and _within(self._bench.full(attempt.settings), loss):
                return attempt.settings
        return None

    def why_nothing(self, loss: float) -> str:
        """A sentence for a search in which no family has a setting within the loss."""
        reached = [attempt.loss for attempt in self.attempts.values() if attempt.gain > NOT_REACHED]
        if reached:
            return (
                f"no setting loses at most {loss:g} points of AP50; "
                f"the smallest loss found is {min(reached):.2f}, so allow more"
            )
        wanted = 100 * self._settings.clean_recall
        highest = max(attempt.row["highest_clean_recall"] for attempt in self.attempts.values())
        return f"no setting reaches a clean recall of {wanted:g} %; the highest is {highest:.2f} %, so ask for less"

    def _try(self, candidates: Iterable[Settings]) -> None:
        for settings in candidates:
            if settings not in self.attempts:
                self.attempts[settings] = attempt = self._bench.coarse(settings)
                if self._on_attempt is not None:
                    self._on_attempt(attempt)

    def _ranked(self, family: Family, loss: float) -> list[Attempt]:
        """The family's attempts: those within the loss by falling gain, then the others by rising loss."""
        mine = [attempt for attempt in self.attempts.values() if attempt.family == family]
        return sorted(mine, key=lambda one: (0, -one.gain, one.loss) if _within(one, loss) else (1, one.loss, 0))


def _within(attempt: Attempt, loss: float) -> bool:
    return attempt.gain > NOT_REACHED and attempt.loss <= loss


def grid(settings: Settings, family: Family, floor: float) -> Iterator[Settings]:
    """Where a search begins."""
    for alpha, beta in product(*GRID[family]):
        if family == "paper":
            yield _with_scores(settings, floor, alpha, beta, None, settings.power)
        else:
            for share, power in product(LOW_SHARES, POWERS):
                yield _with_scores(settings, floor, alpha, beta, (share * alpha, share * beta), power)


def moves(settings: Settings, step: float, floor: float) -> Iterator[Settings]:
    """The settings one step away, one value at a time."""
    alpha, beta, power = settings.alpha, settings.beta, settings.power
    for by in (-step, step):
        if settings.low_alpha is None or settings.low_beta is None:
            yield _with_scores(settings, floor, alpha + by, beta, None, power)
            yield _with_scores(settings, floor, alpha, beta + by, None, power)
        else:
            low_alpha, low_beta = settings.low_alpha, settings.low_beta
            yield _with_scores(settings, floor, alpha + by, beta, (low_alpha, low_beta), power)
            yield _with_scores(settings, floor, alpha, beta + by, (low_alpha, low_beta), power)
            yield _with_scores(settings, floor, alpha, beta, (low_alpha + by, low_beta), power)
            yield _with_scores(settings, floor, alpha, beta, (low_alpha, low_beta + by), power)
            yield _with_scores(settings, floor, alpha, beta, (low_alpha, low_beta), power + POWER_STEP * by)


def _with_scores(
    settings: Settings, floor: float, alpha: float, beta: float, low: tuple[float, float] | None, power: float
) -> Settings:
    """`settings` with these values, rounded and kept within their limits: low ones do not exceed the others."""
    alpha, beta = _clip(alpha, floor, 1.0), _clip(beta, 0.0, 1.0)
    if low is None:
        return replace(settings, alpha=alpha, beta=beta, low_alpha=None, low_beta=None)
    low_alpha, low_beta = _clip(low[0], floor, alpha), _clip(low[1], 0.0, beta)
    power = max(round(power, 4), SMALLEST_POWER)
    return replace(settings, alpha=alpha, beta=beta, low_alpha=low_alpha, low_beta=low_beta, power=power)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(round(value, 4), low), high)


def _require_some(values: Collection[str], known: Collection[str], name: str) -> None:
    if not values or not set(values) <= set(known):
        raise ObjectSeekerError(f"{name} must be some of {', '.join(known)}, got {list(values)!r}")
