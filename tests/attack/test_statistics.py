"""Rates, intervals and recalls, and whose they are."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from objectseeker import Bands, Defense, Detections, Halves, IouRule, ObjectSeeker, Patch
from objectseeker.attack.artifacts import draw_outcome
from objectseeker.attack.hiding import EvaluatedImage, HidingOutcome
from objectseeker.attack.metrics import attack_summary, rate_with_interval, read_recall, recall_bounds, wilson
from objectseeker.attack.pipeline import PatchTask, Pipeline, Position, Solution, Target
from objectseeker.attack.setup import AttackSetup
from objectseeker.defense import DEFAULT_RULE
from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.drawing import class_color

DEFENSE = Defense.for_detector("onnx:weights/model.onnx", fingerprint="model sha256:1")
PATCH = Patch()


def row(certified=False, clean=True, undefended=True, defense=True, attacked=True, vacuous=False):
    return {
        "image": "1",
        "object": 0,
        "class": "cat",
        "box": [1.0, 2.0, 3.0, 4.0],
        "certified": certified,
        "vacuous": vacuous,
        "found_undefended": clean,
        "found_defended": clean,
        "undefended_survived": undefended if attacked else None,
        "undefended_survived_iou50": undefended if attacked else None,
        "defended_survived": defense if attacked else None,
        "guarantee_broken": certified and attacked and not defense,
        "leaking_views": 0,
        "effects": {"undefended": None, "defended": None},
    }


def test_wilson_interval_against_published_values():
    # Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)
    assert rate_with_interval(0, 0)["rate"] is None


def test_rates_count_what_was_attacked():
    rows = [
        row(certified=True, undefended=False),
        row(undefended=False, defense=False),
        row(undefended=True, defense=True),
        row(clean=False, attacked=False),
        row(certified=True, attacked=False, vacuous=True),
    ]
    found = attack_summary(rows)
    assert (found["objects"], found["attacked"], found["vacuous"]) == (5, 3, 1)
    assert (found["hidden_undefended"]["count"], found["hidden_undefended"]["total"]) == (2, 3)
    assert (found["hidden_certified"]["count"], found["hidden_certified"]["total"]) == (0, 1)
    assert (found["hidden_uncertified"]["count"], found["hidden_uncertified"]["total"]) == (1, 2)
    assert found["broken_guarantees"] == 0
    assert attack_summary([row(certified=True, defense=False)])["broken_guarantees"] == 1


def test_recall_under_attack_lies_between_certified_and_clean():
    rows = [row(certified=True)] * 3 + [row(defense=False, undefended=False)] * 2 + [row()] * 4
    rows += [row(clean=False, attacked=False)]
    defended = recall_bounds(rows)["defended"]
    assert defended["certified_recall"]["rate"] == pytest.approx(0.3)
    assert defended["recall_under_attack"]["rate"] == pytest.approx(0.7)
    assert defended["clean_recall"]["rate"] == pytest.approx(0.9)
    assert recall_bounds(rows)["undefended"]["recall_under_attack"]["rate"] == pytest.approx(0.7)
    with pytest.raises(ObjectSeekerError, match="at least one attacked object"):
        recall_bounds([])


def written(file, defense=DEFENSE, patch=PATCH, certification_threshold=0.0, rows=None, **more):
    rows = rows or [row(certified=True, undefended=False)] * 3 + [row(defense=False, undefended=False)]
    named = defense.to_dict() | {"sha256": defense.sha256} | more
    file.write_text(
        json.dumps(
            {
                "defense": named,
                "patch": asdict(patch),
                "certification_threshold": certification_threshold,
                "objects": rows,
            }
        )
    )
    return file


def test_recalls_are_read_from_the_file_of_an_attack(tmp_path):
    file = written(tmp_path / "attack.json", patch=Patch(location="far"))
    elsewhere = replace(DEFENSE, detector="onnx:model.onnx")  # where the file lies says nothing
    recall = read_recall(file, elsewhere, [Patch(location="over"), Patch(location="far")], certification_threshold=0.0)
    assert recall["patch"] == asdict(Patch(location="far"))
    assert recall["undefended"]["recall_under_attack"]["rate"] == 0
    assert recall["defended"]["certified_recall"]["rate"] == 0.75
    assert recall["defended"]["clean_recall"]["rate"] == 1
    file.write_text(json.dumps(json.loads(file.read_text()) | {"goal": "flip"}))
    with pytest.raises(ObjectSeekerError, match="must be of an attack that hides objects: got goal 'flip'"):
        read_recall(file, DEFENSE, Patch(), certification_threshold=0.0)
    file.write_text("[]")
    with pytest.raises(ObjectSeekerError, match=r"not an attack\.json"):
        read_recall(file, DEFENSE, Patch(), certification_threshold=0.0)
    with pytest.raises(ObjectSeekerError, match="cannot read"):
        read_recall(tmp_path / "none.json", DEFENSE, Patch(), certification_threshold=0.0)


@pytest.mark.parametrize("survived", [0, 0.0, "false", None])
def test_what_is_neither_true_nor_false_is_no_survival(tmp_path, survived):
    """What evaluate reads, and gate; None only where the defense was not attacked."""
    file = written(tmp_path / "attack.json", rows=[row(certified=True) | {"defended_survived": survived}])
    with pytest.raises(ObjectSeekerError, match="defended_survived must be true or false"):
        read_recall(file, DEFENSE, PATCH, certification_threshold=0.0)
    for not_attacked in (row(clean=False, attacked=False), row(certified=True, attacked=False, vacuous=True)):
        read_recall(written(file, rows=[not_attacked]), DEFENSE, PATCH, certification_threshold=0.0)


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        ({"fingerprint": "model sha256:2"}, "detector model sha256:1, requested model sha256:2"),
        (
            {"fingerprint": None, "detector": "onnx:other.onnx"},
            "detector onnx:model.onnx, requested onnx:other.onnx",
        ),
        ({"fingerprint": None, "mask_mode": "crop"}, "mask_mode None, requested crop"),
        ({"masks": Bands(0.01)}, "masks halves:30, requested bands:0.01"),
        ({"fill": 0}, "fill 114, requested 0"),
        ({"batch_size": 3}, "batch_size 8, requested 3"),
        ({"rule": replace(DEFAULT_RULE, mask_threshold=0.9), "threshold_schedule": None}, "mask_threshold "),
        ({"rule": replace(DEFAULT_RULE, edge_factor=1.0)}, "edge_factor 0.85, requested 1.0"),
        ({"rule": IouRule(ioa_rule=DEFAULT_RULE)}, "filter_iou None, requested 0.8"),
    ],
)
def test_an_attack_on_another_defense_is_refused(tmp_path, asked, difference):
    file = written(tmp_path / "attack.json")
    with pytest.raises(ObjectSeekerError) as rejected:
        read_recall(file, replace(DEFENSE, **asked), Patch(), certification_threshold=0.0)
    assert "attack.json attacks something else: " in str(rejected.value)
    assert difference in str(rejected.value)


@pytest.mark.parametrize(
    ("patch", "certification_threshold", "difference"),
    [
        (Patch(0.02), 0.0, "patch 0.01 of the image, aspect 1, over, requested 0.02 of the image"),
        (Patch(location="far"), 0.0, "over, requested 0.01 of the image, aspect 1, far"),
        (Patch(count=2), 0.0, "requested two of 0.01"),
        (Patch(aspect=2.0), 0.0, "aspect 2"),
        (Patch(), 0.5, "certification_threshold 0.0, requested 0.5"),
    ],
)
def test_an_attack_with_another_patch_or_threshold_is_refused(tmp_path, patch, certification_threshold, difference):
    file = written(tmp_path / "attack.json")
    with pytest.raises(ObjectSeekerError) as rejected:
        read_recall(file, DEFENSE, patch, certification_threshold=certification_threshold)
    assert difference in str(rejected.value)


def test_a_defense_that_was_edited_in_the_file_is_refused(tmp_path):
    file = written(tmp_path / "attack.json", fill=0)
    with pytest.raises(ObjectSeekerError, match="edited"):
        read_recall(file, replace(DEFENSE, fill=0), Patch(), certification_threshold=0.0)


OBJECT, NEIGHBOR, RIDER = (10, 10, 40, 40), (60, 60, 90, 90), (10, 2, 40, 38)
CLEAN = ((OBJECT, 0), (NEIGHBOR, 1), (RIDER, 3))  # what is found without a patch


def boxes(*found):
    """Pairs of a box and a label."""
    return Detections([box for box, _ in found], [0.9] * len(found), [label for _, label in found])


def pipeline_of(**rule):
    def detect(images):
        return [boxes(*CLEAN) for _ in images]

    detect.names = ("horse", "person", "cow", "rider")
    return Pipeline.from_seeker(ObjectSeeker(detect, replace(DEFAULT_RULE, **rule), masks=Halves(1)))


def judged(pipeline, target, base, output):
    """An adversarial image in which the detector finds `base` and, if it was attacked, the defense `output`."""
    start = np.zeros((1, 5, 5, 3), np.uint8)
    solution = Solution(PatchTask(target, Position(((0, 0),)), start), start, 0.0, ())
    boxes = base if output is None else output
    return EvaluatedImage(solution, target.image, base, boxes, pipeline.judge(target, base, output))


def outcome_of(pipeline, on_undefended=None, on_defended=None):
    """Horse 0 is attacked, on which sits its rider, 3; next to it a person, 1. `on_defended`: base boxes and output."""
    image = np.zeros((100, 100, 3), np.uint8)
    target = Target("street", 0, image, pipeline.observe(image), np.array(OBJECT, float), (0,))
    images = [
        None if on_undefended is None else judged(pipeline, target, on_undefended, None),
        None if on_defended is None else judged(pipeline, target, *on_defended),
    ]
    return HidingOutcome(target, False, False, pipeline.judge_observation(target, target.observation), *images)


@pytest.mark.parametrize(
    ("found", "fate", "fabricated"),
    [
        (boxes(*CLEAN), "found", 0),
        (boxes((OBJECT, 0), (OBJECT, 2)), "found", 0),  # found comes first, and a box on the object is not fabricated
        (boxes((NEIGHBOR, 1)), "disappeared", 0),
        (boxes((OBJECT, 2), (NEIGHBOR, 1)), "misclassified", 0),
        (boxes((NEIGHBOR, 2)), "disappeared", 1),  # another class than what was there
        (boxes(((35, 35, 55, 55), 2), ((0, 60, 20, 80), 0)), "disappeared", 2),  # touching is not fitting
        (boxes(((12, 10, 60, 40), 0), (NEIGHBOR, 1)), "found", 0),  # a box of the object that moved is not fabricated
        (boxes((RIDER, 3)), "disappeared", 0),  # it fits the object, but was there before
        (boxes((RIDER, 3), (OBJECT, 2)), "misclassified", 0),
        (boxes(), "disappeared", 0),
    ],
)
def test_what_a_patch_did_is_told_apart(found, fate, fabricated):
    pipeline, became = pipeline_of(), {"object": fate, "fabricated": fabricated}
    on_undefended, on_defended = (
        outcome_of(pipeline, found),
        outcome_of(pipeline, boxes(*CLEAN), (boxes(*CLEAN), found)),
    )
    assert on_undefended.effects(pipeline) == {"undefended": became, "defended": None}
    assert on_defended.effects(pipeline) == {
        "undefended": {"object": "found", "fabricated": 0},
        "defended": became,
    }
    for outcome in (on_undefended, on_defended):  # determined from the same image that decides who survived
        row = outcome.to_dict(pipeline)
        survived = {"undefended": row["undefended_survived"], "defended": row["defended_survived"]}
        assert {goal: one and one["object"] == "found" for goal, one in row["effects"].items()} == survived


def test_a_patch_against_the_defense_may_be_the_worst_for_the_detector():
    pipeline = pipeline_of()
    outcome = outcome_of(pipeline, boxes(*CLEAN), (boxes((OBJECT, 2)), boxes(*CLEAN)))
    assert outcome.undefended_survived is False
    assert outcome.effects(pipeline) == {
        "undefended": {"object": "misclassified", "fabricated": 0},
        "defended": {"object": "found", "fabricated": 0},
    }


def test_what_an_object_was_taken_for_is_drawn():
    pipeline = pipeline_of()
    for found, drawn in ((boxes((OBJECT, 2)), True), (boxes((NEIGHBOR, 2)), False)):
        page = np.asarray(draw_outcome(AttackSetup(None, pipeline, patch=PATCH), outcome_of(pipeline, found)))
        assert (page == class_color(2)).all(axis=2).any() == drawn


def test_without_regard_to_labels_nothing_is_misclassified():
    pipeline = pipeline_of(classwise=False)
    effects = outcome_of(pipeline, boxes((OBJECT, 2))).effects(pipeline)
    assert effects["undefended"] == {"object": "found", "fabricated": 0}


def told(*effects):
    """Rows of an attack on the detector alone."""
    return [
        row(undefended=fate == "found")
        | {"effects": {"undefended": {"object": fate, "fabricated": fabricated}, "defended": None}}
        for fate, fabricated in effects
    ]


def test_effects_are_counted_side_by_side(tmp_path):
    rows = told(("found", 0), ("disappeared", 2), ("misclassified", 1), ("disappeared", 0))
    found = attack_summary(rows)
    counts = {kind: one["count"] for kind, one in found["effects"]["undefended"].items() if kind != "fabricated_boxes"}
    assert counts == {"found": 1, "misclassified": 1, "disappeared": 2, "images_with_fabricated_boxes": 2}
    assert found["hidden_undefended"]["count"] == counts["misclassified"] + counts["disappeared"]
    assert found["effects"]["undefended"]["fabricated_boxes"] == 3
    assert found["effects"]["defended"]["disappeared"]["total"] == 0
    file = written(tmp_path / "attack.json", rows=rows)
    assert read_recall(file, DEFENSE, PATCH, certification_threshold=0.0)["effects"] == found["effects"]
