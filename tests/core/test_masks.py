"""Half masks."""

import math

import numpy as np
import pytest

from objectseeker import Halves, ObjectSeekerError
from objectseeker.core.masks import SIDES, Masks, fill_rectangles, keep, strips


@pytest.mark.parametrize(("width", "height", "lines"), [(640, 480, 30), (31, 17, 12), (500, 375, 1), (8, 8, 7)])
def test_lines_lie_where_the_method_puts_them(width, height, lines):
    masks = Halves(lines).masks(width, height)
    assert len(masks) == 4 * lines
    xs = [math.ceil(t * width / (lines + 1)) for t in range(1, lines + 1)]
    ys = [math.ceil(t * height / (lines + 1)) for t in range(1, lines + 1)]
    expected = [(0, 0, x, height) for x in xs] + [(0, 0, width, y) for y in ys]
    expected += [(x, 0, width, height) for x in xs] + [(0, y, width, height) for y in ys]
    assert masks.removed[:, 0].tolist() == [list(r) for r in expected]
    assert masks.removed.shape[1] == 1


@pytest.mark.parametrize(("width", "height", "lines"), [(8, 8, 12), (1, 1, 5), (2, 50, 30), (30, 30, 30)])
def test_short_axes_give_fewer_lines_and_every_mask_removes_and_keeps_something(width, height, lines):
    masks = Halves(lines).masks(width, height)
    area = np.prod(masks.rectangle[:, 2:] - masks.rectangle[:, :2], axis=1)
    assert ((area > 0) & (area < width * height)).all()
    assert len(set(masks.keys)) == len(masks)
    if min(width, height) <= lines:
        assert set(masks.rectangle[masks.is_line[:, 0], 0].tolist()) == set(range(1, width)) or width > lines


def test_a_half_mask_keeps_the_other_half_and_has_one_line():
    masks = Halves(1).masks(10, 6)
    assert [SIDES[s] for s in np.argmax(masks.is_line, axis=1)] == ["left", "top", "right", "bottom"]
    assert masks.rectangle.tolist() == [[5, 0, 10, 6], [0, 3, 10, 6], [0, 0, 5, 6], [0, 0, 10, 3]]
    assert masks.along.tolist() == [[True, False], [False, True]] * 2
    assert masks.has_one_axis
    assert not masks.has_bands


def test_a_kept_rectangle_is_surrounded_by_what_is_removed():
    masks = keep(10, 6, [[2, 1, 5, 4], [0, 2, 10, 6], [0, 0, 3, 3]])
    assert masks.removed.tolist() == [
        [[0, 0, 2, 6], [0, 0, 10, 1], [5, 0, 10, 6], [0, 4, 10, 6]],
        [[0, 0, 10, 2], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[3, 0, 10, 6], [0, 3, 10, 6], [0, 0, 0, 0], [0, 0, 0, 0]],
    ]
    assert not masks.has_one_axis
    assert masks.select_masks(slice(1, 2)).removed.tolist() == [[[0, 0, 10, 2]]]


def test_a_strip_is_a_band_only_if_something_is_left_on_both_sides():
    masks = strips(10, 6, [(0, 4), (3, 5), (7, 10)], [(1, 2)])
    assert masks.is_band.tolist() == [False, True, False, True]
    assert masks.rectangle.tolist() == [[4, 0, 10, 6], [3, 0, 5, 6], [0, 0, 7, 6], [0, 1, 10, 2]]
    assert masks.removed[:, 0].tolist() == [[0, 0, 4, 6], [3, 0, 5, 6], [7, 0, 10, 6], [0, 1, 10, 2]]
    assert masks.kept.tolist() == [[4, 0, 10, 6], [0, 0, 10, 6], [0, 0, 7, 6], [0, 0, 10, 6]]


def test_other_rectangles_are_no_masks():
    for rectangle in ([0, 0, 10, 6], [0, 0, 0, 6], [0, 0, 11, 6], [-1, 0, 4, 6], [3, 0, 3, 6]):
        with pytest.raises(ObjectSeekerError, match="not a part of a 10x6 image"):
            keep(10, 6, rectangle)
    for rectangle in ([0, 0, 10, 6], [2, 1, 5, 6], [2, 1, 5, 4], [0, 0, 4, 6], [4, 0, 10, 6], [3, 0, 3, 6]):
        with pytest.raises(ObjectSeekerError, match="not a band across a 10x6 image"):
            Masks(10, 6, np.array([rectangle]), np.array([True]))


def test_filling_leaves_the_original_alone():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    before = image.copy()
    masked = fill_rectangles(image, [0, 0, 2, 4], 9)
    assert (masked[:, :2] == 9).all()
    assert np.array_equal(masked[:, 2:], image[:, 2:])
    assert np.array_equal(image, before)
