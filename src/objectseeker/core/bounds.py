"""Bounds on how much of an object survives if a base box filters its masked box.

The attacker may place any base box b. If b filters the masked box m, then R = m and b (their intersection) is a
rectangle inside m with |R| > filter_ioa * |m|, and b covers at least |R and g| of the object g. A bound is a lower
limit of |R and g| / |g| over all such R; R = m itself is one of them, so it also limits what m alone covers. If the
bound exceeds T, then whether m is filtered or not, some output box covers more than T of g.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from objectseeker.core.boxes import Floats, area
from objectseeker.errors import ObjectSeekerError

Bound = Literal["exact", "paper"]

# Certified verdicts must hold in exact arithmetic and for a filter computed in floating point. All quantities below
# come from float64 coordinates by a handful of operations, each off by at most 2**-53 of the largest length or area
# involved; every length and area is therefore moved this share of m against the object before it is compared. What
# is within the margin of a tie is not certified.
MARGIN = 1e-9
SMALLEST_AREA = 1e-100  # below it areas are no longer rounded relative to their size
SMALLEST_FILTER = 1e-6  # below it the margin no longer dominates rounding; such a filter drops everything anyway


def lower_bound(
    masked: Floats, objects: Floats, filter_ioa: float, bound: Bound = "exact", margin: float = MARGIN
) -> Floats:
    """Return the least share of each object that a box covers if it filters a masked box.

    Shape (masked boxes, objects).

    Guarantee: with the default margin the result never exceeds the true minimum (for "paper": the paper's bound) in
    exact arithmetic, also if the filter accepts ratios 1e-12 too low by rounding. It is 0 or less for boxes or
    objects without area. `margin=0` gives the plain value, for looking at, not for certifying.
    """
    if bound not in ("exact", "paper"):
        raise ObjectSeekerError(f"bound must be 'exact' or 'paper': got {bound!r}")
    if not len(masked) or not len(objects) or filter_ioa < SMALLEST_FILTER:
        return np.zeros((len(masked), len(objects)))
    paper = _paper(masked[:, None], objects[None], filter_ioa, margin)
    return paper if bound == "paper" else np.maximum(paper, _exact(masked[:, None], objects[None], filter_ioa, margin))


def _paper(m: Floats, g: Floats, filter_ioa: float, margin: float) -> Floats:
    """(filter_ioa * |m| - |m minus g|) / |g|: all of m outside g might be what the filter saw."""
    width, height, _, _ = _overlap(m, g)
    outside = area(m) - width * height
    return _share((filter_ioa - margin) * area(m) - outside, g)


def _exact(m: Floats, g: Floats, filter_ioa: float, margin: float) -> Floats:
    """The smallest |R and g| / |g| over rectangles R inside m with |R| >= filter_ioa * |m|.

    R of width u and height v covers least of g when pushed into the corner of m with the wider margins a, b, leaving
    clip(u - a, 0, w) * clip(v - b, 0, h) of the overlap w x h; the smallest v allowed is c / u. As a function of u
    each piece between the break points is concave ((u - a)(c / u - b)), linear, or decreasing (w (c / u - b)), so the
    minimum over an interval is at a break point or an end.
    """
    wide, tall = m[..., 2] - m[..., 0], m[..., 3] - m[..., 1]
    w, h, a, b = _overlap(m, g)
    a, b = a + margin * wide, b + margin * tall
    share = filter_ioa - margin
    c = share * wide * tall
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        candidates = (share * wide, wide, a, a + w, c / b, c / (b + h))
        smallest = np.full(w.shape, np.inf)
        for u in candidates:
            u = np.fmin(np.fmax(u, share * wide), wide)  # 0 / 0 becomes the least width
            covered = np.minimum(np.maximum(u - a, 0), w) * np.minimum(np.maximum(c / u - b, 0), h)
            smallest = np.fmin(smallest, covered)  # 0 / 0 of a box without width does not count
    return _share(np.where(np.isfinite(smallest), smallest, 0.0), g)


def _overlap(m: Floats, g: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return width and height of m and g's intersection, and m's wider margins outside g, along x and y."""
    width = np.maximum(np.minimum(m[..., 2], g[..., 2]) - np.maximum(m[..., 0], g[..., 0]), 0)
    height = np.maximum(np.minimum(m[..., 3], g[..., 3]) - np.maximum(m[..., 1], g[..., 1]), 0)
    margin_x = np.maximum(np.maximum(g[..., 0] - m[..., 0], m[..., 2] - g[..., 2]), 0)
    margin_y = np.maximum(np.maximum(g[..., 1] - m[..., 1], m[..., 3] - g[..., 3]), 0)
    return width, height, margin_x, margin_y


def _share(covered: Floats, g: Floats) -> Floats:
    whole = np.broadcast_to(area(g), covered.shape)
    return np.divide(covered, whole, out=np.zeros_like(covered), where=whole > 0)
