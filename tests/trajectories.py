"""Sequences of small images, and every path of a patch through them: what certificates over time are held against.

    python tests/trajectories.py 5000        that many sequences against all paths, and as many games

`hidden` decides single positions by the oracle; `literal` goes through all paths one by one, `reachable` through sets
of pixels, frame by frame; `campaign` is an attacker at the level of boxes who moves her patch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import pairwise, product
from typing import Any

import adversary
import numpy as np
import oracle
from cases import Case, generate

from objectseeker import Bands, Halves, Patch, Rule
from objectseeker.core.masks import Masks
from objectseeker.core.recipes import Recipe, Rolling
from objectseeker.core.temporal import UNBOUNDED_MOTION, FramePositions, earliest_uncertified_start, frame_positions
from objectseeker.core.threats import PATCH_LOCATIONS

MOST_PATHS = 50_000


@dataclass(frozen=True)
class Sequence:
    """The frames of a window, each seen under its share of the masks; the object is the first of each frame."""

    frames: list[Case]
    rule: Rule
    patch: Patch
    certification_threshold: float

    @property
    def size(self) -> tuple[int, int]:
        return self.frames[0].observation.width, self.frames[0].observation.height

    @property
    def places(self) -> tuple[int, int]:
        """How many positions there are along each axis."""
        width, height = self.patch.size(*self.size)
        return self.size[0] + width - 1, self.size[1] + height - 1

    @cached_property
    def track(self) -> list[FramePositions]:
        return [
            frame_positions(
                self.rule,
                f.observation,
                f.ground_truth[:1],
                self.patch,
                certification_threshold=self.certification_threshold,
            )[0]
            for f in self.frames
        ]

    @cached_property
    def maps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Where the patch may be and where it may hide the object, frame by frame: (x, y)."""
        return [hidden(case, self) for case in self.frames]


def _masks(recipe: Recipe, width: int, height: int, _: object) -> Masks:
    return recipe.masks(width, height)


def sequence(seed: int, *, largest: int = 5, frames: int | None = None) -> Sequence:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5)) if frames is None else frames
    recipe = [Halves(int(rng.integers(1, 6))), Bands(float(rng.choice([0.05, 0.2])))][int(rng.random() < 0.3)]
    recipe = recipe + Halves(2) if isinstance(recipe, Bands) and rng.random() < 0.5 else recipe
    rolling, start = Rolling(recipe, int(rng.integers(1, count + 1))), int(rng.integers(5))
    side = int(rng.integers(2, largest + 1))
    cases = [
        generate(
            int(rng.integers(2**32)),
            smallest=side,
            largest=side,
            make=partial(_masks, rolling.recipe_for_frame(start + t)),
            crowd=0.9,
            generous=0.3,
            sure=0.95,
            torn=0.2,
        )
        for t in range(count)
    ]
    evidence: dict[str, Any] = (
        {"evidence_threshold": 0.1, "cluster_distance": float(rng.choice([0.1, 0.3]))} if rng.random() < 0.5 else {}
    )
    rule = Rule(mask_threshold=float(rng.choice([0.25, 0.5, 0.75])), classwise=bool(rng.random() < 0.7), **evidence)
    where = "anywhere" if rng.random() < 0.7 else str(rng.choice(PATCH_LOCATIONS))
    patch = Patch(float(rng.choice([0.01, 0.1, 0.3])), float(rng.choice([0.5, 1.0, 2.0])), where)  # type: ignore[arg-type]
    return Sequence(cases, rule, patch, float(rng.choice([0.0, 0.25])))


def proofs_of(case: Case, made: Sequence) -> tuple[list[tuple], Callable[[tuple[int, ...]], bool]]:
    """The masked boxes that carry evidence for the object, and whether some of them, by number, are enough."""
    rule = made.rule
    every = oracle.proving(
        case.observation, case.ground_truth, 0, rule.filter_ioa, made.certification_threshold, "exact", rule.classwise
    )
    weighed = [
        (mask, box, oracle.evidence_of(score, rule.mask_threshold, rule.evidence_threshold, rule.evidence_power))
        for mask, _, box, score in every
    ]
    proofs = [proof for proof in weighed if proof[2] > 0]
    close = 1 - Fraction(str(rule.cluster_distance))
    linked = [[a is b or max(oracle.ioa(a[1], b[1]), oracle.ioa(b[1], a[1])) > close for b in proofs] for a in proofs]

    @cache
    def enough(present: tuple[int, ...]) -> bool:
        stars = oracle.groups(present, linked, "star")
        return any(oracle.enough([proofs[i] for i in star]) for star in stars)

    return proofs, enough


def hidden(case: Case, made: Sequence) -> tuple[np.ndarray, np.ndarray]:
    pixels = made.patch.size(*made.size)
    g = oracle.boxes_of(case.ground_truth)[0]
    if oracle.size(g) == 0 or not oracle.seen(g, *made.size):
        return np.ones(made.places, bool), np.ones(made.places, bool)
    allowed = oracle.allowed(made.patch.location, g, *made.size, pixels)
    proofs, enough = proofs_of(case, made)
    removing = oracle.removed(case.observation, pixels)
    unproven = np.ones_like(allowed)
    for y, x in np.ndindex(allowed.shape):
        unproven[y, x] = not enough(tuple(i for i, (mask, _, _) in enumerate(proofs) if removing[mask, y, x]))
    return allowed.T, (allowed & unproven).T


@cache
def paths(places: tuple[int, int], frames: int, reach: int) -> np.ndarray:
    """Every path of positions, x * places[1] + y, whose steps are at most `reach` along each axis: (paths, frames)."""
    points = np.array(list(product(range(places[0]), range(places[1]))))
    near = (abs(points[:, None] - points[None]) <= reach).all(axis=-1)
    every = np.array(list(product(range(len(points)), repeat=frames)))
    return every[np.all([near[a, b] for a, b in pairwise(every.T)], axis=0)]


def literal(made: Sequence, reach: int) -> int | None:
    """The fewest reports over all paths, one by one; None if there is no path."""
    every = paths(made.places, len(made.frames), reach)
    may = np.all([allowed.ravel()[every[:, t]] for t, (allowed, _) in enumerate(made.maps)], axis=0)
    reports = np.sum([~unproven.ravel()[every[:, t]] for t, (_, unproven) in enumerate(made.maps)], axis=0)
    return int(reports[may].min()) if may.any() else None


def fewest(made: Sequence, reach: int) -> list[np.ndarray]:
    """For every frame and position the fewest reports on the way there, by sets of pixels; infinity if none leads."""
    found: list[np.ndarray] = []
    for allowed, unproven in made.maps:
        before = grown(found[-1], reach) if found else np.zeros(made.places)
        found.append(np.where(allowed, before + ~unproven, np.inf))
    return found


def grown(least: np.ndarray, reach: int) -> np.ndarray:
    """The smallest entry within `reach` along each axis of every position."""
    for axis in (0, 1):
        places = np.arange(least.shape[axis])
        rows = [least.take(places[abs(places - p) <= reach], axis).min(axis) for p in places.tolist()]
        least = np.stack(rows, axis)
    return least


def reachable(made: Sequence, reach: int) -> int | None:
    least = fewest(made, reach)[-1].min()
    return None if np.isinf(least) else int(least)


def best_path(made: Sequence, reach: int, rng: np.random.Generator) -> list[tuple[int, int]] | None:
    """One of the paths with the fewest reports, as indices of positions."""
    layers = fewest(made, reach)
    path: list[tuple[int, int]] = []
    least = layers[-1]
    for t in range(len(layers) - 1, -1, -1):
        ends = np.argwhere(least == least.min())
        if np.isinf(least.min()):
            return None
        x, y = map(int, ends[rng.integers(len(ends))])
        path.append((x, y))
        near = np.full(made.places, np.inf)
        if t:
            some = slice(max(x - reach, 0), x + reach + 1), slice(max(y - reach, 0), y + reach + 1)
            near[some] = layers[t - 1][some]
        least = near
    return path[::-1]


def certified(made: Sequence, reach: int, times: int = 1) -> bool:
    """What the package says of the whole window."""
    return earliest_uncertified_start(made.track, reach, times)[-1] > 0


def compare(seed: int) -> tuple[bool, bool]:
    """One sequence against all its paths; whether it was certified once, and whether it was open."""
    made = sequence(seed)
    while (made.places[0] * made.places[1]) ** len(made.frames) > MOST_PATHS:
        made = Sequence(made.frames[:-1], made.rule, made.patch, made.certification_threshold)
    verdicts = set()
    for reach in (0, 1, 2, UNBOUNDED_MOTION):
        least = literal(made, min(reach, 99))
        for times in (1, 2):
            expected = least is None or least >= times
            assert certified(made, reach, times) == expected, (seed, reach, times, least)
            verdicts.add(expected)
    return True in verdicts, False in verdicts


def hides(made: Sequence, t: int, place: tuple[int, int], rng: np.random.Generator) -> bool:
    """Can an attacker hide the object in frame t with the patch there? She tries everything she knows."""
    observation, truth = made.frames[t].observation, made.frames[t].ground_truth
    width, height = made.patch.size(*made.size)
    x, y = place[0] + 1 - width, place[1] + 1 - height
    first, last = np.maximum([x, y], 0), np.minimum([x + width, y + height], made.size)
    gone = oracle.shows_none_of(observation, first, last)
    target = adversary.Target(
        observation,
        truth.xyxy[0],
        int(truth.label[0]),
        np.flatnonzero(gone).tolist(),
        np.flatnonzero(~gone).tolist(),
        made.rule.filter_ioa,
        made.certification_threshold,
        made.rule.classwise,
    )
    return any(
        adversary.play(target, strategy(target, rng), made.rule.prune)
        for strategy in adversary.STRATEGIES.values()
        if strategy is not adversary.every_harmless_box
    )


def campaign(seed: int, games: int, *, mistake: int = 0) -> dict[str, int]:
    """Windows that an attacker kept the object hidden in for all frames; `mistake` is taken from the pixels of growth.

    Only windows with an object to be seen in every frame are played: an object that is not there is not reported.
    """
    rng = np.random.default_rng(seed)
    score = {"certified": 0, "certified hidden": 0, "open": 0, "open hidden": 0}
    while games > 0:
        made = sequence(int(rng.integers(2**32)), largest=8)
        reach = int(rng.integers(mistake, 4))
        boxes = [oracle.boxes_of(case.ground_truth)[0] for case in made.frames]
        path = best_path(made, reach, rng)
        if path is None or not all(oracle.size(g) and oracle.seen(g, *made.size) for g in boxes):
            continue
        games -= 1
        kind = "certified" if certified(made, reach - mistake) else "open"
        score[kind] += 1
        score[f"{kind} hidden"] += all(hides(made, t, place, rng) for t, place in enumerate(path))
    return score


if __name__ == "__main__":
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    verdicts = [compare(seed) for seed in range(trials)]
    print("certified at some reach:", sum(a for a, _ in verdicts), "open at some:", sum(b for _, b in verdicts))
    print("honest:", campaign(0, trials))
    print("grown by one pixel too little:", campaign(0, trials, mistake=1))
