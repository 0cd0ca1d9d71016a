"""What was observed under some of the masks: the same as observing with these alone."""

import numpy as np
import pytest

from objectseeker import Bands, Detections, Halves, ObjectSeeker, ObjectSeekerError, Observation, Pairs, Rule
from objectseeker.core.masks import strips
from objectseeker.core.observation import NO_TRACK, evenly_spaced_lines, keep_lines
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
    with pytest.raises(ObjectSeekerError, match=r"under the mask that removes \[30, 0, 33, 47\]: observe with it"):
        seen.restricted_to(strips(70, 47, [(30, 33)], []))


def test_an_observation_has_what_its_masks_and_its_size_say():
    masks, nothing, box = Halves(1).masks(70, 47), Detections.empty(), Detections([[1, 1, 9, 9]], [0.5], [0])
    seen = Observation(70, 47, masks, box, [box, nothing, nothing, Detections.concatenate([box, box])])
    assert seen.mask_index.tolist() == [0, 3, 3]
    assert len(seen.all_masked) == 3
    for arguments, message in (
        ((47, 70, masks, box, [nothing] * 4), "masks are for a 70x47 image: got 47x70"),
        ((70, 47, masks, box, [nothing] * 3), "one entry per mask, 4: got 3"),
        ((70, 47, Halves(1), box, [nothing] * 4), "masks must be what a recipe"),
        ((70, 47, masks, None, [nothing] * 4), "base must be Detections: got None"),
        ((70, 47, masks, box, [nothing, None, nothing, nothing]), r"masked\[1\] must be Detections: got None"),
        ((0, 47, masks, box, [nothing] * 4), "width must be at least 1"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            Observation(*arguments)


def test_some_of_the_lines_are_as_evenly_spaced_as_they_come():
    assert [evenly_spaced_lines(9, count) for count in (1, 2, 4, 9)] == [[5], [3, 7], [2, 4, 6, 8], list(range(1, 10))]
    assert evenly_spaced_lines(30, 3) == [8, 16, 23]
    with pytest.raises(ObjectSeekerError, match="lines must be at most 9, as many as were observed: got 10"):
        evenly_spaced_lines(9, 10)
    (seen,) = ObjectSeeker(bright_box, Rule(), masks=Halves(9)).observe([image(0)])
    some = keep_lines(seen, 4)
    lines = [np.unique(some.masks.rectangle[some.masks.is_line[:, side], side]).tolist() for side in range(4)]
    assert lines == [[14, 28, 42, 56], [10, 19, 29, 38]] * 2
    assert some == seen.restricted_to(some.masks)
    assert keep_lines(seen, 9) == keep_lines(seen, 30) == seen
    (narrow,) = ObjectSeeker(bright_box, Rule(), masks=Halves(9)).observe([image(0)[:, :4]])
    kept = keep_lines(narrow, 4).masks
    assert np.unique(kept.rectangle[kept.is_line[:, 0], 0]).tolist() == [1, 2, 3]
    (pairs,) = ObjectSeeker(bright_box, Rule(), masks=Pairs(3)).observe([image(0)])
    assert len(keep_lines(pairs, 1).masks) == len(Pairs(1).masks(70, 47))
    (banded,) = ObjectSeeker(bright_box, Rule(), masks=Bands(0.04)).observe([image(0)])
    with pytest.raises(ObjectSeekerError, match="not bands"):
        keep_lines(banded, 1)


def test_an_object_of_no_track_is_stored_as_minus_1():
    assert NO_TRACK == -1
