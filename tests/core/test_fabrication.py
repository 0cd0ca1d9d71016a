"""Fabrication certificates: the fast code equals the oracle, and no attacker certifies what she made."""

from types import SimpleNamespace

import adversary_fabrication
import numpy as np
import oracle
import oracle_fabrication
import oracle_two_patches
import pytest
from cases import NOTHING, banded, generate, halves, observe, one, pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS, boxes

from objectseeker import Detections, Halves, IouRule, ObjectSeeker, ObjectSeekerError, Observation, Patch, Rule
from objectseeker.core.fabrication import SupportCriteria, ranking_scores
from objectseeker.core.recipes import Rolling, Windows
from objectseeker.core.temporal import earliest_uncertified_start, frame_positions_not_fabricated
from objectseeker.core.threats import PATCH_LOCATIONS

FITS = st.sampled_from([("iou", 0.3), ("iou", 0.5), ("ioa", 0.15), ("ioa", 0.0)])


def recipe(seed):
    """Masks of every kind, small enough for the oracle."""
    return [
        lambda width, height, lines: halves(width, height, min(lines, 6)),
        banded(seed),
        lambda width, height, lines: pairs(width, height, min(lines, 3)),
        lambda width, height, lines: (Windows(0.5, 0.25) + Halves(min(lines, 2))).masks(width, height),
    ][seed % 4]


def equals_the_oracle(seed, fit, count):
    rng = np.random.default_rng(seed)
    case = generate(seed, largest=(20, 10)[count - 1], make=recipe(seed), crowd=0.9, sure=(0.5, 0.9, 1.0)[seed % 3])
    observation = case.observation
    detections = Detections.concatenate([case.ground_truth, observation.base])
    area = float(rng.choice([1 / (observation.width * observation.height), 0.02, 0.1, 0.3]))
    patches = [Patch(area, float(rng.choice([1, 0.5, 2])), where, count) for where in PATCH_LOCATIONS]
    rule = Rule(
        support_threshold=float(rng.choice([0.1, 0.25, 0.5, 0.75])),
        support_fit=fit[0],
        support_overlap=fit[1],
        classwise=bool(rng.random() < 0.7),
    )
    fast = rule.certify_not_fabricated(observation, detections, patches)
    for p, patch in enumerate(patches):
        expected = oracle_fabrication.verdicts(
            observation,
            detections,
            patch,
            threshold=rule.support_threshold,
            fit=fit[0],
            overlap=fit[1],
            classwise=rule.classwise,
        )
        scores = rule.certified_scores(observation, detections, patch)
        for n, (certified, vacuous, score, safe) in enumerate(expected):
            assert np.flatnonzero(fast.safe[n]).tolist() == safe
            assert (fast.certified[p, n], fast.vacuous[p, n]) == (certified, vacuous), (patch, n)
            assert scores[n] == score, (patch, n)
        np.testing.assert_array_equal(fast.certified[p], scores >= rule.support_threshold)
    return fast.certified


@settings(max_examples=80, deadline=None)
@given(SEEDS, FITS)
def test_certificates_and_certified_scores_equal_the_oracle(seed, fit):
    equals_the_oracle(seed, fit, 1)


@settings(max_examples=30, deadline=None)
@given(SEEDS, FITS)
def test_so_they_do_against_two_patches(seed, fit):
    equals_the_oracle(seed, fit, 2)


def test_the_cases_have_both_verdicts():
    for count in (1, 2):
        verdicts = np.concatenate([equals_the_oracle(seed, ("iou", 0.3), count).ravel() for seed in range(12)])
        assert 0.1 < verdicts.mean() < 0.9


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_largest_square_equals_the_oracle(seed):
    case = generate(seed, largest=12, make=recipe(seed), crowd=0.9, generous=1.0, sure=0.8)
    fast = Rule().certify_not_fabricated(case.observation, case.ground_truth, [])
    for n, side in enumerate(fast.largest_square.tolist()):
        for tried in (side, side + 1):
            square = SimpleNamespace(
                location="anywhere", count=1, size=lambda width, height, tried=tried: (tried, tried)
            )
            if tried:
                verdict = oracle_fabrication.verdicts(
                    case.observation, case.ground_truth, square, threshold=0.2, fit="iou", overlap=0.3, classwise=True
                )[n]
                assert verdict[0] == (tried <= side)


@settings(max_examples=150, deadline=None)
@given(boxes(), boxes(), FITS)
def test_what_fits_fits_in_exact_arithmetic(m, b, fit):
    criteria = SupportCriteria(fit=fit[0], overlap=fit[1])
    fitting = criteria.fits(one(m), one(b))[0, 0]
    exact = oracle_fabrication.fits(oracle.box_of(np.array(m)), oracle.box_of(np.array(b)), *fit)
    assert exact or not fitting
    if exact and not fitting:  # only within the margin
        assert not oracle_fabrication.fits(
            oracle.box_of(np.array(m)), oracle.box_of(np.array(b)), fit[0], fit[1] + 2e-9
        )


def test_a_tie_does_not_fit():
    b, half = one([0, 0, 10, 10]), one([0, 0, 10, 5])
    for fit in ("iou", "ioa"):
        assert not SupportCriteria(fit=fit, overlap=0.5).fits(half, b).any()
        assert SupportCriteria(fit=fit, overlap=0.49).fits(half, b).all()
    assert not SupportCriteria(fit="ioa", overlap=0.1).fits(one([0, 0, 10, 10]), one([0, 0, 7, 10])).any()


def test_boxes_without_area_support_nothing_and_have_no_support():
    line = one([5, 5, 5, 9])
    for fit in ("iou", "ioa"):
        criteria = SupportCriteria(fit=fit, overlap=0.0)
        assert not criteria.fits(line, one([0, 0, 10, 10])).any()
        assert not criteria.fits(one([0, 0, 10, 10]), line).any()
        assert not criteria.fits(one([0, 0, 1e-60, 1e-60]), one([0, 0, 1e-60, 1e-60])).any()
    proven = Rule().certify_not_fabricated(observe([line]), line, [Patch(location="far")])
    assert not (proven.certified | proven.vacuous).any()
    assert Rule().certified_scores(observe([line]), line, Patch()).tolist() == [0]


# --- the attacker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("certify", [adversary_fabrication.as_certified, adversary_fabrication.by_score])
def test_no_fabricated_box_is_certified(certify):
    counts = adversary_fabrication.campaign(1, 1500, certify)
    assert counts["refuted"] == 0
    assert counts["certified"] > 30


@pytest.mark.parametrize("planted", [adversary_fabrication.one_pixel_too_small, adversary_fabrication.class_agnostic])
def test_the_attacker_finds_a_planted_mistake(planted):
    assert adversary_fabrication.campaign(1, 1500, planted)["refuted"] > 0


# --- what it says --------------------------------------------------------------------------------------------------

NINE_LINES = Halves(9)
OBJECT = one([40, 40, 60, 60])
ANYWHERE = Patch(0.01, location="anywhere")


def everywhere(label=0, score=0.9, recipe=NINE_LINES, size=100):
    masks = recipe.masks(size, size)
    return Observation(size, size, masks, OBJECT, [one([40, 40, 60, 60], score, label)] * len(masks))


def test_a_box_that_every_view_shows_is_certified_and_its_score_is_theirs():
    observation = everywhere(score=0.6)
    proven = Rule().certify_not_fabricated(observation, OBJECT, ANYWHERE)
    assert proven.certified.all()
    assert Rule().certified_scores(observation, OBJECT, ANYWHERE).tolist() == [0.6]
    assert Rule(edge_factor=0.1).certified_scores(observation, OBJECT, ANYWHERE).tolist() == [0.6]


def test_a_box_that_only_the_untouched_image_shows_is_not():
    masks = Halves(9).masks(100, 100)
    observation = Observation(100, 100, masks, OBJECT, [NOTHING] * len(masks))
    for location in PATCH_LOCATIONS:
        assert not Rule().certify_not_fabricated(observation, OBJECT, Patch(0.01, location=location)).certified.any()
    assert Rule().certified_scores(observation, OBJECT, ANYWHERE).tolist() == [0]


def test_a_flipped_label_is_not_certified_unless_labels_are_ignored():
    observation = everywhere(label=1)
    assert not Rule().certify_not_fabricated(observation, OBJECT, ANYWHERE).certified.any()
    assert Rule(classwise=False).certify_not_fabricated(observation, OBJECT, ANYWHERE).certified.all()


def test_a_patch_that_hangs_over_the_border_is_removed_by_masks_of_that_border():
    """The box is in the corner; the only views that support it remove the far borders."""
    corner = one([0, 0, 20, 20])
    masks = Halves(4).masks(100, 100)  # lines at 20, 40, 60, 80
    right = [kept == [0, 0, 40, 100] for kept in masks.rectangle.tolist()]
    observation = Observation(100, 100, masks, corner, [corner if shows else NOTHING for shows in right])
    tall = Patch(1.0, 0.01, "far")  # 10 x 1,000 pixels
    assert tall.size(100, 100) == (10, 1000)
    assert Rule().certify_not_fabricated(observation, corner, Patch(0.01, location="far")).certified.all() is np.False_
    gone = oracle_two_patches.removed(observation, (10, 1000))
    expected = oracle_fabrication.verdicts(
        observation, corner, tall, threshold=0.2, fit="iou", overlap=0.3, classwise=True
    )[0]
    assert gone.any()
    assert Rule().certify_not_fabricated(observation, corner, tall).certified[0, 0] == expected[0]


def test_a_hull_is_certified_by_boxes_that_fit_the_hull():
    """Two halves of an object make one hull; neither fits it by IoU above .5, so nothing supports it."""
    halves_seen = [one([0, 0, 50, 100]), one([50, 0, 100, 100])]
    masks = Halves(9).masks(100, 100)
    observation = Observation(100, 100, masks, NOTHING, [halves_seen[m % 2] for m in range(len(masks))])
    hull = one([0, 0, 100, 100])
    strict = Rule(support_overlap=0.5)
    assert not strict.certify_not_fabricated(observation, hull, ANYWHERE).certified.any()


def test_the_iou_rule_has_the_settings_of_the_rule_behind_it():
    rule = IouRule().with_settings(support_threshold=0.55, support_fit="ioa", support_overlap=0.1)
    assert rule.support_criteria == SupportCriteria(threshold=0.55, fit="ioa", overlap=0.1)
    observation = everywhere(score=0.5)
    assert not rule.certify_not_fabricated(observation, OBJECT, ANYWHERE).certified.any()
    assert IouRule().certify_not_fabricated(observation, OBJECT, ANYWHERE).certified.all()


def test_the_defended_detector_certifies_what_it_observed_only():
    seeker = ObjectSeeker(lambda images: [OBJECT for _ in images], Rule(), masks=Halves(9))
    (observation,) = seeker.observe([np.zeros((100, 100, 3), np.uint8)])
    assert seeker.certify_not_fabricated(observation, OBJECT, ANYWHERE).certified.all()
    assert seeker.certified_scores(observation, OBJECT, ANYWHERE).tolist() == [0.9]
    other = ObjectSeeker(seeker.detector, Rule(), masks=Halves(8))
    for certify in (other.certify_not_fabricated, other.certified_scores):
        with pytest.raises(ObjectSeekerError, match="other masks"):
            certify(observation, OBJECT, ANYWHERE)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("support_threshold", 0),
        ("support_threshold", 1.5),
        ("support_fit", "giou"),
        ("support_overlap", -0.1),
    ],
)
def test_settings_that_make_no_sense_are_rejected(setting, value):
    with pytest.raises(ObjectSeekerError, match=setting):
        Rule(**{setting: value})


# --- jointly, and over time ----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_jointly_at_most_as_many_are_fabricated_as_lack_support_at_the_worst_position(seed):
    case = generate(seed, largest=14, make=(halves_of_few, banded(seed))[seed % 2], crowd=0.9, sure=0.8)
    observation, patch = case.observation, Patch((0.02, 0.1)[seed % 2], location="anywhere")
    detections = Detections.concatenate([case.ground_truth, observation.base])
    joint = Rule().certify_jointly_not_fabricated(observation, detections, patch)
    gone = oracle_two_patches.removed(observation, patch.size(observation.width, observation.height))
    lacking = np.zeros(gone.shape[1:], int)
    for n, b in enumerate(oracle.boxes_of(detections)):
        scores = oracle_fabrication.support(observation, detections, n, fit="iou", overlap=0.3, classwise=True)
        safe = [mask for mask, score in scores.items() if score >= 0.2]
        visible = oracle.size(b) > 0 and oracle.seen(b, observation.width, observation.height)
        lacking += ~gone[safe].any(axis=0) if visible else 1
    assert len(detections) - joint.count == lacking.max()


def halves_of_few(width, height, lines):
    return halves(width, height, min(lines, 6))


def test_a_track_has_support_in_a_window_of_rolling_masks():
    """Each frame shows an eighth of the masks: none certifies alone, the window does while the patch moves slowly."""
    rolling, rule = Rolling(Halves(15), 8), Rule()
    frames = [everywhere(recipe=rolling.recipe_for_frame(t)) for t in range(8)]
    track = [frame_positions_not_fabricated(rule, frame, OBJECT, ANYWHERE)[0] for frame in frames]
    alone = [rule.certify_not_fabricated(frame, OBJECT, ANYWHERE).certified[0, 0] for frame in frames]
    assert [frame.certified for frame in track] == alone
    assert earliest_uncertified_start(track, max_motion=1)[-1] > 0
    unseen = [frame_positions_not_fabricated(rule, frame, one([0, 0, 9, 9]), ANYWHERE)[0] for frame in frames]
    assert earliest_uncertified_start(unseen, max_motion=1)[-1] == 0


def test_boxes_rank_by_the_mean_of_base_score_and_certified_score():
    base, certified = np.array([0.75, 0.5, 0.0, 0.0]), np.array([0.0, 1.0, 0.25, 0.0])
    scores = np.array([0.75, 0.5, 0.75, 0.75])  # the last two are recovered
    assert ranking_scores(base, scores, certified).tolist() == [0.375, 0.5, 0.125, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_score_that_no_allowed_position_concerns_is_certified_whole(count):
    whole = one([0, 0, 100, 100], 0.4)  # no position is far from it
    observation = Observation(100, 100, NINE_LINES.masks(100, 100), whole, [NOTHING] * 36)
    far = Patch(0.01, location="far", count=count)
    assert Rule().certify_not_fabricated(observation, whole, far).vacuous.all()
    assert Rule().certified_scores(observation, whole, far).tolist() == [1.0]
