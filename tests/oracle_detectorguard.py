"""DetectorGuard, literally: loops over windows, pixels and patch positions, and DBSCAN as it is defined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from objectseeker import Detections, Patch
from objectseeker.detectorguard.objectness import Grid


@dataclass(frozen=True, eq=False)
class Case:
    """A small image with its features: `network` is the input size of the network that would have made them."""

    image: tuple[int, int]
    network: tuple[int, int]
    features: np.ndarray
    ground_truth: Detections
    threshold: int

    @property
    def grid(self) -> Grid:
        return Grid.for_image(self.image, self.network)


def generate(seed: int) -> Case:
    """Some objects, most of which raise features of a class or two where they are."""
    rng = np.random.default_rng(seed)
    width, height = rng.integers(24, 60, 2).tolist()
    across, down = rng.integers(120, 180, 2).tolist()
    image, network = (width, height), (across, down)
    grid = Grid.for_image(image, network)
    features = rng.integers(0, 6, (*grid.shape, 3))
    boxes = []
    for _ in range(3):
        corner = rng.uniform(-0.2, 0.4, 2) * image
        box = np.concatenate([corner, corner + rng.uniform(0.4, 0.9, 2) * image])
        boxes.append(box)
        inside = [(grid.centers[a] > box[a] - 2) & (grid.centers[a] < box[a + 2] + 2) for a in (0, 1)]
        for label in rng.permutation(3)[: rng.integers(1, 3)]:
            strength = rng.integers(10, 60)
            features[..., label] += np.outer(inside[1], inside[0]) * rng.integers(0, strength, grid.shape)
    truth = Detections(np.array(boxes), np.ones(3), rng.integers(0, 3, 3))
    return Case(image, network, features.astype(np.uint16), truth, int(rng.integers(4, 16)))


def votes(features):
    rows, columns, classes = features.shape
    found = np.zeros((rows, columns, classes), np.int64)
    for i in range(rows - 7):
        for j in range(columns - 7):
            found[i : i + 8, j : j + 8] += features[i : i + 8, j : j + 8].astype(np.int64).sum(axis=(0, 1))
    return found


def says_object(features, threshold):
    """(rows, columns): for some class the sum of the means of the windows around exceeds 64 times the threshold."""
    return (votes(features) / 64 > 64 * threshold).any(axis=2)


def has_cluster(points):
    """DBSCAN with distance 3 and 24 points finds a cluster iff there is a core point."""
    at = np.array(sorted(points)).reshape(-1, 2)
    squared = ((at[:, None] - at[None]) ** 2).sum(axis=2)
    return bool(((squared <= 9).sum(axis=1) >= 24).any())


def explained(grid, box):
    """The positions (row, column) whose middle lies inside the box."""
    x1, y1, x2, y2 = box
    return {
        (r, c)
        for r in range(grid.shape[0])
        for c in range(grid.shape[1])
        if x1 < grid.centers[0][c] < x2 and y1 < grid.centers[1][r] < y2
    }


def object_positions(grid, box):
    """The positions whose middle is in the box or on its edge."""
    x1, y1, x2, y2 = box
    return {
        (r, c)
        for r in range(grid.shape[0])
        for c in range(grid.shape[1])
        if x1 <= grid.centers[0][c] <= x2 and y1 <= grid.centers[1][r] <= y2
    }


def has_alert(grid, found, base):
    unexplained = {tuple(p) for p in np.argwhere(found).tolist()}
    for box in base.xyxy.tolist():
        unexplained -= explained(grid, box)
    return has_cluster(unexplained)


@cache
def seen_by(image, network, axis):
    """For every position along an axis the raw pixels that were blended into a pixel of its view."""
    placement = Grid.for_image(image, network).placement
    along = (placement.x, placement.y)[axis]
    table = along.resampling
    blended = [
        {int(tap) for tap, weight in zip(table.tap[i], table.weight[i], strict=True) if weight > 0}
        for i in range(table.resized)
    ]
    by_pixel = [set()] * along.offset + blended + [set()] * (along.length - along.offset - table.resized)
    return [set().union(*by_pixel[start : start + 33]) for start in range(0, along.length - 32, 8)]


def reached_positions(case, axis, start, stop):
    """The positions along an axis that see some of the raw pixels [start, stop)."""
    wanted = set(range(start, stop))
    return frozenset(i for i, pixels in enumerate(seen_by(case.image, case.network, axis)) if pixels & wanted)


def allowed(patch: Patch, image, box, x, y, size):
    """Whether the patch of `size` at x, y may be there (see threats.Patch)."""
    x1, y1, x2, y2 = box
    gaps = [max(x1 - (x + size[0]), x - x2), max(y1 - (y + size[1]), y - y2)]
    overlaps = max(gaps) < 0
    far = not overlaps and any(10 * max(gap, 0) > side for gap, side in zip(gaps, image, strict=True))
    return {"anywhere": True, "over": overlaps, "far": far, "close": not overlaps and not far}[patch.location]


def certified(case: Case, patches):
    """(P, N): every allowed position visited, every feature it reaches set to 0."""
    grid = case.grid

    @cache
    def left(columns, rows):
        features = case.features.copy()
        features[np.ix_(sorted(rows), sorted(columns))] = 0
        return frozenset(map(tuple, np.argwhere(says_object(features, case.threshold)).tolist()))

    is_clustered = cache(has_cluster)

    @cache
    def along(axis, start, length):
        return reached_positions(case, axis, start, start + length)

    def holds(patch, box):
        size = patch.size(*case.image)
        own = frozenset(object_positions(grid, box))
        return all(
            is_clustered(own & left(along(0, x, size[0]), along(1, y, size[1])))
            for x in range(1 - size[0], case.image[0])
            for y in range(1 - size[1], case.image[1])
            if allowed(patch, case.image, box, x, y, size)
        )

    def visible(box):
        return all(max(box[a], 0) < min(box[a + 2], case.image[a]) for a in (0, 1))

    return np.array(
        [[visible(box) and holds(patch, box) for box in case.ground_truth.xyxy.tolist()] for patch in patches]
    )
