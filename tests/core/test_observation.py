"""What was observed under some of the masks: the same as observing with these alone."""

import numpy as np
import pytest

from objectseeker import Bands, Detections, Halves, ObjectSeeker, ObjectSeekerError, Pairs, Rule
from objectseeker.core.recipes import parse_recipe, subrecipes


def bright_box(images):
    """A tiny real detector: the bounding box of the bright pixels, if there are any."""
    found = []
    for each in images:
        ys, xs = np.nonzero(each[..., 0] > 200)
        box = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]] if len(xs) else []
        found.append(Detections(box, [min(0.9, len(xs) / 400)] * len(box), [0] * len(box)))
    return found


def image(seed):
    """One bright box somewhere, and a few bright pixels: what is seen depends on the mask."""
    rng = np.random.default_rng(seed)
    made = np.full((47, 70, 3), 30, np.uint8)
    x, y = int(rng.integers(0, 40)), int(rng.integers(0, 25))
    made[y : y + 15, x : x + 20] = 255
    made[rng.integers(0, 47, 8), rng.integers(0, 70, 8)] = 255
    return made


@pytest.mark.parametrize("text", ["halves:5+bands:4%+bands:4%,spacing=0.5", "pairs:3"])
def test_some_views_are_what_observing_with_their_recipe_gives(text):
    shown = image(1)
    (everything,) = ObjectSeeker(bright_box, Rule(), masks=parse_recipe(text)).observe([shown])
    assert len({view.xyxy.tobytes() for view in everything.masked}) > 5
    for recipe in subrecipes(parse_recipe(text)):
        (alone,) = ObjectSeeker(bright_box, Rule(), masks=recipe).observe([shown])
        part = everything.restricted_to(recipe.masks(70, 47))
        assert part.masks == alone.masks
        assert part == alone
        assert np.array_equal(part.all_masked.xyxy, alone.all_masked.xyxy)


def test_masks_that_were_not_observed_are_refused():
    (seen,) = ObjectSeeker(bright_box, Rule(), masks=Halves(5)).observe([image(0)])
    assert seen.restricted_to(Halves(2).masks(70, 47)).masks == Halves(2).masks(70, 47)
    for recipe in (Halves(3), Bands(0.04), Halves(5) + Bands(0.04), Pairs(2)):
        with pytest.raises(ObjectSeekerError, match=r"nothing was observed under the mask that keeps \["):
            seen.restricted_to(recipe.masks(70, 47))
    with pytest.raises(ObjectSeekerError):
        seen.restricted_to(Halves(5).masks(71, 47))
