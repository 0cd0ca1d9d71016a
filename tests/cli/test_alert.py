"""Attack detection: an image is flagged when masking finds what the base boxes do not explain."""

import json

import adversary
import adversary_iou
import numpy as np
import PIL.Image
import pytest
from cases import generate, prune
from command import DETECTOR, run

from objectseeker import Defense, Detections, Halves, ObjectSeeker, Observation, Patch, Rule
from objectseeker.core.rules import IouRule

OBJECT = [30, 20, 60, 40]


def street(attacked: bool) -> np.ndarray:
    """A bright object; the patch, in the corner, is what the detector below cannot stand."""
    image = np.full((60, 90, 3), 30, np.uint8)
    image[20:40, 30:60] = 255
    if attacked:
        image[:3, :3] = 7
    return image


def see(images):
    """Finds the bright part of an image, unless it sees the patch."""
    found = []
    for image in images:
        ys, xs = np.nonzero(image[..., 0] > 200)
        blind = image[0, 0, 0] == 7 or len(xs) < 5
        boxes = [] if blind else [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
        found.append(Detections(boxes, [0.9] * len(boxes), [0] * len(boxes)))
    return found


@pytest.mark.parametrize("filter_iou", [None, 0.8])
@pytest.mark.parametrize("classwise", [True, False])
def test_an_attacked_image_is_flagged_and_a_clean_one_is_not(filter_iou, classwise):
    rule = Rule(classwise=classwise)
    rule = rule if filter_iou is None else IouRule(ioa_rule=rule, filter_iou=filter_iou)
    seeker = ObjectSeeker(see, rule, masks=Halves(20))
    clean, attacked = (seeker.defend(street(attacked)) for attacked in (False, True))
    assert clean.base.xyxy.tolist() == [OBJECT]
    assert not len(attacked.base)
    assert OBJECT in attacked.recovered.xyxy.tolist()
    assert not clean.alert  # half masks cut the object, but what they show of it lies inside the base box
    assert attacked.alert
    assert seeker([street(True)])[0] == Detections.concatenate([attacked.base, attacked.recovered])
    assert attacked.detections == seeker([street(True)])[0]


def test_base_boxes_that_still_find_the_object_need_no_alert():
    """The guarantee leaves the attacker one way to stay unnoticed: to let the object be found."""
    masked = [Detections([OBJECT], [0.9], [0])] * 80
    masks = ObjectSeeker(see, Rule(), masks=Halves(20)).observe([street(False)])[0].masks
    for base, flagged in ((OBJECT, False), ([30, 20, 55, 40], False), ([30, 20, 45, 40], True), ([0, 0, 9, 9], True)):
        observation = Observation(90, 60, masks, Detections([base], [0.9], [0]), masked)
        assert (len(prune(observation)) > 1) == flagged


def test_who_hides_a_certified_object_from_the_detector_raises_an_alert():
    """All base boxes erased, and all views that see the patch."""
    rng = np.random.default_rng(8)
    patch, flagged = Patch(0.02, 1.0, "far"), {Rule: 0, IouRule: 0}
    options = {
        "base_threshold": 0.5,
        "mask_threshold": 0.5,
        "filter_ioa": 0.6,
        "certification_threshold": 0.0,
        "classwise": True,
    }
    for seed in range(60):
        case = generate(seed, largest=20, lines=3, generous=1.0, crowd=1.0)
        rule, iou_rule = Rule(mask_threshold=0.5), IouRule(ioa_rule=Rule(mask_threshold=0.5))
        games = [(rule, *game) for game in adversary.targets(case, rng, options, patch)]
        iou_case = adversary_iou.generate(rng)
        games += [(iou_rule, *game) for game in adversary_iou.targets(iou_case, rng, iou_rule, patch, 0.5, "exact")]
        for defense, certified, target in games:
            original, masked = target.observation, list(target.observation.masked)
            for m in target.free:
                masked[m] = Detections.empty()
            attacked = Observation(original.width, original.height, original.masks, Detections.empty(), masked)
            if certified:
                assert len(defense.prune(attacked)) > 0
                flagged[type(defense)] += 1
    assert min(flagged.values()) > 20


@pytest.fixture
def workplace(tmp_path):
    (tmp_path / "mine.py").write_text(DETECTOR)
    (tmp_path / "shy.py").write_text(
        "from mine import detect as see\nfrom objectseeker import Detections\n"
        "def detect(images):\n"
        "    return [Detections.empty() if i[0, 0, 0] == 7 else see([i])[0] for i in images]\n"
    )
    (tmp_path / "images").mkdir()
    for name, attacked in (("clean", False), ("attacked", True)):
        PIL.Image.fromarray(street(attacked)).save(tmp_path / "images" / f"{name}.png")
    return tmp_path


def test_detect_flags_images(workplace):
    arguments = ["detect", "images", "-d", "python:shy:detect", "--set", "masks=halves:5", "--no-annotate"]
    done = run(workplace, *arguments, "--out", "o")
    assert "1 of 2 images flagged" in done.stdout
    assert "alert: attacked.png" in done.stdout
    defense = Defense.load(workplace / "o" / "defense.json")
    rows = json.loads((workplace / "o" / "alerts.json").read_text())
    assert {row.pop("defense_sha256") for row in rows} == {defense.sha256}
    assert rows == [
        {"image_id": 1, "image": "attacked.png", "alert": True, "recovered_boxes": 1},
        {"image_id": 2, "image": "clean.png", "alert": False, "recovered_boxes": 0},
    ]
    assert json.loads(run(workplace, *arguments, "--out", "o", "--json").stdout)["alerts"] == 1


def test_detect_and_certify_know_the_iou_variant(workplace):
    arguments = [
        "detect",
        "images",
        "-d",
        "python:shy:detect",
        "--set",
        "masks=halves:20",
        "--no-annotate",
        "--json",
    ]
    answer = json.loads(run(workplace, *arguments, "--out", "o", "--set", "filter_iou=0.8").stdout)
    assert answer["alerts"] >= 1
    bad = run(workplace, *arguments, "--out", "o", "--set", "filter_iou=2", code=2)
    assert "filter_iou" in bad.stderr
