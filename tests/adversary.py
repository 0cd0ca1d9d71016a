"""An attacker at the level of boxes, who knows everything.

She picks an allowed position of the patch. Masks that remove it give the boxes they always gave; she writes the base
boxes and the boxes of all other masks as she likes. She wins when no output box covers more than T of the object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import cast

import numpy as np
import oracle
from cases import Case, certify, generate, prune

from objectseeker import Detections, Observation, Patch
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation, PatchPositions, patch_sizes

SLIGHTLY = 1 + 1e-7  # just more than the filter asks for


@dataclass(frozen=True)
class Target:
    """One object, the boxes the attacker cannot change, and the masks she can write."""

    observation: Observation
    g: np.ndarray
    label: int
    fixed: list[int]  # masks that remove the patch
    free: list[int]
    filter_ioa: float
    certification_threshold: float
    classwise: bool

    @cached_property
    def survivors(self) -> np.ndarray:
        """The unchangeable boxes that could reveal the object."""
        parts = [self.observation.masked[m] for m in self.fixed]
        boxes = Detections.concatenate(parts)
        return boxes.xyxy[(boxes.label == self.label) | (not self.classwise)]

    @cached_property
    def slices(self) -> list[np.ndarray]:
        """For every survivor that allows it, the base box that explains it and gives least of the object away."""
        return [s for m in self.survivors if (s := _best_slice(self, m)) is not None]


@dataclass
class Move:
    """What the attacker writes."""

    base: list[np.ndarray] = field(default_factory=list)
    masked: dict[int, list[np.ndarray]] = field(default_factory=dict)


# --- strategies ----------------------------------------------------------------------------------------------------


def silent(target: Target, rng: np.random.Generator) -> Move:
    """Erase everything she can."""
    return Move()


def random_boxes(target: Target, rng: np.random.Generator) -> Move:
    """Anything anywhere."""
    move = Move(base=[_random_box(target, rng) for _ in range(rng.integers(0, 6))])
    for m in target.free:
        move.masked[m] = [_random_box(target, rng) for _ in range(rng.integers(0, 3))]
    return move


def slicer(target: Target, rng: np.random.Generator) -> Move:
    """Explain every surviving box by the smallest slice of it that hides most of the object (greedy)."""
    return Move(base=list(target.slices))


def some_slices(target: Target, rng: np.random.Generator) -> Move:
    """Filter some members of a cluster only: split it, or starve it of evidence."""
    return Move(base=[s for s in target.slices if rng.random() < 0.5])


def every_harmless_box(target: Target, rng: np.random.Generator) -> Move:
    """Exhaustive on the pixel grid: all base boxes that do not give the object away, at once."""
    width, height = target.observation.width, target.observation.height
    x1, x2 = np.triu_indices(width + 1, 1)
    y1, y2 = np.triu_indices(height + 1, 1)
    boxes = np.stack(
        [v.ravel() for v in (*np.broadcast_arrays(x1[:, None], y1[None], x2[:, None], y2[None]),)], axis=1
    ).astype(float)
    covered = np.clip(np.minimum(boxes[:, 2:], target.g[2:]) - np.maximum(boxes[:, :2], target.g[:2]), 0, None)
    whole = np.prod(target.g[2:] - target.g[:2])
    allowed_boxes = boxes[np.prod(covered, axis=1) <= target.certification_threshold * whole * (1 - 1e-9)]
    return Move(base=list(allowed_boxes))


def decoys(target: Target, rng: np.random.Generator) -> Move:
    """Next to every survivor, in a view she controls, a louder box just off the object; then explain the decoys."""
    move = slicer(target, rng)
    if not target.free:
        return move
    middle = (target.g[:2] + target.g[2:]) / 2
    for m in target.survivors:
        step = np.sign((m[:2] + m[2:]) / 2 - middle + rng.uniform(-1e-3, 1e-3, 2)) * (m[2:] - m[:2]) * 0.3
        if rng.random() < 0.5:
            step[rng.integers(2)] = 0.0
        decoy = m + np.tile(step, 2)
        move.masked.setdefault(int(rng.choice(target.free)), []).append(decoy)
        explained = _best_slice(target, decoy)
        if explained is not None:
            move.base.append(explained)
    return move


def loud_stranger(target: Target, rng: np.random.Generator) -> Move:
    """One perfect box of the same class, far from the object."""
    move = slicer(target, rng)
    width, height = target.observation.width, target.observation.height
    corner = (0.0, 0.0, 1.0, 1.0) if target.g[0] > 1 else (width - 1.0, height - 1.0, float(width), float(height))
    for m in target.free:
        move.masked[m] = [np.array(corner)]
    return move


def bridges(target: Target, rng: np.random.Generator) -> Move:
    """Merge clusters: boxes that contain several survivors, and boxes inside them."""
    move = some_slices(target, rng)
    boxes = target.survivors
    if len(boxes):
        for m in target.free:
            a, b = boxes[rng.integers(len(boxes), size=2)]
            hull = np.concatenate([np.minimum(a[:2], b[:2]), np.maximum(a[2:], b[2:])])
            inner = np.concatenate([np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])])
            move.masked[m] = [hull] + ([inner] if (inner[2:] >= inner[:2]).all() else [])
    return move


def flood(target: Target, rng: np.random.Generator) -> Move:
    """Many boxes in every view she controls, on top of the best filters."""
    move = slicer(target, rng)
    for m in target.free:
        move.masked[m] = [_random_box(target, rng) for _ in range(8)]
    return move


STRATEGIES = {
    s.__name__: s
    for s in (silent, random_boxes, slicer, some_slices, every_harmless_box, decoys, loud_stranger, bridges, flood)
}


# --- the game ------------------------------------------------------------------------------------------------------


def play(target: Target, move: Move, defense: Callable[[Observation], Detections]) -> bool:
    """Is the object hidden? Decided in exact arithmetic."""
    masked = list(target.observation.masked)
    for m in target.free:
        masked[m] = _detections(move.masked.get(m, []), target.label)
    base = _detections(move.base, target.label)
    attacked = Observation(target.observation.width, target.observation.height, target.observation.masks, base, masked)
    output = defense(attacked)
    g = oracle.box_of(target.g)
    limit = Fraction(target.certification_threshold) * oracle.size(g)
    return not any(
        oracle.shared(g, box) > limit
        for box, label in zip(oracle.boxes_of(output), output.label.tolist(), strict=True)
        if label == target.label or not target.classwise
    )


def targets(case: Case, rng: np.random.Generator, options: dict, patch: Patch, bound: str = "exact"):
    """(certified?, Target) for every visible object, at a position the attacker may use (if there is one).

    Positions that escape all safe masks are preferred: on a certified object there are none, and any will do.
    """
    observation, truth = case.observation, case.ground_truth
    keys = (
        "mask_threshold",
        "filter_ioa",
        "classwise",
        "evidence_threshold",
        "evidence_power",
        "edge_factor",
        "cluster_distance",
    )
    shared = {key: options[key] for key in keys if key in options}
    certificates = certify(
        observation, truth, [patch], certification_threshold=options["certification_threshold"], bound=bound, **shared
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
        rectangle = usable[rng.integers(len(usable))]
        if not certified:
            left, top, right, bottom = certificates.safe_lines[n]
            escape = np.array([left - size[n, 0] + 1, top - size[n, 1] + 1, right - 1, bottom - 1])
            escaping = [np.concatenate([np.maximum(r[:2], escape[:2]), np.minimum(r[2:], escape[2:])]) for r in usable]
            escaping = [r for r in escaping if (r[:2] <= r[2:]).all()]
            rectangle = escaping[rng.integers(len(escaping))] if escaping else rectangle
        corners = rng.random() < 0.5  # the extreme positions are the ones a wrong comparison gets wrong
        x, y = (
            rng.choice([rectangle[a], rectangle[a + 2]])
            if corners
            else rng.integers(rectangle[a], rectangle[a + 2] + 1)
            for a in (0, 1)
        )
        first = np.maximum([x, y], 0)
        last = np.minimum([x + size[n, 0], y + size[n, 1]], [width, height])
        gone = oracle.shows_none_of(observation, first, last)
        yield (
            certified,
            Target(
                observation,
                g,
                int(truth.label[n]),
                np.flatnonzero(gone).tolist(),
                np.flatnonzero(~gone).tolist(),
                options["filter_ioa"],
                options["certification_threshold"],
                options["classwise"],
            ),
        )


def empty_score() -> dict[str, dict[str, int]]:
    return {name: {"certified": 0, "certified hidden": 0, "open": 0, "open hidden": 0} for name in STRATEGIES}


def total(score: dict[str, dict[str, int]], key: str) -> int:
    return sum(row[key] for row in score.values())


def play_all(
    target: Target,
    defend: Callable[[Observation], Detections],
    score: dict[str, dict[str, int]],
    rng: np.random.Generator,
    *,
    certified: bool,
    small: bool,
) -> int:
    """Every strategy against one object, added to `score`; how many games that were. The exhaustive one is rare."""
    played = 0
    for name, strategy in STRATEGIES.items():
        if strategy is every_harmless_box and (not small or rng.random() < 0.8):
            continue
        hidden = play(target, strategy(target, rng), defend)
        score[name]["certified" if certified else "open"] += 1
        score[name]["certified hidden" if certified else "open hidden"] += hidden
        played += 1
    return played


def campaign(
    seed: int,
    trials: int,
    defense: Callable[[dict], Callable[[Observation], Detections]] | None = None,
    *,
    evidence=None,
    make=None,
) -> dict[str, dict[str, int]]:
    """Play `trials` games; per strategy how many, and how many objects were hidden, certified and not.

    `make(seed)` chooses other masks than half masks, as `cases.generate` takes them.
    """
    rng = np.random.default_rng(seed)
    score = empty_score()
    played = 0
    while played < trials:
        small = rng.random() < 0.3
        seen_well = 1.0 if rng.random() < 0.6 else None
        size, lines = 8 if small else 20, int(rng.integers(1, 4))
        case_seed = int(rng.integers(2**32))
        others = {} if make is None else {"make": make(case_seed), "sure": 0.9}
        case = generate(case_seed, largest=size, lines=lines, generous=seen_well, **others)
        options = {
            "base_threshold": 0.5,
            "mask_threshold": float(rng.choice([0.5, 0.75])),
            "filter_ioa": float(rng.choice([0.6, 0.5, 0.75])),
            "certification_threshold": float(rng.choice([0.0, 0.0, 0.25])),
            "classwise": bool(rng.random() < 0.7),
            "edge_factor": float(rng.choice([1.0, 0.8])),
        }
        if evidence if evidence is not None else rng.random() < 0.5:
            options |= {"evidence_threshold": 0.1, "evidence_power": float(rng.choice([1.0, 2.0]))}
            options["cluster_distance"] = float(rng.choice([0.1, 0.1, 0.3, 0.5]))
        patch = Patch(
            float(rng.choice([0.004, 0.02, 0.1])),
            float(rng.choice([0.25, 1.0, 4.0])),
            cast(PatchLocation, str(rng.choice(PATCH_LOCATIONS))),
        )
        settings = {key: value for key, value in options.items() if key != "certification_threshold"}
        defend = (defense or honest)(settings)
        bound = str(rng.choice(["exact", "paper"]))
        for certified, target in targets(case, rng, options, patch, bound):
            played += play_all(target, defend, score, rng, certified=certified, small=small)
    return score


# --- defenses ------------------------------------------------------------------------------------------------------


def honest(settings: dict) -> Callable[[Observation], Detections]:
    return lambda observation: prune(observation, **settings)


def with_extra_nms(settings: dict) -> Callable[[Observation], Detections]:
    """Unsound: non-maximum suppression over all masked boxes before pruning."""
    from objectseeker.core.boxes import iou

    def defend(observation: Observation) -> Detections:
        boxes = observation.all_masked
        order = np.argsort(-boxes.score, kind="stable")
        overlap = iou(boxes.xyxy, boxes.xyxy) > 0.5
        keep: list[int] = []
        for i in order:
            if not any(overlap[i, j] and boxes.label[i] == boxes.label[j] for j in keep):
                keep.append(int(i))
        return prune(_only(observation, np.isin(np.arange(len(boxes)), keep)), **settings)

    return defend


def with_class_maximum(settings: dict) -> Callable[[Observation], Detections]:
    """Unsound: a masked box counts only against the best score of its class anywhere in the image."""

    def defend(observation: Observation) -> Detections:
        boxes = observation.all_masked
        best = {label: boxes.score[boxes.label == label].max() for label in set(boxes.label.tolist())}
        keep = np.array([s >= best[c] for s, c in zip(boxes.score, boxes.label.tolist(), strict=True)], dtype=bool)
        return prune(_only(observation, keep), **settings)

    return defend


def _only(observation: Observation, keep: np.ndarray) -> Observation:
    masked = [observation.all_masked[keep & (observation.mask_index == m)] for m in range(len(observation.masks))]
    return Observation(observation.width, observation.height, observation.masks, observation.base, masked)


# --- helpers -------------------------------------------------------------------------------------------------------


def _best_slice(target: Target, m: np.ndarray) -> np.ndarray | None:
    """The base box that filters m and covers least of the object; None if even that gives the object away."""
    wide, tall = m[2:] - m[:2]
    if wide <= 0 or tall <= 0:
        return None
    c = min(target.filter_ioa * SLIGHTLY, 1.0) * wide * tall
    margins = [target.g[0] - m[0], m[2] - target.g[2], wide - (target.g[0] - m[0]), wide - (m[2] - target.g[2])]
    heights = [target.g[1] - m[1], m[3] - target.g[3], tall - (target.g[1] - m[1]), tall - (m[3] - target.g[3])]
    best, least = None, target.certification_threshold * np.prod(target.g[2:] - target.g[:2]) * (1 - 1e-9)
    for u in (c / tall, wide, *margins, *(c / v for v in heights if v > 0)):
        if not c / tall <= u <= wide:
            continue
        v = c / u
        for x in (m[0], m[2] - u):
            for y in (m[1], m[3] - v):
                box = np.array([x, y, x + u, y + v])
                extent = np.minimum(box[2:], target.g[2:]) - np.maximum(box[:2], target.g[:2])
                covered = float(np.prod(np.clip(extent, 0, None)))
                if covered <= least:
                    best, least = box, covered
    return best


def _random_box(target: Target, rng: np.random.Generator) -> np.ndarray:
    width, height = target.observation.width, target.observation.height
    x, y = np.sort(rng.uniform(0, width, 2)), np.sort(rng.uniform(0, height, 2))
    return np.array([x[0], y[0], x[1], y[1]])


def _detections(boxes: list[np.ndarray], label: int) -> Detections:
    return Detections(np.reshape(boxes, (-1, 4)), np.ones(len(boxes)), np.full(len(boxes), label))
