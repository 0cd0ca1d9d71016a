"""The half-plane mask augmentation."""

from __future__ import annotations

import numpy as np
import pytest

from objectseeker.augment import mask_half
from objectseeker.errors import ObjectSeekerError
from objectseeker.masks import GREY

HEIGHT, WIDTH = 40, 60


def bright_image() -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 3), 200, np.uint8)


def removed_side(image: np.ndarray) -> tuple[str, int]:
    """Which side of the image is grey and where its line lies; fails unless it is exactly one half plane."""
    grey = (image == GREY).all(axis=2)
    columns, rows = grey.all(axis=0), grey.all(axis=1)
    along, name = (columns, ("left", "right")) if columns.any() else (rows, ("top", "bottom"))
    assert grey.sum() == along.sum() * (grey.size // len(along))
    assert 0 < along.sum() < len(along)
    changes = np.flatnonzero(np.diff(along.astype(int)))
    assert len(changes) == 1
    return (name[0] if along[0] else name[1]), int(changes[0]) + 1


def test_every_side_is_removed_about_equally_often_and_everywhere():
    rng = np.random.default_rng(0)
    seen = [removed_side(mask_half(bright_image(), [], rng=rng, probability=1)[0]) for _ in range(2000)]
    sides = [side for side, _ in seen]
    for side, length in (("left", WIDTH), ("right", WIDTH), ("top", HEIGHT), ("bottom", HEIGHT)):
        assert 400 < sides.count(side) < 600
        lines = {line for own, line in seen if own == side}
        assert min(lines) == 1
        assert max(lines) == length - 1


def test_kept_pixels_are_untouched_and_the_input_is_not_changed():
    rng = np.random.default_rng(1)
    image = rng.integers(115, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    original = image.copy()
    masked, _, _ = mask_half(image, [], rng=rng, probability=1)
    np.testing.assert_array_equal(image, original)
    assert ((masked == original) | (masked == GREY)).all()


def test_targets_are_the_visible_parts_and_hidden_objects_are_dropped():
    rng = np.random.default_rng(2)
    boxes = np.stack([rng.uniform(0, 30, 50), rng.uniform(0, 20, 50)] * 2, 1)
    boxes[:, 2:] += rng.uniform(1, 20, (50, 2))
    for _ in range(200):
        masked, targets, keep = mask_half(bright_image(), boxes, rng=rng, probability=1)
        side, line = removed_side(masked)
        expected = boxes.copy()
        column = {"left": 0, "top": 1, "right": 2, "bottom": 3}[side]
        cut = np.maximum if side in ("left", "top") else np.minimum
        expected[:, column] = cut(expected[:, column], line)
        sides = np.maximum(expected[:, 2:] - expected[:, :2], 0)
        share = sides.prod(1) / (boxes[:, 2:] - boxes[:, :2]).prod(1)
        np.testing.assert_array_equal(keep, share >= 0.2)
        np.testing.assert_allclose(targets, expected[keep])


def test_the_limit_of_visibility_belongs_to_the_targets():
    box = [[0, 0, 10, 10]]
    kept_at = set()
    rng = np.random.default_rng(3)
    for _ in range(300):
        masked, _, keep = mask_half(bright_image(), box, rng=rng, probability=1)
        side, line = removed_side(masked)
        if side == "right" and keep[0]:
            kept_at.add(line)
    assert min(kept_at) == 2  # two of ten columns are exactly 20 %


def test_probability():
    rng = np.random.default_rng(4)
    image = bright_image()
    boxes = [[1, 2, 3, 4]]
    untouched, targets, keep = mask_half(image, boxes, rng=rng, probability=0)
    assert untouched is image
    assert keep.tolist() == [True]
    np.testing.assert_array_equal(targets, boxes)
    masked = sum((mask_half(image, [], rng=rng, probability=0.3)[0] == GREY).any() for _ in range(2000))
    assert 500 < masked < 700


def test_same_seed_same_mask():
    first, second = (mask_half(bright_image(), [], rng=np.random.default_rng(5), probability=1)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_grey_and_float_images_and_another_fill():
    masked, _, _ = mask_half(np.ones((9, 9)), [], rng=np.random.default_rng(6), probability=1, fill=114 / 255)
    assert set(np.unique(masked)) == {114 / 255, 1.0}


def test_an_image_of_one_pixel_has_no_line():
    image = np.ones((1, 1, 3), np.uint8)
    for seed in range(10):
        assert mask_half(image, [], rng=np.random.default_rng(seed), probability=1)[0] is image


def test_an_empty_box_is_no_target():
    rng = np.random.default_rng(7)
    for _ in range(20):
        assert not mask_half(bright_image(), [[5, 5, 5, 9]], rng=rng, probability=1)[2].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boxes": [[1, 2, 3]]}, r"\(1, 3\)"),
        ({"image": np.zeros(5)}, r"\(5,\)"),
        ({"probability": 1.5}, "1.5"),
        ({"visible": -1}, "-1"),
    ],
)
def test_bad_input_is_named(arguments, message):
    complete = {"image": bright_image(), "boxes": [], **arguments}
    with pytest.raises(ObjectSeekerError, match=message):
        mask_half(rng=np.random.default_rng(0), **complete)
