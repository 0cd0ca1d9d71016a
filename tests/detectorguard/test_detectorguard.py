"""DetectorGuard: the map, explaining, and certificates against literal loops and against an attacker."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import oracle_detectorguard as oracle
import pytest
from adversary_detectorguard import wins
from oracle_detectorguard import generate

import objectseeker.detectorguard.objectness as explaining
from objectseeker import Detections, ObjectSeekerError, Patch
from objectseeker.core.boxes import area
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.detectorguard import certification
from objectseeker.detectorguard.certification import certify_guarded, maximal_intervals
from objectseeker.detectorguard.objectness import (
    Grid,
    explaining_score,
    has_alert,
    has_cluster,
    object_positions,
    objectness_map,
    required_votes,
    window_votes,
)


def patches(area: float, aspect: float = 1.0) -> list[Patch]:
    return [Patch(area, aspect, where) for where in PATCH_LOCATIONS]


# --- the map -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 17, 3), (20, 11, 2)])
def test_votes_are_those_of_the_windows_one_by_one(shape):
    features = np.random.default_rng(0).integers(0, 2**16, shape).astype(np.uint16)
    assert (np.moveaxis(window_votes(features), 0, -1) == oracle.votes(features)).all()


def test_a_tie_does_not_say_object():
    features = np.full((20, 18, 2), 7, np.uint16)
    inner = np.zeros((20, 18), bool)
    inner[7:13, 7:11] = True  # covered by as many windows as there can be
    assert objectness_map(features, 6)[inner].all()
    assert not objectness_map(features, 7).any()
    features[10, 9, 1] += 1
    assert objectness_map(features, 7)[inner].all()
    assert not objectness_map(features, 7)[0].any()


def test_features_of_the_largest_value_are_counted_exactly():
    features = np.full((48, 48, 1), 2**16 - 1, np.uint16)
    before = window_votes(features)[0]
    assert before.max() == required_votes(2**16 - 1)
    features[20, 20, 0] -= 1
    assert (window_votes(features)[0] < before).sum() == 15 * 15  # the positions that share a window with it


@pytest.mark.parametrize("seed", range(3))
def test_the_map_is_that_of_literal_loops(seed):
    case = generate(seed)
    found = objectness_map(case.features, case.threshold)
    assert found.mean() < 1
    assert (found == oracle.says_object(case.features, case.threshold)).all()


def test_clusters_are_those_of_dbscan():
    sklearn = pytest.importorskip("sklearn.cluster")
    dbscan = sklearn.DBSCAN(eps=3, min_samples=24)
    rng = np.random.default_rng(0)
    maps = rng.random((150, 12, 13)) < rng.uniform(0.4, 0.95, (150, 1, 1))
    expected = [len(points) and dbscan.fit_predict(points).max() >= 0 for points in map(np.argwhere, maps)]
    assert 20 < sum(expected) < 130
    assert has_cluster(maps).tolist() == expected


def test_more_points_never_take_a_cluster_back():
    rng = np.random.default_rng(1)
    fewer = rng.random((300, 10, 10)) < 0.75
    more = fewer | (rng.random(fewer.shape) < 0.3)
    assert (has_cluster(more) >= has_cluster(fewer)).all()
    assert has_cluster(more).sum() > has_cluster(fewer).sum() > 0


def test_the_smallest_clusters():
    square = np.zeros((9, 9), bool)
    square[2:7, 2:7] = True  # all within 2.83 of the middle
    assert has_cluster(square)
    square[2, 2] = False  # 24 are left
    assert has_cluster(square)
    square[6, 6] = False
    assert not has_cluster(square)
    assert not has_cluster(np.zeros((0, 5), bool))


# --- where things are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [((40, 30), (121, 105)), ((333, 100), (137, 105)), ((90, 97), (113, 90))])
def test_what_a_patch_reaches_is_found_pixel_by_pixel(sizes):
    grid = Grid.for_image(*sizes)
    rng = np.random.default_rng(0)
    case = oracle.Case(*sizes, np.zeros((*grid.shape, 1), np.uint16), Detections.empty(), 1)
    for axis in (0, 1):
        raw = sizes[0][axis]
        starts = rng.integers(-raw, raw + 5, 80)
        stops = starts + rng.integers(0, raw, 80)
        found = grid.reached_positions(axis, starts, stops)
        for (first, end), start, stop in zip(found.tolist(), starts.tolist(), stops.tolist(), strict=True):
            assert set(range(first, end)) == oracle.reached_positions(case, axis, start, stop)


def test_the_published_number_of_positions_is_not_enough_for_a_resized_patch():
    # 32 network pixels would reach ceil((32 + 33 - 1) / 8) = 8 positions; blending makes it up to 9
    grid = Grid.for_image((832, 832), (416, 416))
    x = np.arange(200, 600)
    reached = np.diff(grid.reached_positions(0, x, x + 64), axis=-1)
    assert reached.min() == 8
    assert reached.max() == 9


def test_positions_of_a_wide_image():
    assert Grid.for_image((1242, 375), (744, 224)).shape == (24, 89)
    assert Grid.for_image((500, 375), (416, 416)).shape == (48, 48)
    with pytest.raises(ObjectSeekerError, match="at least 89 pixels"):
        Grid.for_image((500, 375), (416, 88))


def random_boxes(grid: Grid, rng: np.random.Generator, count: int) -> np.ndarray:
    """Boxes whose edges often are exactly the middles of positions, or one step next to them."""
    corners = []
    for axis in (0, 1):
        edges = np.concatenate([grid.centers[axis], rng.uniform(-5, 60, 10)])
        ends = np.sort(rng.choice(edges, (count, 2)), axis=1)
        corners.append(np.where(rng.random((count, 2)) < 0.3, np.nextafter(ends, rng.choice([-99.0, 99.0])), ends))
    ends = np.sort(np.stack(corners, axis=-1), axis=1)  # count, first and last, axis
    return ends.reshape(count, 4)


def test_a_box_that_explains_a_position_of_an_object_overlaps_it():
    grid = Grid.for_image((50, 40), (129, 113))
    rng = np.random.default_rng(0)
    bases, objects = (boxes[area(boxes) > 0] for boxes in (random_boxes(grid, rng, 100), random_boxes(grid, rng, 150)))
    explaining_one = 0
    own = object_positions(grid, objects)
    for base in bases.tolist():
        score = explaining_score(grid, Detections([base], [0.5], [0]))
        assert {tuple(p) for p in np.argwhere(score == 0.5).tolist()} == oracle.explained(grid, base)
        for (left, top, right, bottom), box in zip(own.tolist(), objects.tolist(), strict=True):
            if (score[top:bottom, left:right] > 0).any():
                explaining_one += 1
                exact = [Fraction(v) for v in (*base, *box)]
                assert min(exact[2], exact[6]) > max(exact[0], exact[4])
                assert min(exact[3], exact[7]) > max(exact[1], exact[5])
    assert explaining_one > 100
    for (left, top, right, bottom), box in zip(own.tolist(), objects.tolist(), strict=True):
        expected = {(r, c) for r in range(top, bottom) for c in range(left, right)}
        assert expected == oracle.object_positions(grid, box)


def test_a_box_without_area_explains_nothing():
    grid = Grid.for_image((50, 40), (129, 113))
    flat = Detections([[0, 0, 50, 0], [10, 5, 10, 30]], [0.9, 0.9], [0, 0])
    assert (explaining_score(grid, flat) == -1).all()


@pytest.mark.parametrize("seed", range(6))
def test_alerts_are_those_of_literal_loops(seed):
    case = generate(seed)
    rng = np.random.default_rng(seed)
    found = objectness_map(case.features, case.threshold)
    for _ in range(5):
        boxes = random_boxes(case.grid, rng, 2)
        base = Detections(boxes, [0.5, 0.4], [0, 1])
        assert has_alert(case.grid, found, base) == oracle.has_alert(case.grid, found, base)


def test_the_largest_intervals():
    intervals = np.array([[3, 7], [0, 0], [2, 7], [5, 6], [2, 7], [8, 9], [4, 8]])
    assert maximal_intervals(intervals).tolist() == [[2, 7], [4, 8], [8, 9]]
    assert maximal_intervals(np.array([[5, 5], [2, 2]])).tolist() == [[0, 0]]


# --- certificates --------------------------------------------------------------------------------------------------

AREAS = (0.002, 0.02, 0.08)


def test_certificates_are_those_of_a_loop_over_all_positions():
    seen = {where: set() for where in PATCH_LOCATIONS}
    for seed in (*range(10), 14):
        case = generate(seed)
        threats = patches(AREAS[seed % 3], (1.0, 3.0, 0.4)[seed % 3])
        found = certify_guarded(case.grid, case.features, case.ground_truth, threats, threshold=case.threshold)
        expected = oracle.certified(case, threats)
        assert (found.certified == expected).all(), seed
        for where, row in zip(PATCH_LOCATIONS, expected, strict=True):
            seen[where] |= set(row.tolist())
    assert all(verdicts == {True, False} for verdicts in seen.values())


def attacks_on_certified(seeds) -> Iterator[bool]:
    """For every certified object whether the attacker hides it."""
    for seed in seeds:
        case = generate(seed)
        rng = np.random.default_rng(seed)
        patch = Patch(AREAS[seed % 3], 1.0, PATCH_LOCATIONS[seed % 4])
        found = certify_guarded(case.grid, case.features, case.ground_truth, patch, threshold=case.threshold)
        for n in np.flatnonzero(found.certified[0] & ~found.vacuous[0]).tolist():
            yield wins(case, patch, n, rng)


def test_no_certified_object_is_ever_hidden():
    hidden = list(attacks_on_certified(range(60)))
    assert len(hidden) > 40
    assert not any(hidden)


def test_the_attacker_hides_objects_that_are_not_certified():
    hidden = 0
    for seed in range(20):
        case = generate(seed)
        patch = Patch(AREAS[seed % 3], 1.0, "anywhere")
        found = certify_guarded(case.grid, case.features, case.ground_truth, patch, threshold=case.threshold)
        rng = np.random.default_rng(seed)
        hidden += sum(wins(case, patch, n, rng) for n in np.flatnonzero(~found.certified[0]).tolist())
    assert hidden > 20


def mutant_nothing_removed(monkeypatch):
    monkeypatch.setattr(
        certification.Grid, "reached_positions", lambda self, axis, start, stop: np.zeros((len(start), 2), int)
    )


def mutant_one_position_fewer(monkeypatch):
    real = Grid.reached_positions
    monkeypatch.setattr(
        certification.Grid, "reached_positions", lambda self, axis, start, stop: real(self, axis, start, stop) - [0, 1]
    )


def mutant_objects_own_what_is_beside_them(monkeypatch):
    def wider(grid, truth):
        return np.clip(object_positions(grid, truth) + np.array([-1, -1, 1, 1]), 0, np.tile(grid.shape[::-1], 2))

    monkeypatch.setattr(certification, "object_positions", wider)


def mutant_smaller_clusters(monkeypatch):
    real = explaining.has_cluster

    def generous(found):
        monkeypatch.setattr(explaining, "MIN_CLUSTER_SIZE", 20)
        verdict = real(found)
        monkeypatch.setattr(explaining, "MIN_CLUSTER_SIZE", 24)
        return verdict

    monkeypatch.setattr(certification, "has_cluster", generous)


@pytest.mark.parametrize(
    "mutate",
    [
        mutant_nothing_removed,
        mutant_one_position_fewer,
        mutant_objects_own_what_is_beside_them,
        mutant_smaller_clusters,
    ],
)
def test_the_attacker_finds_a_wrong_certificate(mutate, monkeypatch):
    mutate(monkeypatch)
    assert any(attacks_on_certified(range(60)))


def test_an_object_outside_the_image_is_not_certified():
    case = generate(0)
    features = np.full_like(case.features, 500)
    outside = Detections([[0.0, -90.0, case.image[0], -1.0], [2.0, 2.0, 2.0, 30.0]], [1, 1], [0, 0])
    found = certify_guarded(case.grid, features, outside, patches(0.01), threshold=1)
    assert not found.certified.any()


def test_an_object_that_fills_the_image_has_no_far_or_close_position():
    case = generate(0)
    whole = Detections([[0, 0, *case.image]], [1], [0])
    found = certify_guarded(case.grid, np.zeros_like(case.features), whole, patches(0.01), threshold=1)
    assert found.vacuous[:, 0].tolist() == [True, True, False, False]
    assert found.certified[:, 0].tolist() == [True, True, False, False]


def test_two_patches_are_refused():
    case = generate(0)
    with pytest.raises(ObjectSeekerError, match="one patch at a time"):
        certify_guarded(case.grid, case.features, case.ground_truth, Patch(count=2), threshold=1)
