"""Patches and positions."""

import warnings

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import ObjectSeekerError, Patch, Rule
from objectseeker.core.threats import (
    ALL_LOCATIONS,
    PATCH_LOCATIONS,
    PatchPositions,
    ThreatModel,
    parse_area,
    patch_sizes,
)


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


def test_areas_are_shares_of_the_image():
    for text, area in (("1%", 0.01), ("100%", 1.0), ("0.5", 0.5), (" 2.5% ", 0.025), ("1e-3", 0.001)):
        assert parse_area(text) == Patch(text).area == area
    for text in ("0", "0%", "101%", "1.5", "-1%", "1.0", "x", "x%", "%", "", "1%x", "nan"):
        with pytest.raises(ObjectSeekerError, match=r"a patch area must be a share of the image such as 1% or 0\.01"):
            parse_area(text)


def test_a_bare_1_is_warned_of():
    with pytest.warns(UserWarning, match="is the whole image") as warned:
        assert Patch(1).area == 1
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Patch(1.0).area == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"area": 0}, "patch area must be above 0"),
        ({"area": 1.5}, "patch area"),
        ({"area": True}, "patch area"),
        ({"aspect": np.nextafter(1e-6, 0)}, r"aspect must lie within \[1e-6, 1e6\]"),
        ({"aspect": np.nextafter(1e6, 2e6)}, r"aspect must lie within \[1e-6, 1e6\]"),
        ({"aspect": 1.5e-6 / 2}, r"aspect must lie within \[1e-6, 1e6\]"),
        ({"location": "near"}, "location must be one of far, close, over, anywhere, outside: got 'near'"),
        ({"count": 0}, "patch count must be at least 1"),
        ({"count": 17}, "patch count must be at most 16"),
        ({"with_outside": 1}, "with_outside"),
    ],
)
def test_a_patch_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ObjectSeekerError, match=message):
        Patch(**settings)


def test_patches_at_the_limits():
    assert [Patch(aspect=aspect).aspect for aspect in (1e-6, 1.5e-6, 1e6)] == [1e-6, 1.5e-6, 1e6]
    assert Patch(count=16).count == 16
    assert Patch(0.02, 3.0).size(30, 20) == (6, 2)
    assert Patch(0.02, 1 / 3).size(30, 20) == (2, 6)
    assert Patch() == Patch(0.01, 1.0, "over", 1, False)


def test_who_owns_the_outside_and_who_has_one_position():
    for patch, outside, one in (
        (Patch(), False, True),
        (Patch(count=2), False, False),
        (Patch(with_outside=True), True, False),
        (Patch(location="outside"), True, False),
    ):
        assert (patch.owns_outside, patch.has_one_position) == (outside, one)


def test_sizes_of_patches_in_images_of_several_sizes():
    patch = Patch(0.02, 3.0)
    widths, heights = [30, 300, 30, 7], [20, 20, 20, 90]
    assert patch_sizes(patch, widths, heights, 4).tolist() == [
        list(patch.size(*size)) for size in zip(widths, heights, strict=True)
    ]
    assert patch_sizes(patch, 30, 20, 3).tolist() == [[6, 2]] * 3
    assert patch_sizes(patch, [], [], 0).shape == (0, 2)
    boxes = np.array([[1.0, 1, 5, 5], [2, 2, 6, 6]])
    both = PatchPositions.of(boxes, [30, 50], [20, 9])
    for n, (width, height) in enumerate(((30, 20), (50, 9))):
        alone = PatchPositions.of(boxes[n : n + 1], width, height)
        for where in ALL_LOCATIONS:
            size = patch_sizes(patch, [30, 50], [20, 9], 2)
            assert np.array_equal(both.allowed(where, size)[n], alone.allowed(where, size[n : n + 1])[0])


def test_a_threat_model_is_a_patch_at_every_location():
    threat = ThreatModel(area=0.02, aspect=3.0, count=2)
    assert threat.patches() == [Patch(0.02, 3.0, where, 2) for where in PATCH_LOCATIONS]
    assert threat.anywhere() == Patch(0.02, 3.0, "anywhere")
    assert threat.at_all_locations().locations == ALL_LOCATIONS == (*PATCH_LOCATIONS, "outside")
    assert threat.at_all_locations(has_windows=False).locations == PATCH_LOCATIONS
    assert ThreatModel(area="2%").area == 0.02
    assert ThreatModel().patches()[0] == Patch(0.01, 1.0, "far", 1)
    assert threat.to_dict(Rule()) == {
        "patch_area": 0.02,
        "patch_aspect": 3.0,
        "patch_count": 2,
        "certification_threshold": 0.0,
        "bound": "exact",
    }
    for wrong, message in (
        ({"locations": ("far",)}, "locations must be far, close, over, anywhere, and may end with outside"),
        ({"certification_threshold": 1.5}, "certification_threshold"),
        ({"bound": "tight"}, "bound must be one of exact, paper: got 'tight'"),
        ({"area": 0}, "patch area must be above 0"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            ThreatModel(**wrong)
