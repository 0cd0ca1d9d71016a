"""The fast way to run inference at many settings gives, bit for bit, what `Rule.prune` gives."""

import dataclasses

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, image, made, run
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections, IouRule, ObjectSeekerError, Rule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import BASE_THRESHOLDS, EvaluationSettings, ImageSet, evaluate_images
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.replay import find_candidates


def with_evidence(chosen, evidence_alpha, evidence_beta, power):
    return chosen.with_schedule(evidence_alpha=evidence_alpha, evidence_beta=evidence_beta).with_rule(
        evidence_power=power
    )


scores = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.625, 0.9, 1.0])
any_settings = st.builds(
    made,
    alpha=scores,
    beta=scores,
    filter_ioa=st.sampled_from([0.0, 0.5, 0.6, 0.9, 1.0]),
    edge_factor=st.sampled_from([1.0, 0.8, 0.5, 0.0]),
)
evidence_settings = st.builds(with_evidence, any_settings, scores, scores, st.sampled_from([0.5, 1.0, 2.0]))


def observations(images):
    return [one.observation for one in images]


def check_against_prune(images, chosen, classwise, floor=None):
    chosen = chosen.with_rule(classwise=classwise)
    rules = [chosen.on_curve(float(score)) for score in BASE_THRESHOLDS]
    candidates = find_candidates(observations(images), rules[0], chosen.min_mask_score if floor is None else floor)
    different = 0
    for rule, added in zip(rules, candidates.replay(rules), strict=True):
        for number, observed in enumerate(images):
            hulls = added.detections[added.image == number]
            found = Detections.concatenate([observed.observation.base.with_min_score(rule.base_threshold), hulls])
            assert found == rule.prune(observed.observation)
            different += len(hulls)
    return different


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), any_settings | evidence_settings, st.booleans())
def test_replay_is_prune_at_every_base_threshold(seed, chosen, classwise):
    check_against_prune(run(seed, count=3), chosen, classwise)


@pytest.mark.parametrize("classwise", [True, False])
@pytest.mark.parametrize("chosen", [PAPER, EVIDENCE])
def test_replay_is_prune_on_larger_images_and_from_a_lower_floor(chosen, classwise):
    images = run(3, count=4, smallest=60, largest=90, lines=14, generous=1.0)
    assert check_against_prune(images, chosen, classwise, floor=0.05) > 100  # there is something to get wrong


def test_a_base_box_explains_up_to_its_own_score():
    images = run(11, count=5, generous=1.0)
    candidates = find_candidates(observations(images), Rule(), 0.0)
    assert (candidates.filtering < candidates.boxes.detections.score).all()
    assert (candidates.filtering >= 0).any()


def test_rules_that_the_candidates_were_not_found_for_are_refused():
    candidates = find_candidates(observations(run(1)), Rule(), 0.3)
    good = Rule(base_threshold=0.2, mask_threshold=0.3)
    assert len(list(candidates.replay([good]))) == 1
    for bad in ({"filter_ioa": 0.5}, {"classwise": False}, {"edge_factor": 0.9}, {"mask_threshold": 0.29}):
        with pytest.raises(ObjectSeekerError, match=r"candidates were found|must count from"):
            next(candidates.replay([dataclasses.replace(good, **bad)]))
    with pytest.raises(ObjectSeekerError, match=r"from a score of 0\.4 on, not from 0\.35"):
        next(candidates.replay([Rule(base_threshold=0.4, mask_threshold=0.35)]))


def test_images_without_masked_boxes():
    images = run(5, generous=0.0)
    candidates = find_candidates(observations(images), Rule(), 0.0)
    assert [len(added) for added in candidates.replay([Rule()])] == [0]
    assert np.array_equal(candidates.first, np.zeros(len(images) + 1))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    base_threshold=st.sampled_from([0.3, 0.5, 0.625, 0.77, 1.0]),
    mask_threshold=scores,
    evidence_threshold=st.none() | scores,
    classwise=st.booleans(),
    by_iou=st.booleans(),
)
def test_a_rule_may_look_at_masked_boxes_below_its_base_threshold(
    seed, base_threshold, mask_threshold, evidence_threshold, classwise, by_iou
):
    """Then a masked box that a base box of its own score explains is output all the same: the base box is not."""
    evidence_threshold = None if evidence_threshold is None else min(evidence_threshold, mask_threshold)
    rule = Rule(
        base_threshold=base_threshold,
        mask_threshold=mask_threshold,
        evidence_threshold=evidence_threshold,
        classwise=classwise,
    )
    rule = IouRule(ioa_rule=rule) if by_iou else rule
    chosen = EvaluationSettings(rule=rule, threshold_schedule=ThresholdSchedule.from_rule(rule))
    images = run(seed, 4)
    replayed = DefendedImageSet.from_settings(ImageSet.from_images(images, VOCABULARY), chosen)
    rules = [rule, *(chosen.on_curve(float(score)) for score in BASE_THRESHOLDS[::20])]
    for one, added in zip(rules, replayed.recovered_in_dataset(rules), strict=True):
        for number, observed in enumerate(images):
            mine = added.detections[added.image == number]
            base = observed.observation.base.with_min_score(one.base_threshold)
            assert Detections.concatenate([base, mine]) == one.prune(observed.observation)


def test_an_own_rule_below_its_base_threshold_is_evaluated_as_it_is():
    rule = Rule(base_threshold=0.5, mask_threshold=0.3)
    seen = (40, 40, 60, 60, 0.4, 0)
    images = [image([seen], [(40, 40, 60, 60, 0)], [[seen]] * 100, lines=25)]
    found = evaluate_images(
        images, VOCABULARY, EvaluationSettings(rule=rule, threshold_schedule=ThresholdSchedule.from_rule(rule))
    )
    assert len(rule.prune(images[0].observation)) == 1
    assert (found.defended.clean_recall, found.defended.base_threshold, found.defended.rule.mask_threshold) == (
        100,
        0.5,
        0.3,
    )
    assert found.defended.certified_recall() == dict.fromkeys(PATCH_LOCATIONS, 100)
