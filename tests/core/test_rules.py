"""What rules have in common: their settings, what a new one inherits, and what is an error."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from cases import NOTHING, halves, observe, one

from objectseeker import Detections, IouRule, ObjectSeekerError, Observation, Patch, Rule
from objectseeker.core.bounds import MARGIN, SMALLEST_FILTER, lower_bound
from objectseeker.core.fabrication import SupportCriteria
from objectseeker.core.masks import strips
from objectseeker.core.rules import PruningRule, register_rule, registered_rules, rule_from_dict, rule_setting_names
from objectseeker.core.rules.iou import iou_lower_bound, non_overlapping, select_masked, with_filter_iou


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare(PruningRule):
    """A rule that implements what it must, and no more. It is not registered."""

    kind: ClassVar[str] = "bare"
    proof_settings: ClassVar[tuple[str, ...]] = ("classwise",)
    candidate_settings: ClassVar[tuple[str, ...]] = ("mask_threshold",)

    base_threshold: float = 0.5
    mask_threshold: float = 0.625
    classwise: bool = True

    @property
    def filter_threshold(self):
        return 0.6

    def prune(self, observation):
        return observation.base

    def lower_bound(self, boxes, objects, bound):
        return lower_bound(boxes, objects, 0.6, bound)

    def describe(self):
        return "bare"


def test_what_a_rule_inherits():
    bare = Bare()
    assert (bare.name, bare.evidence_threshold, bare.combines_views) == ("bare", None, False)
    assert (bare.cluster_distance, bare.edge_factor) == (0.0, 1.0)
    assert bare.min_mask_score == 0.625
    for classwise in (True, False):
        assert Bare(classwise=classwise).support_criteria == SupportCriteria(classwise=classwise)
    assert bare.evidence(np.array([0.0, 0.5, 0.625, 1.0])).tolist() == [0, 0, 1, 1]
    seen = observe([one([1, 1, 9, 9], 0.75), one([1, 1, 9, 9], 0.25)])
    assert bare.discounted_scores(seen).tolist() == [0.75, 0.25]
    assert bare.usable_boxes(seen, np.array([1, 0])).tolist() == [True, True]
    assert bare.resolve_threshold(None) == 0.0
    assert bare.resolve_threshold(0.25) == 0.25
    assert bare.settings() == {"base_threshold": 0.5, "mask_threshold": 0.625, "classwise": True}
    assert bare.to_dict() == {"kind": "bare", **bare.settings()}
    assert bare.hyperparameters() == {"classwise": True}
    assert (bare.proof_key, bare.candidate_key) == ({"classwise": True}, {"mask_threshold": 0.625})
    assert bare.with_thresholds(0.25, 0.75) == Bare(base_threshold=0.25, mask_threshold=0.75)
    with pytest.raises(ObjectSeekerError, match="has no setting of this name: got 'evidence_threshold'"):
        bare.with_thresholds(0.25, 0.75, 0.5)
    assert Bare.from_settings(bare.settings()) == bare


def test_the_lowest_score_that_is_used_is_that_of_evidence():
    assert Rule(mask_threshold=0.75).min_mask_score == 0.75
    rule = Rule(mask_threshold=0.75, evidence_threshold=0.25)
    assert rule.min_mask_score == IouRule(ioa_rule=rule).min_mask_score == 0.25
    assert rule.with_thresholds(0.5, 0.75) == Rule(mask_threshold=0.75)  # None is a value of it
    assert (rule.combines_views, IouRule(ioa_rule=rule).combines_views) == (True, False)


def test_rules_are_registered_once_by_kind():
    assert rule_setting_names()[:2] == ("base_threshold", "mask_threshold")
    assert {"filter_iou", "filter_ioa", "support_fit"} <= set(rule_setting_names())
    assert len(set(rule_setting_names())) == len(rule_setting_names())
    assert {Rule, IouRule} <= set(registered_rules())
    with pytest.raises(ObjectSeekerError, match="unknown kind: got 'bare'"):
        rule_from_dict(Bare().to_dict())
    other = dataclass(frozen=True, kw_only=True)(type("Other", (Bare,), {"kind": "iou"}))
    with pytest.raises(ObjectSeekerError, match="two rules have one kind"):
        register_rule(other)
    assert register_rule(IouRule) is IouRule
    for values, message in (
        ({"kind": "evidence", "nonsense": 1, "other": 2}, "unknown settings: got nonsense, other"),
        ({"kind": 3}, "unknown kind: got 3"),
        ({}, "unknown kind: got None"),
        ([], "settings by name"),
    ):
        with pytest.raises(ObjectSeekerError, match=message):
            rule_from_dict(values)


def test_only_a_mask_threshold_below_the_base_threshold_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Rule(base_threshold=0.5, mask_threshold=0.5)
        Rule(base_threshold=0.5, mask_threshold=0.75)
    with pytest.warns(UserWarning, match=r"mask_threshold 0.25 is below base_threshold 0.5") as warned:
        Rule(base_threshold=0.5, mask_threshold=0.25)
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster_distance": 1}, "cluster_distance must be below 1"),
        ({"evidence_power": 0}, "evidence_power must be above 0"),
        ({"evidence_threshold": 0.75}, "must not exceed mask_threshold 0.7: got 0.75"),
        ({"base_threshold": None}, "base_threshold"),
        ({"edge_factor": 1.5}, "edge_factor"),
        ({"classwise": 1}, "classwise"),
        ({"support_threshold": 0}, "support_threshold must be above 0"),
        ({"support_overlap": -1}, "support_overlap"),
        ({"support_fit": "giou"}, "support_fit must be one of iou, ioa"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ObjectSeekerError, match=message):
        Rule(**settings)


def test_settings_at_their_limits_are_not_refused():
    assert Rule(evidence_threshold=0.7, mask_threshold=0.7).evidence_threshold == 0.7
    assert Rule(cluster_distance=0.0).cluster_distance == 0.0
    assert Rule(filter_ioa=1, edge_factor=0).settings() == Rule(filter_ioa=1.0, edge_factor=0.0).settings()


def test_evidence_rises_from_its_threshold_to_the_mask_threshold():
    rule = Rule(mask_threshold=0.75, evidence_threshold=0.25)
    scores = np.array([0.0, 0.25, 0.375, 0.5, 0.75, 1.0])
    assert rule.evidence(scores).tolist() == [0, 0, 0.25, 0.5, 1, 1]
    assert rule.with_settings(evidence_power=2.0).evidence(scores).tolist() == [0, 0, 0.0625, 0.25, 1, 1]
    assert Rule(mask_threshold=0.75).evidence(scores).tolist() == [0, 0, 0, 0, 1, 1]
    assert rule.with_settings(evidence_threshold=0.75).evidence(scores).tolist() == [0, 0, 0, 0, 1, 1]


def test_the_iou_variant_of_a_rule_and_back():
    rule = Rule(mask_threshold=0.75)
    variant = with_filter_iou(rule, 0.625)
    assert variant == IouRule(ioa_rule=rule, filter_iou=0.625)
    assert with_filter_iou(variant, 0.75) == IouRule(ioa_rule=rule, filter_iou=0.75)
    assert with_filter_iou(variant, None) == with_filter_iou(rule, None) == rule
    assert with_filter_iou(Bare(), None) == Bare()
    with pytest.raises(ObjectSeekerError, match="has no IoU variant"):
        with_filter_iou(Bare(), 0.5)
    with pytest.raises(ObjectSeekerError, match="ioa_rule must be a Rule"):
        IouRule(ioa_rule=Bare())


def test_settings_of_the_iou_variant_are_its_own_and_those_of_the_rule_behind_it():
    variant = IouRule(ioa_rule=Rule(mask_threshold=0.75), filter_iou=0.625)
    assert variant.with_settings(filter_iou=0.5) == IouRule(ioa_rule=Rule(mask_threshold=0.75), filter_iou=0.5)
    other = variant.with_settings(mask_threshold=0.5, classwise=False)
    assert other == IouRule(ioa_rule=Rule(mask_threshold=0.5, classwise=False), filter_iou=0.625)
    assert IouRule.from_settings(variant.settings()) == rule_from_dict(variant.to_dict()) == variant
    assert IouRule.from_settings({}) == IouRule(ioa_rule=Rule(), filter_iou=0.8)
    assert (variant.filter_threshold, Rule(filter_ioa=0.5).filter_threshold) == (0.625, 0.5)
    assert (IouRule().resolve_threshold(None), Rule().resolve_threshold(None)) == (0.5, 0.0)
    with pytest.raises(ObjectSeekerError, match="filter_iou"):
        IouRule(filter_iou=1.5)


@pytest.mark.parametrize("bound", ["exact", "paper"])
def test_no_filter_promises_a_better_fit_than_its_own(bound):
    """At the smallest filter, too, a bound is a ratio and not an area."""
    whole = np.array([[0.0, 0, 2000, 2000]])
    for filter_iou in (SMALLEST_FILTER, 0.5, 0.8, 1.0):
        assert iou_lower_bound(whole, whole, filter_iou, bound)[0, 0] <= filter_iou
        assert lower_bound(whole, whole, filter_iou, bound)[0, 0] <= filter_iou


@pytest.mark.parametrize("classwise", [True, False])
def test_only_boxes_that_are_used_and_of_the_label_prove(classwise):
    """A box of a low score, one of another label and one that touches too little prove nothing."""
    box = [40.0, 40, 60, 60]
    seen = observe(
        [Detections([box, box, box, [10, 10, 42, 42]], [0.75, 0.25, 0.75, 0.75], [0, 0, 1, 0]), one(box, 0.75, 2)]
    )
    objects = Detections([box, box], [1, 1], [1, 0])
    proves = Rule(mask_threshold=0.5, classwise=classwise).proving_pairs(seen, objects, 0.0, "exact")
    both = [True, True]
    expected = [[False, True], [False, False], [True, False], [False, False], [False, False]]
    assert proves.tolist() == (expected if classwise else [both, [False] * 2, both, [False] * 2, both])
    covered = Rule().lower_bound(np.array([box]), np.array([box]), "exact")[0, 0]
    rule = Rule(mask_threshold=0.5, classwise=classwise)
    assert rule.proving_pairs(seen, objects, covered - 2 * MARGIN, "exact").any()
    assert not rule.proving_pairs(seen, objects, covered, "exact").any()
    with pytest.raises(ObjectSeekerError, match="certification_threshold"):
        rule.proving_pairs(seen, objects, 1.5, "exact")


def test_some_of_the_masked_boxes_stay_under_their_masks():
    a, b, c = one([1, 1, 9, 9], 0.5), one([2, 2, 9, 9], 0.6), one([3, 3, 9, 9], 0.7)
    seen = Observation(100, 90, halves(100, 90, 1), c, [Detections.concatenate([a, b]), NOTHING, c, a])
    some = select_masked(seen, np.array([False, True, False, True]))
    assert list(some.masked) == [b, NOTHING, NOTHING, a]
    assert (some.width, some.height, some.masks, some.base) == (100, 90, seen.masks, c)
    assert select_masked(seen, np.ones(4, bool)) == seen


def test_what_is_asked_of_a_rule_reaches_its_proofs():
    """The bound and the threshold of certificates: a box that covers a corner proves by one of the two bounds."""
    seen = observe([one([0, 0, 10, 10])] * 4, one([0, 0, 10, 10]))
    corner, anywhere = one([4, 4, 10, 10]), Patch(0.0001, location="anywhere")
    rule = Rule(mask_threshold=0.5)
    for options, proven in (
        ({}, True),
        ({"bound": "paper"}, False),
        ({"certification_threshold": 0.25}, True),
        ({"certification_threshold": 0.5}, False),
    ):
        assert rule.certify(seen, corner, anywhere, **options).certified.tolist() == [[proven]]
        assert rule.certify_jointly(seen, corner, anywhere, **options).count == proven
        ((proof,),) = rule.object_proofs(seen, corner, **options)
        assert proof.safe.all() == proven


def test_the_defaults_are_those_that_are_documented():
    assert Rule().settings() == {
        "base_threshold": 0.5,
        "mask_threshold": 0.7,
        "filter_ioa": 0.6,
        "classwise": True,
        "evidence_threshold": None,
        "evidence_power": 1.0,
        "edge_factor": 1.0,
        "cluster_distance": 0.1,
        "support_threshold": 0.2,
        "support_fit": "iou",
        "support_overlap": 0.3,
    }
    assert (Rule().name, Rule(evidence_threshold=0.5).name, IouRule().name) == ("paper", "evidence", "IoU")


def test_an_edge_factor_of_0_leaves_nothing_of_the_score_of_a_box_that_is_cut():
    seen = observe([one([50, 20, 70, 40], 0.75), one([50, 60, 70, 80], 0.5)])  # lines at 50
    for factor, scores in ((0.0, [0, 0.5]), (0.5, [0.375, 0.5]), (1.0, [0.75, 0.5])):
        assert Rule(edge_factor=factor).discounted_scores(seen).tolist() == scores


def test_a_box_beyond_either_line_of_a_band_is_clear_of_it():
    """Of more than 5 % of the axis: 5 of 100 columns, 2.5 of 50 rows."""
    columns, rows = strips(100, 50, [(40, 60)], []), strips(100, 50, [], [(20, 30)])
    boxes = np.array([[65, 0, 80, 9], [65.5, 0, 80, 9], [0, 0, 35, 9], [0, 0, 34.5, 9], [0, 0, 80, 9], [45, 0, 50, 9]])
    assert non_overlapping(boxes, np.zeros(6, int), columns).tolist() == [False, True, False, True, False, False]
    turned = boxes[:, [1, 0, 3, 2]] / 2
    assert non_overlapping(turned, np.zeros(6, int), rows).tolist() == [False, True, False, True, False, False]
