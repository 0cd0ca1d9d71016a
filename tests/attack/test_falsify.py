"""The falsifier finds the fault in defenses made unsound on purpose, and none in ours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import PIL.Image
import pytest

torch = pytest.importorskip("torch")

from attack_pipelines import (
    AREA,
    LARGEST,
    OBJECT,
    CodedCues,
    leaky,
    make_image,
    secretly_leaky,
    sound,
    suppressing,
    target,
)

from objectseeker import Bands, Defense, Detections, Halves, IouRule, Pairs, Patch, Rule, Windows
from objectseeker.attack import AttackBudget, artifacts, recheck
from objectseeker.attack.artifacts import save_outcome, save_reproduction
from objectseeker.attack.hiding import Hiding, evaluate_solutions, plan_tasks
from objectseeker.attack.optimizers import attack_by_gradients
from objectseeker.attack.pipeline import PatchTask, Position, pixels_under
from objectseeker.attack.setup import AttackSetup
from objectseeker.core.threats import PatchPositions
from objectseeker.detectors.network.preprocess import Axis, cached_view_plan
from objectseeker.errors import ObjectSeekerError

OVER = Patch(AREA, 1.0, "over")
BUDGET = AttackBudget(steps=16, restarts=2, views_per_step=8, views_per_batch=32)


def attacked(make, patch=OVER, budget=BUDGET, seed=0, *, seen=None, black_box=False):
    white, pipeline = make()
    setup = AttackSetup(None, pipeline, None if black_box else white, None, patch, budget, seed)
    (outcome,) = Hiding().attack(setup, [seen or target(pipeline)])
    return pipeline, outcome


@pytest.mark.parametrize("seed", range(2))
def test_the_sound_defense_survives(seed):
    _, outcome = attacked(sound, seed=seed)
    assert outcome.certified
    assert outcome.clean.undefended
    assert outcome.undefended_survived is False  # the attack is strong enough to hide it from the detector
    assert outcome.undefended_fitting_survived is False
    assert outcome.defended_survived is True
    assert not outcome.guarantee_broken


@pytest.mark.parametrize("seed", range(2))
def test_masking_after_a_resize_without_the_margin_is_found_out(seed):
    _, outcome = attacked(leaky, seed=seed)
    assert outcome.certified  # the certificate believes the masks
    assert outcome.on_defended.task.position.proven
    assert outcome.defended_survived is False
    assert outcome.guarantee_broken


@pytest.mark.parametrize("seed", range(2))
def test_suppression_across_views_is_found_out(seed):
    _, outcome = attacked(suppressing, seed=seed)
    assert outcome.certified
    assert outcome.guarantee_broken


# Steps enough to write a code into a column of pixels of which the detector sees a ninth.
PATIENT = replace(BUDGET, steps=40)


@pytest.mark.parametrize("seed", range(2))
def test_a_leak_that_the_white_box_knows_nothing_of_is_found_by_distrust(seed):
    _, outcome = attacked(secretly_leaky, budget=replace(PATIENT, immune_view_fraction=1.0), seed=seed)
    assert outcome.certified
    assert outcome.on_defended.task.position.proven
    assert outcome.defended_survived is False
    assert outcome.guarantee_broken
    _, believing = attacked(secretly_leaky, budget=replace(PATIENT, immune_view_fraction=0.0), seed=seed)
    assert believing.defended_survived is True  # gradients that trust the margin do not find it
    assert believing.leaking_views > 0  # but a view that should be immune changes, which is reported as well
    assert believing.guarantee_broken


def test_distrust_does_not_break_the_honest_pipeline():
    _, outcome = attacked(partial(sound, cues=CodedCues), budget=replace(PATIENT, immune_view_fraction=1.0))
    assert outcome.certified
    assert outcome.undefended_survived is False
    assert outcome.defended_survived is True
    assert outcome.leaking_views == 0
    assert not outcome.guarantee_broken


def test_a_margin_one_pixel_too_small_is_found_though_the_attack_asks_the_same_code(monkeypatch):
    covered = Axis.leaking_extent

    def thin(self, start, stop):
        low, high = covered(self, start, stop)
        return low + (np.asarray(start) > 0), high - (np.asarray(stop) < self.resampling.raw)

    monkeypatch.setattr(Axis, "leaking_extent", thin)
    cached_view_plan.cache_clear()
    try:
        _, outcome = attacked(partial(sound, cues=CodedCues), budget=PATIENT)
    finally:
        cached_view_plan.cache_clear()
    assert outcome.certified
    assert outcome.defended_survived is False
    assert outcome.leaking_views > 0
    assert outcome.guarantee_broken


@pytest.mark.parametrize(
    ("rule", "masks", "area"),
    [
        (Rule(base_threshold=0.5, mask_threshold=0.9, evidence_threshold=0.3, edge_factor=0.7), Halves(15), AREA),
        (IouRule(ioa_rule=Rule(base_threshold=0.5, mask_threshold=0.5)), Halves(15), 0.01),
        (Rule(base_threshold=0.5, mask_threshold=0.7), Pairs(5), 0.01),
        (Rule(base_threshold=0.5, mask_threshold=0.7), Bands(0.04), 0.04),
    ],
    ids=("evidence", "iou", "pairs", "bands"),
)
def test_every_rule_and_recipe_is_attacked(rule, masks, area):
    where = "far" if isinstance(rule, IouRule) else "over"
    patch = Patch(area, 1.0, where)
    _, outcome = attacked(partial(sound, rule, masks), patch)
    assert outcome.certified
    assert outcome.undefended_survived is False
    assert outcome.defended_survived is True
    assert not outcome.guarantee_broken


@pytest.mark.parametrize("masks", [Pairs(5), Halves(15)], ids=str)
def test_two_patches_are_drawn_at_two_places(masks):
    _, outcome = attacked(partial(sound, masks=masks), Patch(0.01, 1.0, "over", 2))
    assert outcome.certified == isinstance(masks, Pairs)
    assert outcome.undefended_survived is False
    assert outcome.defended_survived is outcome.certified  # half masks cannot remove both
    assert not outcome.guarantee_broken
    different = (outcome.on_defended.image != make_image()).any(axis=2)
    (wide, tall), corners = outcome.on_defended.task.patch_size, outcome.on_defended.task.position.corners
    assert len(corners) == 2
    for x, y in corners:
        different[max(y, 0) : y + tall, max(x, 0) : x + wide] = False
    assert not different.any()


def test_found_is_what_the_rule_calls_found():
    boxes = Detections([[24, 24, 48, 72], [24, 24, 70, 72]], [0.9, 0.9], [0, 1])
    for rule, certification_threshold, finding in [
        (Rule(), None, [True, False]),
        (Rule(classwise=False), 0.6, [False, True]),
        (IouRule(), None, [False, False]),
        (IouRule(), 0.4, [True, False]),
    ]:
        _, pipeline = sound(rule, certification_threshold=certification_threshold)
        assert pipeline.finding_boxes(target(pipeline), boxes).tolist() == finding
    assert pipeline.finding_boxes(target(pipeline, labels=(0, 1)), boxes).tolist() == [True, True]


def test_an_object_of_two_labels_is_hidden_only_if_no_box_of_either_finds_it():
    pipeline, outcome = attacked(suppressing)
    assert outcome.defended_survived is False  # by pushing a thing of class 1 up, next to the object
    boxes = outcome.on_defended.boxes
    assert not pipeline.is_found(outcome.target, boxes)
    assert pipeline.is_found(replace(outcome.target, labels=(0, 1)), boxes)


def test_a_larger_patch_than_certified_hides_the_object_from_the_defense():
    patch = Patch(1.8 * AREA, 1.0, "over")
    _, outcome = attacked(sound, patch)
    assert not outcome.certified
    assert not outcome.on_defended.task.position.proven
    assert outcome.defended_survived is False
    assert not outcome.guarantee_broken


@pytest.mark.parametrize("count", [3])
def test_several_patches_are_drawn_at_once(count):
    _, outcome = attacked(partial(sound, masks=Pairs(5)), Patch(0.005, 1.0, "over", count))
    assert not outcome.guarantee_broken
    assert len(outcome.on_defended.task.position.corners) == count
    assert outcome.undefended_survived is False


def test_the_whole_outside_is_drawn_and_nothing_else():
    """With windows inside the grown box the object is certified and stays; with half masks it is not."""
    outside = Patch(location="outside")
    _, outcome = attacked(partial(sound, masks=Windows(1 / 3, 1 / 24)), outside)
    assert outcome.certified
    assert outcome.defended_survived is True
    assert not outcome.guarantee_broken
    width, height = make_image().shape[1], make_image().shape[0]
    ((x1, y1, x2, y2),) = PatchPositions.of(np.array([OBJECT], float), width, height).grown().tolist()
    different = (outcome.on_defended.image != make_image()).any(axis=2)
    assert not different[y1:y2, x1:x2].any()
    different[y1:y2, x1:x2] = True
    assert different.mean() > 0.9  # by chance a pixel keeps its value
    _, open_outcome = attacked(partial(sound, masks=Halves(15)), outside)
    assert not open_outcome.certified


def test_patches_and_the_outside_are_not_attacked_together():
    with pytest.raises(ObjectSeekerError, match="an attack draws patches or the outside, not both"):
        attacked(sound, Patch(AREA, with_outside=True))


def test_only_the_patch_is_changed_and_the_position_is_allowed():
    _, outcome = attacked(sound)
    for attempt in (outcome.on_undefended, outcome.on_defended):
        ((x, y),) = attempt.task.position.corners
        assert attempt.task.patch_size == (LARGEST, LARGEST)
        different = (attempt.image != make_image()).any(axis=2)
        assert different.any()
        different[max(y, 0) : y + LARGEST, max(x, 0) : x + LARGEST] = False
        assert not different.any()
        assert x < OBJECT[2]
        assert x + LARGEST > OBJECT[0]


def test_the_same_seed_gives_the_same_image():
    first, again, other = (attacked(sound, seed=seed)[1].on_defended for seed in (5, 5, 6))
    assert (first.image == again.image).all()
    assert first.loss_curves == again.loss_curves
    assert (first.image != other.image).any()


@pytest.mark.parametrize("goal", ["undefended", "defended"])
def test_losses_fall_from_a_harmless_patch(goal):
    white, pipeline = sound()
    seen = target(pipeline)
    start = pixels_under(seen.image, 18, 18, (60, 60)) + np.array([0, 1, 0], np.uint8)  # hides nothing on its own
    task = PatchTask(seen, Position(((18, 18),)), start[None])
    budget = AttackBudget(steps=30, views_per_step=6, views_per_batch=32)
    (solution,) = attack_by_gradients(AttackSetup(None, pipeline, white, budget=budget), [task], goal)
    assert solution.loss_curve[0] > 1
    assert solution.loss_curve[-1] == 0
    assert solution.hidden
    found = pipeline.judge_observation(seen, pipeline.observe(task.draw(solution.patches)))
    assert not found.undefended
    assert goal == "undefended" or not found.defended


def test_an_object_without_a_position_is_not_attacked():
    whole = replace(target(sound()[1]), box=np.array([0.0, 0, 96, 96]))
    _, outcome = attacked(sound, Patch(0.01, 1.0, "far"), seen=whole)
    assert outcome.vacuous
    assert outcome.on_undefended is None
    assert outcome.defended_survived is None
    assert outcome.skip_reason("defended") == "no position is allowed"


def test_an_object_that_is_not_found_is_not_attacked():
    _, outcome = attacked(sound, seen=replace(target(sound()[1]), labels=(1,)))
    assert {outcome.skip_reason("undefended"), outcome.skip_reason("defended")} == {"not found without a patch"}


def test_random_search_hides_the_object_and_respects_the_certificate():
    _, outcome = attacked(sound, Patch(0.02, 1.0, "over"), AttackBudget(steps=8, restarts=2), black_box=True)
    assert outcome.certified
    assert outcome.undefended_survived is False
    assert outcome.defended_survived is True


def test_random_search_finds_the_suppressing_defense_out():
    _, outcome = attacked(suppressing, budget=AttackBudget(steps=2, restarts=2), black_box=True)
    assert outcome.guarantee_broken


def test_the_judge_takes_the_restart_that_hides():
    white, pipeline = sound()
    setup = AttackSetup(None, pipeline, white, None, OVER, replace(BUDGET, restarts=3))
    tasks = plan_tasks(setup, target(pipeline), "undefended")
    solutions = attack_by_gradients(setup, tasks, "undefended")
    (judged,) = evaluate_solutions(pipeline, solutions, "undefended").values()
    assert not judged.found.undefended
    assert len(judged.loss_curves) == 3


def test_a_broken_guarantee_can_be_seen_again(tmp_path):
    pipeline, outcome = attacked(leaky)
    seeker = pipeline.seeker
    defense = Defense(detector="python:attack_pipelines:leaky_detector", rule=seeker.rule, masks=seeker.masks)
    save_reproduction(tmp_path / "case", AttackSetup(defense, pipeline, patch=OVER), outcome)
    assert recheck(tmp_path / "case") == {
        "certified": True,
        "proven_at_position": True,
        "only_patch_differs": True,
        "still_found": False,
        "leaking_views": outcome.leaking_views,
        "guarantee_broken": True,
    }
    sane = recheck(tmp_path / "case", sound()[1].seeker)
    assert sane["still_found"]
    assert not sane["guarantee_broken"]
    image = np.array(PIL.Image.open(tmp_path / "case" / "attacked.png"))
    image[0, 0] = 0  # a pixel outside the patch: no longer the attack that was certified against
    PIL.Image.fromarray(image).save(tmp_path / "case" / "attacked.png")
    assert not recheck(tmp_path / "case")["guarantee_broken"]


def test_images_and_curves(tmp_path):
    pipeline, outcome = attacked(sound)
    defense = Defense(detector=pipeline.seeker.detector, rule=pipeline.rule, masks=pipeline.seeker.masks)
    save_outcome(tmp_path, AttackSetup(defense, pipeline, patch=OVER), outcome, "cam/image-0")
    assert PIL.Image.open(tmp_path / "annotated" / "cam" / "image-0.jpg").width > 3 * 96
    assert not (tmp_path / "broken").exists()
    for system, attempt in (("undefended", outcome.on_undefended), ("defended", outcome.on_defended)):
        file = tmp_path / "images" / "cam" / f"image-0-{system}.png"
        assert (np.array(PIL.Image.open(file)) == attempt.image).all()
    assert tmp_path / "curves.csv" in artifacts.save_curves(tmp_path, [outcome])
    steps = sum(len(c) for attempt in (outcome.on_undefended, outcome.on_defended) for c in attempt.loss_curves)
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + steps
    falling = replace(outcome, on_undefended=replace(outcome.on_undefended, loss_curves=((8.0, 9.0, 2.0), (6.0, 3.0))))
    assert artifacts.median_curves([falling])["undefended"] == pytest.approx([1, 0.5, 2 / 6])


def test_images_of_one_name_in_two_folders_get_files_of_their_own():
    assert artifacts.file_stems(["1.png", "2.png", "1.png"]) == {"1.png": "1", "2.png": "2"}
    for images in (["cam1/1", "cam2/1", "3"], ["1.jpg", "1.png"], ["a/" + "x" * 300, "b/" + "x" * 300], ["../1", "1"]):
        stems = artifacts.file_stems(images)
        assert len({stem.casefold() for stem in stems.values()}) == len(images)
        assert all(".." not in stem and not stem.startswith("/") for stem in stems.values())
        assert all(len(part) <= 210 for stem in stems.values() for part in stem.split("/"))
