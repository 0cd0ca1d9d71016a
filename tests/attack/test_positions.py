"""The certificate taken apart: position by position it says what the certificate says of all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
from cases import generate

from objectseeker import Bands, Halves, IouRule, ObjectSeeker, Pairs, Patch, Rule
from objectseeker.attack.pipeline import Pipeline, Target, paste, pixels_under
from objectseeker.attack.placement import PositionCertificates, removing_masks
from objectseeker.core.certification import visible_area
from objectseeker.core.threats import PatchPositions

RULES = (
    Rule(mask_threshold=0.5),
    Rule(mask_threshold=0.75, evidence_threshold=0.1),
    Rule(mask_threshold=0.5, classwise=False),
    IouRule(ioa_rule=Rule(mask_threshold=0.25), filter_iou=0.9),
)
RECIPES = (Halves(3), Pairs(2), Bands(0.05), Halves(2) + Bands(0.05, spacing=0.5))


def pipeline(rule, threshold=None, masks=RECIPES[0]):
    return Pipeline.from_seeker(ObjectSeeker(lambda images: [], rule, masks=masks), threshold)


def targets(seed, sure=0.6, masks=RECIPES[0], largest=14):
    make = lambda width, height, lines: masks.masks(width, height)  # noqa: E731
    case = generate(seed, largest=largest, lines=3, generous=sure, sure=sure, make=make)
    observation = case.observation
    image = np.zeros((observation.height, observation.width, 3), np.uint8)
    visible = visible_area(case.ground_truth.xyxy, observation.width, observation.height) > 0
    return [
        Target("case", n, image, observation, case.ground_truth.xyxy[n], (int(case.ground_truth.label[n]),))
        for n in np.flatnonzero(visible)
    ]


def certificates(pipeline, target, patch):
    return PositionCertificates.from_target(pipeline, target, patch.size(*target.image_size))


def allowed_corners(target, patch):
    size = patch.size(*target.image_size)
    rectangles = PatchPositions.of(target.box[None], *target.image_size).allowed(patch.location, np.array([size]))[0]
    return {(x, y) for x1, y1, x2, y2 in rectangles.tolist() for x in range(x1, x2 + 1) for y in range(y1, y2 + 1)}


def test_an_object_is_certified_iff_every_position_is_proven():
    counts = {True: 0, False: 0}
    for seed in range(60):
        for target in targets(seed):
            for number, rule in enumerate(RULES[:3]):
                patch = Patch(0.05, (1.0, 3.0)[seed % 2], ("over", "far", "close", "anywhere")[(seed + number) % 4])
                pipe = pipeline(rule, threshold=0.25 * (seed % 3 == 0))
                certificate = rule.certify(
                    target.observation, target.ground_truth, patch, certification_threshold=pipe.certification_threshold
                )
                assert pipe.certify(target, patch)[0] == certificate.certified[0, 0]
                proofs = certificates(pipe, target, patch)
                proven = all(proofs.position_at(np.array([corner])).proven for corner in allowed_corners(target, patch))
                assert proven == certificate.certified[0, 0]
                counts[proven] += 1
    assert min(counts.values()) > 30


@pytest.mark.parametrize("masks", RECIPES[1:], ids=str)
@pytest.mark.parametrize("rule", RULES[::2] + RULES[1::2], ids=range(4))
def test_so_it_is_with_every_recipe_and_rule(rule, masks):
    verdicts = set()
    for seed in range(18):
        for target in targets(seed, sure=(0.95, 0.05)[seed % 2], masks=masks, largest=20):
            patch = Patch(0.03, 1.0, ("over", "anywhere", "far")[seed % 3])
            pipe = pipeline(rule, masks=masks)
            proofs = certificates(pipe, target, patch)
            proven = {proofs.position_at(np.array([corner])).proven for corner in allowed_corners(target, patch)}
            assert all(proven) == pipe.certify(target, patch)[0]
            verdicts |= proven
    assert verdicts == {True, False}


@pytest.mark.parametrize("rule", RULES[:2], ids=range(2))
def test_two_patches_are_proven_iff_every_two_positions_are(rule):
    verdicts = set()
    for seed in range(25):
        masks = (Pairs(2), Halves(3))[seed % 2]
        for target in targets(seed, sure=0.95, masks=masks, largest=10):
            patch = Patch(0.01, 1.0, "over", 2)
            pipe = pipeline(rule, masks=masks)
            proofs = certificates(pipe, target, patch)
            corners = sorted(allowed_corners(target, patch))
            proven = all(proofs.position_at(np.array([a, b])).proven for a in corners for b in corners if a <= b)
            assert proven == pipe.certify(target, patch)[0]
            verdicts.add(proven)
            chosen = certificates(pipe, target, patch).weakest(patch, 2, np.random.default_rng(seed))
            assert {corner for position in chosen for corner in position.corners} <= set(corners)
            assert proven or isinstance(masks, Halves) or not chosen[0].proven
            sure = certificates(pipe, target, patch).weakest(patch, 2, np.random.default_rng(seed), proven_only=True)
            assert all(position.proven and len(position.corners) == 2 for position in sure)
            near = certificates(pipe, target, patch).nearest(patch, 2, np.random.default_rng(seed))
            assert all(len(position.corners) == 2 for position in near)
    assert verdicts == {True, False}


def test_an_object_of_two_labels_is_certified_as_one_of_them():
    different = 0
    for seed in range(40):
        for target in targets(seed):
            pipe, patch = pipeline(RULES[0]), Patch(0.05)
            one, other, both = (
                pipe.certify(replace(target, labels=labels), patch)[0] for labels in ((0,), (1,), (0, 1))
            )
            assert both == (one or other)
            different += one != other
    assert different > 10


def test_a_mask_removes_a_patch_iff_it_removes_its_pixels():
    masks = Halves(3).masks(13, 9)
    for x, y, wide, tall in [(0, 0, 3, 3), (-2, 4, 5, 2), (7, 3, 6, 6), (12, 8, 4, 4), (4, 0, 3, 9), (10, -3, 1, 4)]:
        patch = np.zeros((9, 13), bool)
        patch[max(y, 0) : y + tall, max(x, 0) : x + wide] = True
        for mask, says in enumerate(removing_masks(masks, np.array([[x, y]]), (wide, tall))[0]):
            assert says == (not (patch & oracle.kept_bitmaps(masks)[mask]).any())


@pytest.mark.parametrize("where", ["over", "far", "close", "anywhere"])
def test_the_attack_goes_where_the_proof_fails(where):
    patch, found = Patch(0.06, 1.0, where), 0
    for seed in range(40):
        for target in targets(seed, sure=0.2):
            pipe = pipeline(RULES[0])
            positions = certificates(pipe, target, patch).weakest(patch, 3, np.random.default_rng(seed))
            corners = allowed_corners(target, patch)
            assert len(positions) == (3 if corners else 0)
            assert {p.corners[0] for p in positions} <= corners
            certified = pipe.rule.certify(target.observation, target.ground_truth, patch).certified[0, 0]
            if corners and not certified:
                assert not positions[0].proven  # an image this small is searched completely
                found += 1
            assert all(p.proven for p in positions) or not certified
            again = certificates(pipe, target, patch).weakest(patch, 3, np.random.default_rng(seed))
            assert again == positions
            sure = certificates(pipe, target, patch).weakest(patch, 3, np.random.default_rng(seed), proven_only=True)
            assert all(p.proven for p in sure)
            assert len(sure) == 3 or not any(p.proven for p in positions)
            near = certificates(pipe, target, patch).nearest(patch, 2, np.random.default_rng(seed))
            assert {p.corners[0] for p in near} <= corners
    assert found > 10


def test_the_nearest_position_over_an_object_is_its_middle():
    every = [target for seed in range(20) for target in targets(seed)]
    target = next(t for t in every if (t.box >= 0).all() and (t.box[2:] < t.image_size).all() and np.ptp(t.box) > 4)
    patch = Patch(0.02, 1.0, "over")
    position = certificates(pipeline(RULES[0]), target, patch).nearest(patch, 1, np.random.default_rng(0))[0]
    middle = np.array(position.corners[0]) + np.array(patch.size(*target.image_size)) / 2
    assert np.abs(middle - (target.box[:2] + target.box[2:]) / 2).max() <= 1


def test_pasting_what_is_there_changes_nothing_also_over_the_border():
    image = np.random.default_rng(0).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    for x, y in [(0, 0), (-3, -2), (9, 5), (-20, 1), (4, 6)]:
        assert (paste(image, pixels_under(image, x, y, (5, 4)), x, y) == image).all()
        black = paste(image, np.zeros((4, 5, 3), np.uint8), x, y)
        rows, columns = np.nonzero((black != image).any(axis=2))
        assert len(rows) == 0 or (columns.min() >= x and columns.max() < x + 5 and rows.max() < y + 4)
        assert (black[max(y, 0) : max(y + 4, 0), max(x, 0) : max(x + 5, 0)] == 0).all()
