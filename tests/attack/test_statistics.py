"""Rates, intervals and recalls, and whose they are."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from objectseeker import Bands, Defense, Detections, Halves, IouRule, ObjectSeeker, Patch
from objectseeker.attack.artifacts import before_and_after
from objectseeker.attack.attack_metrics import effects_of, rate, read_recall, robust_recall, row_of, summary, wilson
from objectseeker.attack.falsify import JudgedImage, Outcome
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.placement import Position
from objectseeker.defense import DEFAULT_RULE
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.drawing import color_of

DEFENSE = Defense.default("onnx:weights/model.onnx", identity="model sha256:1")
PATCH = Patch()


def row(certified=False, clean=True, undefended=True, defense=True, attacked=True, vacuous=False):
    return {
        "certified": certified,
        "vacuous": vacuous,
        "found_by_detector": clean,
        "found_by_defense": clean,
        "undefended_survived": undefended if attacked else None,
        "undefended_survived_iou50": undefended if attacked else None,
        "defense_survived": defense if attacked else None,
        "broken": certified and attacked and not defense,
        "leaks": 0,
    }


def test_wilson_interval_against_published_values():
    # Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)
    assert rate(0, 0)["share"] is None


def test_rates_count_what_was_attacked():
    rows = [
        row(certified=True, undefended=False),
        row(undefended=False, defense=False),
        row(undefended=True, defense=True),
        row(clean=False, attacked=False),
        row(certified=True, attacked=False, vacuous=True),
    ]
    found = summary(rows)
    assert (found["objects"], found["attacked"], found["without_position"]) == (5, 3, 1)
    assert (found["hidden_from_detector"]["count"], found["hidden_from_detector"]["of"]) == (2, 3)
    assert (found["hidden_certified"]["count"], found["hidden_certified"]["of"]) == (0, 1)
    assert (found["hidden_uncertified"]["count"], found["hidden_uncertified"]["of"]) == (1, 2)
    assert found["broken_guarantees"] == 0
    assert summary([row(certified=True, defense=False)])["broken_guarantees"] == 1


def test_recall_under_attack_lies_between_certified_and_clean():
    rows = [row(certified=True)] * 3 + [row(defense=False, undefended=False)] * 2 + [row()] * 4
    rows += [row(clean=False, attacked=False)]
    defended = robust_recall(rows)["defended"]
    assert defended["certified_recall"]["share"] == pytest.approx(0.3)
    assert defended["recall_under_attack"]["share"] == pytest.approx(0.7)
    assert defended["clean_recall"]["share"] == pytest.approx(0.9)
    assert robust_recall(rows)["undefended"]["recall_under_attack"]["share"] == pytest.approx(0.7)
    with pytest.raises(ObjectSeekerError, match="no object"):
        robust_recall([])


def written(file, defense=DEFENSE, patch=PATCH, threshold=0.0, rows=None, **more):
    rows = rows or [row(certified=True, undefended=False)] * 3 + [row(defense=False, undefended=False)]
    named = defense.to_dict() | {"sha256": defense.sha256} | more
    file.write_text(json.dumps({"defense": named, "patch": asdict(patch), "threshold": threshold, "objects": rows}))
    return file


def test_recalls_are_read_from_the_file_of_an_attack(tmp_path):
    file = written(tmp_path / "attack.json", patch=Patch(where="far"))
    elsewhere = replace(DEFENSE, detector="onnx:model.onnx")  # where the file lies says nothing
    recall = read_recall(file, elsewhere, [Patch(where="over"), Patch(where="far")], threshold=0.0)
    assert recall["patch"] == asdict(Patch(where="far"))
    assert recall["undefended"]["recall_under_attack"]["share"] == 0
    assert recall["defended"]["certified_recall"]["share"] == 0.75
    assert recall["defended"]["clean_recall"]["share"] == 1
    file.write_text("[]")
    with pytest.raises(ObjectSeekerError, match=r"no attack\.json"):
        read_recall(file, DEFENSE, Patch(), threshold=0.0)
    with pytest.raises(ObjectSeekerError, match="cannot read"):
        read_recall(tmp_path / "none.json", DEFENSE, Patch(), threshold=0.0)


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        ({"identity": "model sha256:2"}, "(detector model sha256:1, asked for model sha256:2)"),
        (
            {"identity": None, "detector": "onnx:other.onnx"},
            "detector onnx:model.onnx, asked for onnx:other.onnx",
        ),
        ({"identity": None, "mask_mode": "crop"}, "mask_mode None, asked for crop"),
        ({"masks": Bands(0.01)}, "masks halves:30, asked for bands:0.01"),
        ({"fill": 0}, "fill 114, asked for 0"),
        ({"batch": 3}, "batch 8, asked for 3"),
        ({"rule": replace(DEFAULT_RULE, mask_threshold=0.9), "follow": None}, "mask_threshold "),
        ({"rule": replace(DEFAULT_RULE, edge_factor=1.0)}, "edge_factor 0.7, asked for 1.0"),
        ({"rule": IouRule(ioa=DEFAULT_RULE)}, "filter_iou None, asked for 0.8"),
    ],
)
def test_an_attack_on_another_defense_is_refused(tmp_path, asked, difference):
    file = written(tmp_path / "attack.json")
    with pytest.raises(ObjectSeekerError) as refusal:
        read_recall(file, replace(DEFENSE, **asked), Patch(), threshold=0.0)
    assert "attack.json is an attack on something else (" in str(refusal.value)
    assert difference in str(refusal.value)


@pytest.mark.parametrize(
    ("patch", "threshold", "difference"),
    [
        (Patch(0.02), 0.0, "patch 0.01 of the image, aspect 1, over, asked for 0.02 of the image"),
        (Patch(where="far"), 0.0, "over, asked for 0.01 of the image, aspect 1, far"),
        (Patch(count=2), 0.0, "asked for two of 0.01"),
        (Patch(aspect=2.0), 0.0, "aspect 2"),
        (Patch(), 0.5, "threshold 0.0, asked for 0.5"),
    ],
)
def test_an_attack_with_another_patch_or_threshold_is_refused(tmp_path, patch, threshold, difference):
    file = written(tmp_path / "attack.json")
    with pytest.raises(ObjectSeekerError) as refusal:
        read_recall(file, DEFENSE, patch, threshold=threshold)
    assert difference in str(refusal.value)


def test_a_defense_that_was_edited_in_the_file_is_refused(tmp_path):
    file = written(tmp_path / "attack.json", fill=0)
    with pytest.raises(ObjectSeekerError, match="edited"):
        read_recall(file, replace(DEFENSE, fill=0), Patch(), threshold=0.0)


OBJECT, BESIDE, RIDER = (10, 10, 40, 40), (60, 60, 90, 90), (10, 2, 40, 38)
CLEAN = ((OBJECT, 0), (BESIDE, 1), (RIDER, 3))  # what is found without a patch


def boxes(*found):
    """Pairs of a box and a label."""
    return Detections([box for box, _ in found], [0.9] * len(found), [label for _, label in found])


def pipeline_of(**rule):
    seeker = ObjectSeeker(
        lambda images: [boxes(*CLEAN) for _ in images], replace(DEFAULT_RULE, **rule), masks=Halves(1)
    )
    return Pipeline.of(seeker)


def judged(pipeline, target, base, output):
    """An adversarial image in which the detector finds `base` and, if it was attacked, the defense `output`."""
    found = pipeline.judge_base(target, base)
    image = JudgedImage(target.image, base, base, Position(((0, 0),), False, 0.0), (5, 5), 0.0, *found)
    return image if output is None else replace(image, boxes=output, defended=pipeline.finds(target, output))


def outcome_of(pipeline, on_detector=None, on_defense=None):
    """Horse 0 is attacked, on which sits its rider, 3; beside it a person, 1. `on_defense`: base boxes and output."""
    image = np.zeros((100, 100, 3), np.uint8)
    target = Target("street", 0, image, pipeline.observe(image), np.array(OBJECT, float), (0,))
    images = [
        None if on_detector is None else judged(pipeline, target, on_detector, None),
        None if on_defense is None else judged(pipeline, target, *on_defense),
    ]
    return Outcome(target, False, False, pipeline.judge(target, target.observation), *images)


@pytest.mark.parametrize(
    ("found", "fate", "invented"),
    [
        (boxes(*CLEAN), "found", 0),
        (boxes((OBJECT, 0), (OBJECT, 2)), "found", 0),  # found comes first, and a box on the object is not invented
        (boxes((BESIDE, 1)), "disappeared", 0),
        (boxes((OBJECT, 2), (BESIDE, 1)), "misclassified", 0),
        (boxes((BESIDE, 2)), "disappeared", 1),  # another class than what was there
        (boxes(((35, 35, 55, 55), 2), ((0, 60, 20, 80), 0)), "disappeared", 2),  # touching is not fitting
        (boxes(((12, 10, 60, 40), 0), (BESIDE, 1)), "found", 0),  # a box of the object that moved is not invented
        (boxes((RIDER, 3)), "disappeared", 0),  # it fits the object, but was there before
        (boxes((RIDER, 3), (OBJECT, 2)), "misclassified", 0),
        (boxes(), "disappeared", 0),
    ],
)
def test_what_a_patch_did_is_told_apart(found, fate, invented):
    pipeline, became = pipeline_of(), {"object": fate, "invented": invented}
    on_detector, on_defense = outcome_of(pipeline, found), outcome_of(pipeline, boxes(*CLEAN), (boxes(*CLEAN), found))
    assert effects_of(on_detector, pipeline)["effects"] == {"detector": became, "defense": None}
    assert effects_of(on_defense, pipeline)["effects"] == {
        "detector": {"object": "found", "invented": 0},
        "defense": became,
    }
    for outcome in (on_detector, on_defense):  # told from the very image that decides who survived
        row = row_of(outcome) | effects_of(outcome, pipeline)
        survived = {"detector": row["undefended_survived"], "defense": row["defense_survived"]}
        assert {goal: one and one["object"] == "found" for goal, one in row["effects"].items()} == survived


def test_a_patch_against_the_defense_may_be_the_worst_for_the_detector():
    pipeline = pipeline_of()
    outcome = outcome_of(pipeline, boxes(*CLEAN), (boxes((OBJECT, 2)), boxes(*CLEAN)))
    assert outcome.undefended_survived is False
    assert effects_of(outcome, pipeline)["effects"] == {
        "detector": {"object": "misclassified", "invented": 0},
        "defense": {"object": "found", "invented": 0},
    }


def test_what_an_object_was_taken_for_is_drawn():
    pipeline = pipeline_of()
    names = ("horse", "person", "cow", "rider")
    for found, drawn in ((boxes((OBJECT, 2)), True), (boxes((BESIDE, 2)), False)):
        page = np.asarray(before_and_after(pipeline, outcome_of(pipeline, found), names))
        assert (page == color_of(2)).all(axis=2).any() == drawn


def test_without_regard_to_labels_nothing_is_misclassified():
    pipeline = pipeline_of(classwise=False)
    effects = effects_of(outcome_of(pipeline, boxes((OBJECT, 2))), pipeline)["effects"]
    assert effects["detector"] == {"object": "found", "invented": 0}


def told(*effects):
    """Rows of an attack on the detector alone."""
    return [
        row(undefended=fate == "found")
        | {"effects": {"detector": {"object": fate, "invented": invented}, "defense": None}}
        for fate, invented in effects
    ]


def test_effects_are_counted_side_by_side(tmp_path):
    rows = told(("found", 0), ("disappeared", 2), ("misclassified", 1), ("disappeared", 0))
    found = summary(rows)
    counts = {kind: one["count"] for kind, one in found["effects"]["detector"].items() if kind != "invented_boxes"}
    assert counts == {"found": 1, "misclassified": 1, "disappeared": 2, "inventing": 2}
    assert found["hidden_from_detector"]["count"] == counts["misclassified"] + counts["disappeared"]
    assert found["effects"]["detector"]["invented_boxes"] == 3
    assert found["effects"]["defense"]["disappeared"]["of"] == 0
    file = written(tmp_path / "attack.json", rows=rows)
    assert read_recall(file, DEFENSE, PATCH, threshold=0.0)["effects"] == found["effects"]


def test_a_file_that_does_not_tell_effects_is_read(tmp_path):
    assert "effects" not in read_recall(written(tmp_path / "attack.json"), DEFENSE, PATCH, threshold=0.0)
