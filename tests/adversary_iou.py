"""An attacker at the level of boxes against the IoU variant, who knows everything.

She picks an allowed position of the patch. Masks that remove it give the boxes they always gave; she writes the base
boxes and the boxes of all other masks, with labels and scores, as she likes. She wins when no output box has an IoU
above T with the object. `python tests/adversary_iou.py TRIALS [SEED]` plays that many games.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import cast

import numpy as np
import oracle
import oracle_iou
from cases import SCORES, Case

from objectseeker import Detections, Halves, Observation, Patch, Rule
from objectseeker.core.bounds import Bound
from objectseeker.core.boxes import ioa, iou
from objectseeker.core.rules.iou import IouRule, nms_survivors, non_overlapping, select_masked
from objectseeker.core.threats import PatchLocation, PatchPositions, patch_sizes

SLIGHTLY = 1e-7
POSITIONS = 4  # tried per object
NOTHING = Detections.empty()
Row = tuple[np.ndarray, float, int]  # box, score, label
Defense = Callable[[IouRule, Observation], Detections]


@dataclass(frozen=True)
class Target:
    """One object, the boxes the attacker cannot change, and the masks she can write."""

    observation: Observation
    rule: IouRule
    g: np.ndarray
    label: int
    fixed: list[int]  # masks that remove the patch
    free: list[int]
    certification_threshold: float

    @cached_property
    def survivors(self) -> np.ndarray:
        """The unchangeable boxes that could reveal the object: clear, confident, of its label."""
        boxes, mask_of = self.observation.all_masked, self.observation.mask_index
        usable = np.isin(mask_of, self.fixed) & (boxes.score >= self.rule.ioa_rule.mask_threshold)
        usable &= non_overlapping(boxes.xyxy, mask_of, self.observation.masks)
        return np.unique(boxes.xyxy[usable & ((boxes.label == self.label) | (not self.rule.classwise))], axis=0)

    @cached_property
    def worst(self) -> np.ndarray:
        """For every survivor the box that replaces it and fits the object least: a slice, or the survivor extended."""
        return worst_boxes(self.survivors, self.g, self.rule.filter_iou * (1 + SLIGHTLY))

    @cached_property
    def chains(self) -> list[list[np.ndarray]]:
        """For every survivor boxes that each replace the one before, until the last no longer fits the object."""
        links, fitting = [self.worst], np.ones(len(self.worst), dtype=bool)
        lists = [[b] for b in self.worst]
        for _ in range(8):
            fitting &= iou(links[-1], self.g[None])[:, 0] > self.certification_threshold
            links.append(worst_boxes(links[-1], self.g, self.rule.filter_iou * (1 + SLIGHTLY)))
            for n in np.flatnonzero(fitting):
                lists[n].append(links[-1][n])
        return lists


@dataclass
class Move:
    """What the attacker writes."""

    base: list[Row] = field(default_factory=list)
    masked: dict[int, list[Row]] = field(default_factory=dict)

    @classmethod
    def with_blanket(cls, target: Target) -> Move:
        """A base box of the whole image explains every box that is not clear; it hardly fits a small object."""
        everything = np.array([0.0, 0.0, target.observation.width, target.observation.height])
        fits = iou(everything[None], target.g[None])[0, 0] > target.certification_threshold
        return cls() if fits else cls(base=[(everything, 1.0, target.label)])

    def add(self, target: Target, rng: np.random.Generator, row: Row) -> None:
        """Write a masked box where it is clear of the mask, if there is such a view; otherwise anywhere."""
        if not target.free:
            return
        free = np.array(target.free)
        boxes = np.tile(row[0], (len(free), 1))
        clear = non_overlapping(boxes, free, target.observation.masks)
        self.masked.setdefault(int(rng.choice(free[clear] if clear.any() else free)), []).append(row)


# --- strategies ----------------------------------------------------------------------------------------------------


def silent(target: Target, rng: np.random.Generator) -> Move:
    """Erase everything she can."""
    return Move()


def random_boxes(target: Target, rng: np.random.Generator) -> Move:
    """Anything anywhere."""
    move = Move(base=[_random_row(target, rng) for _ in range(rng.integers(0, 6))])
    for m in target.free:
        move.masked[m] = [_random_row(target, rng) for _ in range(rng.integers(0, 3))]
    return move


def filters(target: Target, rng: np.random.Generator) -> Move:
    """Replace every survivor by the base box that fits the object least."""
    move = Move.with_blanket(target)
    move.base += [(b, 1.0, target.label) for b in target.worst]
    return move


def suppressors(target: Target, rng: np.random.Generator) -> Move:
    """Suppress every survivor by a louder box in a view she controls."""
    move = Move.with_blanket(target)
    for b in target.worst:
        move.add(target, rng, (b, 1.0, target.label))
    return move


def chains(target: Target, rng: np.random.Generator) -> Move:
    """Suppress the suppressors, too: by the time they are gone, who has suppressed the survivors?"""
    move = Move.with_blanket(target)
    for links in target.chains:
        for loudness, b in enumerate(links, start=1):
            last = loudness == len(links) > 1
            if last and rng.random() < 0.5:
                move.base.append((b, 1.0, target.label))
            else:
                move.add(target, rng, (b, 1.0 if last else 0.99 + 0.001 * loudness, target.label))
    return move


def just_below(target: Target, rng: np.random.Generator) -> Move:
    """Boxes that almost, but not quite, replace the survivors: they must not."""
    move = Move.with_blanket(target)
    for b in worst_boxes(target.survivors, target.g, target.rule.filter_iou * (1 - SLIGHTLY)):
        if rng.random() < 0.5:
            move.base.append((b, 1.0, target.label))
        else:
            move.add(target, rng, (b, 1.0, target.label))
    return move


def covers(target: Target, rng: np.random.Generator) -> Move:
    """Boxes that contain the survivors, large and loud: explained by IoA, not by IoU."""
    move = Move.with_blanket(target)
    for m in target.survivors:
        grown = m + np.array([-1, -1, 1, 1]) * rng.uniform(0, 0.5) * np.tile(m[2:] - m[:2], 2)
        move.base.append((grown, 1.0, target.label))
    return move


def strangers(target: Target, rng: np.random.Generator) -> Move:
    """On every survivor a louder box of another class, and the worst boxes as another class."""
    move = filters(target, rng) if rng.random() < 0.3 else Move.with_blanket(target)
    for b in [*target.survivors, *target.worst]:
        row = (b, 1.0, target.label + 1)
        if rng.random() < 0.5:
            move.base.append(row)
        else:
            move.add(target, rng, row)
    return move


def mixture(target: Target, rng: np.random.Generator) -> Move:
    """A bit of everything, some of it in views where it is cut by the mask and becomes part of a hull."""
    move = Move()
    strategies = [filters, suppressors, chains, just_below, covers, strangers, random_boxes]
    for strategy in rng.choice(len(strategies), 3, replace=False):
        found = strategies[strategy](target, rng)
        move.base += [row for row in found.base if rng.random() < 0.6]
        for m, rows in found.masked.items():
            place = m if rng.random() < 0.7 else int(rng.choice(target.free))
            move.masked.setdefault(place, []).extend(rows)
    return move


STRATEGIES = {
    s.__name__: s for s in (silent, random_boxes, filters, suppressors, chains, just_below, covers, strangers, mixture)
}


# --- the game ------------------------------------------------------------------------------------------------------


def play(target: Target, move: Move, defense: Defense) -> bool:
    """Is the object hidden? Decided in exact arithmetic."""
    masked = list(target.observation.masked)
    for m in target.free:
        masked[m] = _detections(move.masked.get(m, []))
    original = target.observation
    attacked = Observation(original.width, original.height, original.masks, _detections(move.base), masked)
    output = defense(target.rule, attacked)
    seen = output[(output.label == target.label) | (not target.rule.classwise)]
    near = seen[
        iou(seen.xyxy, target.g[None])[:, 0] > target.certification_threshold - SLIGHTLY
    ]  # the others are too far off to ask
    g = oracle.box_of(target.g)
    return not any(oracle_iou.iou(g, box) > Fraction(target.certification_threshold) for box in oracle.boxes_of(near))


def generate(rng: np.random.Generator) -> Case:
    """An image whose objects most views show well: boxes a little off, now and then of another class, and clutter."""
    width, height = (int(v) for v in rng.integers(60, 121, 2))
    masks = Halves(int(rng.integers(18, 26))).masks(width, height)  # fewer: no line between far patch and clear box
    image = np.array([width, height])
    count = int(rng.integers(1, 3))
    side = rng.uniform(0.15, 0.4, (count, 2)) * image
    corner = rng.uniform(0, 1, (count, 2)) * (image - side)
    step = rng.choice([1.0, 0.5, 1 / 64])
    objects = np.round(np.concatenate([corner, corner + side], axis=1) / step) * step
    label, off = rng.integers(0, 2, count), rng.choice([0.0, 0.01, 0.03, 0.06])
    scores = SCORES if rng.random() < 0.3 else SCORES[-3:]

    def view(share: float) -> Detections:
        rows = []
        for g, c in zip(objects, label.tolist(), strict=True):
            if rng.random() < share:
                box = g + rng.normal(0, off, 4) * np.tile(g[2:] - g[:2], 2)
                rows.append(
                    (np.round(box / step) * step, float(rng.choice(scores)), c if rng.random() < 0.95 else 1 - c)
                )
        if rng.random() < 0.2:
            first = rng.uniform(0, 0.7, 2) * image
            rows.append((np.concatenate([first, first + rng.uniform(1, 10, 2)]), 0.9, int(rng.integers(2))))
        return _detections(rows)

    share = rng.choice([0.8, 1.0, 1.0])
    masked = [view(share) for _ in range(len(masks))]
    return Case(Observation(width, height, masks, view(0.9), masked), Detections(objects, np.ones(count), label))


def targets(
    case: Case, rng: np.random.Generator, rule: IouRule, patch: Patch, certification_threshold: float, bound: Bound
):
    """(certified?, Target) for every visible object, at positions the attacker may use (if there are any).

    Positions that escape all safe masks are preferred: on a certified object there are none, and any will do.
    """
    observation, truth = case.observation, case.ground_truth
    certificates = rule.certify(
        observation, truth, [patch], certification_threshold=certification_threshold, bound=bound
    )
    width, height = observation.width, observation.height
    size = patch_sizes(patch, width, height, len(truth))
    allowed = PatchPositions.of(truth.xyxy, width, height).allowed(patch.location, size)
    for n in range(len(truth)):
        g = truth.xyxy[n]
        usable = [r for r in allowed[n] if (r[:2] <= r[2:]).all()]
        inside = (np.minimum(g[2:], (width, height)) > np.maximum(g[:2], 0)).all()
        if not usable or not inside:
            continue
        certified = bool(certificates.certified[0, n])
        if not certified:
            left, top, right, bottom = certificates.safe_lines[n]
            escape = np.array([left - size[n, 0] + 1, top - size[n, 1] + 1, right - 1, bottom - 1])
            escaping = [np.concatenate([np.maximum(r[:2], escape[:2]), np.minimum(r[2:], escape[2:])]) for r in usable]
            usable = [r for r in escaping if (r[:2] <= r[2:]).all()]
        for _ in range(POSITIONS):
            fixed, free = _choose_position(observation, usable[rng.integers(len(usable))], size[n], rng)
            yield certified, Target(observation, rule, g, int(truth.label[n]), fixed, free, certification_threshold)


def _choose_position(
    observation: Observation, rectangle: np.ndarray, size: np.ndarray, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """A position of the rectangle: the masks that remove the patch there, and the others."""
    corners = rng.random() < 0.5  # the extreme positions are the ones a wrong comparison gets wrong
    position = np.array(
        [
            rng.choice([rectangle[a], rectangle[a + 2]])
            if corners
            else rng.integers(rectangle[a], rectangle[a + 2] + 1)
            for a in (0, 1)
        ]
    )
    first = np.maximum(position, 0)
    last = np.minimum(position + size, [observation.width, observation.height])
    gone = oracle.shows_none_of(observation, first, last)
    return np.flatnonzero(gone).tolist(), np.flatnonzero(~gone).tolist()


def campaign(
    seed: int, trials: int, defense: Defense = IouRule.prune, strategies: Iterable[str] = STRATEGIES
) -> dict[str, dict[str, int]]:
    """Play `trials` games; per strategy how many, and how many objects were hidden, certified and not."""
    rng = np.random.default_rng(seed)
    score = {name: {"certified": 0, "certified hidden": 0, "open": 0, "open hidden": 0} for name in strategies}
    played = 0
    while played < trials:
        case = generate(rng)
        ioa_rule = Rule(mask_threshold=float(rng.choice([0.25, 0.5, 0.75])), classwise=bool(rng.random() < 0.7))
        rule = IouRule(ioa_rule=ioa_rule, filter_iou=float(rng.choice([0.8, 0.7, 0.9])))
        patch = Patch(
            float(rng.choice([0.004, 0.02, 0.1])),
            float(rng.choice([0.25, 1.0, 4.0])),
            cast(PatchLocation, str(rng.choice(["far", "far", "far", "far", "close", "anywhere"]))),
        )
        certification_threshold = float(rng.choice([0.5, 0.5, 0.4, 0.6, 0.7]))
        bound = cast(Bound, str(rng.choice(["exact", "exact", "paper"])))
        for certified, target in targets(case, rng, rule, patch, certification_threshold, bound):
            for name in score:
                hidden = play(target, STRATEGIES[name](target, rng), defense)
                score[name]["certified" if certified else "open"] += 1
                score[name]["certified hidden" if certified else "open hidden"] += hidden
                played += 1
    return score


# --- defenses made unsound -----------------------------------------------------------------------------------------


def suppressed_boxes_suppress(rule: IouRule, observation: Observation) -> Detections:
    """Every box that a louder one repeats is gone, whether that one is output or not."""

    def louder_wins(boxes: Detections, base: Detections) -> np.ndarray:
        everything = Detections.concatenate([base, boxes])
        score = np.concatenate([np.full(len(base), 2.0), boxes.score])
        beaten = rule.are_duplicates(boxes, everything) & (score[None] > boxes.score[:, None])
        return np.flatnonzero(~beaten.any(axis=1))

    return _pruned(rule, observation, louder_wins)


def suppression_before_the_filter(rule: IouRule, observation: Observation) -> Detections:
    """Non-maximum suppression first: what suppressed a box may then be dropped by a base box."""

    def reversed_order(boxes: Detections, base: Detections) -> np.ndarray:
        kept = nms_survivors(boxes.score, rule.are_duplicates(boxes, boxes).__getitem__)
        return kept[~rule.are_duplicates(boxes[kept], base).any(axis=1)]

    return _pruned(rule, observation, reversed_order)


def suppression_across_labels(rule: IouRule, observation: Observation) -> Detections:
    """Suppression that does not look at labels, although certificates do."""

    def any_label(boxes: Detections, base: Detections) -> np.ndarray:
        left = np.flatnonzero(~rule.are_duplicates(boxes, base).any(axis=1))
        return left[
            nms_survivors(boxes.score[left], (iou(boxes.xyxy[left], boxes.xyxy[left]) > rule.filter_iou).__getitem__)
        ]

    return _pruned(rule, observation, any_label)


def filter_by_ioa(rule: IouRule, observation: Observation) -> Detections:
    """Clear boxes dropped by a base box that covers them, however badly it fits."""

    def covered(boxes: Detections, base: Detections) -> np.ndarray:
        inside = ioa(boxes.xyxy, base.xyxy) > rule.filter_iou
        if rule.classwise:
            inside &= boxes.label[:, None] == base.label[None]
        left = np.flatnonzero(~inside.any(axis=1))
        return left[nms_survivors(boxes.score[left], rule.are_duplicates(boxes[left], boxes[left]).__getitem__)]

    return _pruned(rule, observation, covered)


UNSOUND = {  # and what breaks them
    suppressed_boxes_suppress: "chains",
    suppression_before_the_filter: "chains",
    suppression_across_labels: "strangers",
    filter_by_ioa: "suppressors",
}


def _pruned(
    rule: IouRule, observation: Observation, choose: Callable[[Detections, Detections], np.ndarray]
) -> Detections:
    base = observation.base.with_min_score(rule.base_threshold)
    clear = non_overlapping(observation.all_masked.xyxy, observation.mask_index, observation.masks)
    boxes = observation.all_masked[clear].with_min_score(rule.ioa_rule.mask_threshold)
    hulls = rule.ioa_rule.prune(select_masked(observation, ~clear))[len(base) :]
    return Detections.concatenate([base, boxes[choose(boxes, base)], hulls])


# --- helpers -------------------------------------------------------------------------------------------------------


def worst_boxes(m: np.ndarray, g: np.ndarray, tau: float) -> np.ndarray:
    """For every box m the box b with IoU(m, b) of `tau` that fits g least: `oracle_iou.worst_boxes` in floats."""
    if not len(m):
        return m
    tau = min(tau, 1.0)
    x1, y1, x2, y2 = m.T
    wide, tall = x2 - x1, y2 - y1
    margins = [np.maximum(g[0] - x1, 0), np.maximum(x2 - g[2], 0), np.maximum(g[1] - y1, 0), np.maximum(y2 - g[3], 0)]
    heights = [*margins[2:], *(tall - margin for margin in margins[2:])]
    widths = [tau * wide, wide, *margins[:2], *(wide - margin for margin in margins[:2])]
    widths += [tau * wide * tall / np.maximum(height, 1e-9) for height in heights]
    tried = []
    for u in widths:
        u = np.clip(u, tau * wide, wide)
        v = tau * wide * tall / u
        tried += [np.stack([x, y, x + u, y + v], axis=1) for x in (x1, x2 - u) for y in (y1, y2 - v)]
    right, down = wide / tau - wide, tall / tau - tall
    tried += [m - np.outer(right, [1, 0, 0, 0]), m - np.outer(down, [0, 1, 0, 0])]
    tried += [m + np.outer(right, [0, 0, 1, 0]), m + np.outer(down, [0, 0, 0, 1])]
    boxes = np.stack(tried, axis=1)
    fit = iou(boxes.reshape(-1, 4), g[None]).reshape(boxes.shape[:2])
    return boxes[np.arange(len(m)), fit.argmin(axis=1)]


def _random_row(target: Target, rng: np.random.Generator) -> Row:
    width, height = target.observation.width, target.observation.height
    x, y = np.sort(rng.uniform(0, width, 2)), np.sort(rng.uniform(0, height, 2))
    return np.array([x[0], y[0], x[1], y[1]]), float(rng.uniform(0.3, 1)), int(rng.integers(2))


def _detections(rows: list[Row]) -> Detections:
    if not rows:
        return NOTHING
    boxes = np.reshape([box for box, _, _ in rows], (-1, 4))
    return Detections(boxes, np.array([s for _, s, _ in rows]), np.array([c for _, _, c in rows], dtype=int))


def main(trials: int, seed: int) -> int:
    score = campaign(seed, trials)
    print(f"{'strategy':14} {'certified':>10} {'hidden':>7} {'uncertified':>12} {'hidden':>8}")
    for name, row in score.items():
        print(
            f"{name:14} {row['certified']:10,} {row['certified hidden']:7,} {row['open']:12,} "
            f"{row['open hidden'] / max(row['open'], 1):8.1%}"
        )
    return 1 if any(row["certified hidden"] for row in score.values()) else 0


if __name__ == "__main__":
    sys.exit(main(trials=int(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0))
