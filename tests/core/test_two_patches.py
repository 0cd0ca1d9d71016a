"""Two patches: the fast code equals a brute force over all pairs of pixel positions."""

from types import SimpleNamespace

import numpy as np
import oracle
import oracle_two_patches as twice
import pytest
from cases import Case, certify, generate, halves, pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS

from objectseeker import Detections, Halves, Observation, Patch, Rule
from objectseeker.core.positions import PositionClasses, minimal_sets
from objectseeker.core.pruning import cut_by_mask
from objectseeker.core.recipes import pair_counts
from objectseeker.core.threats import PATCH_LOCATIONS

SHAPES = st.tuples(st.sampled_from([0.01, 0.03, 0.08, 0.2, 0.6]), st.sampled_from([1.0, 1.0, 0.3, 3.0]))


def threats(shape: tuple[float, float]) -> list[Patch]:
    return [Patch(*shape, where, count=count) for count in (2, 1) for where in PATCH_LOCATIONS]


def case_of(seed: int, lines: int | None = None, torn: float = 0.0) -> Case:
    """Both kinds of mask, from views that see the object now and then to views that always do."""
    return generate(
        seed,
        smallest=5,
        largest=10,
        lines=1 + seed % 3 if lines is None else lines,
        make=halves if seed % 4 == 0 else pairs,
        generous=0.3,
        sure=(0.5, 0.9, 0.97, 1.0)[seed % 5 % 4],
        torn=torn,
    )


# --- the masks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height", "lines"), [(60, 40, 1), (60, 40, 4), (41, 67, 10), (5, 30, 8), (3, 3, 2)])
def test_every_region_that_two_half_masks_remove_is_there_once(width, height, lines):
    masks, single = pairs(width, height, lines), Halves(lines).masks(width, height)

    def region(indices):
        bitmap = np.zeros((height, width), dtype=bool)
        for x1, y1, x2, y2 in single.removed[list(indices), 0]:
            bitmap[y1:y2, x1:x2] = True
        return bitmap.tobytes(), bool(bitmap.all())

    everything = {region((a, b)) for a in range(len(single)) for b in range(a, len(single))}
    wanted = {bitmap for bitmap, all_gone in everything if not all_gone}
    found = [(~shown).tobytes() for shown in oracle.kept_bitmaps(masks)]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert masks.select_masks(slice(len(single))) == single


@pytest.mark.parametrize("lines", [1, 2, 7, 10])
def test_how_many_there_are(lines):
    unordered, distinct = pair_counts(lines)
    single = 4 * lines
    assert unordered == single * (single + 1) // 2
    assert distinct == len(pairs(500, 400, lines)) == 5 * lines**2 + 3 * lines


def test_equal_pairs_are_equal():
    assert pairs(30, 20, 3) == pairs(30, 20, 3)
    assert pairs(30, 20, 3) != pairs(30, 20, 2)
    assert pairs(30, 20, 3) != Halves(3).masks(30, 20)
    assert len(pairs(1, 1, 3)) == 0


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_classes_say_which_views_remove_a_patch_at_every_position(width, height, lines, w, h, single):
    masks = (halves if single else pairs)(width, height, lines)
    empty = Observation(width, height, masks, Detections.empty(), [Detections.empty()] * len(masks))
    classes = PositionClasses.of(masks, (w, h))
    expected = twice.removed(empty, (w, h)) if len(masks) else np.zeros((0, height + h - 1, width + w - 1), bool)
    x, y = (
        np.searchsorted(starts, np.arange(1 - length, limit), side="right") - 1
        for starts, length, limit in zip(classes.starts, (w, h), (width, height), strict=True)
    )
    found = classes.removes[0][x][None] | classes.removes[1][y][:, None]
    assert np.array_equal(found.transpose(2, 0, 1), expected)


# --- certificates --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(SEEDS, SHAPES, st.sampled_from([0.0, 0.0, 0.25]), st.sampled_from(["exact", "paper"]), st.booleans())
def test_certificates_equal_all_pairs_of_positions(seed, shape, certification_threshold, bound, classwise):
    case = case_of(seed)
    observation, truth = case.observation, case.ground_truth
    options = {
        "mask_threshold": 0.25,
        "certification_threshold": certification_threshold,
        "bound": bound,
        "classwise": classwise,
    }
    patches = threats(shape)
    fast = certify(observation, truth, patches, **options)
    gone = twice.removed(observation, patches[0].size(observation.width, observation.height))
    for n, g in enumerate(oracle.boxes_of(truth)):
        safe = np.flatnonzero(fast.safe[n]).tolist()
        if seed % 10 == 0:  # slow, and it does not depend on the masks: tests/test_against_oracle.py has more
            assert oracle.safe_masks(observation, truth, n, **options) == safe
        for p, patch in enumerate(patches):
            expected = twice.certify(observation, g, patch, safe, gone)
            assert (fast.certified[p, n], fast.vacuous[p, n]) == expected, (patch, n)


@settings(max_examples=120, deadline=None)
@given(SEEDS, SHAPES, st.sampled_from([0.75, 1.0]), st.sampled_from([0.1, 0.1, 0.4]), st.sampled_from([0, 0.8, 1]))
def test_evidence_certificates_equal_all_pairs_of_positions(seed, shape, mask_threshold, distance, torn):
    case = case_of(seed, lines=1 + seed % 2, torn=torn)
    observation, truth = case.observation, case.ground_truth
    options = {
        "mask_threshold": mask_threshold,
        "evidence_threshold": 0.1,
        "evidence_power": 1.0 + seed % 2,
        "cluster_distance": distance,
    }
    patches = threats(shape)
    fast = certify(observation, truth, patches, **options)
    gone = twice.removed(observation, patches[0].size(observation.width, observation.height))
    for n, g in enumerate(oracle.boxes_of(truth)):
        proofs, linked = twice.evidence_proofs(observation, truth, n, **options)
        for p, patch in enumerate(patches):
            expected = twice.certify_by_evidence(observation, g, patch, proofs, linked, gone)
            assert fast.certified[p, n] == expected, (patch, n)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([None, 0.1]))
def test_largest_square_and_escape_lines_are_about_one_patch(seed, evidence_threshold):
    case = case_of(seed * 4 + 1, lines=1 + seed % 2)  # pairs
    observation, truth = case.observation, case.ground_truth
    options = {"mask_threshold": 0.5, "evidence_threshold": evidence_threshold}
    fast = certify(observation, truth, [], **options)
    for n, g in enumerate(oracle.boxes_of(truth)):
        safe = np.flatnonzero(fast.safe[n]).tolist()
        left, top, right, bottom = fast.safe_lines[n]
        for side in (1, 2, 4):
            escapes = ~twice.removed(observation, (side, side))[safe].any(axis=0)
            xs, ys = (np.array(r) for r in oracle.positions(observation.width, observation.height, (side, side)))
            inside = ((ys + side > top) & (ys < bottom))[:, None] & ((xs + side > left) & (xs < right))[None]
            assert np.array_equal(escapes, inside)
        for tried in {int(fast.largest_square[n]), int(fast.largest_square[n]) + 1} - {0}:
            square = SimpleNamespace(
                location="anywhere", count=1, size=lambda width, height, tried=tried: (tried, tried)
            )
            gone = twice.removed(observation, (tried, tried))
            expected = (
                twice.certify(observation, g, square, safe, gone)[0]
                if evidence_threshold is None
                else twice.certify_by_evidence(
                    observation, g, square, *twice.evidence_proofs(observation, truth, n, **options), gone
                )
            )
            assert expected == (tried <= fast.largest_square[n])


def test_generated_cases_cover_what_matters():
    """The equalities above would be empty if one verdict never occurred."""
    seen = set()
    for seed in range(100):
        case = case_of(seed)
        kind = "halves" if case.observation.masks.has_one_axis else "pairs"
        patches = threats((0.01, 1.0))
        for rule, options in (
            ("paper", {"mask_threshold": 0.25}),
            ("evidence", {"mask_threshold": 0.75, "evidence_threshold": 0.1}),
        ):
            fast = certify(case.observation, case.ground_truth, patches, **options)
            for p, patch in enumerate(patches):
                rows = zip(fast.certified[p].tolist(), fast.vacuous[p].tolist(), strict=True)
                seen |= {(kind, rule, patch.count, patch.location, v) for v, vacuous in rows if not vacuous}
    for kind in ("halves", "pairs"):
        for rule in ("paper", "evidence"):
            for where in PATCH_LOCATIONS:
                for count in (1, 2):
                    assert (kind, rule, count, where, False) in seen
                    # Half masks alone hardly ever remove any two patches around an object.
                    assert (kind, rule, count, where, True) in seen or (kind, count) == ("halves", 2)


# --- what a verdict hangs on ---------------------------------------------------------------------------------------


def test_a_verdict_flips_when_one_safe_pair_is_taken_away():
    """Drop views as long as the object stays certified: then every view that is left is needed."""
    masks = pairs(100, 80, 3)
    g = Detections([[40, 30, 60, 50]], [1.0], [0])
    threat = Patch(0.001, location="far", count=2)

    def certified(views: set[int]) -> bool:
        shown = [g if m in views else Detections.empty() for m in range(len(masks))]
        return bool(certify(Observation(100, 80, masks, g, shown), g, threat, mask_threshold=0.5).certified[0, 0])

    needed = set(range(len(masks)))
    assert certified(needed)
    for view in range(len(masks)):
        if certified(needed - {view}):
            needed.remove(view)
    assert all(not certified(needed - {view}) for view in needed)
    # a half mask alone does what a pair with it does
    assert (masks.is_line[sorted(needed)].sum(axis=1) == 2).all()


def test_a_box_is_cut_by_either_line_of_its_view():
    masks = pairs(100, 100, 1)  # lines at 50
    boxes = np.array([[10.0, 10, 20, 20], [40, 10, 49, 20], [10, 40, 20, 49], [40, 40, 49, 49], [60, 60, 70, 70]])
    axis_of = [np.flatnonzero(along) for along in masks.along]
    for view, axes in enumerate(axis_of):
        near = [bool({"x": 0 in axes, "y": 1 in axes, "xy": True, "": False}[k]) for k in ("", "x", "y", "xy", "")]
        assert cut_by_mask(boxes, np.full(len(boxes), view), masks).tolist() == near
    seen = Observation(100, 100, masks, Detections.empty(), [Detections(boxes[1:2], [0.8], [0])] * len(masks))
    assert Rule(edge_factor=0.5).discounted_scores(seen).tolist() == [0.4 if 0 in axes else 0.8 for axes in axis_of]


def test_half_masks_certify_two_patches_only_where_one_of_them_removes_both():
    masks = Halves(9).masks(100, 80)
    corner = Detections([[90, 70, 100, 80]], [1.0], [0])
    shown = Observation(100, 80, masks, corner, [corner] * len(masks))
    over = certify(shown, corner, [Patch(0.001, location="over", count=c) for c in (1, 2)], mask_threshold=0.5)
    assert over.certified[:, 0].tolist() == [True, True]  # right of the line at 60, say, holds both
    around = certify(shown, corner, [Patch(0.001, location="anywhere", count=c) for c in (1, 2)], mask_threshold=0.5)
    assert around.certified[:, 0].tolist() == [True, False]


@settings(max_examples=50, deadline=None)
@given(SEEDS, SHAPES)
def test_two_patches_are_never_easier_than_one_and_pairs_never_worse_than_half_masks(seed, shape):
    case = generate(seed, largest=14, lines=1 + seed % 4, make=pairs, sure=0.9)
    observation, truth = case.observation, case.ground_truth
    only_halves = observation.restricted_to(halves(observation.width, observation.height, 1 + seed % 4))
    patches = threats(shape)
    for options in ({"mask_threshold": 0.5}, {"mask_threshold": 0.75, "evidence_threshold": 0.1}):
        all_views = certify(observation, truth, patches, **options).certified
        assert not (all_views[:4] & ~all_views[4:]).any()
        assert not (certify(only_halves, truth, patches, **options).certified & ~all_views).any()


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 12), st.integers(1, 8))
def test_sets_that_contain_others_are_needless(seed, count, views):
    """`smallest` keeps one of equals, and every dropped set contains a kept one."""
    sets = np.random.default_rng(seed).random((count, views)) < 0.6
    contains = np.array([[(~b | a).all() for b in sets] for a in sets])
    kept = np.flatnonzero(minimal_sets(contains))
    assert all(contains[i][kept].any() for i in range(count))
    assert all(not contains[i, j] for i in kept for j in kept if i != j)
