"""The method, slowly and literally: bitmaps, every pixel position, exact fractions, loops.

Written from the definitions of the method, not from the fast code; it shares nothing with the package but the data
containers. Coordinates are turned into fractions, so nothing here is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from objectseeker import Detections, Observation, Patch
from objectseeker.core.masks import Masks

Box = tuple[Fraction, Fraction, Fraction, Fraction]


def box_of(corners: np.ndarray) -> Box:
    x1, y1, x2, y2 = (Fraction(float(v)) for v in corners)
    return x1, y1, x2, y2


def connected(near: np.ndarray) -> np.ndarray:
    """The component of everything in a relation, numbered by first members: DBSCAN with min_samples = 1."""
    for _ in range(len(near).bit_length()):
        near = near @ near  # twice as far
    return np.unique(near.argmax(axis=1), return_inverse=True)[1]


def boxes_of(detections: Detections) -> list[Box]:
    return [box_of(row) for row in detections.xyxy]


def size(box: Box) -> Fraction:
    return (box[2] - box[0]) * (box[3] - box[1])


def shared(a: Box, b: Box) -> Fraction:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else Fraction(0)


def ioa(a: Box, b: Box) -> Fraction:
    return shared(a, b) / size(a) if size(a) > 0 else Fraction(0)


# --- pruning -------------------------------------------------------------------------------------------------------


def prune(
    observation,
    base_threshold=0.5,
    mask_threshold=0.7,
    filter_ioa=0.6,
    classwise=True,
    evidence_threshold=None,
    evidence_power=1.0,
    cluster_distance=0.1,
) -> list[tuple]:
    """Robust detections as a sorted list of (x1, y1, x2, y2, score, label)."""
    base = [(box, score, label) for box, score, label in rows(observation.base) if score >= base_threshold]
    output = list(base)
    left = []
    for mask, detections in enumerate(observation.masked):
        for box, score, label in rows(detections):
            weight = evidence_of(score, mask_threshold, evidence_threshold, evidence_power)
            if weight <= 0:
                continue
            if any(
                float(ioa(box, other)) > filter_ioa and (label == other_label or not classwise)
                for other, _, other_label in base
            ):
                continue
            left.append((box, score, label, mask, weight))
    for only in sorted({entry[2] for entry in left}) if classwise else [None]:
        group = [entry for entry in left if only is None or entry[2] == only]
        if not group:
            continue
        distances = np.array(
            [[float(1 - max(ioa(a[0], b[0]), ioa(b[0], a[0]))) if a is not b else 0.0 for b in group] for a in group]
        )
        found = connected(distances <= cluster_distance)
        for number in range(found.max() + 1):
            members = [entry for entry, cluster in zip(group, found, strict=True) if cluster == number]
            strongest: dict[int, float] = {}
            for *_, mask, weight in members:
                strongest[mask] = max(weight, strongest.get(mask, 0.0))
            if sum(strongest.values()) < 1:
                continue
            best = max(members, key=lambda entry: entry[1])  # the first of equals
            hull = (
                min(m[0][0] for m in members),
                min(m[0][1] for m in members),
                max(m[0][2] for m in members),
                max(m[0][3] for m in members),
            )
            output.append((hull, best[1], best[2]))
    return sorted((*map(float, box), score, label) for box, score, label in output)


def rows(detections: Detections) -> list[tuple[Box, float, int]]:
    return list(zip(boxes_of(detections), detections.score.tolist(), detections.label.tolist(), strict=True))


def evidence_of(score: float, mask_threshold: float, evidence_threshold: float | None, evidence_power: float) -> float:
    if score >= mask_threshold:
        return 1.0
    if evidence_threshold is None or score <= evidence_threshold:
        return 0.0
    return ((score - evidence_threshold) / (mask_threshold - evidence_threshold)) ** evidence_power


# --- bounds --------------------------------------------------------------------------------------------------------


def paper_bound(m: Box, g: Box, filter_ioa: float) -> Fraction:
    return (Fraction(filter_ioa) * size(m) - (size(m) - shared(m, g))) / size(g)


def exact_bound(m: Box, g: Box, filter_ioa: float) -> Fraction:
    """Smallest share of g covered by a rectangle inside m of at least filter_ioa of m's area.

    A rectangle of width u and height v can be pushed into any of m's four corners; between the widths where one of
    the four overlaps starts, ends or saturates, the covered area has no inner minimum.
    """
    f = Fraction(filter_ioa)
    wide, tall = m[2] - m[0], m[3] - m[1]
    if wide == 0 or tall == 0 or f == 0 or shared(m, g) == 0:
        return Fraction(0)
    left, right = max(g[0] - m[0], Fraction(0)), max(m[2] - g[2], Fraction(0))
    above, below = max(g[1] - m[1], Fraction(0)), max(m[3] - g[3], Fraction(0))
    widths = {f * wide, wide}
    for stop in (left, right, wide - left, wide - right):
        widths.add(stop)
    for stop in (above, below, tall - above, tall - below):
        if stop > 0:
            widths.add(f * wide * tall / stop)
    overlaps = []
    for u in widths:
        if not f * wide <= u <= wide:
            continue
        v = f * wide * tall / u
        for x in (m[0], m[2] - u):
            for y in (m[1], m[3] - v):
                overlaps.append(shared((x, y, x + u, y + v), g))
    return min(overlaps) / size(g)


def proving(observation: Observation, truth: Detections, n: int, filter_ioa, certification_threshold, bound, classwise):
    """The masked boxes that prove object n, as (mask, row, box, score)."""
    g = boxes_of(truth)[n]
    if size(g) == 0:
        return []
    limit = {"paper": paper_bound, "exact": exact_bound}[bound]
    return [
        (mask, row, box, score)
        for mask, detections in enumerate(observation.masked)
        for row, (box, score, label) in enumerate(rows(detections))
        if (label == truth.label[n] or not classwise) and limit(box, g, filter_ioa) > Fraction(certification_threshold)
    ]


# --- positions -----------------------------------------------------------------------------------------------------


def positions(width: int, height: int, patch: tuple[int, int]) -> tuple[range, range]:
    return range(1 - patch[0], width), range(1 - patch[1], height)


def allowed(where: str, g: Box, width: int, height: int, patch: tuple[int, int]) -> np.ndarray:
    """Bitmap over all positions (y, x): may the attacker use it?"""
    xs, ys = positions(width, height, patch)

    def gaps(start: range, length: int, low: Fraction, high: Fraction) -> tuple[np.ndarray, list[Fraction]]:
        overlap = np.array([min(s + length, high) - max(s, low) > 0 for s in start])  # type: ignore[operator]
        return overlap, [max(low - (s + length), s - high, Fraction(0)) for s in start]

    over_x, dx = gaps(xs, patch[0], g[0], g[2])
    over_y, dy = gaps(ys, patch[1], g[1], g[3])
    over = over_y[:, None] & over_x[None]
    far_x = np.array([gap > Fraction(width, 10) for gap in dx])
    far_y = np.array([gap > Fraction(height, 10) for gap in dy])
    far = (far_y[:, None] | far_x[None]) & ~over
    return {"over": over, "far": far, "close": ~far & ~over, "anywhere": np.ones_like(over)}[where]


def removed(observation: Observation, patch: tuple[int, int], masks: Sequence[int] | None = None) -> np.ndarray:
    """Bitmap (mask, y, x): does the mask remove every visible pixel of the patch at that position?"""
    shown = kept_pixels(observation) if masks is None else kept_pixels(observation)[masks]
    xs, ys = positions(observation.width, observation.height, patch)
    answer = np.zeros((len(shown), len(ys), len(xs)), dtype=bool)
    x_first, x_last = np.maximum(xs, 0), np.minimum(np.array(xs) + patch[0], observation.width)
    y_first, y_last = np.maximum(ys, 0), np.minimum(np.array(ys) + patch[1], observation.height)
    for mask, bitmap in enumerate(shown):
        table = np.zeros((observation.height + 1, observation.width + 1), dtype=int)
        table[1:, 1:] = bitmap.cumsum(0, dtype=int).cumsum(1)
        visible = (
            table[np.ix_(y_last, x_last)]
            - table[np.ix_(y_first, x_last)]
            - table[np.ix_(y_last, x_first)]
            + table[np.ix_(y_first, x_first)]
        )
        answer[mask] = visible == 0
    return answer


def kept_pixels(observation: Observation) -> np.ndarray:
    """Bitmap (mask, row, column): does the view under that mask show the pixel?"""
    return kept_bitmaps(observation.masks)


@lru_cache(256)
def kept_bitmaps(masks: Masks) -> np.ndarray:
    shown = np.ones((len(masks), masks.height, masks.width), dtype=bool)
    for bitmap, rectangles in zip(shown, masks.removed, strict=True):
        for x1, y1, x2, y2 in rectangles:
            bitmap[y1:y2, x1:x2] = False
    return shown


def shows_none_of(observation: Observation, first: npt.ArrayLike, last: npt.ArrayLike) -> np.ndarray:
    """Which views show no pixel of the rectangle from `first` = x, y to before `last`, as far as it is visible?"""
    (x1, y1), (x2, y2) = np.maximum(first, 0), np.asarray(last)
    return np.asarray(~kept_pixels(observation)[:, y1:y2, x1:x2].any(axis=(1, 2)))


def seen(g: Box, width: int, height: int) -> bool:
    return shared(g, (Fraction(0), Fraction(0), Fraction(width), Fraction(height))) > 0


def safe_masks(
    observation: Observation,
    truth: Detections,
    n: int,
    *,
    mask_threshold: float,
    filter_ioa: float = 0.6,
    certification_threshold: float = 0.0,
    bound: str = "exact",
    classwise: bool = True,
) -> list[int]:
    """The masks under which one confident box proves object n, ascending."""
    proofs = proving(observation, truth, n, filter_ioa, certification_threshold, bound, classwise)
    return sorted({mask for mask, _, _, score in proofs if score >= mask_threshold})


def certify(observation: Observation, g: Box, patch: Patch, safe: list[int]) -> tuple[bool, bool]:
    """(certified, vacuous) of object g with these safe masks, under the paper's rule."""
    if size(g) == 0 or not seen(g, observation.width, observation.height):
        return False, False
    pixels = patch.size(observation.width, observation.height)
    positions_allowed = allowed(patch.location, g, observation.width, observation.height, pixels)
    defeated = removed(observation, pixels, safe).any(axis=0)
    return bool((defeated | ~positions_allowed).all()), not positions_allowed.any()


# --- the evidence rule ---------------------------------------------------------------------------------------------


def certify_by_evidence(
    observation,
    truth,
    patch,
    n,
    *,
    mask_threshold,
    evidence_threshold,
    evidence_power=1.0,
    filter_ioa=0.6,
    certification_threshold=0.0,
    bound="exact",
    classwise=True,
    cluster_distance=0.1,
    notion="star",
) -> bool:
    """Object n under the evidence rule; `notion`: which sets of agreeing boxes count (clique, star, component)."""
    g = boxes_of(truth)[n]
    if size(g) == 0 or not seen(g, observation.width, observation.height):
        return False
    pixels = patch.size(observation.width, observation.height)
    proofs = [
        (mask, box, evidence_of(score, mask_threshold, evidence_threshold, evidence_power))
        for mask, _, box, score in proving(observation, truth, n, filter_ioa, certification_threshold, bound, classwise)
    ]
    proofs = [proof for proof in proofs if proof[2] > 0]
    close = 1 - Fraction(str(cluster_distance))  # a tie does not count: inference may round it away
    linked = [[a is b or max(ioa(a[1], b[1]), ioa(b[1], a[1])) > close for b in proofs] for a in proofs]
    removing = removed(observation, pixels)
    ok = allowed(patch.location, g, observation.width, observation.height, pixels)
    decided: dict[tuple[int, ...], bool] = {}
    for y, x in zip(*np.nonzero(ok), strict=True):
        present = tuple(i for i, (mask, _, _) in enumerate(proofs) if removing[mask, y, x])
        if present not in decided:
            decided[present] = any(enough([proofs[i] for i in group]) for group in groups(present, linked, notion))
        if not decided[present]:
            return False
    return True


def enough(group: list[tuple[int, Box, float]]) -> bool:
    strongest: dict[int, float] = {}
    for mask, _, weight in group:
        strongest[mask] = max(weight, strongest.get(mask, 0.0))
    return 1.0 in strongest.values() or sum(strongest.values()) >= 1 + 1e-9


def groups(present: tuple[int, ...], linked: list[list[bool]], notion: str) -> list[list[int]]:
    if notion == "star":
        return [[j for j in present if linked[i][j]] for i in present]
    if notion == "component":
        found, left = [], set(present)
        while left:
            group, frontier = set(), {left.pop()}
            while frontier:
                group |= frontier
                frontier = {j for j in left for i in frontier if linked[i][j]}
                left -= frontier
            found.append(sorted(group))
        return found
    cliques: list[list[int]] = [[]]
    for i in present:
        cliques += [[*clique, i] for clique in cliques if all(linked[i][j] for j in clique)]
    return cliques[1:]
