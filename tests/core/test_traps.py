"""Mistakes that earlier code made, each as a regression test."""

import numpy as np
from cases import certify, one, prune

from objectseeker import Detections, Halves, ObjectSeeker, Observation, Patch, Rule

EVERYWHERE = [Patch(0.01, 1.0, where) for where in ("far", "close", "over", "anywhere")]


def test_a_detector_that_sees_the_object_only_in_the_untouched_image_certifies_nothing():
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)

    def only_untouched(images):
        return [one([30, 20, 50, 40]) if np.array_equal(i, image) else Detections.empty() for i in images]

    seeker = ObjectSeeker(only_untouched, Rule(mask_threshold=0.5), masks=Halves(5))
    (observation,) = seeker.observe([image])
    assert len(observation.base) == 1
    verdict = seeker.certify(observation, observation.base, EVERYWHERE)
    assert not verdict.certified.any()
    assert not verdict.safe.any()
    assert verdict.largest_square.tolist() == [0]


def test_no_suppression_between_masked_boxes():
    """Two views disagree on a box; the proof may rest on the weaker one, so both must reach the output."""
    masks = Halves(1).masks(100, 100)
    good, louder = one([40, 40, 60, 60], 0.8), one([47, 40, 67, 60], 0.99)
    masked = [good, louder, Detections.empty(), Detections.empty()]
    base = one([52.5, 40, 75, 60])  # explains the louder box by 0.72 of it, the good one by 0.38
    found = prune(Observation(100, 100, masks, base, masked), mask_threshold=0.7)
    assert [40.0, 40.0, 60.0, 60.0] in found.xyxy.tolist()


def test_every_cluster_has_its_own_score():
    masks = Halves(1).masks(100, 100)
    masked = [one([0, 0, 20, 20], 0.75), one([60, 60, 90, 90], 0.95), Detections.empty(), Detections.empty()]
    found = prune(Observation(100, 100, masks, Detections.empty(), masked), mask_threshold=0.7)
    assert sorted(found.score.tolist()) == [0.75, 0.95]


def test_labels_stay_apart_however_large_the_image():
    """Shifting boxes by label * 4096 would let these two meet."""
    masks = Halves(1).masks(9000, 50)
    masked = [one([4096, 0, 4196, 40], 0.9, 0), one([0, 0, 100, 40], 0.9, 1), Detections.empty(), Detections.empty()]
    base = Detections([[0, 0, 100, 40], [4096, 0, 4196, 40]], [0.9, 0.9], [0, 1])
    observation = Observation(9000, 50, masks, base, masked)
    assert len(prune(observation)) == 4
    assert len(prune(observation, classwise=False)) == 2


def test_lines_do_not_leave_the_image_and_none_is_lost():
    """One rounded stride times t runs off a short axis; zipping two axes loses lines of the longer one."""
    masks = Halves(30).masks(31, 200)
    assert sum(masks.is_line[:, 0]) == 30
    assert sum(masks.is_line[:, 1]) == 30
    assert (masks.rectangle[masks.is_line[:, 0], 0] < 31).all()


def test_a_patch_that_straddles_the_line_is_not_removed():
    """Both halves of one line are safe: only a patch on the line itself survives, and one exists at every width > 1."""
    masks = Halves(1).masks(100, 100)
    g = one([10, 10, 90, 90])
    observation = Observation(100, 100, masks, g, [g] * 4)
    verdict = certify(
        observation, g, [Patch(0.0001, 1.0, "anywhere"), Patch(0.0004, 1.0, "anywhere")], mask_threshold=0.5
    )
    assert verdict.certified[:, 0].tolist() == [True, False]
    assert verdict.largest_square.tolist() == [1]


def test_a_mask_threshold_tie_counts_and_less_does_not():
    masks = Halves(1).masks(100, 100)
    g = one([10, 10, 90, 90], 0.5)
    observation = Observation(100, 100, masks, g, [g] * 4)
    assert certify(observation, g, EVERYWHERE[0], mask_threshold=0.5).safe.all()
    assert not certify(observation, g, EVERYWHERE[0], mask_threshold=np.nextafter(0.5, 1)).safe.any()


def test_objects_without_a_far_position_are_vacuous():
    masks = Halves(1).masks(100, 100)
    g = one([5, 5, 95, 95])
    observation = Observation(100, 100, masks, g, [Detections.empty()] * 4)
    verdict = certify(observation, g, EVERYWHERE, mask_threshold=0.5)
    assert verdict.vacuous[:, 0].tolist() == [True, False, False, False]
    assert verdict.certified[:, 0].tolist() == [True, False, False, False]


def test_degenerate_objects_are_never_certified():
    masks = Halves(3).masks(100, 100)
    whole = one([0, 0, 100, 100])
    observation = Observation(100, 100, masks, whole, [whole] * len(masks))
    truth = Detections([[5, 5, 5, 50], [200, 200, 220, 220], [20, 20, 80, 80]], np.ones(3), np.zeros(3))
    verdict = certify(observation, truth, EVERYWHERE, mask_threshold=0.5)
    assert not verdict.certified[:, :2].any()
    assert verdict.largest_square[:2].tolist() == [0, 0]
    assert verdict.certified[:, 2].all()


def test_a_class_the_detector_does_not_know_is_not_certified():
    masks = Halves(3).masks(100, 100)
    seen = one([20, 20, 80, 80], label=3)
    observation = Observation(100, 100, masks, seen, [seen] * len(masks))
    stranger = one([20, 20, 80, 80], label=77)
    assert not certify(observation, stranger, EVERYWHERE, mask_threshold=0.5).certified.any()
    assert certify(observation, stranger, EVERYWHERE, mask_threshold=0.5, classwise=False).certified.all()


def test_a_patch_larger_than_the_image_leaves_nothing_certified_over():
    masks = Halves(3).masks(40, 40)
    g = one([10, 10, 30, 30])
    observation = Observation(40, 40, masks, g, [g] * len(masks))
    for aspect in (1.0, 1.5, 0.5):
        assert not certify(observation, g, Patch(1.0, aspect, "over"), mask_threshold=0.5).certified.any()
    thin = Patch(1.0, 1000.0, "over")  # 1265 x 2 pixels: longer than the image, but no higher than a mask removes
    assert thin.size(40, 40) == (1265, 2)
    assert certify(observation, g, thin, mask_threshold=0.5).certified.all()
