"""Schedules: the curve through a rule, and the thresholds on it."""

import pytest

from objectseeker import IouRule, ObjectSeekerError, Rule
from objectseeker.core.threshold_schedule import ThresholdSchedule


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(base_threshold=0.5, mask_threshold=0.75), ThresholdSchedule(alpha=0.75, beta=0.5)),
        (
            Rule(base_threshold=0.5, mask_threshold=0.75, evidence_threshold=0.625),
            ThresholdSchedule(alpha=0.75, beta=0.5, evidence_alpha=0.625, evidence_beta=0.25),
        ),
        (
            Rule(base_threshold=0.5, mask_threshold=0.75, evidence_threshold=0.25),
            ThresholdSchedule(alpha=0.75, beta=0.5, evidence_alpha=0.25, evidence_beta=0.0),
        ),
        (Rule(base_threshold=1.0, mask_threshold=1.0), ThresholdSchedule(alpha=1.0, beta=0.0)),
    ],
)
def test_the_curve_through_a_rule_goes_straight_up_from_it(rule, expected):
    found = ThresholdSchedule.from_rule(rule)
    assert found == expected
    if rule.evidence_threshold is None or rule.evidence_threshold >= rule.base_threshold:  # no score falls below it
        assert found.rule(rule, rule.base_threshold) == rule
        assert found.rule(IouRule(ioa_rule=rule), rule.base_threshold) == IouRule(ioa_rule=rule)


def test_thresholds_follow_the_base_threshold_from_alpha_on():
    paper = ThresholdSchedule(alpha=0.5, beta=0.25)
    assert [paper.thresholds_at(base) for base in (0.0, 0.25, 0.5, 1.0)] == [
        (0.5, None),
        (0.5, None),
        (0.625, None),
        (1.0, None),
    ]
    both = ThresholdSchedule(alpha=0.5, beta=0.25, evidence_alpha=0.25, evidence_beta=0.5)
    assert [both.thresholds_at(base) for base in (0.0, 0.5)] == [(0.5, 0.5), (0.625, 0.625)]  # never above it
    low = ThresholdSchedule(alpha=0.5, beta=0.5, evidence_alpha=0.25, evidence_beta=0.0)
    assert [low.thresholds_at(base) for base in (0.0, 0.5, 0.75)] == [(0.5, 0.25), (0.75, 0.5), (0.875, 0.75)]


def test_thresholds_are_rounded_to_what_is_shown():
    assert ThresholdSchedule(alpha=0.0, beta=0.1).thresholds_at(0.7)[0] == 0.73  # not 0.7299999999999999
    assert ThresholdSchedule(alpha=0.0, beta=1 / 3).thresholds_at(0.0)[0] == 0.333333333333
    assert ThresholdSchedule(alpha=0.0, beta=0.0).thresholds_at(1 / 3)[0] == 1 / 3  # never below the base threshold


def test_the_defaults_are_those_that_are_documented():
    assert ThresholdSchedule() == ThresholdSchedule(alpha=0.8, beta=0.5, evidence_alpha=None, evidence_beta=None)


def test_evidence_has_both_settings_or_none():
    for settings in ({"evidence_alpha": 0.3}, {"evidence_beta": 0.3}):
        with pytest.raises(ObjectSeekerError, match="needs both evidence_alpha and evidence_beta"):
            ThresholdSchedule(**settings)
    for name in ("alpha", "beta"):
        with pytest.raises(ObjectSeekerError, match=name):
            ThresholdSchedule(**{name: 1.5})
    with pytest.raises(ObjectSeekerError, match="evidence_beta"):
        ThresholdSchedule(evidence_alpha=0.5, evidence_beta=-0.5)
