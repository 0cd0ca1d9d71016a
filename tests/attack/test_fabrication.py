"""Attacks that fabricate and flip: they succeed where they can, and what they make is judged literally."""

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from objectseeker import Defense, Detections, Halves, ObjectSeekerError, Patch, Rule
from objectseeker.attack import AttackBudget, attack, recheck
from objectseeker.attack.losses import fabricating_loss
from objectseeker.attack.metrics import read_attack

QUICK = AttackBudget(steps=30, restarts=2)
OVER = Patch(0.04, location="over")


def gullible(images):
    """Finds the white object; the redder the image, the surer it sees objects of all sizes around the red pixels."""
    found = []
    for image in images:
        ys, xs = np.nonzero((image == 255).all(axis=2))
        boxes, labels, scores = [], [], []
        if len(xs) > 100:
            boxes, labels, scores = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], [0], [0.9]
        red = (image[..., 0] > 150) & (image[..., 1] < 100) & (image[..., 2] < 100)
        if red.sum() > 40:
            ys, xs = np.nonzero(red)
            x, y = xs.mean(), ys.mean()
            for side in (8, 11, 15, 20, 27):
                for tall in (8, 11, 15, 20, 27):
                    boxes += [[max(x - side, 0), max(y - tall, 0), min(x + side, 128), min(y + tall, 96)]] * 2
                    labels += [0, 1]
                    scores += [min(0.5 + red.sum() / 2000, 0.95)] * 2
        found.append(Detections(np.array(boxes, float).reshape(-1, 4), scores, labels))
    return found


gullible.names = ("person", "car")  # type: ignore[attr-defined]


@pytest.fixture
def image_file(tmp_path):
    image = np.full((96, 128, 3), 60, np.uint8)
    image[20:70, 20:60] = 255
    PIL.Image.fromarray(image).save(tmp_path / "street.png")
    return tmp_path / "street.png"


def defense(**settings):
    rule = Rule(base_threshold=0.4, mask_threshold=0.6, support_overlap=0.1, **settings)
    return Defense(detector=gullible, rule=rule, masks=Halves(7))


@pytest.mark.parametrize("goal", ["fabricate", "flip"])
def test_a_gullible_detector_is_fooled_and_no_made_box_is_certified(image_file, tmp_path, goal):
    result = attack(
        image_file, defense(), OVER, goal=goal, mode="black-box", budget=QUICK, out=tmp_path / "out", seed=3
    )
    summary = result.summary
    assert summary["attacked"] == 1
    assert summary["undefended"]["count"] == 1
    assert summary["defended"]["count"] == 1  # base boxes are output: the defense is not against fabrication
    assert summary["certified"]["count"] == 0
    assert result.broken_guarantees == 0
    assert (tmp_path / "out" / "attack.json").is_file()
    (before_and_after,) = (tmp_path / "out" / "annotated").iterdir()
    assert PIL.Image.open(before_and_after).size[0] > 2 * 128
    assert json.loads((tmp_path / "out" / "attack.json").read_text()) == result.to_dict()
    assert (tmp_path / "out" / "curves.csv").is_file()
    with pytest.raises(ObjectSeekerError, match=f"an attack that hides objects: got goal '{goal}'"):
        read_attack(tmp_path / "out" / "attack.json")


def test_a_wrong_certificate_is_refuted(image_file, tmp_path, monkeypatch):
    """Planted: every box is certified. The judge finds that no view without the patch supports the made one."""
    from objectseeker.core.seeker import ObjectSeeker

    right = ObjectSeeker.certify_not_fabricated

    def wrong(self, observation, detections, patches):
        given = right(self, observation, detections, patches)
        object.__setattr__(given, "certified", np.ones_like(given.certified))
        return given

    monkeypatch.setattr(ObjectSeeker, "certify_not_fabricated", wrong)
    result = attack(
        image_file, defense(), OVER, goal="flip", mode="black-box", budget=QUICK, out=tmp_path / "out", seed=3
    )
    assert result.broken_guarantees == 1
    folder = tmp_path / "out" / "broken" / "street-0"
    assert {file.name for file in folder.iterdir()} == {"clean.png", "attacked.png", "case.json", "defense.json"}
    seeker = defense().build()
    assert recheck(folder, seeker)["guarantee_broken"]
    monkeypatch.undo()
    assert recheck(folder, seeker) == {"refuted_boxes": 0, "only_patch_differs": True, "guarantee_broken": False}


def test_what_views_without_the_patch_support_refutes_nothing(image_file, tmp_path):
    """A detector that always reports a car on the object: the patch did not make it, so its certificate stands."""

    def both(images):
        found = []
        for boxes in gullible(images):
            person = boxes[boxes.label == 0]
            cars = Detections(person.xyxy, person.score * 0.4, person.label + 1)
            found.append(Detections.concatenate([boxes, cars]))
        return found

    both.names = gullible.names
    rule = Rule(base_threshold=0.4, mask_threshold=0.6, support_overlap=0.1)
    result = attack(
        image_file, Defense(detector=both, rule=rule, masks=Halves(7)), Patch(0.002), goal="flip", mode="black-box",
        budget=AttackBudget(steps=5, restarts=1), seed=3,
    )  # fmt: skip
    assert result.broken_guarantees == 0


def test_bad_goals_are_one_sentence(image_file):
    with pytest.raises(ObjectSeekerError, match="goal must be hide, fabricate or flip"):
        attack(image_file, defense(), OVER, goal="erase", mode="black-box", budget=QUICK)
    with pytest.raises(ObjectSeekerError, match="no gradients"):
        attack(image_file, defense(), OVER, goal="fabricate", mode="white-box", budget=QUICK)
    with pytest.raises(ObjectSeekerError, match=r"certification_threshold is for the goal hide: got 0\.1 and flip"):
        attack(image_file, defense(), OVER, goal="flip", certification_threshold=0.1)


def test_the_patch_is_where_the_threat_allows_it_for_the_wanted_box(image_file):
    result = attack(
        image_file,
        defense(),
        Patch(0.01, location="far"),
        goal="fabricate",
        mode="black-box",
        budget=AttackBudget(steps=1, restarts=1),
    )
    task = result.outcomes[0].task
    wanted, (x, y), (wide, tall) = task.target, task.position.corners[0], task.patch_size
    dx = max(wanted.box[0] - x - wide, x - wanted.box[2], 0)
    dy = max(wanted.box[1] - y - tall, y - wanted.box[3], 0)
    assert dx > 12.8 or dy > 9.6
    assert Path(image_file).is_file()


def test_the_loss_wants_the_class_to_win_where_only_the_best_counts():
    torch = pytest.importorskip("torch")
    boxes = torch.tensor([[[0.0, 0, 10, 10], [50, 50, 60, 60]]])
    wanted, labels = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([1])

    def loss(first, second, every_class=False):
        scores = torch.tensor([[[first, second], [0.01, 0.99]]])
        return float(fabricating_loss(boxes, scores, wanted, labels, every_class))

    assert loss(0.1, 0.9) == 0
    assert loss(0.95, 0.9) > 0.7  # the other class wins
    assert loss(0.95, 0.9, every_class=True) == 0
    assert loss(0.1, 0.3) > loss(0.1, 0.5) > 0  # and the box at the other place does not count
