"""The naive implementation: bitmaps and loops over positions and boxes, as the method is usually written."""

from __future__ import annotations

import numpy as np

from objectseeker.core.boxes import Bools, Detections, Floats
from objectseeker.core.masks import Masks
from objectseeker.core.observation import Observation
from objectseeker.core.threats import FAR, Patch


def certified(safe: Bools, masks: Masks, g: Floats, patch: Patch) -> bool:
    """Mark every position that a safe mask removes in a bitmap, then search for an allowed position that is left."""
    width, height = masks.width, masks.height
    w, h = patch.size(width, height)
    xs, ys = np.arange(1 - w, width), np.arange(1 - h, height)
    removed = np.zeros((len(ys), len(xs)), dtype=np.bool_)
    for x1, y1, x2, y2 in masks.removed[safe, 0]:
        inside_x = (np.maximum(xs, 0) >= x1) & (np.minimum(xs + w, width) <= x2)
        inside_y = (np.maximum(ys, 0) >= y1) & (np.minimum(ys + h, height) <= y2)
        removed |= inside_y[:, None] & inside_x[None]
    over_x, over_y = (xs < g[2]) & (xs + w > g[0]), (ys < g[3]) & (ys + h > g[1])
    over = over_y[:, None] & over_x[None]
    gap_x, gap_y = np.maximum(g[0] - (xs + w), xs - g[2]), np.maximum(g[1] - (ys + h), ys - g[3])
    far = (gap_y > height / FAR)[:, None] | (gap_x > width / FAR)[None]
    allowed = {"over": over, "far": far, "close": ~far & ~over, "anywhere": np.ones_like(over)}[patch.location]
    return bool((removed | ~allowed).all())


def prune(
    observation: Observation, base_threshold: float, mask_threshold: float, filter_ioa: float
) -> list[list[float]]:
    """Prune by the paper's rule, per class, box by box."""
    base = [(b, c) for b, s, c in _rows(observation.base) if s >= base_threshold]
    left = [
        (box, score, label)
        for detections in observation.masked
        for box, score, label in _rows(detections)
        if score >= mask_threshold and not any(label == c and _ioa(box, b) > filter_ioa for b, c in base)
    ]
    output = [[*box, label] for box, label in base]
    while left:
        cluster, frontier = [], [left.pop()]
        while frontier:
            a = frontier.pop()
            cluster.append(a)
            near = [b for b in left if a[2] == b[2] and 1 - max(_ioa(a[0], b[0]), _ioa(b[0], a[0])) <= 0.1]
            left = [b for b in left if all(b is not n for n in near)]
            frontier += near
        boxes = [box for box, _, _ in cluster]
        hull = [min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes)]
        output.append([*hull, cluster[0][2]])
    return output


def _rows(detections: Detections) -> list[tuple[list[float], float, int]]:
    return list(zip(detections.xyxy.tolist(), detections.score.tolist(), detections.label.tolist(), strict=True))


def _ioa(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    area = (a[2] - a[0]) * (a[3] - a[1])
    return width * height / area if width > 0 and height > 0 and area > 0 else 0.0
