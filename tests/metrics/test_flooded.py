"""An attacker who draws boxes chooses how many there are: a few at a time, every result is bit-identical."""

import dataclasses

import numpy as np
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, evaluated, run

from objectseeker import Detections, IouRule, Patch, Rule
from objectseeker.core import boxes as core_boxes
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import ImageSet, image_set, replay
from objectseeker.metrics.average_precision import ScoredBoxes, candidate_pairs
from objectseeker.metrics.certified import build_proof_table
from objectseeker.metrics.replay import filtering_score, find_candidates

FEW = 60  # cells: a few rows at a time nearly everywhere


def test_every_figure_is_the_same_a_few_boxes_at_a_time_and_without_links(monkeypatch):
    for seed, settings in ((2, PAPER), (3, dataclasses.replace(EVIDENCE, clean_recall=None))):
        images = run(seed, 2, generous=1.0, lines=3)
        at_once = evaluated(images, settings)
        with monkeypatch.context() as patch:
            patch.setattr(core_boxes, "MAX_CELLS", FEW)
            patch.setattr(image_set, "BOXES_AT_A_TIME", 1)
            patch.setattr(replay, "MAX_LINKS", 40)  # hardly any image keeps its links
            assert evaluated(images, settings) == at_once


@pytest.mark.parametrize("rule", [Rule(), Rule(classwise=False), IouRule(ioa_rule=Rule(classwise=False))])
def test_candidates_pairs_and_proofs_are_the_same_a_few_at_a_time(rule, monkeypatch):
    compared = 0
    for seed in range(6):
        scene = ImageSet.from_images(run(seed, 2, generous=1.0), VOCABULARY)
        parts = pieces(scene, rule)
        with monkeypatch.context() as patch:
            patch.setattr(core_boxes, "MAX_CELLS", FEW)
            again = pieces(scene, rule)
        for one, other in zip(parts, again, strict=True):
            assert np.array_equal(one, other)
            compared += one.size
    assert compared > 1_000


def pieces(scene, rule):
    """Everything that is found by holding boxes against boxes or objects."""
    ioa = rule.ioa_rule if isinstance(rule, IouRule) else rule
    observations = [one.observation for one in scene.images]
    candidates, pairs = find_candidates(observations, ioa, 0.0), candidate_pairs(scene.base, scene)
    proofs = build_proof_table(scene, rule, "exact")
    explaining = [filtering_score(ioa, seen.all_masked, seen.base) for seen in observations]
    links = [str(row).encode() for of_image in candidates.linked for row in of_image]
    return [
        *explaining,
        np.array(links),
        *(pairs.box, pairs.object, pairs.overlap),
        *(proofs.target, proofs.box, proofs.share, proofs.first),
        ScoredBoxes.of(scene).score,
    ]


def test_the_best_base_box_explains_however_many_there_are(monkeypatch):
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 60, (400, 2))
    many = Detections(
        np.concatenate([corner, corner + rng.uniform(1, 40, (400, 2))], axis=1), rng.random(400), [0] * 400
    )
    masked, base, rule = many[:300], many[300:], Rule()
    monkeypatch.setattr(core_boxes, "MAX_CELLS", 500)
    found = filtering_score(rule, masked, base)
    inside = core_boxes.ioa(masked.xyxy, base.xyxy) > rule.filter_ioa
    assert np.array_equal(found, np.where(inside, base.score, replay.NO_BASE).max(axis=1))
    assert (found >= 0).any()
    assert (found < 0).any()


def test_certificates_are_the_same_some_objects_at_a_time(monkeypatch):
    patches = [Patch(0.05, location=where) for where in PATCH_LOCATIONS]
    rules = (Rule(base_threshold=0.3, mask_threshold=0.6, evidence_threshold=0.2), Rule(mask_threshold=0.4), IouRule())
    for seed in range(2):
        for one in run(seed, 2, generous=1.0, lines=4):
            expected = [rule.certify(one.observation, one.ground_truth, patches) for rule in rules]
            with monkeypatch.context() as patch:
                patch.setattr(core_boxes, "MAX_CELLS", FEW)
                found = [rule.certify(one.observation, one.ground_truth, patches) for rule in rules]
            for each, other in zip(found, expected, strict=True):
                for field in dataclasses.fields(each):
                    assert np.array_equal(getattr(each, field.name), getattr(other, field.name))
