"""Mask recipes: what they make, what they are called, and that bands leave no position out."""

from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Bands, Halves, ObjectSeekerError, Pairs, Patch, Windows
from objectseeker.core.recipes import MOST_MASKS, band_positions, line_positions, pair_counts, parse_recipe, subrecipes

SHARES = st.floats(0.001, 1)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (Halves(30), "halves:30"),
        (Pairs(10), "pairs:10"),
        (Bands(0.01), "bands:0.01"),
        (Bands(0.02, 2.0, 0.5), "bands:0.02,aspect=2.0,spacing=0.5"),
        (Bands(1.0), "bands:100%"),
        (Halves(10) + Bands(0.01), "halves:10+bands:0.01"),
        (Windows(1 / 2, step=1 / 4), "windows:1/2"),
        (Windows(1 / 3, 0.25), "windows:1/3,step=1/4"),
        (Windows(0.3) + Halves(2) + Pairs(2), "windows:3/10+halves:2+pairs:2"),
        (Halves(3) + (Bands(0.1) + Halves(2)), "halves:3+bands:0.1+halves:2"),
    ],
)
def test_a_recipe_is_written_as_text_and_read_back(recipe, text):
    assert str(recipe) == text
    assert parse_recipe(text) == recipe
    assert hash(parse_recipe(text)) == hash(recipe)


@given(SHARES, st.floats(0.1, 10), st.floats(0.05, 3))
def test_every_number_survives_the_text(area, aspect, spacing):
    assert parse_recipe(str(Bands(area, aspect, spacing))) == Bands(area, aspect, spacing)


def test_percent_and_defaults_are_understood():
    assert parse_recipe("bands:1%") == Bands(0.01)
    assert parse_recipe("bands:1%,spacing=0.5") == Bands(0.01, spacing=0.5)
    assert parse_recipe("halves") == Halves()
    assert parse_recipe("windows") == parse_recipe("windows:0.5,step=0.25") == Windows()
    assert parse_recipe(" halves:10 + bands:1% ") == Halves(10) + Bands(0.01)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_every_fraction_survives_the_text(first, second, denominator):
    low, high = sorted((first, second))
    if low < high:
        windows = Windows(Fraction(low, high), Fraction(min(low, denominator), denominator))
        assert parse_recipe(str(windows)) == windows
        assert Windows(low / high, min(low, denominator) / denominator) == windows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thirds:3", "cannot read the masks 'thirds:3'"),
        ("halves:x", "cannot read the masks 'halves:x'"),
        ("halves:30,area=1", "cannot read the masks"),
        ("bands:1%,width=3", "cannot read the masks"),
        ("bands:1", "a patch area must be a share of the image such as 1% or 0.01: got '1'"),
        ("bands:1%,spacing=0", "spacing must be above 0"),
        ("halves:0", "lines must be at least 1"),
        ("halves:9000", "lines must be at most 8191"),
        ("pairs:90", "lines must be at most 80"),
        ("windows:1", "share of a window must be above 0 and below 1: got 1"),
        ("windows:0", "share of a window must be above 0 and below 1: got 0"),
        ("windows:1/0", "share must be a fraction such as 1/3 or 0.25"),
        ("windows:1e-3", "share must be a fraction such as 1/3 or 0.25"),
        ("windows:1/2,step=0", "step of windows must be above 0"),
        ("windows:1/2,step=3/2", "step of windows must be above 0 and at most 1: got 3/2"),
        ("bands:1%,area=1%=2", "a patch area must be a share of the image such as 1% or 0.01: got '1%=2'"),
        ("x" * 99, f"cannot read the masks '{'x' * 80}': write"),
        ("windows:1/2,step=1/1001", "a denominator of at most 1,000"),
        ("", "cannot read the masks ''"),
    ],
)
def test_what_is_no_recipe_is_refused(text, message):
    with pytest.raises(ObjectSeekerError, match=message.replace("%", "%")):
        parse_recipe(text)


def test_a_whole_number_of_any_type_is_the_same_recipe():
    assert Halves(3.0) == Halves(np.int64(3)) == Halves(3)
    assert str(Pairs(2.0)) == "pairs:2"


def test_images_of_one_size_share_their_masks():
    assert Halves(30).masks(500, 375) is Halves(30).masks(500, 375)
    assert Halves(30).forward_passes(500, 375) == 121
    assert Pairs(10).forward_passes(500, 375) == 531
    assert Bands(0.01).forward_passes(500, 375) == 20


def test_bands_of_a_known_patch():
    masks = Bands(0.01).masks(100, 60)  # 8 x 8 pixels, a band every 8
    removed = masks.removed[:, 0]
    assert removed[0].tolist() == [0, 0, 15, 60]
    assert removed[1].tolist() == [8, 0, 23, 60]
    assert removed[masks.along[:, 0]][-1].tolist() == [88, 0, 100, 60]
    assert removed[masks.along[:, 1]][0].tolist() == [0, 0, 100, 15]
    assert removed[masks.along[:, 1]][-1].tolist() == [0, 48, 100, 60]
    assert masks.is_band.sum() == len(masks) - 4  # the first and last of each axis reach a border


@settings(max_examples=300)
@given(st.integers(1, 90), st.integers(1, 90), SHARES, st.floats(0.2, 5), st.floats(0.05, 2))
def test_bands_remove_every_position_along_each_axis_that_has_any(width, height, area, aspect, spacing):
    masks = Bands(area, aspect, spacing).masks(width, height)
    sides = Patch(area, aspect).size(width, height)
    for axis, (side, limit) in enumerate(zip(sides, (width, height), strict=True)):
        if not masks.along[:, axis].any():
            step = max(1, int(spacing * side))
            assert side + step - 1 >= limit  # one band would be the whole axis
            continue
        for smaller in {1, max(side // 2, 1), side}:
            positions = np.arange(1 - smaller, limit)
            assert masks.removes(axis, positions, smaller).any(axis=1).all()


def test_windows_of_a_half_and_of_a_third():
    masks = Windows(1 / 2).masks(100, 60)
    assert masks.rectangle[:4].tolist() == [[0, 0, 50, 30], [25, 0, 75, 30], [50, 0, 100, 30], [0, 15, 50, 45]]
    assert len(masks) == 9
    assert len(Windows(1 / 3).masks(100, 60)) == 25
    assert Windows(1 / 3, 1 / 3).masks(100, 60).rectangle[[0, 4, 8]].tolist() == [
        [0, 0, 34, 20],
        [33, 20, 67, 40],
        [66, 40, 100, 60],
    ]
    assert len(Windows(1 / 2).masks(1, 1)) == 0


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 20), st.integers(2, 20), st.integers(1, 40))
def test_windows_reach_every_border_and_leave_no_pixel_out(width, height, share, whole, step):
    recipe = Windows(Fraction(min(share, whole - 1), whole), Fraction(step, 40))
    masks = recipe.masks(width, height)
    exact, step_of = recipe.exact()
    if len(masks) and step_of <= exact:
        shown = oracle.kept_bitmaps(masks)
        assert shown.any(axis=0).all()
        corners = {tuple(corner) for corner in masks.rectangle[:, :2].tolist()}
        ends = {tuple(corner) for corner in masks.rectangle[:, 2:].tolist()}
        assert (0, 0) in corners
        assert (width, height) in ends
    for bitmap, (x1, y1, x2, y2) in zip(oracle.kept_bitmaps(masks), masks.rectangle, strict=True):
        assert bitmap[y1:y2, x1:x2].all()
        assert bitmap.sum() == (x2 - x1) * (y2 - y1)


@given(st.integers(2, 200), st.integers(1, 60), st.integers(1, 60))
def test_no_band_is_needless(length, side, step):
    bands = band_positions(length, side, step)
    assert all(end - start == side + step - 1 for start, end in bands[:-1])
    if bands:
        assert bands[-1][1] == length
        assert all(end < length for _, end in bands[:-1])


def test_a_sum_keeps_every_strip_once():
    both = (Halves(3) + Bands(0.04)).masks(80, 60)
    alone = [Halves(3).masks(80, 60), Bands(0.04).masks(80, 60)]
    assert set(both.keys) == {key for masks in alone for key in masks.keys}
    assert len(set(both.keys)) == len(both)
    assert both.keys[:12] == alone[0].keys
    assert (Halves(3) + Halves(3)).masks(80, 60) == Halves(3).masks(80, 60)


def test_too_many_masks_are_refused_before_they_are_used():
    with pytest.raises(ObjectSeekerError, match="masks of a 30000x30000 image, more than 32,767"):
        Bands(1e-9).masks(30000, 30000)


# --- recipes within a recipe ------------------------------------------------------------------------------------------

SUM = "halves:11+bands:0.03+bands:0.03,spacing=0.5"
WINDOWS = "windows:1/4,step=1/16+windows:2/7,step=1/9"


@settings(max_examples=200)
@given(
    st.sampled_from([SUM, "halves:8", "pairs:5", WINDOWS]),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_a_recipe_within_another_makes_only_its_masks(text, width, height):
    recipe = parse_recipe(text)
    masks = recipe.masks(width, height)
    known = set(masks.keys)
    for inner in subrecipes(recipe):
        assert set(inner.masks(width, height).keys) <= known


def test_lines_within_others_are_those_whose_spaces_divide_its_own():
    assert [str(inner) for inner in subrecipes(Halves(11))] == [f"halves:{lines}" for lines in (1, 2, 3, 5, 11)]
    assert len(subrecipes(parse_recipe(SUM))) == 6 * 2 * 2 - 1
    assert {str(inner) for inner in subrecipes(Bands(0.01))} == {"bands:0.01"}


def test_windows_within_others_have_some_multiple_of_their_step():
    def within(share, step):
        return [str(inner) for inner in subrecipes(Windows(Fraction(share), Fraction(step)))]

    assert within("1/2", "1/4") == ["windows:1/2", "windows:1/2,step=1/2"]
    assert within("1/4", "1/16") == [
        f"windows:1/4{more}" for more in (",step=1/16", "", *(f",step={Fraction(m, 16)}" for m in range(3, 13)))
    ]
    assert within("1/10", "2/5") == ["windows:1/10,step=2/5", "windows:1/10,step=4/5"]  # 6/5 is too large a step
    assert within("3/4", "1") == ["windows:3/4,step=1"]
    assert within("1/2", "1/2") == ["windows:1/2,step=1/2"]
    assert [str(inner) for inner in subrecipes(Pairs(5))] == ["pairs:1", "pairs:2", "pairs:5"]


def test_recipes_within_a_sum_are_every_choice_of_its_parts():
    assert [str(inner) for inner in subrecipes(Halves(3) + Bands(0.02))] == [
        "bands:0.02",
        "halves:1",
        "halves:1+bands:0.02",
        "halves:3",
        "halves:3+bands:0.02",
    ]


def test_a_sum_is_of_what_can_be_added_and_not_too_long():
    assert len(parse_recipe("+".join(["halves:2"] * 16)).parts) == 16
    with pytest.raises(ObjectSeekerError, match="at most 16 recipes: got 17"):
        parse_recipe("+".join(["halves:2"] * 17))
    with pytest.raises(ObjectSeekerError, match="can be added up"):
        Halves(2) + parse_recipe("rolling:2:halves:3")


def test_the_most_lines_and_masks():
    assert len(Halves(8191).masks(10000, 10000)) == 4 * 8191 <= MOST_MASKS
    assert pair_counts(80)[1] <= MOST_MASKS < pair_counts(81)[1]
    assert Pairs(80).lines == 80
    with pytest.raises(ObjectSeekerError, match="lines must be at most 80: got 81"):
        Pairs(81)
    with pytest.raises(ObjectSeekerError, match="lines must be at most 8191: got 8192"):
        Halves(8192)


def test_lines_and_bands_by_hand():
    assert line_positions(10, 3) == [3, 5, 8]  # rounded up
    assert line_positions(3, 5) == [1, 2]
    assert line_positions(1, 4) == []
    assert line_positions(12, 1) == [6]
    assert band_positions(20, 5, 3) == [(0, 7), (3, 10), (6, 13), (9, 16), (12, 19), (15, 20)]
    assert band_positions(7, 5, 3) == band_positions(6, 5, 3) == []
    assert band_positions(8, 5, 3) == [(0, 7), (3, 8)]
    assert band_positions(9, 1, 1) == [(n, n + 1) for n in range(9)]
    assert len(band_positions(MOST_MASKS, 1, 1)) == MOST_MASKS
    with pytest.raises(ObjectSeekerError, match="bands of 1 pixels make 32,768 masks"):
        band_positions(MOST_MASKS + 1, 1, 1)


def test_windows_beyond_the_most_masks_are_refused_before_they_are_made():
    with pytest.raises(ObjectSeekerError, match=r"windows:1/1000,step=1/1000 makes [\d,]+ masks, more than 32,767"):
        Windows(0.001, 0.001).masks(200, 200)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1 / 3, "1/3"), ("0.25", "1/4"), (Fraction(2, 7), "2/7"), (0.001, "1/1000"), ("999/1000", "999/1000")],
)
def test_a_share_is_the_fraction_that_was_meant(value, expected):
    assert Windows(value).exact()[0] == Fraction(expected)


@pytest.mark.parametrize(
    "value", [0.12345678, True, None, "x", "1/1001", float("nan"), float("inf"), "1/2/3", "0.00001"]
)
def test_what_is_no_such_fraction_is_refused(value):
    with pytest.raises(ObjectSeekerError, match=r"share must be a fraction such as 1/3 or 0\.25"):
        Windows(value)


def test_bands_are_at_least_a_pixel_apart():
    removed = Bands(0.01, 1.0, 0.01).masks(20, 20).removed[:, 0]
    assert removed[:3].tolist() == [[0, 0, 2, 20], [1, 0, 3, 20], [2, 0, 4, 20]]
    assert len(removed) == 2 * 19
