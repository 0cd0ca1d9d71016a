"""What the command does: a whole defense is loaded and attacked, the objects of a run are its targets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

import objectseeker
from objectseeker import Bands, Defense, Detections, Halves, IouRule, Pairs, Patch, Rule
from objectseeker.attack import AttackBudget, Target, read_recall
from objectseeker.attack.job import run_attack
from objectseeker.attack.setup import load_attack, targets_of_images, targets_of_run
from objectseeker.core.label_map import LabelMap
from objectseeker.datasets import DatasetImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image

NAMES = ("man", "woman", "car")
DETECTOR = """
import numpy as np
from objectseeker import Detections

def see(image):
    '''A box around what is red (a man in the left half, a woman in the right one); blue anywhere blinds it.'''
    ys, xs = np.nonzero((image[..., 0] > 200) & (image[..., 2] < 100))
    if len(xs) < 9 or ((image[..., 2] > 180) & (image[..., 0] < 100)).sum() > 3:
        return Detections.empty()
    return Detections([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], [0.9], [int(xs.mean() > image.shape[1] / 2)])

def detect(images):
    return [see(image) for image in images]

detect.names = ("man", "woman", "car")
"""
QUICK = AttackBudget(steps=3, restarts=2, views_per_step=2)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    (tmp_path / "attacked_people.py").write_text(DETECTOR)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "attacked_people", raising=False)
    for name, x in (("cam1/1.png", 10), ("cam2/1.png", 45)):
        (tmp_path / name).parent.mkdir()
        PIL.Image.fromarray(make_striped(x)).save(tmp_path / name)
    return tmp_path


def make_striped(x):
    image = np.full((60, 90, 3), 30, np.uint8)
    image[15:45, x : x + 30] = (255, 30, 30)
    return image


def defense(**settings):
    rule = Rule(base_threshold=0.5, mask_threshold=0.7)
    return Defense(detector="python:attacked_people:detect", **{"rule": rule, "masks": Halves(6)} | settings)


def stored(workplace, *, dataset_labels=(0, 0, 1), names=("person", "car"), labels=(0, 0)):
    """What the attack asks of a run: annotated images, and which labels mean what."""
    entries = [
        DatasetImage(
            id=f"{folder}/1",
            path=workplace / folder / "1.png",
            size=(90, 60),
            ground_truth=Detections([[x, 15, x + 30, 45]], [1.0], [label]),
            ignore=np.zeros(1, np.bool_),
            crowd=np.zeros(1, np.bool_),
        )
        for folder, x, label in zip(("cam1", "cam2"), (10, 45), labels, strict=True)
    ]
    label_map = LabelMap(NAMES, names, np.array(dataset_labels))
    return SimpleNamespace(
        label_map=label_map, manifest=SimpleNamespace(images=entries), unreadable={}, folder=workplace / "run"
    )


def test_objects_that_several_detector_classes_stand_for_are_attacked(workplace):
    attacked = load_attack(defense())
    assert attacked.mode == "black-box"
    assert attacked.defense.fingerprint == attacked.pipeline.seeker.detector.fingerprint
    targets = list(targets_of_run(attacked.pipeline, stored(workplace), 0))
    assert {(target.image_id, target.labels, target.class_name) for target in targets} == {
        ("cam1/1", (0, 1), "person"),
        ("cam2/1", (0, 1), "person"),
    }
    out = workplace / "out"
    results = run_attack(replace(attacked, patch=Patch(0.02), budget=QUICK), targets, out)
    assert results.to_dict() == json.loads((out / "attack.json").read_text())
    assert [row["class"] for row in results.objects] == ["person", "person"]
    assert all(row["certified"] for row in results.objects)
    shown = "<td>recall under attack</td><td>0 of 2: 0% (0% to 66%)</td><td>2 of 2: 100% (34% to 100%)</td>"
    assert shown in results._repr_html_()
    assert not any(row["undefended_survived"] for row in results.objects)
    assert results.broken_guarantees == 0
    assert len(list((out / "images").rglob("*.png"))) == 4
    assert {file.relative_to(out).as_posix() for file in out.rglob("*.jpg")} == {
        "annotated/cam1/1-0.jpg",
        "annotated/cam2/1-0.jpg",
    }
    assert results.to_dict()["defense"]["sha256"] == attacked.defense.sha256
    assert read_recall(out / "attack.json", attacked.defense, Patch(0.02), certification_threshold=0.0)["objects"] == 2


def test_objects_of_unknown_classes_and_ignored_ones_are_left_out(workplace):
    pipeline = load_attack(defense()).pipeline
    run = stored(workplace, dataset_labels=(0, 0, -1), labels=(0, 1))
    assert [target.image_id for target in targets_of_run(pipeline, run, 0)] == ["cam1/1"]
    assert len(list(targets_of_run(pipeline, stored(workplace), 0))) == 2
    run = stored(workplace, dataset_labels=(-1, -1, -1))
    with pytest.raises(ObjectSeekerError, match="no annotated object"):
        list(targets_of_run(pipeline, run, 0))
    blind = load_attack(defense(rule=Rule(classwise=False))).pipeline  # labels are not used there
    assert [target.labels for target in targets_of_run(blind, run, 0)] == [(-1,), (-1,)]


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": IouRule(ioa_rule=Rule(mask_threshold=0.7))},
        {"rule": Rule(mask_threshold=0.95, evidence_threshold=0.5, edge_factor=0.9)},
        {"masks": Pairs(2), "fill": 0},
        {"masks": Bands(0.02) + Halves(2), "batch_size": 3},
    ],
    ids=("iou", "evidence", "pairs", "bands"),
)
@pytest.mark.parametrize("count", [1, 2])
def test_every_defense_is_attacked_as_it_is(workplace, settings, count):
    attacked = load_attack(defense(**settings))
    assert attacked.pipeline.certification_threshold == (
        0.5 if "iou" in type(attacked.defense.rule).__name__.lower() else 0.0
    )
    assert (attacked.pipeline.seeker.fill, attacked.pipeline.seeker.masks) == (
        settings.get("fill", 114),
        settings.get("masks", Halves(6)),
    )
    (target,) = targets_of_images(attacked.pipeline, [workplace / "cam1/1.png"])
    assert (target.labels, target.class_name) == ((0,), "man")
    patch = Patch(0.02, 1.0, "over", count)
    setup = replace(attacked, patch=patch, budget=replace(QUICK, steps=1))
    results = run_attack(setup, [target], workplace / "out")
    assert Defense.from_dict(results.to_dict()["defense"]) == attacked.defense
    assert results.broken_guarantees == 0
    (row,) = results.objects
    assert len(row["attack_on_defended"]["corners"]) == count


@pytest.mark.parametrize("mask_mode", ["fill", "crop"])
def test_the_builtin_detector_is_judged_as_it_is_deployed(tmp_path, mask_mode):
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    small = Defense.for_detector("builtin", masks=Halves(2), input_size=128, mask_mode=mask_mode)
    attacked = load_attack(replace(small, rule=Rule(base_threshold=0.05, mask_threshold=0.1), threshold_schedule=None))
    assert attacked.mode == "white-box"
    assert (
        attacked.defense.fingerprint == small.build().detector.fingerprint
    )  # not that of the module that shows gradients
    image = load_image(Path(objectseeker.__file__).parent / "demo" / "samples" / "coat.jpg")
    observation = attacked.pipeline.observe(image)
    box, labels = observation.base.xyxy[0], (int(observation.base.label[0]),)
    target = Target("coat", 0, image, observation, box, labels)
    setup = replace(attacked, patch=Patch(0.04), budget=replace(QUICK, steps=2))
    results = run_attack(setup, [target], tmp_path / "out")
    (row,) = results.objects
    assert row["skip_reason"] == {"undefended": None, "defended": None}
    assert results.broken_guarantees == 0
    black = load_attack(attacked.defense, mode="black-box")  # bound to this detector, which it is
    assert black.mode == "black-box"
    setup = replace(black, patch=Patch(0.04), budget=replace(QUICK, steps=1))
    results = run_attack(setup, [target], tmp_path / "black-box")
    assert results.broken_guarantees == 0
    assert results.to_dict()["defense"]["sha256"] == attacked.defense.sha256


def test_what_cannot_be_attacked_that_way_is_one_sentence(workplace):
    with pytest.raises(ObjectSeekerError, match="has no gradients"):
        load_attack(defense(), mode="white-box")
    with pytest.raises(ObjectSeekerError, match="'gray'"):
        load_attack(defense(), mode="gray")
    PIL.Image.fromarray(np.zeros((60, 90, 3), np.uint8)).save(workplace / "black.png")
    with pytest.raises(ObjectSeekerError, match="no object with a score"):
        list(targets_of_images(load_attack(defense()).pipeline, [workplace / "black.png"]))


def test_a_broken_guarantee_leaves_one_folder_that_checks_itself(tmp_path):
    pytest.importorskip("torch")
    from attack_pipelines import AREA, MASKS, PAPER, make_image

    leaky = Defense(detector="python:attack_pipelines:leaky_detector", rule=PAPER, masks=MASKS)
    attacked = load_attack(leaky)
    assert attacked.mode == "white-box"
    PIL.Image.fromarray(make_image()).save(tmp_path / "image.png")
    targets = list(targets_of_images(attacked.pipeline, [tmp_path / "image.png"]))
    budget = AttackBudget(steps=16, restarts=2, views_per_step=8, views_per_batch=32)
    results = run_attack(replace(attacked, patch=Patch(AREA), budget=budget), targets, tmp_path / "out")
    assert results.broken_guarantees == 1
    assert results.summary["objects_with_leaking_views"] == 1
    folder = tmp_path / "out" / "broken" / "image-0"
    tests = Path(__file__).parents[1]
    again = subprocess.run(
        [sys.executable, folder / "check.py"], cwd=tests, capture_output=True, text=True, check=False
    )
    assert "'guarantee_broken': True" in again.stdout, again.stderr
