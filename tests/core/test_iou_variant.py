"""The IoU variant: its bound is the true minimum, and the fast code equals the literal one."""

from fractions import Fraction

import numpy as np
import oracle
import oracle_iou
import oracle_two_patches
import pytest
from cases import certify, generate, halves, iou_certify, iou_prune, observe, one, pairs, prune
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import box_of
from strategies import SEEDS, boxes

from objectseeker import Detections, Halves, ObjectSeekerError, Patch, Rule
from objectseeker.core.boxes import iou
from objectseeker.core.rules.iou import IouRule, iou_lower_bound, nms_survivors, non_overlapping
from objectseeker.core.threats import PATCH_LOCATIONS

TAU = st.one_of(st.sampled_from([0.5, 0.75, 0.8, 0.9, 1.0]), st.floats(0.01, 1))


def fast(m, g, tau, bound="exact", **options):
    return iou_lower_bound(np.array([m], float), np.array([g], float), tau, bound, **options)[0, 0]


# --- the bound -----------------------------------------------------------------------------------------------------


def rectangles(low: int, high: int) -> np.ndarray:
    """All rectangles with integer corners."""
    first, last = np.triu_indices(high - low + 1, 1)
    x1, y1 = (v.ravel() for v in np.meshgrid(first, first))
    x2, y2 = (v.ravel() for v in np.meshgrid(last, last))
    return np.stack([x1, y1, x2, y2], axis=1) + low


GRID = rectangles(-4, 16)  # 44,100 of them


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([(4, 5), (1, 2), (3, 4), (9, 10), (2, 3)]))
def test_no_rectangle_on_a_grid_fits_worse_than_the_bound(seed, tau):
    """Brute force in integers: every rectangle b with IoU(m, b) > tau, and its IoU with g."""
    rng = np.random.default_rng(seed)
    p, q = tau
    m = np.concatenate([rng.integers(0, 3, 2), rng.integers(8, 13, 2)])
    g = m + rng.integers(-2, 3, 4)

    def areas(a, b):
        sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
        both = np.clip(sides, 0, None).prod(axis=-1)
        return both, (a[..., 2:] - a[..., :2]).prod(axis=-1) + (b[..., 2:] - b[..., :2]).prod(axis=-1) - both

    both, either = areas(GRID, m)
    close = GRID[q * both > p * either]
    assert len(close)
    both, either = areas(close, g)
    least = min(Fraction(int(i), int(u)) for i, u in zip(both, either, strict=True))
    exact = oracle_iou.exact_bound(box_of(m.tolist()), box_of(g.tolist()), Fraction(p, q))
    paper = oracle_iou.paper_bound(box_of(m.tolist()), box_of(g.tolist()), Fraction(p, q))
    assert paper <= exact <= least
    assert fast(m, g, p / q, margin=0.0) == pytest.approx(float(exact), abs=1e-12)
    assert fast(m, g, p / q, "paper", margin=0.0) == pytest.approx(float(paper), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.sampled_from([0.5, 0.7, 0.8, 0.9]))
def test_no_rectangle_anywhere_fits_worse_than_the_bound(seed, tau):
    """A random search that walks towards ever worse rectangles ends at the bound, not below it."""
    rng = np.random.default_rng(seed)
    m = np.concatenate([rng.uniform(0, 4, 2), rng.uniform(6, 12, 2)])
    g = m + rng.uniform(-2, 2, 4)
    bound = fast(m, g, tau, margin=0.0)
    best, b = iou(m[None], g[None])[0, 0], m
    for step in (1.0, 0.3, 0.1, 0.03, 0.01):
        for _ in range(6):
            near = b + rng.normal(0, step, (300, 4)) * (rng.random((300, 4)) < 0.6)
            near = near[(near[:, 2:] > near[:, :2]).all(axis=1)]
            near = near[iou(near, m[None])[:, 0] > tau]
            if len(near):
                fit = iou(near, g[None])[:, 0]
                if fit.min() < best:
                    best, b = fit.min(), near[fit.argmin()]
    assert best >= bound - 1e-12
    assert best >= fast(m, g, tau, "paper", margin=0.0) - 1e-12


@settings(max_examples=400, deadline=None)
@given(boxes(), boxes(), TAU)
def test_bounds_never_exceed_the_exact_value(m, g, tau):
    if oracle.size(box_of(g)) <= Fraction(1, 10**9) or oracle.size(box_of(m)) <= Fraction(1, 10**9):
        return
    exact = oracle_iou.exact_bound(box_of(m), box_of(g), Fraction(tau))
    paper = oracle_iou.paper_bound(box_of(m), box_of(g), Fraction(tau))
    assert paper <= exact
    assert Fraction(fast(m, g, tau)) <= max(exact + Fraction(1, 10**12), 0)
    assert Fraction(fast(m, g, tau, "paper")) <= paper + Fraction(1, 10**12)
    narrow = min(g[2] - g[0], g[3] - g[1], m[2] - m[0], m[3] - m[1])
    assert fast(m, g, tau) >= float(exact) - 1e-6 / narrow
    assert fast(m, g, tau, margin=0.0) >= fast(m, g, tau, "paper", margin=0.0) - 1e-12
    assert oracle_iou.iou(box_of(m), box_of(g)) >= exact


def test_the_bound_of_a_perfect_box_is_tau():
    g = [0, 0, 10, 10]
    assert fast(g, g, 0.8, margin=0.0) == pytest.approx(0.8)
    assert fast(g, g, 0.8, "paper", margin=0.0) == pytest.approx(0.8)


def test_exact_certifies_what_paper_cannot():
    """g in the middle of m: a slice of m must go through m's margins first."""
    m, g = [0, 0, 12, 10], [1, 1, 11, 9]
    assert fast(m, g, 0.8, "paper") < 0.47
    assert fast(m, g, 0.8) > 0.53


def test_boxes_without_area_prove_nothing():
    for m in ([3, 3, 3, 9], [3, 3, 9, 3], [3, 3, 3, 3], [0, 0, 1e-140, 1e-140]):
        for bound in ("exact", "paper"):
            assert fast(m, [0, 0, 10, 10], 0.8, bound) <= 0
            assert fast([0, 0, 10, 10], m, 0.8, bound) <= 0
            assert fast(m, m, 0.8, bound) <= 0
    assert fast([0, 0, 10, 10], [0, 0, 10, 10], 0.0) <= 0


# --- pruning and certificates against the literal version ----------------------------------------------------------


OPTIONS = {"base_threshold": 0.5, "filter_ioa": 0.6, "cluster_distance": 0.1}


@settings(max_examples=120, deadline=None)
@given(
    SEEDS,
    st.booleans(),
    st.sampled_from([0.5, 0.75]),
    st.sampled_from([0.8, 0.5, 0.75]),
    st.sampled_from([None, 0.25]),
)
def test_pruning_equals_the_oracle(seed, classwise, mask_threshold, filter_iou, evidence_threshold):
    observation = generate(seed, largest=20, crowd=0.9).observation
    options = OPTIONS | {
        "classwise": classwise,
        "mask_threshold": mask_threshold,
        "filter_iou": filter_iou,
        "evidence_threshold": evidence_threshold,
    }
    found = iou_prune(observation, **options)
    rows = sorted((*box, s, c) for box, s, c in zip(found.xyxy, found.score, found.label.tolist(), strict=True))
    assert rows == oracle_iou.prune(observation, **options)
    base = observation.base.with_min_score(0.5)
    assert found[: len(base)] == base


@settings(max_examples=200, deadline=None)
@given(
    SEEDS,
    st.sampled_from([0.5, 0.75]),
    st.sampled_from([0.8, 0.5, 0.75]),
    st.sampled_from([0.5, 0.25, 0.3]),
    st.sampled_from(["exact", "paper"]),
    st.booleans(),
)
def test_certificates_equal_the_oracle(seed, mask_threshold, filter_iou, certification_threshold, bound, classwise):
    case = generate(seed, largest=18, crowd=0.9, generous=1.0 if seed % 2 else None)
    observation, truth = case.observation, case.ground_truth
    rng = np.random.default_rng(seed)
    threats = [
        Patch(float(rng.choice([0.01, 0.05, 0.2, 1.0])), float(rng.choice([1, 0.5, 8])), where)
        for where in PATCH_LOCATIONS
    ]
    options = {
        "mask_threshold": mask_threshold,
        "filter_iou": filter_iou,
        "certification_threshold": certification_threshold,
        "classwise": classwise,
    }
    found = iou_certify(observation, truth, threats, bound=bound, **options)
    for n, g in enumerate(oracle.boxes_of(truth)):
        safe = oracle_iou.safe_masks(observation, truth, n, bound=bound, **options)
        assert np.flatnonzero(found.safe[n]).tolist() == safe
        for p, patch in enumerate(threats):
            assert (found.certified[p, n], found.vacuous[p, n]) == oracle.certify(observation, g, patch, safe)
    ioa = Rule(mask_threshold=mask_threshold, classwise=classwise)
    again = IouRule(ioa_rule=ioa, filter_iou=filter_iou).certify(
        observation, truth, threats, certification_threshold=certification_threshold, bound=bound
    )
    assert np.array_equal(again.certified, found.certified)


@settings(max_examples=120, deadline=None)
@given(SEEDS, st.sampled_from([0.5, 0.25]), st.booleans())
def test_certificates_against_two_patches_equal_the_oracle(seed, certification_threshold, classwise):
    """Every pair of pixel positions, with half masks and with pairs of them."""
    make = halves if seed % 4 == 0 else pairs
    sure = (0.9, 0.97, 1.0)[seed % 3]
    case = generate(seed, smallest=6, largest=11, lines=1 + seed % 4, make=make, generous=0.3, sure=sure)
    observation, truth = case.observation, case.ground_truth
    patches = [Patch(0.01, 1.0, where, count) for where in PATCH_LOCATIONS for count in (1, 2)]
    options = {
        "mask_threshold": 0.1,
        "filter_iou": 0.8,
        "certification_threshold": certification_threshold,
        "classwise": classwise,
    }
    found = iou_certify(observation, truth, patches, **options)
    gone = oracle_two_patches.removed(observation, patches[0].size(observation.width, observation.height))
    for n, g in enumerate(oracle.boxes_of(truth)):
        safe = oracle_iou.safe_masks(observation, truth, n, bound="exact", **options)
        for p, patch in enumerate(patches):
            expected = oracle_two_patches.certify(observation, g, patch, safe, gone)
            assert (found.certified[p, n], found.vacuous[p, n]) == expected, (patch, n)


def test_generated_cases_cover_what_matters():
    """The equalities above would be empty if one outcome never occurred."""
    seen, dropped, suppressed, others = set(), 0, 0, 0
    for seed in range(150):
        case = generate(seed, crowd=0.9, generous=1.0)
        observation = case.observation
        patches = [Patch(0.02, 1.0, where) for where in PATCH_LOCATIONS]
        found = iou_certify(observation, case.ground_truth, patches, mask_threshold=0.5)
        for where, certified, vacuous in zip(PATCH_LOCATIONS, found.certified, found.vacuous, strict=True):
            seen |= {(where, bool(v), bool(e)) for v, e in zip(certified, vacuous, strict=True)}
        rule = IouRule(ioa_rule=Rule(mask_threshold=0.5))
        clear = non_overlapping(observation.all_masked.xyxy, observation.mask_index, observation.masks)
        boxes = observation.all_masked[clear].with_min_score(0.5)
        left = boxes[~rule.are_duplicates(boxes, observation.base.with_min_score(0.5)).any(axis=1)]
        kept = nms_survivors(left.score, rule.are_duplicates(left, left).__getitem__)
        dropped += len(boxes) - len(left)
        suppressed += len(left) - len(kept)
        others += len(rule.prune(observation)) - len(observation.base.with_min_score(0.5)) - len(kept)
    assert {(where, False, False) for where in PATCH_LOCATIONS} <= seen
    assert {(where, True, False) for where in ("far", "close")} <= seen
    assert ("over", True, False) not in seen  # nothing clear of a patch upon the object fits the object by half
    assert ("far", True, True) in seen
    assert min(dropped, suppressed, others) > 50


# --- explicit cases --------------------------------------------------------------------------------------------------


def test_what_is_clear_lies_apart_from_what_its_mask_removes():
    masks = Halves(1).masks(100, 200)  # lines at x = 50 and y = 100
    left, top, right, bottom = range(4)
    for box, mask, clear in (
        ([55.125, 0, 70, 9], left, True),
        ([55, 0, 70, 9], left, False),  # a tie is not clear
        ([49, 0, 70, 9], left, False),  # reaches over the line
        ([5, 0, 20, 9], left, False),  # lies inside what is removed
        ([5, 0, 20, 9], right, True),
        ([5, 0, 45, 9], right, False),
        ([5, 110, 20, 120], top, False),  # 5 % of the height, not of the width
        ([5, 110.5, 20, 120], top, True),
        ([5, 80, 20, 89], bottom, True),
        ([5, 80, 20, 90], bottom, False),
    ):
        assert non_overlapping(np.array([box], float), np.array([mask]), masks).tolist() == [clear], (box, mask)


def test_a_box_under_a_pair_of_masks_is_clear_of_both():
    masks = pairs(100, 100, lines=1)
    both = masks.rectangle.tolist().index([50, 50, 100, 100])  # left and top halves
    tested = np.array([[60, 60, 90, 90], [60, 52, 90, 90], [52, 60, 90, 90]], float)
    assert non_overlapping(tested, np.full(3, both), masks).tolist() == [True, False, False]


def test_clear_boxes_are_output_as_they_are_and_others_as_hulls():
    good, weak, cut = one([60, 20, 80, 40], 0.8), one([60, 60, 80, 80], 0.6), one([50, 45, 70, 55], 0.9)
    close = one([60, 20, 80, 42], 0.75)  # IoU 0.91 with the first: suppressed
    views = Detections.concatenate([good, weak, cut, close])
    found = iou_prune(observe([views]))
    assert found.xyxy.tolist() == [[60, 20, 80, 40], [50, 45, 70, 55]]
    assert found.score.tolist() == [0.8, 0.9]
    base = one([60, 20, 80, 43], 0.9)
    assert iou_prune(observe([views], base)).xyxy.tolist() == [[60, 20, 80, 43], [50, 45, 70, 55]]
    larger = one([55, 15, 95, 45], 0.9)  # covers both, but fits neither
    assert len(iou_prune(observe([views], larger))) == 3
    assert prune(observe([views], larger)).xyxy.tolist() == [[55, 15, 95, 45], [50, 45, 70, 55]]


def test_only_kept_boxes_suppress():
    """a, b, c in a row: b is suppressed by a, so c stays although it is close to b."""
    chain = Detections([[0, 0, 40, 40], [3, 0, 43, 40], [6, 0, 46, 40]], [0.9, 0.8, 0.7], [0, 0, 0])
    same = iou(chain.xyxy, chain.xyxy) > 0.8
    assert same.tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    assert nms_survivors(chain.score, same.__getitem__).tolist() == [0, 2]
    assert nms_survivors(chain.score[::-1], same.__getitem__).tolist() == [0, 2]
    assert nms_survivors(np.full(3, 0.9), same.__getitem__).tolist() == [0, 2]  # earlier first among equals
    assert nms_survivors(np.array([0.7, 0.8, 0.7]), same.__getitem__).tolist() == [1]


def test_labels_count_unless_they_are_ignored():
    view = Detections([[60, 20, 80, 40]] * 2, [0.8, 0.9], [3, 7])
    assert iou_prune(observe([view])).label.tolist() == [3, 7]
    assert iou_prune(observe([view]), classwise=False).label.tolist() == [7]
    base = one([60, 20, 80, 40], 0.9, 5)
    assert len(iou_prune(observe([view], base))) == 3
    assert len(iou_prune(observe([view], base), classwise=False)) == 1


def test_a_tie_is_not_certified():
    """m = g has a bound of exactly tau."""
    g = one([60, 20, 80, 40])
    observation = observe([g])
    assert iou_certify(observation, g, [], mask_threshold=0.5, certification_threshold=0.79).safe.tolist() == [
        [True, False, False, False]
    ]
    assert not iou_certify(observation, g, [], mask_threshold=0.5, certification_threshold=0.8).safe.any()
    assert not iou_certify(
        observation, g, [], mask_threshold=np.nextafter(0.9, 1), certification_threshold=0.5
    ).safe.any()
    assert not iou_certify(observation, one([60, 20, 80, 40], label=1), [], mask_threshold=0.5).safe.any()
    assert iou_certify(observation, one([60, 20, 80, 40], label=1), [], mask_threshold=0.5, classwise=False).safe.any()


def test_a_detector_that_sees_the_object_only_in_the_untouched_image_certifies_nothing():
    g = one([60, 20, 80, 40])
    found = iou_certify(observe([], g), g, [Patch(0.01, 1.0, where) for where in PATCH_LOCATIONS], mask_threshold=0.1)
    assert not found.certified.any()
    assert found.largest_square.tolist() == [0]


def test_each_rule_has_its_own_certificate():
    """A box that covers a third of the object is enough for IoA, not for IoU."""
    g = one([60, 10, 90, 40])
    observation = observe([one([60, 10, 70, 40])])
    assert Rule().certify(observation, g, []).safe.any()
    assert not IouRule().certify(observation, g, []).safe.any()
    assert IouRule().certify(observation, g, [], certification_threshold=0.1).safe.any()
    assert np.array_equal(
        Rule().certify(observation, g, [], certification_threshold=0.3).safe,
        certify(observation, g, [], mask_threshold=0.7, certification_threshold=0.3).safe,
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, g: iou_prune(o, filter_iou=1.2), "filter_iou must lie"),
        (
            lambda o, g: iou_certify(o, g, [], mask_threshold=0.5, certification_threshold=-1),
            "certification_threshold must lie",
        ),
        (lambda o, g: iou_certify(o, g, [], mask_threshold=0.5, bound="best"), "'best'"),
        (lambda o, g: iou_certify(o, g, ["far"], mask_threshold=0.5), "'far'"),
    ],
)
def test_bad_input_is_refused(call, message):
    g = one([60, 10, 90, 40])
    with pytest.raises(ObjectSeekerError, match=message):
        call(observe([g]), g)
