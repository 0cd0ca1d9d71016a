"""An attacker at the level of boxes who adds objects and flips labels, and knows everything.

She draws a patch at a position of her choice. Masks that remove it give the boxes they always gave; she writes the base
boxes and the boxes of all other masks as she likes. She wins with a box that is certified not fabricated, although the
patch is at a position that the threat allows for it, and no view without the patch has a box that supports it.

    python tests/adversary_fabrication.py --boxes 100000
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import oracle
import oracle_fabrication
import oracle_two_patches
from cases import Case, banded, generate

from objectseeker import Detections, Halves, Observation, Pairs, Patch, Rule
from objectseeker.core.threats import PATCH_LOCATIONS

Certify = Callable[[Rule, Observation, Detections, Patch], np.ndarray]


@dataclass(frozen=True)
class Scene:
    """A clean observation, the views she writes, and the rule."""

    case: Case
    rule: Rule
    patch: Patch
    places: np.ndarray  # (count, 2) y and x of each patch, from the first position on
    free: np.ndarray  # (M,) views that show a pixel of a patch


class SmallerPatch(Patch):
    """A patch that says that it is a pixel smaller than it is."""

    __slots__ = ()

    def size(self, width: int, height: int) -> tuple[int, int]:
        across, down = Patch.size(self, width, height)
        return max(across - 1, 1), max(down - 1, 1)


def as_certified(rule: Rule, observation: Observation, detections: Detections, patch: Patch) -> np.ndarray:
    return np.asarray(rule.certify_not_fabricated(observation, detections, patch).certified[0])


def by_score(rule: Rule, observation: Observation, detections: Detections, patch: Patch) -> np.ndarray:
    return rule.certified_scores(observation, detections, patch) >= rule.support_threshold


def one_pixel_too_small(rule: Rule, observation: Observation, detections: Detections, patch: Patch) -> np.ndarray:
    """Planted: a mask counts as removing a patch of which it shows a column and a row."""
    smaller = SmallerPatch(patch.area, patch.aspect, patch.location, patch.count)
    return as_certified(rule, observation, detections, smaller)


def class_agnostic(rule: Rule, observation: Observation, detections: Detections, patch: Patch) -> np.ndarray:
    """Planted: a box of another class supports."""
    return as_certified(rule.with_settings(classwise=False), observation, detections, patch)


# --- what she writes -----------------------------------------------------------------------------------------------


def out_of_nothing(scene: Scene, rng: np.random.Generator) -> Detections:
    """A box anywhere, in every view that she writes."""
    width, height = scene.case.observation.width, scene.case.observation.height
    corners = np.sort(rng.integers(0, (width + 1, height + 1), (2, 2)), axis=0).astype(float).reshape(4)
    corners[2:] = np.maximum(corners[2:], corners[:2] + 1)
    return Detections([corners], [1.0], [int(rng.integers(2))])


def flipped(scene: Scene, rng: np.random.Generator) -> Detections:
    """An object under another label."""
    truth = scene.case.ground_truth
    n = int(rng.integers(len(truth)))
    return Detections(truth.xyxy[[n]], [1.0], [1 - truth.label[n]])


def displaced(scene: Scene, rng: np.random.Generator) -> Detections:
    """A box that views without the patch nearly fit."""
    truth = scene.case.ground_truth
    n = int(rng.integers(len(truth)))
    box = truth.xyxy[n]
    step = (box[2:] - box[:2]) * rng.uniform(-1, 1, 2)
    return Detections([box + np.tile(step, 2)], [1.0], truth.label[[n]])


def swollen(scene: Scene, rng: np.random.Generator) -> Detections:
    """A box far larger, or far smaller, than what views without the patch have."""
    truth = scene.case.ground_truth
    n = int(rng.integers(len(truth)))
    center, half = (truth.xyxy[n][:2] + truth.xyxy[n][2:]) / 2, (truth.xyxy[n][2:] - truth.xyxy[n][:2]) / 2
    half = half * rng.choice([0.3, 0.6, 1.5, 2.5])
    return Detections([np.concatenate([center - half, center + half])], [1.0], truth.label[[n]])


STRATEGIES = (out_of_nothing, flipped, displaced, swollen)


# --- the game ------------------------------------------------------------------------------------------------------


def scene(seed: int) -> Scene:
    rng = np.random.default_rng(seed)
    count = 2 if rng.random() < 0.25 else 1
    make = {
        0: lambda width, height, lines: Halves(lines).masks(width, height),
        1: banded(seed),  # type: ignore[no-untyped-call]
        2: lambda width, height, lines: Pairs(min(lines, 4)).masks(width, height),
    }[2 if count == 2 else seed % 2]
    case = generate(seed, largest=20, make=make, crowd=0.9, sure=(0.5, 0.9)[seed % 2])
    rule = Rule(
        base_threshold=0.0,
        support_threshold=float(rng.choice([0.1, 0.25, 0.5])),
        support_fit=str(rng.choice(["iou", "ioa"])),  # type: ignore[arg-type]
        support_overlap=float(rng.choice([0.15, 0.3, 0.5])),
    )
    location = str(rng.choice(PATCH_LOCATIONS))
    patch = Patch(float(rng.choice([0.01, 0.05, 0.15])), float(rng.choice([0.5, 1, 2])), location, count)  # type: ignore[arg-type]
    observation = case.observation
    gone = oracle_two_patches.removed(observation, patch.size(observation.width, observation.height))
    # Where few views are left without the patch she has most to write; any position will do now and then.
    remaining = gone.sum(axis=0)
    places = np.argwhere(remaining <= (remaining.min() if rng.random() < 0.7 else remaining.max()))
    chosen = places[rng.integers(len(places), size=count)]
    shown = np.ones(len(observation.masks), dtype=bool)
    for y, x in chosen:
        shown &= gone[:, y, x]
    return Scene(case, rule, patch, chosen, ~shown)


def is_allowed(scene: Scene, b: oracle.Box) -> bool:
    """Whether the patches lie where the threat allows it for box b, by the definition of the locations."""
    size = scene.case.observation.width, scene.case.observation.height
    patch = scene.patch.size(*size)
    for position in scene.places + 1 - np.array(patch)[::-1]:
        start = position[::-1].tolist()
        end = [s + p for s, p in zip(start, patch, strict=True)]
        over = all(min(end[a], b[a + 2]) - max(start[a], b[a]) > 0 for a in (0, 1))
        gaps = [max(b[a] - end[a], start[a] - b[a + 2], 0) for a in (0, 1)]
        far = not over and any(10 * gap > side for gap, side in zip(gaps, size, strict=True))
        here = "over" if over else "far" if far else "close"
        if scene.patch.location not in (here, "anywhere"):
            return False
    return True


def has_support(scene: Scene, b: oracle.Box, label: int) -> bool:
    """Whether a view without the patches has a box that supports b."""
    rule = scene.rule
    return any(
        of_label == label
        and score >= rule.support_threshold
        and oracle_fabrication.fits(m, b, rule.support_fit, rule.support_overlap)
        for mask in np.flatnonzero(~scene.free).tolist()
        for m, score, of_label in oracle.rows(scene.case.observation.masked[mask])
    )


def campaign(seed: int, boxes: int, certify: Certify = as_certified) -> Counter[str]:
    """Fabricate `boxes` boxes; count those that are certified, and those of them that refute the certificate."""
    rng = np.random.default_rng(seed)
    total: Counter[str] = Counter()
    while total["fabricated"] < boxes:
        made = scene(int(rng.integers(2**31)))
        observation, rule, patch = made.case.observation, made.rule, made.patch
        written = Detections.concatenate(
            [STRATEGIES[rng.integers(len(STRATEGIES))](made, rng) for _ in range(int(rng.integers(1, 40)))]
        )
        masked = [written if free else seen for free, seen in zip(made.free, observation.masked, strict=True)]
        size = (observation.width, observation.height)
        attacked = Observation(*size, observation.masks, written, masked)
        output = rule.prune(attacked)[: len(written)]  # every base box is output, first
        assert output == written
        certified = certify(rule, attacked, output, patch)
        for n, b in enumerate(oracle.boxes_of(output)):
            if oracle.size(b) == 0 or not oracle.seen(b, *size) or not is_allowed(made, b):
                continue
            total["fabricated"] += 1
            total["certified"] += int(certified[n])
            total["refuted"] += int(certified[n] and not has_support(made, b, int(output.label[n])))
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boxes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for kind in (as_certified, by_score, one_pixel_too_small, class_agnostic):
        planted = kind in (one_pixel_too_small, class_agnostic)
        counts = campaign(options.seed, 2000 if planted else options.boxes, kind)
        print(f"{kind.__name__:20} {dict(counts)}", flush=True)
