"""The bounds: exact is the true minimum, never below the paper's, and both hold in exact arithmetic."""

import warnings
from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import box_of
from strategies import boxes

from objectseeker import Detections, ObjectSeekerError
from objectseeker.core.bounds import MARGIN, SMALLEST_FILTER, lower_bound
from objectseeker.core.rules.iou import iou_lower_bound

FILTER = st.one_of(st.sampled_from([0.5, 0.6, 0.75, 1.0]), st.floats(0.01, 1))


def fast(m, g, filter_ioa, bound, margin=MARGIN):
    return lower_bound(np.array([m]), np.array([g]), filter_ioa, bound, margin)[0, 0]


@pytest.mark.slow
@settings(max_examples=1200, deadline=None)
@given(boxes(), boxes(), FILTER)
def test_bounds_never_exceed_the_exact_value(m, g, filter_ioa):
    if oracle.size(box_of(g)) <= Fraction(1, 10**9):
        return
    exact = oracle.exact_bound(box_of(m), box_of(g), filter_ioa)
    paper = oracle.paper_bound(box_of(m), box_of(g), filter_ioa)
    assert Fraction(fast(m, g, filter_ioa, "paper")) <= paper
    assert Fraction(fast(m, g, filter_ioa, "exact")) <= max(exact, paper) <= max(exact, 0)
    assert fast(m, g, filter_ioa, "exact") >= fast(m, g, filter_ioa, "paper")


@settings(max_examples=700, deadline=None)
@given(boxes(), boxes(), FILTER)
def test_bounds_are_tight(m, g, filter_ioa):
    area_m, area_g = oracle.size(box_of(m)), oracle.size(box_of(g))
    if area_g < Fraction(1, 1000):
        return
    exact = oracle.exact_bound(box_of(m), box_of(g), filter_ioa)
    paper = oracle.paper_bound(box_of(m), box_of(g), filter_ioa)
    lost = 4e-9 * max(1.0, float(area_m / area_g)) + 4e-9 * (30 / min(g[2] - g[0], g[3] - g[1]))
    assert fast(m, g, filter_ioa, "paper") == pytest.approx(float(paper), abs=lost)
    assert fast(m, g, filter_ioa, "exact") >= float(exact) - lost


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 0.5, 0.6, 0.9]))
def test_exact_bound_is_the_minimum_over_all_rectangles(seed, filter_ioa):
    """Brute force: many widths, the smallest height allowed, every corner and random places inside m."""
    rng = np.random.default_rng(seed)
    m = np.sort(rng.integers(0, 12, (2, 2)), axis=0).ravel() + np.array([0, 0, 1, 1])
    g = np.sort(rng.integers(0, 12, (2, 2)), axis=0).ravel() + np.array([0, 0, 1, 1])
    wide, tall = m[2:] - m[:2]
    smallest = np.inf
    for u in np.linspace(filter_ioa * wide, wide, 400):
        v = min(filter_ioa * wide * tall / u, tall)
        x = m[0] + np.concatenate([[0, 1], rng.random(6)])[:, None] * (wide - u)
        y = m[1] + np.concatenate([[0, 1], rng.random(6)])[None] * (tall - v)
        width = np.clip(np.minimum(x + u, g[2]) - np.maximum(x, g[0]), 0, None)
        height = np.clip(np.minimum(y + v, g[3]) - np.maximum(y, g[1]), 0, None)
        smallest = min(smallest, float((width * height).min()))
    smallest /= np.prod(g[2:] - g[:2])
    bound = fast(m.astype(float), g.astype(float), filter_ioa, "exact", margin=0.0)
    assert bound <= smallest + 1e-9  # no rectangle covers less
    assert smallest <= bound + 0.05 * wide * tall / np.prod(g[2:] - g[:2])  # and some rectangle covers hardly more


def test_a_tie_is_not_above_the_threshold():
    """m of 10 x 10 reaches 4 columns into g: a slice of 60 % can avoid g exactly."""
    assert fast([0, 0, 10, 10], [6, 0, 16, 10], 0.6, "exact", margin=0.0) == pytest.approx(0, abs=1e-15)
    assert not fast([0, 0, 10, 10], [6, 0, 16, 10], 0.6, "exact") > 0
    assert fast([0, 0, 10, 10], [5.9, 0, 15.9, 10], 0.6, "exact") > 0


def test_boxes_without_area_prove_nothing():
    for m in ([3, 3, 3, 9], [3, 3, 9, 3], [3, 3, 3, 3]):
        assert fast(m, [0, 0, 10, 10], 0.6, "exact") <= 0
    assert fast([0, 0, 10, 10], [3, 3, 3, 9], 0.6, "exact") <= 0
    assert fast([0, 0, 10, 10], [0, 0, 10, 10], 0.0, "exact") <= 0  # a filter that drops whatever it touches


def test_a_filter_that_is_next_to_nothing_proves_nothing():
    """Below SMALLEST_FILTER the margin does not cover what rounds."""
    whole = [0, 0, 2000, 2000]
    for filter_ioa in (0.0, 5e-7, np.nextafter(SMALLEST_FILTER, 0)):
        for bound in ("exact", "paper"):
            assert fast(whole, whole, filter_ioa, bound) <= 0
            assert iou_lower_bound(np.array([whole]), np.array([whole]), filter_ioa, bound)[0, 0] <= 0
    assert fast(whole, whole, SMALLEST_FILTER, "exact") > 0
    assert iou_lower_bound(np.array([whole]), np.array([whole]), SMALLEST_FILTER)[0, 0] > 0


def test_the_margin_is_taken_off_the_filter_and_off_both_sides():
    """Of m = g is left, with margin e: a width of (1 - e) and of its height (f - e) / 1 - e, or the other way round."""
    e = Fraction(MARGIN)
    for filter_ioa in (0.3, 0.6, 0.9):
        for wide, tall in ((1.0, 1.0), (30.0, 2.0)):
            box, f = [5.0, 5.0, 5.0 + wide, 5.0 + tall], Fraction(filter_ioa)
            least = float((1 - e) * (f - 2 * e))
            assert fast(box, box, filter_ioa, "paper") == pytest.approx(float(f - e), abs=MARGIN / 100)
            assert fast(box, box, filter_ioa, "exact") == pytest.approx(max(least, float(f - e)), abs=MARGIN / 100)
            assert fast(box, box, filter_ioa, "exact", margin=0.0) == pytest.approx(filter_ioa, abs=1e-15)


def test_exact_certifies_what_paper_cannot():
    m, g = [0, 0, 10, 10], [0, 0, 10, 5.5]
    assert fast(m, g, 0.6, "paper") < 0.3 < fast(m, [0, 0, 10, 10], 0.6, "paper")
    corner = [4, 4, 10, 10]
    assert fast(m, corner, 0.6, "exact") > fast(m, corner, 0.6, "paper")


def exact_with_margin(m, g, filter_ioa):
    """The bound as defined, in fractions: of each margin and of the filter, MARGIN is given to the attacker."""
    e, (wide, tall) = Fraction(MARGIN), (Fraction(m[2]) - Fraction(m[0]), Fraction(m[3]) - Fraction(m[1]))
    w, h = (max(min(m[i + 2], g[i + 2]) - max(m[i], g[i]), 0) for i in (0, 1))
    a, b = (Fraction(max(g[i] - m[i], m[i + 2] - g[i + 2], 0)) for i in (0, 1))
    a, b, f = a + e * wide, b + e * tall, Fraction(filter_ioa) - e
    c = f * wide * tall

    def left(u):
        return max(min(u - a, w), 0) * max(min(c / u - b, h), 0)

    widths = [f * wide, wide, a, a + w, c / b, c / (b + h)]
    return min(left(u) for u in widths if f * wide <= u <= wide) / ((g[2] - g[0]) * (g[3] - g[1]))


@pytest.mark.parametrize("filter_ioa", [0.5, 0.6, 0.75, 0.9])
def test_every_margin_of_the_exact_bound_is_given_to_the_attacker(filter_ioa):
    """Where the paper's bound is lower, so that it does not hide them."""
    compared, rng = 0, np.random.default_rng(0)
    for _ in range(200):
        m = [int(v) for v in np.sort(rng.integers(0, 30, (2, 2)), axis=0).ravel()]
        g = [int(v) for v in np.sort(rng.integers(0, 30, (2, 2)), axis=0).ravel()]
        if min(m[2] - m[0], m[3] - m[1], g[2] - g[0], g[3] - g[1]) < 1:
            continue
        expected = float(exact_with_margin(m, g, filter_ioa))
        if fast(m, g, filter_ioa, "paper") < expected - 1e-6:
            compared += expected > 0
            assert fast(m, g, filter_ioa, "exact") == pytest.approx(expected, abs=1e-12)
    assert compared > 10


def test_boxes_without_area_or_margin_raise_no_warning():
    degenerate = np.array([[3.0, 3, 3, 9], [3, 3, 9, 3], [3, 3, 3, 3], [0, 0, 10, 10]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bound in ("exact", "paper"):
            for margin in (0.0, MARGIN):
                assert (lower_bound(degenerate[:3], degenerate, 0.6, bound, margin) <= 0).all()
                assert (iou_lower_bound(degenerate[:3], degenerate, 0.6, bound, margin) <= 0).all()
                assert lower_bound(degenerate[3:], degenerate[3:], 0.6, bound, margin)[0, 0] > 0


def test_unknown_bound_is_refused():
    box = Detections([[0, 0, 1, 1]], [1], [0]).xyxy
    with pytest.raises(ObjectSeekerError, match="'tight'"):
        lower_bound(box, box, 0.6, "tight")
