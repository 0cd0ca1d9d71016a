"""What hypothesis draws from in several tests."""

from __future__ import annotations

from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)
COORDINATE = st.one_of(st.integers(-5, 30).map(float), st.floats(-5, 30, allow_nan=False, width=32))


@st.composite
def boxes(draw):
    x, y = sorted([draw(COORDINATE), draw(COORDINATE)]), sorted([draw(COORDINATE), draw(COORDINATE)])
    return [x[0], y[0], x[1], y[1]]
