"""Rolling masks: what a frame shows, and that a window shows everything once."""

import hashlib

import numpy as np
import pytest

from objectseeker import Bands, Detections, Halves, ObjectSeekerError, Observation, Pairs, Patch, Rule, Windows
from objectseeker.core.recipes import (
    Rolling,
    Share,
    _line_gap,
    has_windows,
    parse_recipe,
    recipe_for_frame,
    rolling_index,
)

RECIPES = (Halves(30), Halves(5), Bands(0.02), Halves(10) + Bands(0.01), Bands(0.05, 2.0) + Bands(0.01) + Halves(3))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("frames", [1, 2, 3, 8, 12, 40])
@pytest.mark.parametrize("size", [(64, 36), (7, 5), (3, 60)])
def test_a_window_shows_every_mask_once_wherever_it_begins(recipe, frames, size):
    rolling = Rolling(recipe, frames)
    whole = sorted(recipe.masks(*size).keys)
    for begin in (0, 5):
        shares = [rolling.recipe_for_frame(begin + t).masks(*size).keys for t in range(frames)]
        assert sorted(key for share in shares for key in share) == whole
    assert rolling.forward_passes(*size) == 1 + max(map(len, shares))


@pytest.mark.parametrize("area", [0.01, 0.04, 1 / 620**2])
def test_a_share_has_the_left_mask_of_a_line_and_the_right_mask_of_the_one_a_patch_before(area):
    """On an image of 620 x 310 lines are 20 and 10 pixels apart, the patch of 1 % has a side of 44."""
    recipe = Halves(30)
    patch, lines = Patch(area).size(620, 310), [range(20, 620, 20), range(10, 310, 10)]
    apart = tuple(-(-(side - 1) // step[0]) for side, step in zip(patch, lines, strict=True))
    for part in range(8):
        share = Share(recipe, part, 8, area).masks(620, 310)
        for axis in (0, 1):
            step = lines[axis][0]
            before, after = (set(share.rectangle[share.is_line[:, side], side].tolist()) for side in (axis, axis + 2))
            assert {line - apart[axis] * step for line in before} & set(lines[axis]) == {
                line for line in after if line + apart[axis] * step in lines[axis]
            }
    assert Rolling(recipe, 8, area).forward_passes(620, 310) <= 17


def test_what_two_masks_a_patch_apart_prove_a_frame_of_the_window_proves_alone():
    """An object that is seen while 60 of its 200 columns are: lines up to 340 and from 260 on, a patch of 44 apart."""
    box, recipe, patch = [200.0, 100.0, 400.0, 200.0], Halves(30), Patch(0.01, 1.0, "anywhere")
    truth = Detections([box], [1.0], [0])
    for frames in (4, 8, 16):
        alone = []
        for part in range(frames):
            masks = Share(recipe, part, frames).masks(620, 310)
            seen = [
                Detections([box], [0.9], [0]) if x1 >= 260 or x2 <= 340 else Detections.empty()
                for x1, _, x2, _ in masks.removed[:, 0].tolist()
            ]
            observation = Observation(620, 310, masks, Detections.empty(), seen)
            alone.append(bool(Rule().certify(observation, truth, patch).certified[0, 0]))
        assert any(alone)


def test_frames_after_one_another_fill_the_gaps_in_reversed_order_of_bits():
    first = [Share(Halves(8), part, 8).masks(90, 90) for part in range(8)]
    assert [share.rectangle[share.is_line[:, 0], 0].min() // 10 - 1 for share in first] == [0, 4, 2, 6, 1, 5, 3, 7]
    first = [Share(Halves(6), part, 6).masks(70, 70) for part in range(6)]
    assert sorted(share.rectangle[share.is_line[:, 0], 0].min() // 10 - 1 for share in first) == list(range(6))


def test_the_order_never_changes_since_runs_keep_only_its_name():
    masks = Share(Halves(9), 3, 4).masks(100, 50)
    lines = [masks.rectangle[masks.is_line[:, side], side].tolist() for side in range(4)]
    assert lines == [[40, 80], [20, 40], [30, 70], [10, 30]]
    masks = Share(Bands(0.04), 1, 3).masks(100, 50)
    assert [masks.removed[masks.along[:, axis], 0, axis].tolist() for axis in (0, 1)] == [[30, 75], [30]]


ORDERED = "halves:7", "halves:30", "bands:0.02", "halves:10+bands:0.01", "windows:1/2+halves:4", "bands:0.1+bands:0.02"


@pytest.mark.parametrize(
    ("size", "area", "digest"),
    [
        ((100, 60), 0.01, "a2b4f8a068fbacb7"),
        ((37, 90), 0.04, "0ce4f4f92a80d2f9"),
        ((64, 48), 1.0, "b10508af28265523"),
        ((9, 5), 0.01, "c8643657360fb07c"),
    ],
)
def test_the_shares_of_recorded_runs_stay_what_they_were(size, area, digest):
    """Another order would make runs and streams of one text disagree: it would need another name."""
    shown = hashlib.sha256()
    for text in ORDERED:
        for parts in (1, 2, 3, 5, 8, 12):
            for part in range(parts):
                shown.update(b"|".join([b"share", *Share(parse_recipe(text), part, parts, area).masks(*size).keys]))
    assert shown.hexdigest()[:16] == digest


def test_lines_are_as_far_apart_as_the_nearest_that_leave_room_for_the_patch():
    lines = np.array([3, 9, 16, 30])
    gaps = [(1, 0), (2, 1), (7, 1), (15, 1), (16, 2), (22, 2), (23, 3), (28, 3), (29, 0), (100, 0)]
    assert [(side, _line_gap(lines, side)) for side, _ in gaps] == gaps
    assert _line_gap(lines[:0], 5) == 0


def test_every_so_manieth_frame_is_counted_from_its_first():
    assert [rolling_index(number, 3) for number in (0, 3, 6, 9)] == [0, 1, 2, 3]
    assert [rolling_index(number, 1) for number in (0, 1, 2)] == [0, 1, 2]


def test_windows_are_found_within_sums_and_shares():
    windows = Windows(1 / 2)
    for recipe in (
        windows,
        Halves(2) + windows,
        Rolling(windows, 2),
        Share(windows, 0, 2),
        Rolling(windows + Halves(2), 2),
    ):
        assert has_windows(recipe)
    for recipe in (Halves(2), Bands(0.01) + Halves(2), Rolling(Halves(2), 2), Share(Halves(2), 0, 2), Pairs(2)):
        assert not has_windows(recipe)


@pytest.mark.parametrize(
    "text",
    [
        "rolling:4,patch=100%:halves:3",
        "share:0:1:halves:3",
        "share:1:2,patch=0.5:halves:3",
        "rolling:1000:bands:0.1",
        "rolling:8:halves:30",
        "rolling:3:halves:10+bands:0.01",
        "share:2:3:bands:0.05",
        "rolling:8,patch=0.05:halves:3",
    ],
)
def test_the_text_says_it_all(text):
    assert str(parse_recipe(text)) == text
    assert parse_recipe(str(parse_recipe(text))) == parse_recipe(text)


def test_a_frame_has_its_share_and_other_recipes_have_all():
    assert recipe_for_frame(Rolling(Halves(4), 3), 7) == Share(Halves(4), 1, 3)
    assert recipe_for_frame(Halves(4), 7) == Halves(4)
    assert Rolling(Halves(4), 3, 0.04).recipe_for_frame(1) == Share(Halves(4), 1, 3, 0.04)


def test_a_single_image_is_refused():
    with pytest.raises(ObjectSeekerError, match="single image only its share"):
        Rolling(Halves(4), 3).masks(20, 20)
    with pytest.raises(ObjectSeekerError, match="single image only its share"):
        recipe_for_frame(Rolling(Halves(4), 3), None).masks(20, 20)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Rolling(Pairs(3), 4), "pairs:3"),
        (lambda: Share(Pairs(3), 0, 4), "pairs:3"),
        (lambda: Rolling(Rolling(Halves(3), 2), 2), "rolling:2:halves:3"),
        (lambda: Rolling(Halves(3), 2) + Halves(4), "rolling:2:halves:3"),
        (lambda: Rolling(Halves(3), 0), "frames"),
        (lambda: Rolling(Halves(3), 10**9), "at most 1000"),
        (lambda: Rolling("halves:3", 2), "halves:3"),  # type: ignore[arg-type]
        (lambda: Share(Halves(3), 4, 4), "from 0 to 3: got 4"),
        (lambda: Share(Halves(3), True, 4), "True"),
        (lambda: Rolling(Halves(3), 2, 0.0), "patch area"),
        (lambda: parse_recipe("rolling:8"), "rolling:8"),
        (lambda: parse_recipe("rolling:8,area=1%:halves:3"), "rolling:8,area=1%"),
        (lambda: parse_recipe("rolling:8,patch=big:halves:3"), "big"),
        (lambda: parse_recipe("rolling:x:halves:3"), "rolling:x"),
        (lambda: parse_recipe("rolling:2,patch=1%=2:halves:3"), "got '1%=2'"),
        (lambda: parse_recipe("rolling:" + "x" * 99), f"cannot read the masks 'rolling:{'x' * 72}': write"),
        (lambda: parse_recipe("share:1:halves:3"), "share:1:halves"),
        (lambda: parse_recipe("rolling:8:pairs:3"), "pairs:3"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, said):
    with pytest.raises(ObjectSeekerError, match=said):
        make()


@pytest.mark.parametrize("number", [1.5, 2.0, -1, True, "3", np.float64(1)])
def test_the_number_of_a_frame_is_a_whole_number(number):
    """Another one would be rounded to a share, and certificates over time depend on the share."""
    with pytest.raises(ObjectSeekerError, match="the number of a frame must be a whole number of at least 0"):
        recipe_for_frame(Rolling(Halves(4), 3), number)
    assert recipe_for_frame(Rolling(Halves(4), 3), np.int64(5)) == Share(Halves(4), 2, 3)
