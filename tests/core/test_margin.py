"""The margin of certificates under the evidence rule covers the longest sum that inference can round."""

from fractions import Fraction

import numpy as np
import oracle_iou
import pytest
from cases import NOTHING, certify, halves, observe, one, pairs
from oracle import box_of

from objectseeker import Observation, Patch, Rule
from objectseeker.core.bounds import MARGIN
from objectseeker.core.evidence import FULL, UNIT, Stars, build_stars, certain_neighbors, certified_weights
from objectseeker.core.pruning import are_neighbors, cluster_evidence
from objectseeker.core.recipes import MOST_MASKS
from objectseeker.core.rules.iou import iou_lower_bound


def summed(evidence):
    """What inference computes for one cluster that every mask has a box in."""
    views = np.arange(len(evidence))
    return cluster_evidence(np.zeros_like(views), views, evidence, len(views))[0]


def test_a_sum_over_the_most_masks_there_can_be_is_rounded_by_far_less_than_the_margin():
    assert MOST_MASKS * Fraction(1, 2**53) < Fraction(MARGIN) / 100
    rng = np.random.default_rng(0)
    for spread in (1.0, 8.0, 40.0):
        evidence = 2.0 ** -rng.uniform(0, spread, MOST_MASKS)
        evidence *= 1 / evidence.sum()  # about 1 in all: where it decides
        exact = sum(map(Fraction, evidence.tolist()))
        assert abs(Fraction(float(summed(evidence))) - exact) < Fraction(MARGIN) / 100


def test_what_the_certificate_adds_up_is_exact_in_any_order_and_never_too_much():
    rng = np.random.default_rng(1)
    for most in (1 / MOST_MASKS, 0.2):
        evidence = rng.uniform(0, 2 * most, MOST_MASKS)
        counted = certified_weights(evidence)
        exact = sum(map(Fraction, counted.tolist()))
        for order in (np.arange(MOST_MASKS), rng.permutation(MOST_MASKS)):
            assert Fraction(float(counted[order].sum())) == exact
            assert Fraction(float(np.ones(MOST_MASKS) @ counted[order])) == exact
        assert exact <= sum(map(Fraction, evidence.tolist()))
    assert certified_weights(np.array([1.0, 1 - UNIT / 2, 0.0])).tolist() == [FULL, 1 - UNIT, 0.0]
    # Beyond 2**53 units a sum may be rounded, but no such sum is anywhere near 1.
    assert UNIT * 2**53 > 1000 * (1 + MARGIN)


# --- ties: why there is a margin --------------------------------------------------------------------------------------


class Bounded(Rule):
    """A rule with a constant as its lower bound."""

    least = 0.0

    def lower_bound(self, boxes, objects, bound):
        return np.full((len(boxes), len(objects)), self.least)


@pytest.mark.parametrize(("above", "proven"), [(0.0, False), (0.9, False), (1.1, True)])
def test_the_bound_of_a_rule_may_be_rounded_up_by_less_than_the_margin(monkeypatch, above, proven):
    """What `bounds` returns is never above the truth; the bounds of other rules may be, by less than the margin."""
    monkeypatch.setattr(Bounded, "least", 0.5 + above * MARGIN)
    g = one([60, 20, 80, 40])
    assert Bounded().certify(observe([g]), g, [], certification_threshold=0.5).safe.any() == proven


def test_the_iou_bound_of_boxes_of_common_sizes_is_never_above_the_truth():
    """By its own margin. The margin of the threshold is there for boxes that are tiny compared with the object."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        m = np.concatenate([rng.uniform(0, 4, 2), rng.uniform(6, 12, 2)])
        g = m + rng.uniform(-0.9, 0.9, 4) * (rng.random() < 0.8)
        tau = float(rng.choice([0.5, 0.75, 0.8, 0.9, 1.0]))
        exact = oracle_iou.exact_bound(box_of(m), box_of(g), Fraction(tau))
        paper = oracle_iou.paper_bound(box_of(m), box_of(g), Fraction(tau))
        assert Fraction(iou_lower_bound(m[None], g[None], tau)[0, 0]) <= exact
        assert Fraction(iou_lower_bound(m[None], g[None], tau, "paper")[0, 0]) <= paper


def test_boxes_at_exactly_the_distance_are_neighbors_but_not_for_certain():
    a, b, c = [0.0, 0, 8, 8], [2.0, 0, 10, 8], [0.0, 0, 8, 6]  # b and a share 3/4 of each; c is inside a
    boxes = np.array([a, b, c])
    assert are_neighbors(boxes[:1], boxes, 0.25).tolist() == [[True, True, True]]
    assert certain_neighbors(boxes[:1], boxes, 0.25, 0).tolist() == [[True, False, True]]
    assert certain_neighbors(boxes[:1], boxes, 0.25 + 2 * MARGIN, 0).tolist() == [[True, True, True]]


def test_every_box_is_its_own_neighbor_at_no_distance_and_without_area():
    same, point = one([20, 20, 40, 40], 0.5), one([30, 30, 30, 30], 0.5)
    stars = build_stars(observe([same, same, point, same]), np.arange(4), np.full(4, 0.5), 0.0)
    assert stars.evidence.tolist() == (np.eye(4) / 2).tolist()
    assert stars.center.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("score", [0.5, 0.5 + 2 * MARGIN])
@pytest.mark.parametrize(("make", "count"), [(halves, 1), (pairs, 1), (pairs, 2)])
def test_evidence_of_exactly_one_is_not_certified(make, count, score):
    """Two views of a half each are left wherever the patches are worst; another device may add them up to less."""
    masks = make(100, 100, 1)
    alone = masks.is_line.sum(axis=1) == 1  # half masks; of pairs two remove opposite corners
    g = one([40, 40, 60, 60], score)
    observation = Observation(100, 100, masks, NOTHING, [g if count == 2 or half else NOTHING for half in alone])
    threat = Patch(0.0001, location="anywhere", count=count)
    rule = Rule(mask_threshold=1.0, evidence_threshold=0.0)
    assert rule.certify(observation, g, threat).certified.tolist() == [[score > 0.5]]
    assert rule.certify_jointly(observation, g, Patch(0.0001, location="anywhere")).count == (count == 2 or score > 0.5)
    assert certify(observation, g, threat, mask_threshold=0.5).certified.all()


def test_views_that_prove_an_object_together_have_a_star_with_its_center():
    """Neighbors of a box that is not left need not be neighbors of each other."""
    masks, rng, proven = halves(20, 20, 2), np.random.default_rng(0), 0
    for _ in range(300):
        count = int(rng.integers(1, 5))
        evidence = rng.choice([0.0, 0.25, 0.5, 0.75, FULL], (count, len(masks)), p=[0.6, 0.1, 0.1, 0.1, 0.1])
        center = rng.integers(0, len(masks), count)
        evidence[np.arange(count), center] = np.maximum(evidence[np.arange(count), center], 0.25)
        stars, views = Stars(masks, evidence, center), rng.random(len(masks)) < 0.6

        def proves(left, evidence=evidence, center=center):
            return any(
                left[middle] and sum(row[left]) >= 1 + MARGIN for row, middle in zip(evidence, center, strict=True)
            )

        few = stars.weakest_proof(views)
        assert (few is not None) == proves(views)
        if few is not None:
            assert views[few].all()
            assert proves(np.isin(np.arange(len(masks)), few))
            proven += 1
    assert 50 < proven < 250
