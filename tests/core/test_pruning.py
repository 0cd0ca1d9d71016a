"""The output rule: edges, evidence, invariants."""

import numpy as np
import pytest
from cases import NOTHING, certify, generate, observe, one, prune
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections, Halves, Observation, Rule
from objectseeker.core.masks import keep
from objectseeker.core.pruning import cut_by_mask


def test_weak_views_add_up_to_one():
    views = [one([20, 20, 40, 40], 0.4), one([20, 20, 40, 41], 0.5), one([20, 20, 41, 40], 0.31)]
    options = {"mask_threshold": 0.8, "evidence_threshold": 0.2}
    assert len(prune(observe(views), mask_threshold=0.8)) == 0
    assert len(prune(observe(views[:2]), **options)) == 0  # 1/3 + 1/2
    found = prune(observe(views), **options)  # 1/3 + 1/2 + 11/60
    assert found.xyxy.tolist() == [[20, 20, 41, 41]]
    assert found.score.tolist() == [0.5]


def test_two_boxes_of_one_view_count_once():
    twice = Detections([[20, 20, 40, 40], [20, 20, 40, 41]], [0.6, 0.6], [0, 0])
    assert len(prune(observe([twice]), mask_threshold=0.8, evidence_threshold=0.2)) == 0


def test_power_makes_weak_views_weaker():
    views = [one([20, 20, 40, 40], 0.6)] * 2
    assert len(prune(observe(views), mask_threshold=0.8, evidence_threshold=0.2, evidence_power=1.0)) == 1
    assert len(prune(observe(views), mask_threshold=0.8, evidence_threshold=0.2, evidence_power=2.0)) == 0


def test_a_evidence_threshold_equal_to_the_mask_threshold_is_the_papers_rule():
    observation = generate(5).observation
    assert prune(observation, mask_threshold=0.5, evidence_threshold=0.5) == prune(observation, mask_threshold=0.5)


def test_edge_factor_lowers_boxes_cut_by_their_line():
    masks = Halves(1).masks(100, 100)  # left mask: line at 50
    boxes = np.array([[51.5, 0, 70, 9], [51.6, 0, 70, 9], [0, 0, 48.5, 9], [0, 0, 48.4, 9], [40, 0, 60, 9]])
    assert cut_by_mask(boxes, np.zeros(5, int), masks).tolist() == [True, False, True, False, True]
    assert cut_by_mask(boxes[1:2] - [0.095, 0, 0, 0], np.zeros(1, int), masks).tolist() == [False]  # 1.505 %
    wide = Halves(1).masks(200, 100)  # lines at 100 and 50: a share of its own axis
    near = np.array([[102.9, 0, 140, 9], [103.1, 0, 140, 9], [0, 51.4, 9, 90], [0, 51.6, 9, 90]])
    assert cut_by_mask(near, np.array([0, 0, 1, 1]), wide).tolist() == [True, False, True, False]
    cut = observe([one([50, 20, 70, 40], 0.8)])
    assert len(prune(cut, mask_threshold=0.7)) == 1
    assert len(prune(cut, mask_threshold=0.7, edge_factor=0.8)) == 0
    g = one([50, 20, 70, 40])
    assert certify(cut, g, [], mask_threshold=0.7).safe.any()
    assert not certify(cut, g, [], mask_threshold=0.7, edge_factor=0.8).safe.any()


def test_class_agnostic_hulls_take_the_label_of_their_best_box():
    views = [one([20, 20, 40, 40], 0.8, 3), one([20, 20, 40, 41], 0.9, 7)]
    assert sorted(prune(observe(views), classwise=True).label.tolist()) == [3, 7]
    merged = prune(observe(views), classwise=False)
    assert merged.label.tolist() == [7]
    assert merged.score.tolist() == [0.9]


def test_boxes_without_area_are_never_filtered_and_stand_alone():
    point = one([30, 30, 30, 30], 0.9)
    base = one([0, 0, 100, 100], 0.9)
    found = prune(observe([point], base))
    assert found.xyxy.tolist() == [[0, 0, 100, 100], [30, 30, 30, 30]]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_output_is_base_boxes_then_hulls_and_nothing_confident_is_lost(seed, classwise):
    """Every confident masked box is inside an output box, or filtered by a base box: what the proof rests on."""
    observation = generate(seed).observation
    rule = Rule(mask_threshold=0.5, classwise=classwise)
    found = prune(observation, mask_threshold=0.5, classwise=classwise)
    base = observation.base.with_min_score(rule.base_threshold)
    assert found[: len(base)] == base
    for box, score, label in zip(
        observation.all_masked.xyxy, observation.all_masked.score, observation.all_masked.label, strict=True
    ):
        if score < 0.5:
            continue
        same = (found.label == label) | (not classwise)
        around = (found.xyxy[:, :2] <= box[:2]).all(axis=1) & (found.xyxy[:, 2:] >= box[2:]).all(axis=1)
        extent = np.minimum(base.xyxy[:, 2:], box[2:]) - np.maximum(base.xyxy[:, :2], box[:2])
        share = np.clip(extent, 0, None).prod(axis=1) / max(np.prod(box[2:] - box[:2]), 1e-12)
        explained = (share > 0.6) & ((base.label == label) | (not classwise))
        assert (same & around)[len(base) :].any() or explained.any()


@pytest.mark.parametrize("count", [0, 1])
def test_images_where_nothing_is_seen(count):
    views = [one([20, 20, 40, 40], 0.2)] * count
    assert len(prune(observe(views))) == 0
    assert not certify(observe(views), one([20, 20, 40, 40]), [], mask_threshold=0.7).safe.any()


def test_boxes_of_a_single_mask_are_in_clusters_of_their_own():
    masks = keep(100, 100, [[0, 0, 50, 100]])
    views = Detections([[0, 0, 9, 9], [20, 20, 40, 40], [60, 60, 80, 80]], [0.75, 0.5, 0.75], [0, 0, 0])
    found = prune(Observation(100, 100, masks, NOTHING, [views]), mask_threshold=0.7, evidence_threshold=0.25)
    assert found.xyxy.tolist() == [[0, 0, 9, 9], [60, 60, 80, 80]]
    none = Observation(100, 100, keep(100, 100, []), views, [])
    assert prune(none, base_threshold=0.6) == views[[0, 2]]
