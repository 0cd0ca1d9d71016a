"""Generated observations: small images, boxes that crowd around a few objects, awkward coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import oracle

from objectseeker import Bands, Certificates, Detections, Halves, IouRule, Observation, Pairs, Rule, Windows
from objectseeker.core.masks import Masks
from objectseeker.core.rules.iou import FILTER_IOU

NOTHING = Detections.empty()
SCORES = np.array([0.1, 0.25, 0.375, 0.5, 0.625, 0.75, 0.9, 1.0])  # exact binary fractions, mostly: ties happen


@dataclass(frozen=True)
class Case:
    observation: Observation
    ground_truth: Detections


def generate(
    seed: int,
    *,
    smallest: int = 8,
    largest: int = 24,
    lines: int | None = None,
    crowd: float = 0.7,
    generous: float | None = None,
    make: Callable[[int, int, int], Masks] = lambda width, height, lines: Halves(lines).masks(width, height),
    sure: float = 0.0,
    torn: float = 0.0,
) -> Case:
    """`crowd`: share of boxes that lie around an object; `generous`: share of masks that see anything; `sure`: share
    of masks under which an object is seen unmodified, at some score; `torn`: share of those that see one half of it,
    so that boxes which prove the object need not be neighbors."""
    rng = np.random.default_rng(seed)
    width, height = (int(v) for v in rng.integers(smallest, largest + 1, 2))
    masks = make(width, height, int(rng.integers(1, 13)) if lines is None else lines)
    step = rng.choice([1.0, 0.5, 0.125])
    objects = np.array([_box(rng, width, height, step) for _ in range(rng.integers(1, 4))])
    labels = rng.integers(0, 2, len(objects))

    def around(count: int) -> Detections:
        boxes, found = [], []
        for _ in range(count):
            n = rng.integers(len(objects))
            if rng.random() < crowd:
                jitter = rng.integers(-2, 3, 4) * step * (rng.random(4) < 0.5)
                box = objects[n] + jitter
                box = np.concatenate([np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])])
            else:
                box = _box(rng, width, height, step)
            boxes.append(box)
            found.append(labels[n] if rng.random() < 0.9 else 1 - labels[n])
        return Detections(np.reshape(boxes, (-1, 4)), rng.choice(SCORES, count), np.array(found, dtype=int))

    generous = rng.random() if generous is None else generous  # some images are seen under every mask, some hardly
    masked = [around(int(rng.integers(1, 4)) if rng.random() < generous else 0) for _ in range(len(masks))]
    base = around(int(rng.integers(0, 4)))
    if sure:
        for m, n in zip(*np.nonzero(rng.random((len(masks), len(objects))) < sure), strict=True):
            box = objects[n].copy()
            if rng.random() < torn:
                box[2 * rng.integers(2)] = box[[0, 2]].mean()
            seen = Detections([box], rng.choice(SCORES, 1), labels[n : n + 1])
            masked[m] = Detections.concatenate([masked[m], seen])
    truth = Detections(objects, np.ones(len(objects)), labels)
    return Case(Observation(width, height, masks, base, masked), truth)


def _box(rng: np.random.Generator, width: int, height: int, step: float) -> np.ndarray:
    """Any box on a grid of `step`: sometimes degenerate, sometimes over the border, sometimes wholly outside."""
    reach = 3 if rng.random() < 0.2 else 0
    x = np.sort(rng.integers(int(-reach / step), int((width + reach) / step) + 1, 2)) * step
    y = np.sort(rng.integers(int(-reach / step), int((height + reach) / step) + 1, 2)) * step
    if rng.random() < 0.03:
        x[1] = x[0]
    if rng.random() < 0.02:
        x += width + 1
    return np.array([x[0], y[0], x[1], y[1]])


# --- a rule made, used and forgotten: for tests that try many settings ------------------------------------------------


def banded(seed):
    """A way to make masks with bands among them: of a patch of some size, alone or with a few half masks."""
    rng = np.random.default_rng(seed)
    recipe = Bands(
        float(rng.choice([0.01, 0.05, 0.15])), float(rng.choice([0.5, 1.0, 2.0])), float(rng.choice([0.4, 1, 2]))
    )
    if rng.random() < 0.4:
        recipe = Halves(int(rng.integers(1, 4))) + recipe
    return lambda width, height, lines: recipe.masks(width, height)


def windowed(seed):
    """A way to make masks with windows among them: of some share and step, alone or with others."""
    rng = np.random.default_rng(seed)
    recipe = Windows(float(rng.choice([1 / 2, 1 / 3, 2 / 3])), float(rng.choice([1 / 3, 1 / 4, 1 / 6])))
    others = [Halves(int(rng.integers(1, 4))), Bands(0.05), Pairs(1), Windows(3 / 4)]
    if rng.random() < 0.5:
        recipe = others[rng.integers(len(others))] + recipe
    return lambda width, height, lines: recipe.masks(width, height)


def one(box, score=0.9, label=0) -> Detections:
    return Detections([box], [score], [label])


def observe(masked, base=NOTHING, size=100) -> Observation:
    """What is seen under the first of the four masks of a line each way; the others show nothing."""
    return Observation(size, size, Halves(1).masks(size, size), base, masked + [NOTHING] * (4 - len(masked)))


def halves(width: int, height: int, lines: int = 30) -> Masks:
    return Halves(lines).masks(width, height)


def pairs(width: int, height: int, lines: int = 10) -> Masks:
    return Pairs(lines).masks(width, height)


def prune(observation: Observation, **settings) -> Detections:
    return Rule(**settings).prune(observation)


def certify(
    observation: Observation, truth: Detections, patches, *, certification_threshold=0.0, bound="exact", **settings
):
    return Rule(**settings).certify(
        observation, truth, patches, certification_threshold=certification_threshold, bound=bound
    )


def iou_rule(filter_iou: float = FILTER_IOU, **settings) -> IouRule:
    return IouRule(ioa_rule=Rule(**settings), filter_iou=filter_iou)


def iou_prune(observation: Observation, **settings) -> Detections:
    return iou_rule(**settings).prune(observation)


def iou_certify(
    observation: Observation, truth: Detections, patches, *, certification_threshold=0.5, bound="exact", **settings
) -> Certificates:
    return iou_rule(**settings).certify(
        observation, truth, patches, certification_threshold=certification_threshold, bound=bound
    )


def some_masks(seed, largest=12):
    """Masks of every kind, of an image that is not square."""
    rng = np.random.default_rng(seed)
    width, height = (int(v) for v in rng.choice(np.arange(3, largest + 1), 2, replace=False))
    make = (halves, pairs, banded(seed), windowed(seed))[seed % 4]
    return make(width, height, int(rng.integers(1, 4)))


def literally_removed(masks, patch):
    """Bitmap (mask, y, x): does the mask remove a patch of these pixels there?"""
    nothing = Observation(masks.width, masks.height, masks, NOTHING, [NOTHING] * len(masks))
    return oracle.removed(nothing, patch)
