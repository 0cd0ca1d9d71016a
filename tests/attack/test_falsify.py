"""The falsifier finds the fault in defences made unsound on purpose, and none in ours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import PIL.Image
import pytest

torch = pytest.importorskip("torch")

from attack_pipelines import AREA, LARGEST, OBJECT, leaky, picture, sound, suppressing, target  # noqa: E402

from objectseeker import Patch  # noqa: E402
from objectseeker.attack import Budget, artifacts, falsify, gradient, recheck, search  # noqa: E402
from objectseeker.attack.falsify import judge_solutions, plan_tasks  # noqa: E402
from objectseeker.attack.pipeline import beneath, draw  # noqa: E402
from objectseeker.attack.plan import PatchTask  # noqa: E402
from objectseeker.attack.reproduction import save_reproduction  # noqa: E402
from objectseeker.attack.weakest import Position  # noqa: E402
from objectseeker.defence import Defence  # noqa: E402
from objectseeker.errors import ObjectSeekerError  # noqa: E402

OVER = Patch(AREA, 1.0, "over")
BUDGET = Budget(steps=16, restarts=2, views=8, at_once=32)


@pytest.fixture(autouse=True)
def one_thread():
    """Images this small are faster on one thread, much faster where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def attacked(make, patch=OVER, budget=BUDGET, seed=0):
    white, pipeline = make()
    (outcome,) = falsify(partial(gradient.attack, white), pipeline, [target(pipeline)], patch, budget, seed=seed)
    return pipeline, outcome


@pytest.mark.parametrize("seed", range(2))
def test_the_sound_defence_survives(seed):
    _, outcome = attacked(sound, seed=seed)
    assert outcome.certified
    assert outcome.clean.undefended
    assert outcome.undefended_survived is False  # the attack is strong enough to hide it from the detector
    assert outcome.undefended_fit_survived is False
    assert outcome.defence_survived is True
    assert not outcome.broken


@pytest.mark.parametrize("seed", range(2))
def test_masking_after_a_resize_without_the_margin_is_found_out(seed):
    _, outcome = attacked(leaky, seed=seed)
    assert outcome.certified  # the certificate believes the masks
    assert outcome.on_defence.position.proven
    assert outcome.defence_survived is False
    assert outcome.broken


@pytest.mark.parametrize("seed", range(2))
def test_suppression_across_views_is_found_out(seed):
    _, outcome = attacked(suppressing, seed=seed)
    assert outcome.certified
    assert outcome.broken


def test_a_larger_patch_than_certified_hides_the_object_from_the_defence():
    patch = Patch(1.8 * AREA, 1.0, "over")
    _, outcome = attacked(sound, patch)
    assert not outcome.certified
    assert not outcome.on_defence.position.proven
    assert outcome.defence_survived is False
    assert not outcome.broken


def test_only_the_patch_is_changed_and_the_position_is_allowed():
    _, outcome = attacked(sound)
    for attempt in (outcome.on_detector, outcome.on_defence):
        ((x, y),) = attempt.position.corners
        assert attempt.size == (LARGEST, LARGEST)
        different = (attempt.image != picture()).any(axis=2)
        assert different.any()
        different[max(y, 0) : y + LARGEST, max(x, 0) : x + LARGEST] = False
        assert not different.any()
        assert x < OBJECT[2]
        assert x + LARGEST > OBJECT[0]


def test_the_same_seed_gives_the_same_image():
    first, again, other = (attacked(sound, seed=seed)[1].on_defence for seed in (5, 5, 6))
    assert (first.image == again.image).all()
    assert first.curves == again.curves
    assert (first.image != other.image).any()


@pytest.mark.parametrize("jitter", [0, 2])
@pytest.mark.parametrize("goal", ["detector", "defence"])
def test_losses_fall_from_a_harmless_patch(goal, jitter):
    white, pipeline = sound()
    seen = target(pipeline)
    start = beneath(seen.image, 18, 18, (60, 60)) + np.array([0, 1, 0], np.uint8)  # hides nothing by itself
    task = PatchTask(seen, Position(((18, 18),), False, 0.0), start[None])
    (solution,) = gradient.attack(white, pipeline, [task], goal, Budget(steps=30, views=6, jitter=jitter, at_once=32))
    assert solution.curve[0] > 1
    assert solution.curve[-1] == 0
    assert solution.hidden
    observation = pipeline.observe(draw(seen.image, solution.patches, task.position.corners))
    assert not pipeline.judge(seen, observation).undefended
    assert goal == "detector" or not pipeline.judge(seen, observation).defended


def test_an_object_without_a_position_is_not_attacked():
    white, pipeline = sound()
    whole = target(pipeline)
    whole = replace(whole, box=np.array([0.0, 0, 96, 96]))
    (outcome,) = falsify(partial(gradient.attack, white), pipeline, [whole], Patch(0.01, 1.0, "far"), BUDGET)
    assert outcome.vacuous
    assert outcome.on_detector is None
    assert outcome.defence_survived is None


def test_two_patches_are_refused():
    white, pipeline = sound()
    with pytest.raises(ObjectSeekerError, match="count=2"):
        falsify(partial(gradient.attack, white), pipeline, [], Patch(count=2), BUDGET)


def test_random_search_hides_the_object_and_respects_the_certificate():
    _, pipeline = sound()
    patch = Patch(0.02, 1.0, "over")
    (outcome,) = falsify(search.attack, pipeline, [target(pipeline)], patch, Budget(steps=8, restarts=2))
    assert outcome.certified
    assert outcome.undefended_survived is False
    assert outcome.defence_survived is True
    with pytest.raises(ObjectSeekerError, match="jitter"):
        search.attack(pipeline, [], "detector", Budget(jitter=1))


def test_random_search_finds_the_suppressing_defence_out():
    _, pipeline = suppressing()
    (outcome,) = falsify(search.attack, pipeline, [target(pipeline)], OVER, Budget(steps=2, restarts=2))
    assert outcome.broken


def test_the_judge_takes_the_restart_that_hides():
    white, pipeline = sound()
    tasks = plan_tasks(pipeline, target(pipeline), OVER, "detector", replace(BUDGET, restarts=3), 0)
    solutions = gradient.attack(white, pipeline, tasks, "detector", BUDGET)
    (judged,) = judge_solutions(pipeline, solutions, "detector").values()
    assert not judged.undefended
    assert len(judged.curves) == 3


def test_a_broken_guarantee_can_be_seen_again(tmp_path):
    pipeline, outcome = attacked(leaky)
    save_reproduction(tmp_path / "case", pipeline, outcome, OVER, identity="leaky", loading="detector = ...")
    found = recheck(tmp_path / "case", pipeline.seeker.detector)
    assert found == {
        "certified": True,
        "proven_at_this_position": True,
        "only_the_patch_differs": True,
        "still_found": False,
        "guarantee_broken": True,
    }
    sane = recheck(tmp_path / "case", sound()[0].detector)
    assert sane["still_found"]
    assert not sane["guarantee_broken"]
    image = np.array(PIL.Image.open(tmp_path / "case" / "attacked.png"))
    image[0, 0] = 0  # a pixel outside the patch: no longer the attack that was certified against
    PIL.Image.fromarray(image).save(tmp_path / "case" / "attacked.png")
    assert not recheck(tmp_path / "case", pipeline.seeker.detector)["guarantee_broken"]


def test_pictures_and_curves(tmp_path):
    pipeline, outcome = attacked(sound)
    names = ("object", "thing")
    page = artifacts.before_and_after(pipeline, outcome, names)
    assert page.width > 3 * 96
    files = artifacts.save_images(tmp_path, outcome)
    for file, attempt in zip(files, (outcome.on_detector, outcome.on_defence), strict=True):
        assert (np.array(PIL.Image.open(file)) == attempt.image).all()
    assert tmp_path / "curves.csv" in artifacts.save_curves(tmp_path, [outcome])
    steps = sum(len(c) for attempt in (outcome.on_detector, outcome.on_defence) for c in attempt.curves)
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + steps
    falling = replace(outcome, on_detector=replace(outcome.on_detector, curves=((8.0, 9.0, 2.0), (6.0, 3.0))))
    assert artifacts.median_curves([falling])["detector"] == pytest.approx([1, 0.5, 2 / 6])
