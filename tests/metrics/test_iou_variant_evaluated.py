"""The IoU variant on whole runs: what is replayed, certified and counted is what single images give."""

import dataclasses
import json

import numpy as np
import PIL.Image
import pytest
from cases import halves, pairs
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, evaluated, image, made, noisy, run
from hypothesis import given, settings
from hypothesis import strategies as st

from objectseeker import Detections, Observation
from objectseeker.core.rules import IouRule
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import BASE_THRESHOLDS, ImageSet
from objectseeker.metrics.defended_images import DefendedImageSet

scores = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.625, 0.9])
any_settings = st.builds(made, alpha=scores, beta=scores, filter_ioa=st.sampled_from([0.5, 0.6]))
evidence_settings = st.builds(
    lambda chosen, a, b: chosen.with_schedule(evidence_alpha=a, evidence_beta=b), any_settings, scores, scores
)


def check_against_prune(images, chosen, classwise):
    chosen = chosen.with_rule(classwise=classwise)
    replayed = DefendedImageSet.from_settings(ImageSet.from_images(images, VOCABULARY), chosen.iou_variant())
    rules = [IouRule(ioa_rule=chosen.on_curve(base_threshold)) for base_threshold in BASE_THRESHOLDS.tolist()]
    added_in_all = 0
    for rule, added in zip(rules, replayed.recovered_in_dataset(rules), strict=True):
        for number, one in enumerate(images):
            mine = added.detections[added.image == number]
            found = Detections.concatenate([one.observation.base.with_min_score(rule.base_threshold), mine])
            assert found == rule.prune(one.observation)
            added_in_all += len(mine)
    return added_in_all


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1), any_settings | evidence_settings, st.booleans())
def test_replay_is_prune_at_every_base_threshold(seed, chosen, classwise):
    check_against_prune(run(seed, count=2, crowd=0.95), chosen, classwise)


@pytest.mark.parametrize("classwise", [True, False])
def test_replay_is_prune_on_larger_images(classwise):
    images = run(3, count=2, smallest=60, largest=90, lines=14, generous=1.0, crowd=0.95)
    assert check_against_prune(images, PAPER, classwise) > 100  # there is something to get wrong


@pytest.mark.parametrize("chosen", [PAPER, EVIDENCE, changed(PAPER, bound="paper", patch_area=0.05)])
def test_the_columns_are_what_single_images_give(chosen):
    images = noisy(5, 12)
    for classwise in (True, False):
        own = changed(chosen, clean_recall=0.7).with_rule(classwise=classwise).iou_variant()
        result = evaluated(images, own)
        row = result["defended"]
        assert (result["settings"]["filter_iou"], own.rule.classwise) == (0.8, classwise)
        rule = IouRule(ioa_rule=chosen.with_rule(classwise=classwise).on_curve(row["base_threshold"]))
        assert row["mask_threshold"] == rule.ioa_rule.mask_threshold
        found = [
            rule.certify(
                one.observation, one.ground_truth[~one.ignore], chosen.threat.patches(), bound=chosen.threat.bound
            )
            for one in images
        ]
        shares = 100 * np.concatenate([one.certified for one in found], axis=1).mean(axis=1)
        assert list(row["certified_recall"].values()) == pytest.approx(shares.tolist())
        assert row["vacuous_far"] == sum(int(one.vacuous[0].sum()) for one in found)
        flagged = sum(
            len(rule.prune(one.observation)) > len(one.observation.base.with_min_score(rule.base_threshold))
            for one in images
        )
        assert (row["false_alerts"], row["false_alert_rate"]) == (flagged, pytest.approx(100 * flagged / len(images)))
        certified = sum(one["objects"] * one["certified_recall"]["far"] for one in result["per_class"])
        assert certified == pytest.approx(result["objects"] * row["certified_recall"]["far"])


def test_an_object_seen_well_is_certified_against_far_patches_only():
    seen, truth = [(40, 40, 60, 60, 0.9, 0)], [(40, 40, 60, 60, 0)]
    images = [image(seen, truth, [[(40, 40, 60, 60, 0.99, 0)]] * 100, lines=25)]
    fits = evaluated(images, PAPER.iou_variant())["defended"]
    assert fits["ap50"] == 100
    assert fits["certified_recall"] == {"far": 100, "close": 0, "over": 0, "anywhere": 0}
    assert evaluated(images, PAPER)["defended"]["certified_recall"] == dict.fromkeys(PATCH_LOCATIONS, 100)
    # Masks show half of the object: enough to touch it, not to fit it.
    images = [image(seen, truth, [[(40, 40, 50, 60, 0.99, 0)]] * 100, lines=25)]
    assert evaluated(images, PAPER.iou_variant())["defended"]["certified_recall"]["far"] == 0
    assert evaluated(images, PAPER)["defended"]["certified_recall"]["far"] == 100


def test_an_unreached_clean_recall_leaves_gaps():
    max_unseen_share = image([(0, 0, 10, 10, 0.9, 0)], [(0, 0, 10, 10, 0), (50, 50, 60, 60, 0)])
    row = evaluated([max_unseen_share], changed(PAPER, clean_recall=0.9).iou_variant())["defended"]
    assert row["certified_recall"] == dict.fromkeys(PATCH_LOCATIONS)
    assert row["false_alerts"] is row["false_alert_rate"] is None
    assert row["ap50"] == 50


def test_two_patches_need_pairs_of_masks():
    seen, truth = Detections([[40, 40, 60, 60]], [0.9], [0]), [(40, 40, 60, 60, 0)]
    one = image([(40, 40, 60, 60, 0.8, 0)], truth)
    far = {}
    for make in (halves, pairs):
        masks = make(100, 100, 20)
        observation = Observation(100, 100, masks, one.observation.base, [seen] * len(masks))
        for count in (1, 2):
            chosen = changed(PAPER, patch_count=count).iou_variant()
            row = evaluated([dataclasses.replace(one, observation=observation)], chosen)["defended"]
            far[make.__name__, count] = row["certified_recall"]["far"]
    assert far == {("halves", 1): 100, ("halves", 2): 0, ("pairs", 1): 100, ("pairs", 2): 100}


def test_certify_lists_what_the_variant_certifies(tmp_path):
    from command import DETECTOR, certificates
    from command import run as command

    (tmp_path / "mine.py").write_text(DETECTOR)
    (tmp_path / "images").mkdir()
    image = np.full((60, 90, 3), 30, np.uint8)
    image[20:40, 30:60] = 255
    PIL.Image.fromarray(image).save(tmp_path / "images" / "1.png")
    truth = {
        "images": [{"id": 1, "file_name": "1.png", "width": 90, "height": 60}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [30, 20, 30, 20], "iscrowd": 0}],
        "categories": [{"id": 1, "name": "bright"}],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    command(
        tmp_path,
        "observe",
        "coco:truth.json:images",
        "-d",
        "python:mine:detect",
        "--out",
        "run",
        "--masks",
        "halves:25",
    )
    rule = ["--set", "rule=paper", "--set", "mask_threshold=0.5"]
    iou = [*rule, "--set", "filter_iou=0.8"]
    (by_ioa,) = certificates(tmp_path, "run", *rule)["objects"]
    (by_iou,) = certificates(tmp_path, "run", *iou)["objects"]
    (strict,) = certificates(tmp_path, "run", *iou, "--certification-threshold", 0.85)["objects"]
    assert by_ioa["far"]
    assert by_iou["far"]
    assert not by_iou["over"]
    assert not strict["far"]
