"""The tally: a metric of a sample of the images is that of a run that holds the images as often as the sample."""

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, evaluated, image, made, noisy, run

from objectseeker import ObjectSeekerError
from objectseeker.cli._evaluation_tables import caveats
from objectseeker.core import boxes as core_boxes
from objectseeker.metrics import BASE_THRESHOLDS, ImageSet, ThreatModel, evaluate_images
from objectseeker.metrics.average_precision import defended_curve, undefended_curve
from objectseeker.metrics.confidence_intervals import exact_interval, resampled
from objectseeker.metrics.defended_images import DefendedImageSet
from objectseeker.metrics.evaluation import evaluation_metrics
from objectseeker.metrics.slices import NO_TAGS, measure_slices
from objectseeker.metrics.tally import Tally, TallyRequest, count_spurious, tally_images

OF_RANKS = ("defended.output_ap50", "defended.ranked_ap50")  # need every box, so sums have none


def value_in(answer, name):
    """The value of a metric in what `evaluate --json` prints; NaN where it is undefined."""
    for part in name.split("."):
        answer = answer[part]
    return np.nan if answer is None else answer


@pytest.mark.parametrize("settings", [PAPER, EVIDENCE, changed(PAPER, clean_recall=None)])
@pytest.mark.parametrize("images", [run(1, 6), noisy(3, 6)])
def test_every_metric_of_a_sample_is_that_of_the_sample_as_a_run(images, settings):
    whole = evaluate_images(images, VOCABULARY, settings)
    own = changed(settings, clean_recall=None)
    own = type(own)(rule=whole.defended.rule, threshold_schedule=own.threshold_schedule, threat=own.threat)
    found = evaluate_images(images, VOCABULARY, own, fabrication=True)
    metrics = evaluation_metrics(found)
    assert set(found.intervals) == set(metrics)
    compared = 0
    for weights in np.concatenate([np.ones((1, 6)), *resampled(6, 6, 3)]):
        repeated = [one for one, often in zip(images, weights, strict=True) for _ in range(int(often))]
        if not any((~one.ignore).any() for one in repeated):
            continue
        answer = evaluated(repeated, own, fabrication=True)
        for name, metric in metrics.items():
            value = float(metric.values(found.tally, weights[None])[0])
            assert value == pytest.approx(value_in(answer, name), nan_ok=True), name
            compared += 1
    assert compared > 5 * len(metrics) - 1
    for name, metric in metrics.items():
        value = metric.value(found.tally)
        assert value == pytest.approx(value_in(found.to_dict(), name), nan_ok=True)
        interval = found.intervals[name]
        assert interval.low <= interval.value <= interval.high or np.isnan(value)


def test_a_class_without_objects_in_the_sample_does_not_count():
    images = [
        image([(10, 10, 40, 40, 0.9, 0)], [(10, 10, 40, 40, 0)]),
        image([], [(10, 10, 40, 40, 0)]),
        image([], [(10, 10, 40, 40, 1)]),
    ]
    tally = tally_images(images, VOCABULARY, TallyRequest(settings=PAPER, curves=True))
    (curve,) = tally.curves("undefended", np.array([[1.0, 1, 1], [2, 1, 0], [0, 0, 0]]))
    assert curve.ap50_of_samples() == pytest.approx([25, 200 / 3, np.nan], nan_ok=True)
    assert curve.clean_recall[0] == pytest.approx([25, 200 / 3, np.nan], nan_ok=True)


def test_the_sum_of_all_images_has_the_same_metrics():
    images = run(7, 12, generous=1.0)
    found = evaluate_images(images, VOCABULARY, EVIDENCE, fabrication=True)
    summed = found.tally.summed()
    assert len(summed.ids) == 1
    assert summed.objects.count.sum() == len(found.tally.objects.label) > len(summed.objects.label)
    for name, metric in evaluation_metrics(found).items():
        if name in OF_RANKS:
            assert np.isnan(metric.value(summed))
        else:
            assert metric.value(summed) == pytest.approx(metric.value(found.tally), nan_ok=True), name
    for location in ("far", "anywhere"):
        threat = EVIDENCE.threat
        assert summed.objects.vacuous_count(threat, location) == found.tally.objects.vacuous_count(threat, location)


def test_a_large_run_keeps_sums_only(monkeypatch):
    images = noisy(4, 9)
    small = evaluate_images(images, VOCABULARY, EVIDENCE)
    monkeypatch.setattr("objectseeker.metrics.image_set.IMAGES_AT_A_TIME", 2)
    request = TallyRequest(settings=EVIDENCE, rule=small.defended.rule, threats=(EVIDENCE.threat,), curves=True)
    large = tally_images(images, VOCABULARY, request, max_images=8)
    assert len(large.ids) == 1
    assert large.images.count.sum() == 9
    for name in ("ap50", "clean_recall", "fppi"):
        metric = evaluation_metrics(small)[f"defended.{name}"]
        assert metric.value(large) == pytest.approx(metric.value(small.tally))
    with pytest.raises(ObjectSeekerError, match="slices need a tally per image"):
        measure_slices(large, NO_TAGS, ["size"], EVIDENCE.threat)


def test_an_evaluation_of_too_many_images_has_metrics_without_intervals_and_says_so(monkeypatch):
    images, settings = noisy(4, 9), changed(EVIDENCE, clean_recall=None)
    small = evaluate_images(images, VOCABULARY, settings, fabrication=True)
    monkeypatch.setattr("objectseeker.metrics.evaluation.MAX_TALLIED_IMAGES", 8)
    large = evaluate_images(images, VOCABULARY, settings, fabrication=True)
    assert large.intervals == {}
    expected = small.to_dict() | {"intervals": {}}
    without = {name.removeprefix("defended."): None for name in OF_RANKS}
    expected["defended"] |= without
    expected["per_class"] = [row | {name: None for name in without if name in row} for row in expected["per_class"]]
    assert large.to_dict() == expected
    assert "9 images are too many to keep a tally of each" in " ".join(caveats(large))


def tallied(images):
    return tally_images(images, VOCABULARY, TallyRequest(settings=EVIDENCE, curves=True))


def test_curves_of_parts_join_and_some_images_and_classes_can_be_taken():
    images = noisy(6, 7)

    def same(tally, other):
        one, other = tally.curve("defended"), other.curve("defended")
        return all(
            np.array_equal(getattr(one, name), getattr(other, name))
            for name in ("true_positives", "false_positives", "objects")
        )

    whole, parts = tallied(images), [tallied(images[:3]), tallied(images[3:])]
    rules = [EVIDENCE.on_curve(score) for score in BASE_THRESHOLDS.tolist()]
    scene = ImageSet.from_images(images, VOCABULARY)
    recovered = DefendedImageSet.from_settings(scene, EVIDENCE).recovered_in_dataset(rules)
    expected, curve = defended_curve(scene, BASE_THRESHOLDS, recovered), whole.curve("defended")
    for name in ("true_positives", "false_positives", "objects"):
        assert np.array_equal(getattr(curve, name), getattr(expected, name))
    assert same(Tally.concatenate(parts), whole)
    assert same(whole.of_images(np.array([5, 1])), tallied([images[5], images[1]]))
    assert same(whole.summed(), whole)
    one = whole.of_classes([1]).curve("defended")
    assert np.array_equal(one.true_positives[:, 1], curve.true_positives[:, 1])
    assert not one.objects[0]
    assert not one.true_positives[:, 0].any()
    for row in (0, 37, 99):
        (at_row,) = whole.curves("defended", np.ones((1, 7)), row)
        assert at_row.base_thresholds.tolist() == [BASE_THRESHOLDS[row]]
        assert np.array_equal(at_row.true_positives[0, 0], curve.true_positives[row])
        assert np.array_equal(at_row.false_positives[0, 0], curve.false_positives[row])


def test_samples_are_the_same_a_few_at_a_time(monkeypatch):
    images = run(5, 6, generous=1.0)
    tally = tallied(images)
    (weights,) = resampled(6, 30, 1)
    (expected,) = tally.curves("undefended", weights)
    monkeypatch.setattr(core_boxes, "MAX_CELLS", 500)
    several = list(tally.curves("undefended", weights))
    assert len(several) > 3
    ap50 = np.concatenate([curve.ap50_of_samples() for curve in several])
    assert np.array_equal(ap50, expected.ap50_of_samples(), equal_nan=True)
    scene = ImageSet.from_images(images, VOCABULARY)
    assert tally.curve("undefended").mean_ap50 == undefended_curve(scene).mean_ap50


def test_spurious_boxes_overlap_no_object_of_their_class():
    truth = [(10, 10, 40, 40, 0), (60, 60, 90, 90, 1), (10, 60, 40, 90, 0)]
    base = [(10, 10, 40, 40, 0.9, 0)]
    view = [
        (11, 60, 40, 90, 0.9, 0),  # an object the detector missed, though an ignored one
        (60, 60, 90, 90, 0.9, 0),  # an object of another class
        (60, 10, 90, 40, 0.9, 1),  # nothing
        (10, 10, 40, 39, 0.9, 0),  # filtered by a base box, so never output
        (60, 75, 90, 90, 0.9, 1),  # half an object: an IoU of 0.5
        (62, 78, 90, 90, 0.9, 1),  # less of it, but in one cluster with the half
    ]
    images = [image(base, truth, [view], ignore=[False, False, True]), image(base, truth)]
    scene = ImageSet.from_images(images, VOCABULARY)
    settings = made(alpha=0.5, beta=0.0)
    (added,) = DefendedImageSet.from_settings(scene, settings).recovered_in_dataset([settings.on_curve(0.5)])
    assert count_spurious(added, scene).tolist() == [2, 0]
    found = evaluated(images, changed(settings, clean_recall=None, base_threshold=0.5))
    assert found["defended"]["spurious_per_image"] == 1


def test_the_false_alert_rate_has_the_exact_interval():
    found = evaluate_images(noisy(5, 12), VOCABULARY, changed(PAPER, clean_recall=None))
    expected = exact_interval(found.defended.alerts, 12, 0.95)
    assert found.intervals["defended.false_alert_rate"] == expected


def test_images_without_objects_have_no_part_in_shares_of_objects():
    """They would make the interval of a recall wider, though they say nothing about it."""
    images = noisy(3, 8)
    empty = [image([], [], number=100 + n) for n in range(8)]
    settings = changed(PAPER, clean_recall=None)
    alone, extended = (evaluate_images(some, VOCABULARY, settings).intervals for some in (images, images + empty))
    for name in ("certified_recall.far", "clean_recall", "joint_certified_recall"):
        assert alone[f"defended.{name}"] == extended[f"defended.{name}"]
    assert alone["defended.fppi"] != extended["defended.fppi"]


def test_a_threat_of_two_patches_has_no_joint_certificate():
    settings = changed(PAPER, clean_recall=None, patch_count=2)
    found = evaluate_images(noisy(3, 4), VOCABULARY, settings)
    assert settings.threat == ThreatModel(count=2)
    assert found.defended.joint_certified_recall is None
    assert "defended.joint_certified_recall" not in found.intervals
