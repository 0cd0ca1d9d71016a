"""At most N false positives per image: the third way to choose an operating point, and images in several processes."""

import dataclasses
import itertools

import numpy as np
import pytest
from evaluation_cases import (
    EVIDENCE,
    PAPER,
    VOCABULARY,
    changed,
    count_literally,
    evaluated,
    image,
    noisy,
    outputs,
    run,
)

from objectseeker import ObjectSeekerError
from objectseeker.metrics import BASE_THRESHOLDS, SearchSpace, SearchSpec, evaluate_images, tune_images
from objectseeker.metrics.average_precision import Curve
from objectseeker.metrics.image_set import split_images

IMAGES = run(5, 5, generous=1.0, lines=3)
MOST = 3.0  # false positives per image: those images are full of them


def at(settings, most):
    return settings.at_fppi(most)


def point_literally(wrong, most):
    """The smallest base_threshold such that there and at every larger one there are at most N."""
    fine = [score for score in range(100) if all(one <= most for one in wrong[score:])]
    return BASE_THRESHOLDS[min(fine)] if fine else None


@pytest.mark.parametrize("settings", [PAPER, EVIDENCE])
def test_the_point_is_where_boxes_counted_one_by_one_put_it(settings):
    """Ignored objects and crowds are among the objects: a box on one of them is not wrong."""
    scores = BASE_THRESHOLDS.tolist()
    counted = [count_literally([(one, outputs(one, settings, score, True)) for one in IMAGES]) for score in scores]
    defended = [sum(one.wrong.values()) / len(IMAGES) for one in counted]
    base = [[(one, one.observation.base[one.observation.base.score >= score]) for one in IMAGES] for score in scores]
    undefended = [sum(count_literally(pairs).wrong.values()) / len(IMAGES) for pairs in base]
    assert len(set(defended)) > 3
    most = sorted(defended)[40]
    found = evaluate_images(IMAGES, VOCABULARY, at(settings, most))
    curves = (found.defended.curve, defended), (found.undefended.curve, undefended)
    for (curve, wrong), asked in itertools.product(curves, (0.0, *sorted({*defended, *undefended}), 0.7, 100.0)):
        row = curve.row_at_fppi(asked)
        assert (None if row is None else BASE_THRESHOLDS[row]) == point_literally(wrong, asked)
    assert found.defended.base_threshold == point_literally(defended, most)
    assert found.defended.fppi == defended[scores.index(found.defended.base_threshold)] <= most
    point = found.undefended.at_point()
    assert point["base_threshold"] == point_literally(undefended, most)
    assert point["fppi"] == undefended[scores.index(point["base_threshold"])]
    assert point["clean_recall"] == found.undefended.curve.clean_recall[scores.index(point["base_threshold"])]


def test_fewer_fppi_at_a_evidence_threshold_do_not_count_if_there_are_more_at_a_higher_one():
    """The base box filters what masks see; without it, above .5, that is output and finds nothing."""
    seen = [[(10, 10, 30, 20, 0.9, 0)]] * 4
    hidden = image([(10, 10, 50, 50, 0.5, 0)], [(10, 10, 50, 50, 0)], seen)
    settings = changed(PAPER, alpha=0.1, beta=0.0, clean_recall=None)
    curve = evaluate_images([hidden], VOCABULARY, at(settings, 0)).defended.curve
    assert curve.fppi[[50, 51, 90, 91]].tolist() == [0, 1, 1, 0]
    assert evaluate_images([hidden], VOCABULARY, at(settings, 0)).defended.base_threshold == 0.91
    assert evaluate_images([hidden], VOCABULARY, at(settings, 1)).defended.base_threshold == 0.0


def test_no_point_lies_where_base_boxes_are_not_known():
    """A run keeps them at or above a floor: how many are wrong below it is unknown."""
    good = image([(10, 10, 50, 50, 0.5, 0)], [(10, 10, 50, 50, 0)])
    settings = at(changed(PAPER, clean_recall=None), 0.5)
    for floor, base_threshold in ((0.0, 0.0), (0.01, 0.01), (0.015, 0.02), (1.0, None)):
        found = evaluate_images([good], VOCABULARY, dataclasses.replace(settings, base_floor=floor))
        assert found.defended.base_threshold == base_threshold


def test_a_share_that_is_met_exactly_is_met():
    for images, wrong, most in ((10, 1, 0.1), (3, 1, 1 / 3), (700, 49, 0.07), (10, 3, 0.3)):
        curve = Curve(np.array([0.5]), np.array([[1]]), np.array([[wrong]]), np.array([1]), images)
        assert curve.row_at_fppi(most) == 0
        assert curve.row_at_fppi(most * (1 - 1e-12)) is None


def test_what_is_never_reached_is_said_and_not_made_up():
    always = image([(0, 0, 9, 9, 1.0, 0)], [(50, 50, 60, 60, 0)])
    found = evaluate_images([always], VOCABULARY, at(changed(PAPER, clean_recall=None), 0.5))
    assert (found.defended.rule, found.undefended.point) == (None, None)
    assert found.caveats == [
        "at most 0.5 false positives per image cannot be reached: there are 1 even at the highest base_threshold, "
        "0.99; allow more with --fppi"
    ]
    answer = found.to_dict()
    assert answer["operating_point"]["selected_by"] == "fppi"
    assert answer["operating_point"]["fppi"] == 0.5
    assert answer["undefended"]["clean_recall"] is None
    assert answer["defended"]["certified_recall"]["far"] is None


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"fppi": 1, "clean_recall": 0.8}, "is possible: got clean_recall=0.8, fppi=1"),
        ({"fppi": 1, "base_threshold": 0.3}, "is possible: got base_threshold=0.3, fppi=1"),
        ({"fppi": -0.5}, "at least 0: got -0.5"),
        ({"fppi": float("nan")}, "finite: got nan"),
    ],
)
def test_one_point_that_can_be(point, message):
    with pytest.raises(ObjectSeekerError, match=message):
        dataclasses.replace(changed(PAPER, clean_recall=None), **point)


def test_a_search_at_so_many_fppi_keeps_them():
    images = noisy(4, 8)
    one = SearchSpace((0.6,), (1.0,), (0.1,))
    search = SearchSpec(mask_floor=0.2, fppi=0.2, losses=(), max_ap_loss=20, rule_kinds=("paper",), search_space=one)
    tuning = tune_images(images, VOCABULARY, search)
    best = tuning.best
    for half, trial in zip(split_images(8, 2, 0), (best.search_split, best.held_out_split), strict=True):
        fixed = dataclasses.replace(best.search_split.settings, rule=best.rule, fppi=None)
        table = evaluated([images[n] for n in half], fixed)
        assert trial.outcome.fppi == table["defended"]["fppi"]
        assert trial.outcome.base_threshold == table["defended"]["base_threshold"]
    assert best.search_split.outcome.fppi <= 0.2
    table = evaluated([images[n] for n in split_images(8, 2, 0)[0]], best.search_split.settings)
    assert best.search_split.undefended_clean_recall == table["undefended"]["clean_recall"]
    assert tuning.threshold_reason == "a base_threshold with at most 0.2 false positives per image"
    with pytest.raises(ObjectSeekerError, match=r"one of them: got fppi=0\.2, clean_recall=0\.5"):
        dataclasses.replace(search, clean_recall=0.5)
    never = [image([(0, 0, 9, 9, 1.0, 0)], [(50, 50, 60, 60, 0)])] * 4
    with pytest.raises(ObjectSeekerError, match=r"no setting gives at most 0.2 .*; the fewest .* are 1, so allow more"):
        tune_images(never, VOCABULARY, search)


def test_several_processes_give_the_same_to_the_last_bit():
    """Where only the curve says where the point is, the images are read twice."""
    images, settings = noisy(4, 6), at(EVIDENCE, 0.5)
    seen = []
    alone = evaluate_images(images, VOCABULARY, settings)
    shared = evaluate_images(images, VOCABULARY, settings, processes=2, on_image=lambda: seen.append(1))
    assert repr(shared.to_dict()) == repr(alone.to_dict())
    assert shared.defended.remaining == alone.defended.remaining > 0
    assert len(seen) == 2 * len(images)
