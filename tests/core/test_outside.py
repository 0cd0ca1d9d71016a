"""Any number of patches outside the grown box, and several patches anywhere: literal oracles and an attacker."""

import numpy as np
import oracle
import oracle_outside
import pytest
from adversary_outside import campaign
from cases import certify, generate, halves, one, pairs, windowed
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS

from objectseeker import Detections, Halves, ObjectSeekerError, Observation, Patch, Rule, Windows
from objectseeker.core import certification
from objectseeker.core.masks import keep
from objectseeker.core.temporal import frame_positions
from objectseeker.core.threats import PATCH_LOCATIONS, PatchPositions


def threats(seed):
    rng = np.random.default_rng(seed)
    area = float(rng.choice([0.01, 0.05, 0.15]))
    locations = [str(location) for location in rng.permutation(PATCH_LOCATIONS)]
    return [
        Patch(location="outside"),
        Patch(area, location=locations[0], with_outside=True),
        Patch(area, location=locations[1], count=2, with_outside=True),
        Patch(area, location=locations[2], count=3),
        Patch(area, location=locations[3], count=3, with_outside=True),
    ]


def makers(seed):
    return (windowed(seed), windowed(seed), halves, pairs)[seed % 4]


def agrees_with_the_oracle(seed, evidence_threshold=None, cluster_distance=0.1):
    case = generate(seed, smallest=4, largest=11, lines=1 + seed % 3, make=makers(seed), sure=(0.6, 0.9, 1.0)[seed % 3])
    patches = threats(seed)
    options = {
        "mask_threshold": 0.5 if evidence_threshold is None else 0.75,
        "evidence_threshold": evidence_threshold,
        "cluster_distance": cluster_distance,
    }
    fast = certify(case.observation, case.ground_truth, patches, **options).certified
    for p, patch in enumerate(patches):
        for n in range(len(case.ground_truth)):
            expected = oracle_outside.certify(case.observation, case.ground_truth, n, patch, **options)
            assert fast[p, n] == expected, (seed, patch, n)
    return fast


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_certificates_equal_the_oracle(seed):
    agrees_with_the_oracle(seed)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([0.1, 0.3]))
def test_evidence_certificates_equal_the_oracle(seed, distance):
    agrees_with_the_oracle(seed, 0.1, distance)


def test_the_cases_have_both_verdicts_of_every_threat():
    verdicts = np.concatenate([agrees_with_the_oracle(seed) for seed in range(40)], axis=1)
    assert verdicts.any(axis=1).all()
    assert not verdicts.all(axis=1).any()


@settings(max_examples=200)
@given(SEEDS)
def test_the_grown_box_is_rounded_inwards(seed):
    case = generate(seed, largest=30)
    width, height = case.observation.width, case.observation.height
    grown = PatchPositions.of(case.ground_truth.xyxy, width, height).grown()
    for g, (x1, y1, x2, y2) in zip(oracle.boxes_of(case.ground_truth), grown.tolist(), strict=True):
        bitmap = np.zeros((height, width), bool)
        if x1 < x2 and y1 < y2:
            bitmap[y1:y2, x1:x2] = True
        assert np.array_equal(bitmap, oracle_outside.grown_pixels(g, width, height))


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_patches_that_are_far_or_touch_nothing_of_the_grown_box_are_part_of_the_outside(seed):
    """A certificate against the outside covers any number of patches at far and outside positions."""
    case = generate(seed, smallest=5, largest=12, make=windowed(seed), sure=0.9)
    outside = certify(case.observation, case.ground_truth, Patch(location="outside"), mask_threshold=0.5).certified[0]
    far = [Patch(0.04, location="far", count=count) for count in (1, 2, 4)]
    assert (certify(case.observation, case.ground_truth, far, mask_threshold=0.5).certified | ~outside).all()
    width, height = case.observation.width, case.observation.height
    size = Patch(0.04).size(width, height)
    allowed = PatchPositions.of(case.ground_truth.xyxy, width, height).allowed(
        "outside", np.tile(size, (len(case.ground_truth), 1))
    )
    for g, rectangles in zip(oracle.boxes_of(case.ground_truth), allowed, strict=True):
        inside = oracle_outside.grown_pixels(g, width, height)
        for y in range(1 - size[1], height):
            for x in range(1 - size[0], width):
                touches = inside[max(y, 0) : y + size[1], max(x, 0) : x + size[0]].any()
                listed = any(r[0] <= x <= r[2] and r[1] <= y <= r[3] for r in rectangles)
                assert listed == (not touches)


def test_an_object_that_fills_the_image_is_not_certified_for_nothing():
    """Nothing is outside its grown box, but no view proves it either: a certificate that promises nothing is none."""
    g = one([0, 0, 100, 100])
    masks = Windows(1 / 2).masks(100, 100)
    blind = Observation(100, 100, masks, g, [Detections.empty()] * len(masks))
    found = Rule().certify(blind, g, Patch(location="outside"))
    assert not found.certified.any()
    assert not found.vacuous.any()
    assert Rule().certify(Observation(100, 100, masks, g, [g] * 9), g, Patch(location="outside")).certified.all()


def test_weak_views_inside_add_up_and_one_outside_does_not():
    masks = keep(100, 100, [[20, 20, 80, 80], [25, 25, 75, 75], [0, 20, 80, 80]])
    g, weak = one([30, 30, 70, 70]), one([30, 30, 70, 70], 0.55)
    rule = Rule(mask_threshold=1.0, evidence_threshold=0.0)

    def certified(shown):
        return bool(rule.certify(Observation(100, 100, masks, g, shown), g, Patch(location="outside")).certified[0, 0])

    nothing = Detections.empty()
    assert certified([weak, weak, nothing])
    assert not certified([weak, nothing, weak])
    assert not certified([weak, nothing, nothing])


def test_as_many_views_apart_as_patches_and_one_more_certify():
    """Four windows that share no column: three patches can touch three of them, four can touch all."""
    masks = keep(100, 10, [[0, 0, 10, 10], [30, 0, 40, 10], [60, 0, 70, 10], [90, 0, 100, 10]])
    g = one([0, 0, 100, 10])
    seen = Observation(100, 10, masks, g, [g] * 4)
    patches = [Patch(0.01, location="anywhere", count=count) for count in (1, 2, 3, 4, 5)]
    assert certify(seen, g, patches, mask_threshold=0.5).certified[:, 0].tolist() == [True, True, True, False, False]


def test_a_search_that_ends_early_certifies_nothing(monkeypatch):
    masks = keep(100, 10, [[0, 0, 10, 10], [30, 0, 40, 10], [60, 0, 70, 10], [90, 0, 100, 10]])
    g = one([0, 0, 100, 10])
    monkeypatch.setattr(certification, "MAX_SEARCH", 2)
    three = Patch(0.01, location="anywhere", count=3)
    assert not certify(Observation(100, 10, masks, g, [g] * 4), g, three, mask_threshold=0.5).certified.any()


def test_jointly_the_object_that_carries_a_patch_and_those_that_do_not():
    """One patch is at one place: of two objects far apart at least one remains, whatever is drawn outside of both."""
    masks = keep(100, 40, [[5, 6, 35, 34], [65, 6, 95, 34], [0, 0, 50, 40]])
    objects = Detections([[10, 10, 30, 30], [70, 10, 90, 30]], [0.9, 0.9], [0, 0])
    seen = Observation(100, 40, masks, objects, [objects[:1], objects[1:], objects[:1]])
    rule, patch = Rule(), Patch(0.01, location="anywhere", with_outside=True)
    assert rule.certify_jointly(seen, objects, patch).count == 1
    assert not rule.certify(seen, objects, patch).certified.any()
    assert rule.certify(seen, objects, Patch(location="outside")).certified.all()
    only_wide = Observation(100, 40, masks, objects, [objects[:0], objects[1:], objects[:1]])
    assert rule.certify_jointly(only_wide, objects, patch).count == 0  # the wide view shows the outside, too
    assert rule.certify_jointly(only_wide, objects, Patch(0.01, location="anywhere")).count == 1


def test_one_patch_and_the_outside_is_never_easier_than_either():
    for seed in range(60):
        case = generate(seed, largest=14, make=windowed(seed), sure=0.95)
        patches = [
            Patch(0.02, location="over", with_outside=True),
            Patch(0.02, location="over"),
            Patch(location="outside"),
        ]
        both, alone, outside = certify(case.observation, case.ground_truth, patches, mask_threshold=0.5).certified
        assert not (both & ~(alone & outside)).any()


def test_certificates_over_time_are_about_positions():
    case = generate(1, make=windowed(1))
    for patch in (Patch(location="outside"), Patch(with_outside=True), Patch(count=3)):
        with pytest.raises(ObjectSeekerError, match="certificates over time need one patch at one position"):
            frame_positions(Rule(), case.observation, case.ground_truth, patch)


def test_fabrication_has_the_same_certificate():
    """A box that a window inside its grown box supports was made by nothing outside of it."""
    g = one([30, 30, 70, 70])
    masks = Windows(2 / 3, 1 / 6).masks(100, 100)
    patch = Patch(location="outside")
    for shown, expected in ((g, True), (Detections.empty(), False)):
        views = [shown if kept == [16, 16, 84, 84] else Detections.empty() for kept in masks.rectangle.tolist()]
        seen = Observation(100, 100, masks, g, views)
        wide = one([25, 25, 75, 75])
        assert Rule().certify_not_fabricated(seen, wide, patch).certified[0, 0] == expected
        assert not Rule().certify_not_fabricated(seen, one([40, 40, 60, 60]), patch).certified.any()


def test_no_certified_object_is_ever_hidden():
    score = campaign(5, 1200)
    assert sum(row["certified"] for row in score.values()) > 150
    assert sum(row["certified hidden"] for row in score.values()) == 0
    assert sum(row["open hidden"] for row in score.values()) > 100


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["none", "grown", "search"])
def test_the_attacker_finds_a_planted_mistake(monkeypatch, mistake):
    """A grown box rounded outwards, or a search that forgets the last patch."""
    if mistake == "grown":
        honest = PatchPositions.grown
        monkeypatch.setattr(PatchPositions, "grown", lambda self: honest(self) + np.array([-1, -1, 1, 1]))
    if mistake == "search":
        withstands = certification.ObjectProof.withstands
        monkeypatch.setattr(
            certification.ObjectProof,
            "withstands",
            lambda self, grids, classes, count: withstands(self, grids, classes, count - 1),
        )
    hidden = sum(row["certified hidden"] for row in campaign(9, 3000).values())
    assert hidden == 0 if mistake == "none" else hidden > 0


def test_half_masks_withstand_the_outside_only_where_they_keep_nothing_of_it():
    masks = Halves(9).masks(100, 100)
    for box, expected in (([0, 0, 90, 90], True), ([10, 10, 30, 30], False)):
        g = one(box)
        found = Rule().certify(Observation(100, 100, masks, g, [g] * len(masks)), g, Patch(location="outside"))
        assert found.certified.tolist() == [[expected]]
