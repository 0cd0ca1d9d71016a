"""Half masks."""

import math

import numpy as np
import pytest

from objectseeker import Halves, ObjectSeekerError
from objectseeker.core.masks import DEFAULT_FILL, SIDES, Masks, as_image, fill_rectangles, keep, require_gray, strips


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


def test_filling_takes_one_rectangle_or_several_and_a_gray_value():
    image = np.zeros((4, 6, 3), np.uint8)
    assert DEFAULT_FILL == 114  # as runs were made with
    assert fill_rectangles(image, [[0, 0, 1, 1], [5, 3, 6, 4]]).sum() == 2 * 3 * DEFAULT_FILL
    assert fill_rectangles(image, [1, 2, 3, 4], 5).sum() == 2 * 2 * 3 * 5
    assert np.array_equal(fill_rectangles(image, []), image)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((0, 5, 3), np.uint8),
        np.zeros((5, 0, 3), np.uint8),
        np.zeros((5, 5), np.uint8),
        np.zeros((5, 5, 4), np.uint8),
        np.zeros((5, 5, 3)),
        np.zeros((1, 5, 5, 3), np.uint8),
    ],
)
def test_what_is_no_image_is_refused(image):
    with pytest.raises(ObjectSeekerError, match="an image must be a non-empty H x W x 3 uint8 array: got"):
        as_image(image)
    assert as_image([np.zeros((1, 3), np.uint8)]).shape == (1, 1, 3)


def test_gray_values_are_bytes():
    assert [require_gray(value) for value in (0, 255, np.int64(7))] == [0, 255, 7]
    for value in (-1, 256, 7.0, True, "7"):
        with pytest.raises(ObjectSeekerError, match="fill must be a gray value within 0 to 255"):
            require_gray(value)


def test_masks_of_several_sets_are_kept_once_and_in_order():
    first, second = keep(10, 6, [[2, 1, 5, 4], [0, 2, 10, 6]]), keep(10, 6, [[0, 2, 10, 6], [0, 0, 3, 3]])
    band = strips(10, 6, [(2, 5)], [])
    both = Masks.concatenate([first, band, second, first])
    assert both.rectangle.tolist() == [[2, 1, 5, 4], [0, 2, 10, 6], [2, 0, 5, 6], [0, 0, 3, 3]]
    assert both.is_band.tolist() == [False, False, True, False]
    assert (both.width, both.height) == (10, 6)
    kept = keep(10, 6, [[2, 0, 5, 6]])  # the same rectangle, kept and not removed
    assert len(Masks.concatenate([band, kept])) == 2
    assert len({*band.keys, *kept.keys}) == 2


def test_masks_are_equal_if_their_image_and_rectangles_are():
    masks = keep(10, 6, [[2, 0, 5, 6]])
    assert masks == keep(10, 6, [2, 0, 5, 6])
    assert hash(masks) == hash(keep(10, 6, [2, 0, 5, 6]))
    for other in (keep(11, 6, [[2, 0, 5, 6]]), keep(10, 6, [[2, 0, 6, 6]]), strips(10, 6, [(2, 5)], []), "masks"):
        assert masks != other
    assert keep(10, 7, [[2, 0, 5, 6]]) != masks
    assert masks.extent.tolist() == [10, 6]
    with pytest.raises(ValueError, match="read-only"):
        masks.rectangle[0] = 0


def test_no_masks_and_masks_of_both_kinds():
    none = keep(10, 6, [])
    assert (len(none), none.has_bands, none.has_one_axis) == (0, False, True)
    assert none.removed.shape == (0, 1, 4)
    mixed = Masks(10, 6, np.array([[2, 0, 5, 6], [2, 1, 5, 4]]), np.array([True, False]))
    assert (mixed.has_bands, mixed.has_one_axis) == (True, False)
    assert mixed.removed.tolist() == [
        [[2, 0, 5, 6], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 2, 6], [0, 0, 10, 1], [5, 0, 10, 6], [0, 4, 10, 6]],
    ]
    with pytest.raises(ObjectSeekerError, match=r"rectangle \[3, 0, 3, 6\] is not a part of a 10x6 image"):
        keep(10, 6, [[2, 0, 5, 6], [3, 0, 3, 6]])


def test_every_mask_of_several_has_to_be_one():
    both = np.array([[2, 0, 5, 6], [2, 1, 5, 4]])
    with pytest.raises(ObjectSeekerError, match=r"rectangle \[2, 1, 5, 4\] is not a band across a 10x6 image"):
        Masks(10, 6, both, np.array([True, True]))
    with pytest.raises(ObjectSeekerError, match=r"rectangle \[0, 0, 10, 6\] is not a part of a 10x6 image"):
        keep(10, 6, [[2, 1, 5, 4], [0, 0, 10, 6]])
