"""An attacker of DetectorGuard that may do more than a patch can.

It picks a patch position, sets every feature the patch reaches to whatever it likes, and writes the base detector's
output itself. It wins if no box overlaps the object and there is no alert.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import oracle_detectorguard as oracle
from oracle_detectorguard import Case

from objectseeker import Detections
from objectseeker.detectorguard.objectness import has_alert, objectness_map

LARGEST = 2**16 - 1


def wins(case: Case, patch, n: int, rng: np.random.Generator, *, tries: int = 8) -> bool:
    """Whether some attack of a few hides object n."""
    box = case.ground_truth.xyxy[n].tolist()
    grid = case.grid
    size = patch.size(*case.image)
    positions = [
        (x, y)
        for x in range(1 - size[0], case.image[0])
        for y in range(1 - size[1], case.image[1])
        if oracle.allowed(patch, case.image, box, x, y, size)
    ]
    if not positions:
        return False
    bases = list(hiding(case, box, rng))
    for x, y in best_positions(case, positions, size, box, rng, tries):
        rows, columns = (sorted(oracle.reached_positions(case, a, (x, y)[a], (x, y)[a] + size[a])) for a in (1, 0))
        for features in attacked(case.features, np.ix_(rows, columns), rng):
            found = objectness_map(features, case.threshold)
            if any(not has_alert(grid, found, base) for base in bases):
                return True
    return False


def best_positions(case: Case, positions, size, box, rng, tries) -> Iterator[tuple[int, int]]:
    """Some at random, and those that reach most of the features where the object is."""
    for i in rng.integers(0, len(positions), tries // 2):
        yield positions[i]
    strength = case.features.astype(float).max(axis=2)
    own = np.zeros_like(strength)
    for r, c in oracle.object_positions(case.grid, box):
        own[r, c] = 1
    by_axis: list[dict] = [{}, {}]
    for axis in (0, 1):
        for start in {position[axis] for position in positions}:
            by_axis[axis][start] = sorted(oracle.reached_positions(case, axis, start, start + size[axis]))

    def gain(position):
        return (strength * own)[np.ix_(by_axis[1][position[1]], by_axis[0][position[0]])].sum()

    yield from sorted(positions, key=gain, reverse=True)[: tries - tries // 2]


def attacked(features, reached, rng) -> Iterator[np.ndarray]:
    """Nothing, everything, one class or all but one, noise; where the patch reaches."""
    classes = features.shape[2]
    for kind in ("zero", "largest", "random", *range(classes), *range(classes)):
        changed = features.copy()
        shape = changed[reached].shape
        if kind == "zero":
            changed[reached] = 0
        elif kind == "largest":
            changed[reached] = LARGEST
        elif kind == "random":
            changed[reached] = rng.integers(0, LARGEST + 1, shape)
        else:
            values = np.full(shape, rng.choice([0, 5, LARGEST]), features.dtype)
            values[..., kind] = rng.choice([0, LARGEST])
            changed[reached] = values
        yield changed


def hiding(case: Case, box, rng) -> Iterator[Detections]:
    """Base boxes that explain as much as they can without overlapping the object: up to its edges, or at random."""
    width, height = case.image
    x1, y1, x2, y2 = (min(max(v, 0), side) for v, side in zip(box, (width, height) * 2, strict=True))
    around = [(0, 0, x1, height), (x2, 0, width, height), (0, 0, width, y1), (0, y2, width, height)]
    around = [b for b in around if b[0] < b[2] and b[1] < b[3]]
    yield Detections(np.array(around).reshape(-1, 4), np.ones(len(around)), np.zeros(len(around), int))
    yield Detections.empty()
    some = [b for b in around if rng.random() < 0.5]
    yield Detections(np.array(some).reshape(-1, 4), np.ones(len(some)), np.zeros(len(some), int))
