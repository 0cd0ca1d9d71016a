"""The table of one run."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
from cases import certify
from evaluation_cases import (
    EVIDENCE,
    NAMES,
    PAPER,
    VOCABULARY,
    changed,
    count_literally,
    evaluated,
    image,
    made,
    noisy,
    run,
)

from objectseeker import Defense, IouRule, ObjectSeekerError, Patch, Rule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.core.threshold_schedule import ThresholdSchedule
from objectseeker.metrics import EvaluationSettings, ImageSet, ThreatModel, evaluate_images
from objectseeker.metrics.average_precision import coco_ap50, undefended_curve
from objectseeker.metrics.defended_images import DefendedImageSet


@pytest.mark.parametrize("settings", [PAPER, EVIDENCE, changed(PAPER, certification_threshold=0.5, bound="paper")])
def test_the_table_is_what_its_parts_say(settings):
    images = run(21, 12, generous=1.0, lines=8)
    scene = ImageSet.from_images(images, VOCABULARY)
    result = evaluated(images, settings)
    assert json.loads(json.dumps(result)) == result
    assert result["images"] == 12
    assert result["objects"] == sum(int((~one.ignore).sum()) for one in images)
    assert result["objects"] + result["ignored_objects"] == sum(len(one.ground_truth) for one in images)
    assert result["undefended"]["ap50"] == undefended_curve(scene).mean_ap50
    assert result["undefended"]["ap50_coco"] == pytest.approx(np.nanmean(coco_ap50(scene)))
    for classwise in (True, False):
        chosen = settings.with_rule(classwise=classwise)
        defended = evaluated(images, chosen)["defended"]
        curve = DefendedImageSet.from_settings(scene, chosen).curve(chosen)
        assert defended["ap50"] == curve.mean_ap50
        assert defended["ap50_loss"] == result["undefended"]["ap50"] - defended["ap50"]
        row = np.flatnonzero(curve.base_thresholds == defended["base_threshold"])[0]
        assert defended["clean_recall"] == curve.clean_recall[row] >= 100 * settings.clean_recall
        assert (curve.clean_recall[row + 1 :] < 100 * settings.clean_recall).all()
        rule = chosen.on_curve(defended["base_threshold"])
        thresholds = (defended["mask_threshold"], defended["evidence_threshold"])
        assert thresholds == (rule.mask_threshold, rule.evidence_threshold)
        verdicts = [
            certify(
                one.observation,
                one.ground_truth[~one.ignore],
                settings.threat.patches(),
                mask_threshold=rule.mask_threshold,
                evidence_threshold=rule.evidence_threshold,
                evidence_power=rule.evidence_power,
                edge_factor=rule.edge_factor,
                classwise=classwise,
                certification_threshold=settings.threat.certification_threshold or 0.0,
                bound=settings.threat.bound,
            )
            for one in images
        ]
        shares = 100 * np.concatenate([found.certified for found in verdicts], axis=1).mean(axis=1)
        assert list(defended["certified_recall"].values()) == pytest.approx(shares.tolist())
        assert list(defended["certified_recall"]) == list(PATCH_LOCATIONS)
        assert defended["vacuous_far"] == sum(int(found.vacuous[0].sum()) for found in verdicts)
        flagged = sum(
            len(rule.prune(one.observation)) > len(one.observation.base.with_min_score(rule.base_threshold))
            for one in images
        )
        assert (defended["false_alerts"], defended["false_alert_rate"]) == (flagged, pytest.approx(100 * flagged / 12))


def test_class_agnostic_certificates_accept_any_label():
    """Seen as a dog under every mask that shows it, a cat is certified only if labels do not matter."""
    truth = [(40, 40, 60, 60, 0), (70, 40, 90, 60, 1)]
    view = [(40, 40, 60, 60, 0.99, 1), (70, 40, 90, 60, 0.99, 1)]
    observed = image([(*row[:4], 0.9, row[4]) for row in truth], truth, [view] * 28, lines=7)
    result = evaluated([observed], PAPER)
    assert result["defended"]["certified_recall"]["far"] == 50
    cat, dog = result["per_class"]
    assert (cat["certified_recall"]["far"], dog["certified_recall"]["far"]) == (0, 100)
    agnostic = evaluated([observed], PAPER.class_agnostic())
    assert agnostic["defended"]["certified_recall"]["far"] == 100
    assert [row["certified_recall"]["far"] for row in agnostic["per_class"]] == [100, 100]


def test_classes_add_up_to_the_whole():
    images = run(4, 12, generous=1.0)
    result = evaluated(images, PAPER)
    rows, ours = result["per_class"], result["defended"]
    assert [row["class"] for row in rows] == list(NAMES)
    assert sum(row["objects"] for row in rows) == result["objects"]
    for column, whole in (
        ("ap50", ours["ap50"]),
        ("undefended_ap50", result["undefended"]["ap50"]),
        ("undefended_ap50_coco", result["undefended"]["ap50_coco"]),
        ("clean_recall", ours["clean_recall"]),
    ):
        assert np.mean([row[column] for row in rows]) == pytest.approx(whole)
    for where in PATCH_LOCATIONS:
        certified = sum(row["objects"] * row["certified_recall"][where] for row in rows)
        assert certified / result["objects"] == pytest.approx(ours["certified_recall"][where])


def test_a_clean_recall_out_of_reach_leaves_gaps_not_numbers():
    max_unseen_share = image([(0, 0, 10, 10, 0.9, 0)], [(0, 0, 10, 10, 0), (50, 50, 60, 60, 0)])
    result = evaluated([max_unseen_share], changed(PAPER, clean_recall=0.9))
    ours = result["defended"]
    assert ours["max_clean_recall"] == 50
    assert ours["base_threshold"] is ours["mask_threshold"] is ours["clean_recall"] is ours["vacuous_far"] is None
    assert ours["false_alerts"] is ours["false_alert_rate"] is ours["spurious_per_image"] is None
    assert set(ours["certified_recall"].values()) == {None}
    assert result["per_class"][0]["certified_recall"] == dict.fromkeys(PATCH_LOCATIONS)
    assert ours["ap50"] == 50
    json.dumps(result)


def test_an_object_seen_only_in_the_untouched_image_is_not_certified():
    found = evaluated([image([(40, 40, 60, 60, 0.9, 0)], [(40, 40, 60, 60, 0)])], PAPER)["defended"]
    assert found["clean_recall"] == 100
    assert found["base_threshold"] == 0.9
    assert set(found["certified_recall"].values()) == {0.0}


def test_mask_and_evidence_thresholds_follow_the_base_threshold():
    settings = made(alpha=0.6, beta=0.5, evidence_alpha=0.5, evidence_beta=0.25)
    assert (settings.on_curve(0.0).mask_threshold, settings.on_curve(0.0).evidence_threshold) == (0.6, 0.5)
    assert (settings.on_curve(0.5).mask_threshold, settings.on_curve(0.5).evidence_threshold) == (0.75, 0.625)
    swapped = made(alpha=0.2, beta=0.0, evidence_alpha=0.4, evidence_beta=0.9)
    assert swapped.on_curve(0.1).evidence_threshold == swapped.on_curve(0.1).mask_threshold == 0.2
    for base_threshold in np.arange(100) / 100:
        assert made(beta=1.0).on_curve(float(base_threshold)).mask_threshold == 1.0
        assert made(alpha=0.0, beta=0.0).on_curve(float(base_threshold)).mask_threshold == base_threshold


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.2}, "alpha must lie"),
        ({"beta": float("nan")}, "beta must be finite"),
        ({"evidence_alpha": 0.2}, "both evidence_alpha and evidence_beta"),
        ({"evidence_alpha": 0.2, "evidence_beta": -1}, "evidence_beta must lie"),
        ({"bound": "best"}, "bound must be one of exact, paper"),
        ({"evidence_power": 0}, "power"),
        ({"patch_area": 0}, "patch area"),
        ({"filter_ioa": 2}, "filter_ioa"),
        ({"clean_recall": 80}, "clean_recall must lie"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ObjectSeekerError, match=message):
        made(**options)


def test_runs_without_anything_to_measure_are_refused():
    with pytest.raises(ObjectSeekerError, match="no images"):
        evaluated([], PAPER)
    empty = image([], [(0, 0, 9, 9, 0)], ignore=[True])
    with pytest.raises(ObjectSeekerError, match="none of the 1 images has an object that counts"):
        evaluated([empty], PAPER)
    with pytest.raises(ObjectSeekerError, match=r"labels from 0 to 5 but there are 2"):
        evaluated([image([(0, 0, 1, 1, 0.5, 5)], [(0, 0, 9, 9, 0), (0, 0, 9, 9, 5)])], PAPER)
    wrong = dataclasses.replace(run(1, 1)[0], ignore=np.zeros(9, bool), crowd=np.zeros(9, bool))
    with pytest.raises(ObjectSeekerError, match="one entry per object"):
        evaluated([wrong], PAPER)


def test_the_rule_itself_is_the_operating_point_unless_another_is_asked_for():
    """Its scores need not lie on the grid of base_thresholds, nor on the curve; the AP is that of the curve."""
    images = noisy(5, 12)
    curve = made(alpha=0.3, beta=0.2)
    rule = Rule(base_threshold=0.4567, mask_threshold=0.654321, filter_ioa=0.6)
    own = dataclasses.replace(curve, rule=rule, clean_recall=None)
    found = evaluate_images(images, VOCABULARY, own)
    assert found.defended.rule == own.rule_at(0.4567) == rule
    assert own.rule_at(0.4) == own.threshold_schedule.rule(rule, 0.4)
    assert found.defended.ap50 == evaluate_images(images, VOCABULARY, curve).defended.ap50
    output = [rule.prune(one.observation) for one in images]
    counted = count_literally(list(zip(images, output, strict=True)))
    objects = np.bincount(np.concatenate([one.ground_truth.label for one in images]))
    assert found.defended.clean_recall == pytest.approx(100 * np.mean([counted.right[c] / objects[c] for c in (0, 1)]))
    verdicts = [rule.certify(one.observation, one.ground_truth, own.threat.patches()).certified for one in images]
    shares = 100 * np.concatenate(verdicts, axis=1).mean(axis=1)
    assert list(found.defended.certified_recall().values()) == pytest.approx(shares.tolist())
    assert 0 < found.defended.certified_recall()["far"] < 100
    content = found.to_dict()
    assert content["operating_point"]["selected_by"] == "rule"
    assert (content["defended"]["base_threshold"], content["defended"]["mask_threshold"]) == (0.4567, 0.654321)

    asked = evaluate_images(images, VOCABULARY, dataclasses.replace(own, base_threshold=0.333))
    assert asked.defended.rule == own.threshold_schedule.rule(rule, 0.333)
    assert asked.to_dict()["operating_point"]["selected_by"] == "base_threshold"
    with pytest.raises(
        ObjectSeekerError, match=r"at most one operating point is possible: got clean_recall=0\.8, base_threshold=0\.3"
    ):
        dataclasses.replace(own, base_threshold=0.3, clean_recall=0.8)


def test_the_iou_variant_can_be_what_is_deployed():
    images = noisy(5, 12)
    rule = IouRule(ioa_rule=Rule(base_threshold=0.3, mask_threshold=0.5), filter_iou=0.7)
    own = EvaluationSettings(
        rule=rule, threshold_schedule=ThresholdSchedule.from_rule(rule), threat=ThreatModel(area=0.005)
    )
    found = evaluate_images(images, VOCABULARY, own)
    verdicts = [rule.certify(one.observation, one.ground_truth, own.threat.patches()).certified for one in images]
    shares = 100 * np.concatenate(verdicts, axis=1).mean(axis=1)
    content = found.to_dict()
    assert list(content["defended"]["certified_recall"].values()) == pytest.approx(shares.tolist())
    assert content["defended"]["certified_recall"]["far"] > 0
    assert content["settings"]["filter_iou"] == 0.7
    strict = evaluate_images(
        images, VOCABULARY, dataclasses.replace(own, threat=ThreatModel(area=0.005, certification_threshold=0.9))
    )
    assert strict.defended.certified_recall()["far"] == 0
    assert content["protocol"] == "standard-1 with patch_area=0.005, certification_threshold=0.5"
    assert evaluated(images, changed(PAPER, clean_recall=None))["protocol"] == "standard-1"


def test_a_clean_recall_that_is_not_reached_is_told():
    max_unseen_share = image([(0, 0, 10, 10, 0.9, 0)], [(0, 0, 10, 10, 0), (50, 50, 60, 60, 0)])
    asked = evaluate_images([max_unseen_share], VOCABULARY, changed(PAPER, clean_recall=0.9))
    assert asked.defended.rule is None
    assert asked.caveats == ["clean recall 90% is not reached, at most 50.0 %: lower --clean-recall"]
    assert evaluate_images([max_unseen_share], VOCABULARY, changed(PAPER, clean_recall=0.5)).caveats == []


def test_a_result_names_the_defense_that_it_is_about():
    defense = Defense.for_detector("builtin")
    own = EvaluationSettings(rule=defense.rule, threshold_schedule=defense.resolved_schedule)
    found = evaluate_images(noisy(5, 4), VOCABULARY, own, defense=defense)
    assert Defense.from_dict(found.to_dict()["defense"]) == defense
    assert found.to_dict()["defense"]["sha256"] == defense.sha256
    there = evaluate_images(noisy(5, 4), VOCABULARY, replace(own, base_threshold=0.3), defense=defense)
    named = Defense.from_dict(there.to_dict()["defense"])  # at another point of its curve it is another defense
    assert named.rule == own.rule_at(0.3) != defense.rule
    assert there.to_dict()["defense"]["sha256"] == named.sha256 != defense.sha256
    assert evaluate_images(noisy(5, 4), VOCABULARY, PAPER).to_dict()["defense"] is None


@pytest.mark.parametrize("evidence_alpha", [None, 0.2])
@pytest.mark.parametrize("clean_recall", [None, 0.3])
def test_the_joint_certificate_is_the_sum_of_those_of_the_images(evidence_alpha, clean_recall):
    follow = ThresholdSchedule(
        alpha=0.4, beta=0.2, evidence_alpha=evidence_alpha, evidence_beta=None if evidence_alpha is None else 0.1
    )
    images = noisy(3, 5) + run(5, 5)
    settings = EvaluationSettings.from_schedule(follow, Rule(base_threshold=0.3), clean_recall=clean_recall)
    found = evaluate_images(images, VOCABULARY, settings)
    point = found.defended
    joint = [
        point.rule.certify_jointly(
            image.observation,
            image.ground_truth[~image.ignore],
            Patch(0.01, location="anywhere"),
            certification_threshold=0.0,
        )
        for image in images
    ]
    expected = sum(one.count for one in joint)
    assert point.remaining == expected
    assert point.guaranteed_boxes == sum(one.boxes for one in joint) / len(images) <= expected / len(images)
    assert found.to_dict()["defended"]["guaranteed_boxes"] == point.guaranteed_boxes
    interval = found.intervals["defended.guaranteed_boxes"]
    assert interval.low <= point.guaranteed_boxes < interval.high
    assert found.to_dict()["defended"]["joint_certified_recall"] == pytest.approx(100 * expected / found.objects)
    assert found.defended.joint_certified_recall >= found.defended.certified_recall()["anywhere"]
    assert (
        evaluate_images(
            images, VOCABULARY, replace(settings, threat=ThreatModel(count=2))
        ).defended.joint_certified_recall
        is None
    )
