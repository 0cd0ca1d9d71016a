"""Prices and gains of many rules at once, and the search among them, against the slow way."""

from dataclasses import replace

import numpy as np
import pytest
from evaluation_cases import image, noisy, run
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Bands, Halves, Patch, Rule, Windows
from objectseeker.metrics import SearchSpace, ThreatModel
from objectseeker.metrics.own_boxes import OwnBoxes, merge_tree
from objectseeker.metrics.rule_search import (
    RuleSearch,
    mask_thresholds,
    measure_rule,
    open_bench,
    spurious_interval,
)
from objectseeker.metrics.search import LOCATIONS

PATCHES = [patch for patch in ThreatModel().patches() if patch.location in LOCATIONS]
SPACE = SearchSpace((0.6, 0.75), (1.0, 0.7), (0.1, 0.3), (None, 0.3), (1.0, 2.0))


def slow_spurious(rule, images):
    """How many boxes masks add, image by image, by `prune` itself."""
    return [
        len(rule.prune(one.observation)) - len(one.observation.base.with_min_score(rule.base_threshold))
        for one in images
    ]


def slow_certified(rule, images, patches=PATCHES):
    """Which own boxes are certified, by `certify` itself."""
    verdicts = [
        rule.certify(one.observation, one.observation.base.with_min_score(rule.base_threshold), patches).certified
        for one in images
    ]
    return np.concatenate(verdicts, axis=1)


shapes = st.builds(
    Rule,
    mask_threshold=st.just(1.0),
    filter_ioa=st.sampled_from([0.5, 0.6, 0.75, 0.85, 1.0]),
    edge_factor=st.sampled_from([1.0, 0.85, 0.5]),
    cluster_distance=st.sampled_from([0.0, 0.1, 0.3]),
    evidence_threshold=st.sampled_from([None, 0.1, 0.25, 0.4]),
    evidence_power=st.sampled_from([0.5, 1.0, 2.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), shapes, st.sampled_from([0.25, 0.4, 0.5]), st.sampled_from([0.4, 0.5, 0.625, 0.9]))
def test_prices_are_those_of_prune_and_verdicts_those_of_certify(seed, shape, base_threshold, mask_threshold):
    rule = shape.with_thresholds(base_threshold, max(mask_threshold, base_threshold), shape.evidence_threshold)
    for recipe in (Halves(2), Bands(0.05), Halves(1) + Windows(1 / 2, 1 / 2)):
        images = run(seed, 3, make=lambda width, height, lines, recipe=recipe: recipe.masks(width, height))
        own = OwnBoxes(images, base_threshold, 0.1)
        assert own.per_image(rule)[0].tolist() == slow_spurious(rule, images)
        certified = slow_certified(rule, images)
        assert np.array_equal(own.certified(rule), certified)
        assert (own.bound(rule) | ~certified).all()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    shapes,
    st.sampled_from([0.4, 0.5, 0.625, 0.9]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([("outside",), ("anywhere",), ("far", "outside"), ("outside", "over", "close")]),
)
def test_verdicts_at_every_location_against_several_patches_are_those_of_certify(
    seed, shape, mask_threshold, count, locations
):
    rule = shape.with_thresholds(0.4, mask_threshold, shape.evidence_threshold)
    threat = ThreatModel(area=0.02, count=count)
    patches = [Patch(0.02, location=location, count=count) for location in locations]
    for recipe in (Windows(1 / 2) + Bands(0.05), Halves(2) + Windows(1 / 2, 1 / 2) + Windows(1 / 3, 1 / 3)):
        images = run(seed, 2, make=lambda width, height, lines, recipe=recipe: recipe.masks(width, height))
        own = OwnBoxes(images, 0.4, 0.1, threat, locations)
        certified = slow_certified(rule, images, patches)
        assert np.array_equal(own.certified(rule), certified)
        assert (own.bound(rule) | ~certified).all()
        if rule.evidence_threshold is None and count < 3:
            assert np.array_equal(own.decisive(rule.filter_ioa, rule.edge_factor) >= mask_threshold, certified)


def test_all_mask_thresholds_at_once_are_each_of_them_alone():
    images = noisy(3, 6)
    own = OwnBoxes(images, 0.3, 0.1)
    levels = mask_thresholds(0.3, 0.1)
    assert (levels[0], levels[-1]) == (0.3, 0.99)
    for shape in SearchSpace((0.6,), (0.85,), (0.3,), (None, 0.2), (2.0,)).rules(0.3, 0.1):
        curve = own.spurious(shape, levels)
        for step in range(0, len(levels), 9):
            assert curve[step].tolist() == slow_spurious(shape.with_settings(mask_threshold=levels[step]), images)


def test_a_merge_tree_has_the_clusters_of_every_prefix():
    links = {(0, 1), (1, 2), (3, 4), (2, 4)}
    linked = [sum(1 << b for b in range(6) if (min(a, b), max(a, b)) in links or a == b) for a in range(6)]
    order = [0, 2, 3, 5, 1, 4]
    pairs = merge_tree(linked, order)
    for taken in range(1, 7):
        there = set(order[:taken])
        joined = sum(1 for _, later in pairs if later in there)
        assert taken - joined == [1, 2, 3, 4, 3, 2][taken - 1]


@pytest.fixture(scope="module")
def images():
    return noisy(11, 40)


def brute_force(images, base_threshold, price):
    """The highest gain of any rule of the grid that keeps the price, rule by rule."""
    best = -1.0
    for shape in SPACE.rules(base_threshold, 0.1):
        for level in mask_thresholds(base_threshold, 0.1)[::1]:
            if shape.evidence_threshold is not None and level <= shape.evidence_threshold:
                continue
            rule = shape.with_settings(mask_threshold=level)
            counts = np.array(slow_spurious(rule, images))
            if counts.mean() > price or spurious_interval(counts).high > price:
                continue
            best = max(best, 100 * slow_certified(rule, images).mean())
            break  # a higher mask threshold certifies no more
    return best


def test_the_search_finds_what_trying_every_rule_finds(images):
    some = images[:14]
    with open_bench(some, np.arange(len(some)), 0.5, 0.1, ThreatModel()) as bench:
        search = RuleSearch(bench, 0.5, 0.1, SPACE)
        for price in (0.4, 0.8, 2.0):
            rule = search.best(price)
            assert rule is not None
            found = brute_force(some, 0.5, price)
            assert search.gains[rule] == pytest.approx(found)
            assert 100 * slow_certified(rule, some).mean() == pytest.approx(found)
        assert search.trials < len(SPACE.rules(0.5, 0.1)) * len(search.thresholds) / 10


def test_the_price_is_kept_at_the_upper_end_of_its_interval(images):
    index = np.arange(0, len(images), 2)
    with open_bench(images, index, 0.5, 0.1, ThreatModel()) as bench:
        search = RuleSearch(bench, 0.5, 0.1, SPACE)
        gains = []
        for price in (0.3, 0.6, 1.2):
            rule = search.best(price)
            metrics = measure_rule(bench, rule, search.objects)
            assert metrics.spurious.high <= price
            assert metrics.spurious.value == np.mean(slow_spurious(rule, [images[n] for n in index]))
            assert (metrics.images, metrics.own_boxes) == (20, search.objects.sum())
            gains.append(metrics.mean_certified.value)
        assert gains == sorted(gains)
        assert search.best(search.least_price() - 0.01) is None


def test_processes_find_the_same(images):
    found = []
    for processes in (1, 2):
        with open_bench(images, np.arange(12), 0.5, 0.1, ThreatModel(), processes=processes) as bench:
            search = RuleSearch(bench, 0.5, 0.1, SearchSpace((0.6,), (0.85,), (0.1,), (None, 0.3), (1.0,)))
            found.append((search.best(1.0), search.objects.tolist()))
    assert found[0] == found[1]


def test_labels_of_objects_play_no_part():
    """Own boxes are the detector's: ground truth may be missing, ignored, or of other classes."""
    one = image([(10, 10, 40, 40, 0.8, 1), (5, 60, 20, 90, 0.3, 0)], [(0, 0, 99, 99, 0)], lines=2)
    without = replace(one, ground_truth=one.ground_truth[:0], ignore=one.ignore[:0], crowd=one.crowd[:0])
    rule = Rule(base_threshold=0.5, mask_threshold=0.6)
    for each in (one, without):
        own = OwnBoxes([each], 0.5, 0.1)
        assert own.objects().tolist() == [1]
        assert np.array_equal(own.certified(rule), slow_certified(rule, [each]))
