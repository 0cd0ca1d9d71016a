"""Classes of positions: which views remove a patch, and which classes are hardest, against loops."""

import numpy as np
import pytest
from cases import halves, literally_removed, some_masks

from objectseeker.core.masks import keep, strips
from objectseeker.core.positions import PositionClasses, contained_sets, jointly_removed, minimal_sets


@pytest.mark.parametrize("seed", range(48))
def test_classes_say_what_every_mask_removes_at_every_position(seed):
    masks, rng = some_masks(seed), np.random.default_rng(seed)
    w, h = (int(v) for v in rng.integers(1, 8, 2))
    classes = PositionClasses.of(masks, (w, h))
    xs, ys = np.arange(1 - w, masks.width), np.arange(1 - h, masks.height)
    x, y = (np.searchsorted(s, p, side="right") - 1 for s, p in zip(classes.starts, (xs, ys), strict=True))
    found = classes.removes[0][x][None] | classes.removes[1][y][:, None]
    assert np.array_equal(found.transpose(2, 0, 1), literally_removed(masks, (w, h)))
    assert [int(starts[0]) for starts in classes.starts] == [1 - w, 1 - h]
    assert all((starts[1:] > starts[:-1]).all() for starts in classes.starts)
    first, last = np.sort(rng.integers([1 - w, 1 - h], [masks.width, masks.height], (2, 2)), axis=0)
    reached = classes.reached(np.concatenate([first, last]))
    assert [one.tolist() for one in reached] == [
        sorted({int(c) for c, p in zip(of, positions, strict=True) if a <= p <= b})
        for of, positions, a, b in zip((x, y), (xs, ys), first, last, strict=True)
    ]


def test_an_empty_rectangle_reaches_no_class():
    classes = PositionClasses.of(halves(20, 30, 2), (3, 4))
    for rectangle in ([5, 5, 4, 9], [5, 5, 9, 4]):
        assert [len(one) for one in classes.reached(np.array(rectangle))] == [0, 0]
    assert [len(one) for one in classes.reached(np.array([5, 6, 5, 6]))] == [1, 1]


def test_classes_begin_at_lines_and_where_the_patch_leaves_the_image():
    """A patch of 3 pixels along an axis of 20, with a half mask at 8 or a band from 5 to 12."""
    for masks in (keep(20, 9, [[8, 0, 20, 9]]), keep(9, 20, [[0, 8, 9, 20]])):
        axis = int(masks.height == 20)
        assert masks.breakpoints(axis, 3).tolist() == [-2, 0, 6, 18]  # at 6 it is no longer removed
        assert masks.breakpoints(1 - axis, 3).tolist() == [-2]
        assert masks.breakpoints(axis, 1).tolist() == [0, 8]
    for masks in (keep(20, 9, [[0, 0, 8, 9]]), keep(9, 20, [[0, 0, 9, 8]])):
        axis = int(masks.height == 20)
        assert masks.breakpoints(axis, 3).tolist() == [-2, 0, 8, 18]  # from 8 on it is removed
        begins, ceases = masks.touching_positions(axis, 3)
        assert (begins.tolist(), ceases.tolist()) == ([8], [])
    for masks, axis in ((strips(20, 9, [(5, 12)], []), 0), (strips(9, 20, [], [(5, 12)]), 1)):
        assert masks.breakpoints(axis, 3).tolist() == [-2, 0, 5, 10, 18]
        begins, ceases = masks.touching_positions(axis, 3)
        assert (begins.tolist(), ceases.tolist()) == ([5], [9])
        assert [len(one) for one in masks.touching_positions(1 - axis, 3)] == [0, 0]
    whole = keep(20, 9, [[8, 0, 20, 9]])
    assert whole.breakpoints(0, 30).tolist() == [-29, -21, -9, 0]  # longer than the axis


def test_sets_that_contain_others():
    rng = np.random.default_rng(0)
    for _ in range(60):
        sets = rng.random((int(rng.integers(0, 9)), int(rng.integers(0, 6)))) < 0.5
        each = [frozenset(np.flatnonzero(row).tolist()) for row in sets]
        contains = contained_sets(sets)
        assert contains.shape == (len(sets), len(sets))
        assert contains.tolist() == [[b <= a for b in each] for a in each]
        minimal = [not any(b < a for b in each) and a not in each[:i] for i, a in enumerate(each)]
        assert minimal_sets(contains).tolist() == minimal
        assert jointly_removed(sets).tolist() == [[bool(a & b) for b in each] for a in each]


@pytest.mark.parametrize("seed", range(32))
def test_every_class_of_the_grids_removes_all_that_a_hardest_one_does(seed):
    masks, rng = some_masks(seed, largest=16), np.random.default_rng(seed)
    classes = PositionClasses.of(masks, (int(rng.integers(1, 5)), int(rng.integers(1, 5))))
    views = np.flatnonzero(rng.random(len(masks)) < 0.7)
    grids = [
        tuple(np.flatnonzero(rng.random(len(starts)) < 0.5) for starts in classes.starts)
        for _ in range(int(rng.integers(0, 3)))
    ]
    each = {
        frozenset(views[(classes.removes[0][i] | classes.removes[1][j])[views]].tolist())
        for x, y in grids
        for i in x
        for j in y
    }
    hardest = [frozenset(views[row].tolist()) for row in classes.hardest(grids, views)]
    assert set(hardest) <= each
    assert all(any(few <= many for few in hardest) for many in each)
    if len(grids) == 1:  # only those that are hardest along both axes: no two along an axis with one in the other
        x, y = (removes[:, views][of] for removes, of in zip(classes.removes, grids[0], strict=True))
        along = [{frozenset(np.flatnonzero(row).tolist()) for row in rows} for rows in (x, y)]
        least = [sum(not any(other < one for other in rows) for one in rows) for rows in along]
        assert len(hardest) == least[0] * least[1]


def test_classes_are_made_once_and_cannot_be_changed():
    masks = halves(20, 30, 2)
    classes = PositionClasses.of(masks, (3, 4))
    assert PositionClasses.of(halves(20, 30, 2), (3, 4)) is classes
    assert not any(array.flags.writeable for array in (*classes.starts, *classes.removes))
