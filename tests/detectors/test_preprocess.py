from __future__ import annotations

from fractions import Fraction

import numpy as np
import PIL.Image
import pytest
from detector_images import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker.detectors.network.preprocess import place, prepare, resampling
from objectseeker.errors import ObjectSeekerError

FITS = ("top-left", "center", "stretch")
SIDES = st.integers(1, 70)


def masked_input(image: np.ndarray, placement, removed: tuple[int, int, int, int]) -> np.ndarray:
    canvas = prepare(image, placement, pad=114)
    x1, y1, x2, y2 = placement.leaking_extent(removed)
    canvas[y1:y2, x1:x2] = 200
    return canvas


@st.composite
def half_masks(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """An image size and one side of a line through the image."""
    width, height = draw(SIDES), draw(SIDES)
    side = draw(st.sampled_from(("left", "top", "right", "bottom")))
    line = draw(st.integers(1, width if side in ("left", "right") else height))
    return (width, height), {
        "left": (0, 0, line, height),
        "top": (0, 0, width, line),
        "right": (line - 1, 0, width, height),
        "bottom": (0, line - 1, width, height),
    }[side]


@st.composite
def rectangles(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    width, height = draw(SIDES), draw(SIDES)
    x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return (width, height), (x1, y1, draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height)))


@settings(max_examples=300, deadline=None)
@given(
    case=half_masks() | rectangles(),
    network=st.tuples(SIDES, SIDES),
    fit=st.sampled_from((*FITS, "max-area")),
    stride=st.none() | st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_removed_raw_pixels_influence_no_bit_of_the_masked_input(case, network, fit, stride, seed):
    (width, height), removed = case
    placement = place((width, height), network, fit, stride=stride)
    image, attacked = noise(width, height, seed), noise(width, height, seed)
    x1, y1, x2, y2 = removed
    attacked[y1:y2, x1:x2] = noise(x2 - x1, y2 - y1, seed + 1)

    np.testing.assert_array_equal(masked_input(image, placement, removed), masked_input(attacked, placement, removed))


@settings(max_examples=300, deadline=None)
@given(raw=SIDES, resized=SIDES, data=st.data())
def test_exactly_the_pixels_that_can_see_the_removed_interval_are_covered(raw, resized, data):
    start = data.draw(st.integers(0, raw - 1))
    stop = data.draw(st.integers(start + 1, raw))
    scale = Fraction(raw, resized)
    reach = max(scale, 1)
    margin = Fraction(1, 10**6)  # a pixel that just touches may have a weight that rounds to zero, or away from it

    def sees(column: int, slack: Fraction) -> bool:
        center = (column + Fraction(1, 2)) * scale
        return any(abs(pixel + Fraction(1, 2) - center) < reach + slack for pixel in range(start, stop))

    low, high = place((raw, 1), (resized, 1), "stretch").x.leaking_extent(start, stop)

    covered = set(range(low, high))
    assert {column for column in range(resized) if sees(column, -margin)} <= covered
    assert covered <= {column for column in range(resized) if sees(column, margin)}


def test_masking_by_pixel_centers_alone_would_leak():
    """The margin is what the guarantee lives from: without it the same comparison fails."""
    image, attacked = noise(100, 80, 1), noise(100, 80, 1)
    line = 47
    attacked[:, :line] = noise(line, 80, 2)
    placement = place((100, 80), (64, 64), "top-left")
    naive_line = round(line * 0.64)  # the network columns whose centers lie left of the line

    views = []
    for shown in (image, attacked):
        canvas = prepare(shown, placement, pad=114)
        canvas[:51, :naive_line] = 200
        views.append(canvas)

    assert (views[0] != views[1]).any()
    assert placement.leaking_extent((0, 0, line, 80))[2] > naive_line


@pytest.mark.parametrize(
    ("width", "height"), [(500, 375), (375, 500), (97, 31), (416, 416), (40, 60), (1, 1), (3, 700)]
)
@pytest.mark.parametrize("fit", FITS)
def test_resizing_agrees_with_pillow_to_one_gray_level(width, height, fit):
    image = noise(width, height, 3)
    placement = place((width, height), (128, 96), fit)
    new_size = placement.x.resampling.resized, placement.y.resampling.resized

    expected = np.asarray(PIL.Image.fromarray(image).resize(new_size, PIL.Image.Resampling.BILINEAR)).astype(int)

    x, y = placement.x.offset, placement.y.offset
    canvas = prepare(image, placement, pad=114)
    assert np.abs(canvas[y : y + new_size[1], x : x + new_size[0]] - expected).max() <= 1


def test_padding_is_where_it_belongs():
    image = np.zeros((50, 100, 3), np.uint8)
    rows = {
        "top-left": [0] * 32 + [114] * 32,
        "center": [114] * 16 + [0] * 32 + [114] * 16,
        "stretch": [0] * 64,
    }
    for fit, expected in rows.items():
        canvas = prepare(image, place((100, 50), (64, 64), fit), pad=114)
        assert canvas.shape == (64, 64, 3)
        assert canvas[:, 10, 0].tolist() == expected


def test_a_stride_cuts_the_padding_to_the_next_multiple():
    assert place((500, 375), (416, 416), "top-left", stride=32).size == (416, 320)
    assert place((375, 500), (416, 416), "center", stride=32).size == (320, 416)
    assert place((500, 500), (416, 416), "top-left", stride=32).size == (416, 416)


@given(size=st.tuples(SIDES, SIDES), network=st.tuples(SIDES, SIDES), fit=st.sampled_from(FITS))
def test_boxes_come_back_to_raw_pixels_clipped(size, network, fit):
    placement = place(size, network, fit)
    x, y = placement.x, placement.y
    whole = np.array([[x.offset, y.offset, x.offset + x.resampling.resized, y.offset + y.resampling.resized]], float)
    everything = np.array([[-1e9, -1e9, 1e9, 1e9]])

    np.testing.assert_allclose(placement.to_raw(whole), [[0, 0, *size]], atol=1e-9)
    np.testing.assert_array_equal(placement.to_raw(everything), [[0, 0, *size]])


def test_an_image_of_the_network_size_is_left_alone():
    image = noise(64, 32, 4)

    canvas = prepare(image, place((64, 32), (64, 32), "stretch"), pad=0)

    np.testing.assert_array_equal(canvas, image)
    assert resampling(64, 64).first.tolist() == list(range(64))
    assert resampling(64, 64).last.tolist() == list(range(1, 65))


def test_an_empty_rectangle_covers_nothing():
    placement = place((50, 40), (64, 64), "center")

    assert placement.leaking_extent((0, 0, 0, 0)).tolist() == [0, 0, 0, 0]
    assert placement.leaking_extent((3, 5, 3, 9)).tolist() == [0, 0, 0, 0]


def test_an_unknown_fit_is_refused():
    with pytest.raises(ObjectSeekerError, match="fit must be one of top-left, center, max-area, stretch: got 'crop'"):
        place((5, 5), (5, 5), "crop")


@settings(max_examples=200, deadline=None)
@given(
    width=st.integers(1, 2000),
    height=st.integers(1, 2000),
    side=st.sampled_from([64, 416]),
    wide=st.sampled_from([1, 2]),
)
def test_spending_the_pixels_shows_the_image_as_large_as_they_allow(width, height, side, wide):
    network, stride = (side * wide, side), 32
    used = place((width, height), network, "max-area", stride=stride)
    columns, rows = used.size
    cells = (network[0] // stride) * (network[1] // stride)

    assert columns % stride == rows % stride == 0
    assert columns * rows <= network[0] * network[1]
    scale = max(min(c * stride / width, cells // c * stride / height) for c in range(1, cells + 1))
    assert used.x.resampling.resized == max(round(width * scale), 1)
    assert used.y.resampling.resized == max(round(height * scale), 1)
    letterboxed = place((width, height), network, "top-left")
    assert used.x.resampling.resized >= letterboxed.x.resampling.resized
