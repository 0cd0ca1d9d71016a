"""The margin of certificates under the evidence rule covers the longest sum that inference can round."""

from fractions import Fraction

import numpy as np

from objectseeker.core.bounds import MARGIN
from objectseeker.core.evidence import FULL, UNIT, certified_weights
from objectseeker.core.pruning import cluster_evidence
from objectseeker.core.recipes import MOST_MASKS


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
