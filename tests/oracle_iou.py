"""The IoU variant, slowly and literally: loops, fractions, one box at a time. Positions are those of `oracle`."""

from __future__ import annotations

from fractions import Fraction

import oracle
from oracle import Box, rows, shared, size

from objectseeker import Detections, Observation


def iou(a: Box, b: Box) -> Fraction:
    union = size(a) + size(b) - shared(a, b)
    return shared(a, b) / union if union > 0 else Fraction(0)


def gap_to_mask(box: Box, removed: tuple[int, int, int, int], width: int, height: int) -> Fraction:
    """How far the box stays away from what a half mask removes, as a share of the axis; negative if it does not."""
    x1, y1, x2, y2 = removed
    if (y1, y2) == (0, height):
        return (box[0] - x2 if x1 == 0 else x1 - box[2]) / Fraction(width)
    return (box[1] - y2 if y1 == 0 else y1 - box[3]) / Fraction(height)


def is_clear(box: Box, mask: int, observation: Observation) -> bool:
    """Of everything the mask removes: one half of the image, or two."""
    halves = [strip for strip in observation.masks.removed[mask].tolist() if any(strip)]
    width, height = observation.width, observation.height
    return all(gap_to_mask(box, tuple(removed), width, height) > Fraction(5, 100) for removed in halves)


# --- pruning -------------------------------------------------------------------------------------------------------


def prune(
    observation, base_threshold=0.5, mask_threshold=0.7, filter_iou=0.8, classwise=True, **ioa_options
) -> list[tuple]:
    """Robust detections as a sorted list of (x1, y1, x2, y2, score, label)."""
    base = [(box, score, label) for box, score, label in rows(observation.base) if score >= base_threshold]
    clear, others = [], []
    for mask, detections in enumerate(observation.masked):
        clear += [row for row in rows(detections) if is_clear(row[0], mask, observation)]
        keep = [n for n, row in enumerate(rows(detections)) if not is_clear(row[0], mask, observation)]
        others.append(detections[keep])

    def repeats(box, label, earlier):
        return any(float(iou(box, b)) > filter_iou and (label == c or not classwise) for b, _, c in earlier)

    clear = [(box, score, label) for box, score, label in clear if score >= mask_threshold]
    clear = [row for row in clear if not repeats(row[0], row[2], base)]
    kept: list[tuple] = []
    for row in sorted(clear, key=lambda row: -row[1]):  # earlier boxes first among equals: sorting is stable
        if not repeats(row[0], row[2], kept):
            kept.append(row)
    rest = Observation(observation.width, observation.height, observation.masks, observation.base, others)
    options = {"base_threshold": base_threshold, "mask_threshold": mask_threshold, "classwise": classwise}
    output = oracle.prune(rest, **options, **ioa_options)
    return sorted(output + [(*map(float, box), score, label) for box, score, label in kept])


# --- bounds --------------------------------------------------------------------------------------------------------


def paper_bound(m: Box, g: Box, tau: Fraction) -> Fraction:
    b = shared(m, g)
    a, c = size(g) - b, size(m) - b
    return (tau * b + (tau - 1) * c) / (a + b + c)


def worst_boxes(m: Box, g: Box, tau: Fraction) -> list[Box]:
    """Boxes whose IoU with m is tau: the slices of m in its corners, and m extended at one side."""
    wide, tall = m[2] - m[0], m[3] - m[1]
    if wide == 0 or tall == 0 or tau == 0:
        return []
    left, right = max(g[0] - m[0], Fraction(0)), max(m[2] - g[2], Fraction(0))
    above, below = max(g[1] - m[1], Fraction(0)), max(m[3] - g[3], Fraction(0))
    widths = {tau * wide, wide, left, right, wide - left, wide - right}
    widths |= {tau * wide * tall / stop for stop in (above, below, tall - above, tall - below) if stop > 0}
    found = []
    for u in widths:
        if tau * wide <= u <= wide:
            v = tau * wide * tall / u
            found += [(x, y, x + u, y + v) for x in (m[0], m[2] - u) for y in (m[1], m[3] - v)]
    x, y = wide / tau - wide, tall / tau - tall
    found += [(m[0] - x, *m[1:]), (m[0], m[1] - y, *m[2:]), (*m[:2], m[2] + x, m[3]), (*m[:3], m[3] + y)]
    return found


def exact_bound(m: Box, g: Box, tau: Fraction) -> Fraction:
    """The smallest IoU with g among `worst_boxes`."""
    return min((iou(b, g) for b in worst_boxes(m, g, tau)), default=Fraction(0))


# --- certificates --------------------------------------------------------------------------------------------------


def safe_masks(
    observation: Observation,
    truth: Detections,
    n: int,
    *,
    mask_threshold,
    filter_iou,
    certification_threshold,
    bound,
    classwise,
) -> list[int]:
    """The masks under which one clear, confident box proves object n, ascending."""
    g = oracle.boxes_of(truth)[n]
    if size(g) == 0:
        return []
    limit = {"paper": paper_bound, "exact": exact_bound}[bound]
    return [
        mask
        for mask, detections in enumerate(observation.masked)
        if any(
            score >= mask_threshold
            and (label == truth.label[n] or not classwise)
            and size(box) > 0
            and is_clear(box, mask, observation)
            and limit(box, g, Fraction(str(filter_iou))) > Fraction(str(certification_threshold))
            for box, score, label in rows(detections)
        )
    ]
