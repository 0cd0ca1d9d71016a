"""The engine of certificates: every closed form and shortcut against loops over positions."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from cases import generate, halves, literally_removed, one, some_masks

from objectseeker import Certificates, Detections, ObjectSeekerError, Observation, Patch, Rule
from objectseeker.core import boxes as boxes_module
from objectseeker.core import certification
from objectseeker.core.certification import ObjectProof, decide, find_safe_lines, visible_area
from objectseeker.core.masks import keep, strips
from objectseeker.core.temporal import NOWHERE
from objectseeker.core.threats import PATCH_LOCATIONS


def test_what_the_lines_decide_needs_no_proof():
    """Nor do views inside the grown box that are sufficient on their own, or that do not exist."""
    masks, objects = halves(100, 80, 9), Detections([[30, 20, 60, 50], [5, 60, 25, 79]], [0.9, 0.9], [0, 0])
    seen = Observation(100, 80, masks, objects, [objects[:1]] * len(masks))
    patches = [Patch(0.01, location=where) for where in PATCH_LOCATIONS] + [Patch(location="outside")]
    expected = Rule().certify(seen, objects, patches)

    def never(n):
        raise AssertionError("no proof is needed")

    inside = np.array([True, False])
    safe_lines = find_safe_lines(expected.safe, masks)
    assert np.array_equal(safe_lines, expected.safe_lines)
    certified, vacuous = decide(
        safe_lines, objects.xyxy, 100, 80, patches, never, lambda grown: (inside, inside), beyond_lines=False
    )
    assert certified[:4].tolist() == expected.certified[:4].tolist() == [[True, False]] * 4
    assert certified[4].tolist() == inside.tolist()
    assert not vacuous.any()
    two = [Patch(0.01, location="over", count=2)]
    certified, _ = decide(safe_lines[1:], objects.xyxy[1:], 100, 80, two, never, beyond_lines=False)
    assert not certified.any()  # an object that one patch can hide, two can hide


def literal_square(masks, safe):
    for side in range(1, max(masks.width, masks.height) + 1):
        if not literally_removed(masks, (side, side))[safe].any(axis=0).all():
            return side - 1
    raise AssertionError("a square as large as the image hides everything")


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_square_is_that_of_all_positions(seed):
    masks = some_masks(seed)
    safe = np.random.default_rng(seed).random(len(masks)) < (0.8, 1.0)[seed % 2]
    proof = ObjectProof(masks, safe)
    expected = literal_square(masks, safe)
    assert proof.largest_square() == expected
    assert proof.largest_square(at_least=expected) == expected
    assert proof.largest_square(at_least=expected // 2) == expected
    if not masks.has_bands:
        assert certification.largest_square(find_safe_lines(safe[None], masks)).tolist() == [expected]


@pytest.mark.parametrize("kept", [[0, 8, 12, 9], [0, 0, 12, 1], [11, 0, 12, 9], [0, 0, 1, 9]])
def test_the_first_and_the_last_position_count(kept):
    """All but one row or column of positions is removed."""
    assert ObjectProof(keep(12, 9, [kept]), np.array([True])).largest_square() == 0


@pytest.mark.parametrize("compared", [certification.MAX_COMPARED, 0])
@pytest.mark.parametrize("seed", range(24))
def test_any_rectangles_of_positions_are_decided_as_one_by_one(monkeypatch, seed, compared):
    monkeypatch.setattr(certification, "MAX_COMPARED", compared)
    masks, rng = some_masks(seed, largest=9), np.random.default_rng(seed)
    w, h = (int(v) for v in rng.integers(1, 4, 2))
    gone = literally_removed(masks, (w, h))
    for _ in range(6):
        safe = rng.random(len(masks)) < rng.choice([0.3, 0.8, 1.0])
        ends = np.sort(
            rng.integers([1 - w, 1 - h], [masks.width, masks.height], (int(rng.integers(0, 3)), 2, 2)), axis=1
        )
        allowed = np.zeros(gone.shape[1:], bool)
        for (x1, y1), (x2, y2) in ends.tolist():
            allowed[y1 + h - 1 : y2 + h, x1 + w - 1 : x2 + w] = True
        removed = np.unique(gone[safe][:, allowed], axis=1).T
        for count in (1, 2, 3):
            expected = all(
                np.logical_and.reduce(chosen).any() for chosen in combinations_with_replacement(removed, count)
            )
            assert ObjectProof(masks, safe).certifies(ends.reshape(-1, 4), (w, h), count) == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_where_no_position_is_allowed_nothing_hides_an_object(count):
    masks = halves(20, 20, 1)
    assert ObjectProof(masks, np.zeros(4, bool)).certifies(NOWHERE, (2, 2), count)
    assert not ObjectProof(masks, np.zeros(4, bool)).certifies(np.array([[3, 3, 3, 3]]), (2, 2), count)


def test_of_views_that_suffice_the_cheapest_that_is_left_is_taken():
    proof = ObjectProof(halves(20, 20, 1), np.array([True, True, False, True]))
    left = np.array([False, True, True, True])
    assert proof.few_views(left).tolist() == [1]
    assert proof.few_views(left, np.array([0, 5, 1, 4])).tolist() == [3]
    assert proof.few_views(np.array([False, False, True, False])) is None


def test_what_is_decided_does_not_depend_on_how_many_are_looked_at_at_a_time(monkeypatch):
    """Objects and boxes come in blocks where there are many."""
    patches = [Patch(0.03, location=where) for where in PATCH_LOCATIONS] + [Patch(0.03, location="over", count=2)]
    rules = (Rule(mask_threshold=0.5), Rule(mask_threshold=0.75, evidence_threshold=0.1))
    cases = [generate(seed, largest=16, crowd=0.9, sure=0.9) for seed in range(12)]

    def results():
        for case in cases:
            for rule in rules:
                found = rule.certify(case.observation, case.ground_truth, patches)
                yield [getattr(found, name).tolist() for name in Certificates.__slots__]
                yield [len(proofs) for proofs in rule.object_proofs(case.observation, case.ground_truth)]
                yield rule.prune(case.observation).xyxy.tolist()
            for count in (1, 2):
                over = Patch(0.03, location="over", count=count)
                yield rules[0].certified_scores(case.observation, case.ground_truth, over).tolist()

    at_once = list(results())
    for cells in (1, 7):
        monkeypatch.setattr(boxes_module, "MAX_CELLS", cells)
        assert list(results()) == at_once


def test_the_visible_area_is_that_inside_of_its_own_image():
    objects = np.array([[-5.0, -5, 10, 10], [90, 40, 120, 60], [100, 0, 120, 9], [10, 10, 10, 20]])
    assert visible_area(objects, 100, 50).tolist() == [100, 100, 0, 0]
    assert visible_area(objects, [100, 110, 120, 9], [50, 60, 5, 9]).tolist() == [100, 400, 100, 0]


def test_safe_lines_are_the_innermost_lines_of_the_safe_masks():
    masks = keep(90, 70, [[10, 0, 90, 70], [30, 5, 90, 70], [0, 0, 60, 50], [0, 0, 80, 40]])
    assert find_safe_lines(np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]], bool), masks).tolist() == [
        [30, 5, 60, 40],
        [10, 0, 80, 40],
        [0, 0, 90, 70],
    ]
    band = strips(90, 70, [(20, 40)], [])  # bands have no part in it
    assert find_safe_lines(np.ones((1, 1), bool), band).tolist() == [[0, 0, 90, 70]]


def test_patches_are_patches():
    seen = Observation(100, 100, halves(100, 100, 1), one([1, 1, 9, 9]), [one([1, 1, 9, 9])] * 4)
    with pytest.raises(ObjectSeekerError, match="patches must be Patch objects"):
        Rule().certify(seen, seen.base, ["over"])
    assert Rule().certify(seen, seen.base, []).certified.shape == (0, 1)
    assert Rule().certify(seen, seen.base[:0], [Patch(), Patch()]).certified.shape == (2, 0)


def test_one_or_two_patches_are_decided_without_a_search(monkeypatch):
    """A search may end early; against one or two patches there is none."""
    masks = keep(100, 10, [[0, 0, 10, 10], [30, 0, 40, 10], [60, 0, 70, 10], [90, 0, 100, 10]])
    everywhere, proof = np.array([[0, 0, 99, 9]]), ObjectProof(masks, np.ones(4, bool))
    assert [proof.certifies(everywhere, (3, 3), count) for count in (1, 2, 3)] == [True, True, True]
    monkeypatch.setattr(certification, "MAX_SEARCH", 0)
    assert [proof.certifies(everywhere, (3, 3), count) for count in (1, 2, 3)] == [True, True, False]


def test_views_inside_that_may_prove_an_object_together_are_asked_for_their_proof():
    """None of them is sufficient on its own; of two objects one has no such view, and needs no proof."""
    masks = keep(100, 100, [[20, 20, 80, 80]])
    objects, safe_lines = np.array([[30.0, 30, 70, 70], [0, 0, 9, 9]]), np.array([[0, 0, 100, 100]] * 2)
    asked = []

    def proof_of(n):
        asked.append(n)
        return ObjectProof(masks, np.array([n == 0]))

    outside = Patch(location="outside")
    far = Patch(0.01, location="over", with_outside=True)
    alone, together = np.array([False, False]), np.array([True, False])
    certified, vacuous = decide(
        safe_lines, objects, 100, 100, [outside, far], proof_of, lambda grown: (alone, together), beyond_lines=False
    )
    assert certified.tolist() == [[True, False], [False, False]]
    assert not vacuous.any()
    assert set(asked) == {0}
