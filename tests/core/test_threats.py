"""Patches and positions."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import ObjectSeekerError, Patch
from objectseeker.core.threats import PatchPositions, parse_area, patch_sizes


def test_sides_round_up():
    assert Patch(0.01).size(100, 100) == (10, 10)
    assert Patch(0.01).size(101, 100) == (11, 11)
    assert Patch(0.01, aspect=4).size(100, 100) == (20, 5)
    assert Patch(0.01, aspect=0.25).size(100, 100) == (5, 20)
    assert Patch(1e-6).size(10, 10) == (1, 1)
    assert Patch(1.0, aspect=16).size(10, 10) == (40, 3)


def test_a_size_per_image():
    assert patch_sizes(Patch(0.01), [100, 200, 100], [100, 200, 100], 3).tolist() == [[10, 10], [20, 20], [10, 10]]


@settings(max_examples=400, deadline=None)
@given(
    st.tuples(*[st.floats(-6, 26, allow_nan=False)] * 4),
    st.integers(1, 25),
    st.integers(1, 25),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_allowed_positions_equal_the_definition_for_any_float_box(corners, width, height, w, h):
    x1, y1, x2, y2 = corners
    g = [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)]
    if g[0] == g[2] or g[1] == g[3]:
        return
    surroundings = PatchPositions.of(np.array([g]), width, height)
    xs, ys = oracle.positions(width, height, (w, h))
    exact = tuple(oracle.Fraction(v) for v in g)
    for where in ("far", "close", "over", "anywhere"):
        bitmap = np.zeros((len(ys), len(xs)), dtype=bool)
        for x_first, y_first, x_last, y_last in surroundings.allowed(where, np.array([[w, h]]))[0]:
            if x_first <= x_last and y_first <= y_last:
                assert x_first >= xs[0]
                assert y_first >= ys[0]
                bitmap[y_first - ys[0] : y_last - ys[0] + 1, x_first - xs[0] : x_last - xs[0] + 1] = True
        assert np.array_equal(bitmap, oracle.allowed(where, exact, width, height, (w, h))), where


def test_a_gap_of_exactly_a_tenth_is_close():
    near = PatchPositions.of(np.array([[50.0, 50.0, 60.0, 60.0]]), 100, 100)
    size = np.array([[5, 5]])
    far = near.allowed("far", size)[0]
    assert far[0, 2] == 34  # x + 5 = 39 leaves a gap of 11; 40 would leave exactly 10
    assert far[1, 0] == 71


def test_the_three_locations_partition_anywhere():
    g = np.array([[10.25, 3.5, 17.75, 9.0]])
    size = np.array([[4, 3]])
    around = PatchPositions.of(g, 30, 20)
    counts = np.zeros((22, 33), dtype=int)
    for name in ("far", "close", "over"):
        seen = np.zeros_like(counts, dtype=bool)
        for x_first, y_first, x_last, y_last in around.allowed(name, size)[0]:
            seen[y_first + 2 : y_last + 3, x_first + 3 : x_last + 4] |= x_first <= x_last and y_first <= y_last
        counts += seen
    assert (counts == 1).all()


@pytest.mark.parametrize("text", ["1_0%", "0.0_1", "٣%", "1%%", "1"])
def test_an_area_has_ascii_digits_and_one_meaning(text):
    with pytest.raises(ObjectSeekerError):
        parse_area(text)
