"""Half masks."""

import math

import numpy as np
import pytest

from objectseeker import Halves, ObjectSeekerError
from objectseeker.core.masks import SIDES, MaskSet, fill_rectangles


@pytest.mark.parametrize(("width", "height", "lines"), [(640, 480, 30), (31, 17, 12), (500, 375, 1), (8, 8, 7)])
def test_lines_lie_where_the_method_puts_them(width, height, lines):
    masks = Halves(lines).masks(width, height)
    assert len(masks) == 4 * lines
    xs = [math.ceil(t * width / (lines + 1)) for t in range(1, lines + 1)]
    ys = [math.ceil(t * height / (lines + 1)) for t in range(1, lines + 1)]
    expected = [(0, 0, x, height) for x in xs] + [(0, 0, width, y) for y in ys]
    expected += [(x, 0, width, height) for x in xs] + [(0, y, width, height) for y in ys]
    assert masks.removed.tolist() == [list(r) for r in expected]


@pytest.mark.parametrize(("width", "height", "lines"), [(8, 8, 12), (1, 1, 5), (2, 50, 30), (30, 30, 30)])
def test_short_axes_give_fewer_lines_and_every_mask_removes_and_keeps_something(width, height, lines):
    masks = Halves(lines).masks(width, height)
    area = (masks.removed[:, 2] - masks.removed[:, 0]) * (masks.removed[:, 3] - masks.removed[:, 1])
    assert ((area > 0) & (area < width * height)).all()
    assert len({tuple(r) for r in masks.removed.tolist()}) == len(masks)
    if min(width, height) <= lines:
        assert set(masks.line[masks.side == 0].tolist()) == set(range(1, width)) or width > lines


def test_side_and_line_describe_the_removed_half():
    masks = Halves(1).masks(10, 6)
    assert [SIDES[s] for s in masks.side] == ["left", "top", "right", "bottom"]
    assert masks.line.tolist() == [5, 3, 5, 3]


def test_other_rectangles_are_no_masks():
    for rectangle in ([0, 0, 10, 6], [2, 1, 5, 6], [0, 0, 0, 6], [0, 0, 11, 6], [-1, 0, 4, 6], [3, 0, 3, 6]):
        with pytest.raises(ObjectSeekerError, match="not a strip across a 10x6 image"):
            MaskSet(10, 6, np.array([rectangle]))


def test_filling_leaves_the_original_alone():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    before = image.copy()
    masked = fill_rectangles(image, [0, 0, 2, 4], 9)
    assert (masked[:, :2] == 9).all()
    assert np.array_equal(masked[:, 2:], image[:, 2:])
    assert np.array_equal(image, before)
