"""Windows, alone and with other masks: the fast code equals the oracle, and no attacker hides what is proven."""

import numpy as np
import oracle
import oracle_two_patches as twice
import pytest
from adversary import campaign, honest
from cases import certify, generate, one, windowed
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS

from objectseeker import Observation, Patch, Rule, Windows
from objectseeker.core import masks as masks_module
from objectseeker.core import positions
from objectseeker.core.masks import keep
from objectseeker.core.pruning import cut_by_mask
from objectseeker.core.recipes import Rolling
from objectseeker.core.rules.iou import non_overlapping
from objectseeker.core.threats import PATCH_LOCATIONS


def threats(seed, count=1):
    rng = np.random.default_rng(seed)
    return [
        Patch(float(rng.choice([0.01, 0.05, 0.15, 0.4])), float(rng.choice([1, 0.5, 2])), location, count)
        for location in PATCH_LOCATIONS
    ]


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([0.5, 0.75]), st.sampled_from([0.0, 0.25]))
def test_certificates_equal_the_oracle(seed, mask_threshold, certification_threshold):
    case = generate(seed, largest=16, make=windowed(seed), sure=(0.5, 0.9, 1.0)[seed % 3])
    observation, objects = case.observation, case.ground_truth
    patches = threats(seed) + threats(seed + 1, count=2)
    options = {"mask_threshold": mask_threshold, "certification_threshold": certification_threshold}
    fast = certify(observation, objects, patches, **options)
    for n, g in enumerate(oracle.boxes_of(objects)):
        safe = oracle.safe_masks(observation, objects, n, **options)
        assert np.flatnonzero(fast.safe[n]).tolist() == safe
        for p, patch in enumerate(patches):
            gone = twice.removed(observation, patch.size(observation.width, observation.height))
            assert (fast.certified[p, n], fast.vacuous[p, n]) == twice.certify(observation, g, patch, safe, gone)


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.sampled_from(PATCH_LOCATIONS), st.sampled_from([0.1, 0.25]))
def test_evidence_certificates_equal_the_oracle(seed, location, distance):
    case = generate(seed, largest=13, make=windowed(seed), crowd=0.9, sure=0.7)
    patch = Patch((0.01, 0.05, 0.1)[seed % 3], 1.0, location)
    options = {"mask_threshold": 0.75, "evidence_threshold": 0.1, "cluster_distance": distance}
    fast = certify(case.observation, case.ground_truth, [patch], **options)
    for n in range(len(case.ground_truth)):
        expected = oracle.certify_by_evidence(case.observation, case.ground_truth, patch, n, **options)
        assert fast.certified[0, n] == expected


def test_the_four_lines_decide_against_one_patch():
    """Two windows that prove the object: a patch escapes both iff it touches both."""
    masks = keep(100, 100, [[10, 10, 60, 60], [40, 30, 90, 90]])
    g = one([45, 40, 55, 50])
    certificates = Rule().certify(Observation(100, 100, masks, g, [g, g]), g, Patch(0.0001, location="anywhere"))
    assert certificates.safe_lines.tolist() == [[40, 30, 60, 60]]
    assert not certificates.certified.any()
    apart = keep(100, 100, [[10, 10, 49, 60], [51, 10, 90, 60]])
    certificates = Rule().certify(Observation(100, 100, apart, g, [g, g]), g, Patch(0.0001, location="anywhere"))
    assert certificates.certified.all()
    assert certificates.largest_square.tolist() == [51 - 49 + 1]


def test_a_box_is_cut_by_any_line_of_its_window_and_clear_of_all():
    masks = keep(100, 100, [[20, 20, 80, 80], [0, 20, 80, 100]])
    boxes = np.array([[22, 40, 40, 60], [40, 21, 60, 60], [40, 40, 79, 60], [40, 40, 60, 79], [30, 30, 70, 70]], float)
    assert cut_by_mask(boxes, np.zeros(5, int), masks).tolist() == [False, True, True, True, False]
    assert non_overlapping(boxes, np.zeros(5, int), masks).tolist() == [False, False, False, False, True]
    assert non_overlapping(boxes, np.ones(5, int), masks).tolist() == [True, False, False, True, True]


def test_no_certified_object_is_ever_hidden():
    score = campaign(71, 1500, make=windowed)
    assert sum(row["certified"] for row in score.values()) > 200
    assert sum(row["certified hidden"] for row in score.values()) == 0
    assert score["slicer"]["open hidden"] > 0.5 * score["slicer"]["open"]  # the attacker is strong


@pytest.mark.slow
@pytest.mark.parametrize("honestly", [True, False])
def test_the_attacker_breaks_windows_that_keep_one_pixel_more(monkeypatch, honestly):
    """Certificates that take the kept window for one pixel smaller than what is really shown."""
    monkeypatch.setattr(positions, "_classes_of", positions._classes_of.__wrapped__)  # leave nothing in the cache
    if not honestly:
        right = masks_module.Masks.removes

        def removes(self, axis, first, length):
            return right(self, axis, first, max(length - 1, 1))

        monkeypatch.setattr(masks_module.Masks, "removes", removes)
    score = campaign(73, 1500, honest, make=windowed)
    hidden = sum(row["certified hidden"] for row in score.values())
    assert hidden == 0 if honestly else hidden > 0


def test_windows_are_spread_over_frames_once_each():
    whole = Windows(1 / 2).masks(64, 48)
    shares = [Rolling(Windows(1 / 2), 4).recipe_for_frame(t).masks(64, 48) for t in range(4)]
    assert sorted(key for share in shares for key in share.keys) == sorted(whole.keys)
