"""Intervals: exact ones against their definition, the bootstrap against simulated runs, both where little is seen."""

import math

import numpy as np
import pytest
from interval_coverage import (
    CASES,
    CROWDS,
    FLOODS,
    PAIRS,
    covered,
    covered_pairs,
    wrong_passes_of_crowds,
    wrong_passes_of_floods,
)

from objectseeker.metrics.confidence_intervals import (
    additional_images,
    at_least,
    bootstrap_interval,
    clopper_pearson,
    effective_images,
    exact_interval,
    max_unseen_share,
    resampled,
)


def tail(successes, trials, share):
    return sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes, trials + 1))


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (3, 10), (17, 20), (1, 400), (399, 400)])
def test_the_binomial_tail_is_its_sum(successes, trials):
    for share in (0.0, 1e-6, 0.1, 0.5, 0.93, 1.0):
        assert at_least(successes, trials, share) == pytest.approx(tail(successes, trials, share), abs=1e-12)


def test_exact_intervals_cover_whatever_the_share():
    """For every share the chance of an interval that holds it is at least the confidence, summed outcome by outcome."""
    trials = 12
    intervals = [clopper_pearson(k, trials, 0.9) for k in range(trials + 1)]
    for share in np.linspace(0, 1, 101):
        chance = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
        kept = sum(p for p, (low, high) in zip(chance, intervals, strict=True) if low <= share <= high)
        assert kept >= 0.9 - 1e-12


@pytest.mark.parametrize(
    ("successes", "trials", "ends"),
    [
        (0, 7, (0, 0.40961639722500337)),
        (7, 7, (0.5903836027749966, 1)),
        (40, 90, (0.3396441563160458, 0.5530039855351033)),
        (99_000, 100_000, (0.9893638884706457, 0.9906074439109015)),
        (0, 0, (0, 1)),
    ],
)
def test_exact_intervals_are_those_of_the_beta_distribution(successes, trials, ends):
    """The quantiles are scipy's."""
    assert clopper_pearson(successes, trials, 0.95) == pytest.approx(ends, abs=1e-9)


def interval_of(values, images, **changes):
    options = {"confidence": 0.95, "samples": 500, "seed": 0, "bounds": (0.0, 100.0)}
    return bootstrap_interval(values, images, **options | changes)


def share_of(found, objects):
    return lambda weights: 100 * (weights @ found) / (weights @ objects)


def test_where_nothing_went_wrong_the_interval_is_the_exact_one():
    """A bootstrap of images that are all perfect has no spread; thirty of them do not prove 100 %."""
    found = np.full(30, 3.0)
    perfect = interval_of(share_of(found, found), 30)
    assert (perfect.value, perfect.high) == (100, 100)
    assert perfect.low == pytest.approx(exact_interval(30, 30, 0.95).low, abs=1e-6)
    same = interval_of(lambda weights: np.zeros(len(weights)), 30, bounds=(-100.0, 100.0))
    assert same.low == pytest.approx(-100 * max_unseen_share(30, 0.95), abs=1e-5)


def test_few_images_that_decide_are_told():
    assert effective_images(np.array([0.0, 0, 3, -3, 3])) == pytest.approx(3)
    assert effective_images(np.zeros(4)) == 0
    one_bad = np.ones(200)
    one_bad[7] = 0
    found = interval_of(share_of(one_bad, np.ones(200)), 200)
    assert found.low <= exact_interval(199, 200, 0.95).low + 0.6  # 97.2: a bootstrap alone would say 98.5


def test_samples_are_the_same_everywhere_and_however_many_are_drawn_at_a_time(monkeypatch):
    (weights,) = resampled(5, 3, 7)
    assert weights.tolist() == [[1, 2, 0, 1, 1], [1, 0, 2, 2, 0], [2, 2, 0, 1, 0]]
    monkeypatch.setattr("objectseeker.metrics.confidence_intervals.CELLS", 5)
    assert np.concatenate(list(resampled(5, 3, 7))).tolist() == weights.tolist()


@pytest.mark.parametrize("case", CASES[:1])
def test_intervals_cover_as_often_as_they_say(case):
    """A few simulated runs; tests/interval_coverage.py has 2,000 of every kind."""
    assert 0.9 <= covered(case, runs=150, samples=300) <= 0.99


def test_paired_intervals_cover_as_often_as_they_say():
    assert 0.9 <= covered_pairs(PAIRS[0], runs=100, samples=300) <= 1.0


@pytest.mark.parametrize("family", CROWDS[:2])
def test_a_gate_does_not_pass_because_crowded_images_are_not_in_the_sample(family):
    assert wrong_passes_of_crowds(family, runs=60) <= 0.05  # 13 to 20 % by the intervals alone


@pytest.mark.parametrize("family", FLOODS[:2])
def test_a_gate_does_not_pass_because_images_with_many_false_positives_are_not_in_the_sample(family):
    assert wrong_passes_of_floods(family, runs=60) <= 0.05  # up to 36 % by the intervals alone


def test_how_many_more_images():
    found = np.tile([1.0, 0.0], 50)
    interval = interval_of(share_of(found, np.ones(100)), 100, samples=3000)
    more = additional_images(interval, 45.0, 100)
    reach = interval.value - interval.low
    assert more == math.ceil(100 * (reach / 5) ** 2) - 100
    enough = np.tile([1.0, 0.0], (100 + more) // 2)
    again = interval_of(share_of(enough, np.ones(len(enough))), len(enough), samples=3000)
    assert again.low == pytest.approx(45, abs=0.5)
    assert additional_images(interval, 50.0, 100) is None
