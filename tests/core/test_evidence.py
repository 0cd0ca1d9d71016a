"""Stars decide every position as a loop over positions and stars does, however they are grouped."""

import numpy as np
import pytest
from cases import NOTHING, halves, observe, one, pairs, windowed

from objectseeker import Detections
from objectseeker.core import evidence as evidence_module
from objectseeker.core.bounds import MARGIN
from objectseeker.core.evidence import FULL, UNIT, Stars, build_stars, certified_weights
from objectseeker.core.positions import PositionClasses


def some_stars(seed, masks):
    """Up to 40 stars; every mask with evidence is the center of one, as `build_stars` makes them."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 41))
    center = rng.choice(len(masks), count)
    dense = rng.uniform(0.1, 0.9)
    evidence = rng.choice([0.0, 1 / 16, 0.25, 0.5, 0.75, FULL], (count, len(masks)), p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05])
    evidence *= (rng.random(evidence.shape) < dense) & np.isin(np.arange(len(masks)), center)
    evidence[np.arange(count), center] = np.maximum(evidence[np.arange(count), center], 1 / 16)
    return Stars(masks, evidence, center)


def proven(stars, left):
    """Which sets of views (sets, M) prove the object: some star is centered in them and has enough."""
    return np.array(
        [
            any(row[of] and sum(star[row]) >= 1 + MARGIN for star, of in zip(stars.evidence, stars.center, strict=True))
            for row in left
        ],
        dtype=bool,
    )


@pytest.mark.parametrize("at_once", [(1024, 16), (5, 3)])
@pytest.mark.parametrize("make", [halves, pairs, windowed(1), windowed(4)])
def test_stars_prove_what_a_loop_over_positions_and_stars_does(monkeypatch, at_once, make):
    monkeypatch.setattr(evidence_module, "SETS_AT_ONCE", at_once[0])
    monkeypatch.setattr(evidence_module, "STARS_AT_ONCE", at_once[1])
    masks = make(14, 9, 2)
    verdicts = {"prove": set(), "prove_pairs": set(), "unproven": set()}
    for seed in range(16):
        rng = np.random.default_rng(seed)
        stars = some_stars(seed, masks)
        classes = PositionClasses.of(masks, (int(rng.integers(1, 4)), int(rng.integers(1, 4))))
        x, y = (np.flatnonzero(rng.random(len(starts)) < 0.6) for starts in classes.starts)
        removes = (classes.removes[0][x][:, None] | classes.removes[1][y][None]).reshape(-1, len(masks))
        expected = proven(stars, removes)
        unproven = stars.unproven(x, y, classes)
        assert unproven.tolist() == (~expected).reshape(len(x), len(y)).tolist()
        assert stars.prove(x, y, classes) == expected.all()
        each = np.unique(removes, axis=0)
        both = np.unique((each[:, None] & each[None]).reshape(-1, len(masks)), axis=0)
        safe = np.zeros(len(masks), bool)  # those that any star centered on them needs alone
        safe[stars.center[stars.evidence[np.arange(len(stars.center)), stars.center] >= FULL]] = True
        pairs_hold = proven(stars, both).all()
        assert stars.prove_pairs([(x, y)], classes, safe) == pairs_hold
        verdicts["prove"].add(bool(expected.all()))
        verdicts["unproven"] |= set(unproven.ravel().tolist())
        verdicts["prove_pairs"].add(bool(pairs_hold))
    assert verdicts["unproven"] == {True, False}
    assert False in verdicts["prove"] & verdicts["prove_pairs"]


def test_no_position_is_proven_and_no_star_proves():
    masks = halves(14, 9, 2)
    classes, none = PositionClasses.of(masks, (2, 2)), np.zeros(0, np.int64)
    nothing = Stars(masks, np.zeros((0, len(masks))), none)
    some = np.arange(2)
    assert nothing.prove(none, some, classes)
    assert nothing.prove(some, none, classes)
    assert not nothing.prove(some, some, classes)
    assert nothing.unproven(some, some, classes).all()
    assert not nothing.prove_pairs([(some, some)], classes, np.zeros(len(masks), bool))
    assert nothing.prove_pairs([], classes, np.zeros(len(masks), bool))
    assert nothing.weakest_proof(np.ones(len(masks), bool)) is None


def test_stars_of_some_views_have_no_evidence_of_others():
    masks = halves(20, 20, 1)
    stars = Stars(masks, np.array([[0.5, 0.25, 0.0, FULL], [0.25, 0.5, 0.0, 0.0]]), np.array([3, 0]))
    some = stars.restricted_to(np.array([True, False, True, False]))
    assert some.evidence.tolist() == [[0.25, 0.0, 0.0, 0.0]]
    assert some.center.tolist() == [0]
    assert some.masks == masks


def test_the_views_of_a_proof_are_few_strong_and_left():
    """The center first, then the strongest of those that are left, as many as it takes."""
    masks = halves(20, 20, 2)
    evidence = np.zeros((2, len(masks)))
    evidence[0] = [1 / 16, 0.5, 0.05, 0.25, 0.5, 0.0, 0.05, 0.75]
    evidence[1, 1] = 0.5
    stars = Stars(masks, evidence, np.array([0, 1]))
    every = np.ones(len(masks), bool)
    assert stars.weakest_proof(every).tolist() == [0, 7, 1]
    assert stars.weakest_proof(every & (np.arange(len(masks)) != 7)).tolist() == [0, 1, 4]
    without = every & ~np.isin(np.arange(len(masks)), [4, 7])
    assert stars.weakest_proof(without) is None  # 0.5 + 0.25 + ... is less than 1
    assert stars.weakest_proof(every & (np.arange(len(masks)) != 0)) is None  # its center is gone
    weak = np.zeros((1, len(masks)))
    weak[0, :] = [1 / 16, 0.5, 1 / 32, 1 / 32, 7 / 16, 1 / 32, 0.75, 0.75]
    few = Stars(masks, weak, np.array([0])).weakest_proof(every & ~np.isin(np.arange(len(masks)), [6, 7]))
    assert few.tolist() == [0, 1, 4, 2]


def test_a_view_that_suffices_is_a_proof_of_one():
    masks = halves(20, 20, 1)
    stars = Stars(masks, np.array([[0.5, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, FULL]]), np.array([0, 3]))
    assert stars.weakest_proof(np.ones(4, bool)).tolist() == [3]


def test_evidence_counts_in_whole_units_rounded_down():
    given = np.array([0.0, UNIT / 2, UNIT, 1.75 * UNIT, 0.5, np.nextafter(1, 0), 1.0])
    assert (UNIT, FULL) == (2.0**-40, 2.0)
    assert certified_weights(given).tolist() == [0.0, 0.0, UNIT, UNIT, 0.5, 1 - UNIT, FULL]


def test_stars_have_evidence_of_the_masks_that_boxes_are_under_only():
    """Boxes under two of four masks, two of them under one: the best counts."""
    near, far = one([20, 20, 40, 40], 0.5), one([60, 60, 80, 80], 0.5)
    seen = observe([near, NOTHING, Detections.concatenate([near, far, near])])
    stars = build_stars(seen, np.arange(4), np.array([0.5, 0.25, 0.75, 1.0]), 0.1)
    assert stars.evidence.tolist() == [[0.5, 0, FULL, 0], [0.5, 0, FULL, 0], [0, 0, 0.75, 0]]
    assert stars.center.tolist() == [0, 2, 2]
