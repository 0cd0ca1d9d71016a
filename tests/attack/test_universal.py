"""One patch for a dataset: where it is drawn, that nothing else changes, and that training makes it worse."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

from objectseeker import Detections, Halves, Patch, Rule, open_dataset
from objectseeker.attack import AttackBudget, attack_dataset
from objectseeker.attack.setup import AttackSetup
from objectseeker.attack.universal import PatchTraining, PlacedImage, Placement, draw_rectangles
from objectseeker.datasets import DatasetImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image

NAMES = ("person", "car")
PATCH = Patch(0.04)


def placed(boxes, labels, size=(100, 80), carries=()):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 200, (size[1], size[0], 3), dtype=np.uint8)
    objects = Detections(boxes, np.ones(len(boxes)), labels)
    flags = np.zeros(len(boxes), np.bool_)
    entry = DatasetImage("one", None, size, objects, flags, flags)
    return PlacedImage(entry, pixels, objects, np.array(carries, np.int64))


def rectangles(text, image, patch=PATCH, seed=0):
    return Placement.parse(text).rectangles(image, patch, np.random.default_rng(seed))


def test_a_corner_is_at_the_origin_and_as_large_as_the_threat():
    (rectangle,) = rectangles("corner", placed([[10, 10, 30, 30]], [0]))
    assert rectangle.tolist() == [0, 0, *PATCH.size(100, 80)]


def test_random_places_are_inside_and_differ():
    drawn = np.concatenate([rectangles("random", placed([], []), seed=seed) for seed in range(50)])
    assert (drawn[:, :2] >= 0).all()
    assert (drawn[:, :2] + drawn[:, 2:] <= [100, 80]).all()
    assert len(np.unique(drawn, axis=0)) > 30


def test_far_is_the_position_with_the_largest_gap_to_the_nearest_object():
    image = placed([[0, 0, 40, 80], [40, 60, 60, 80]], [0, 1])
    ((x, y, width, height),) = rectangles("far", image).tolist()

    def nearest(x, y):
        gaps = [
            max((x1 - x - width) / 100, (x - x2) / 100, (y1 - y - height) / 80, (y - y2) / 80)
            for x1, y1, x2, y2 in image.objects.xyxy.tolist()
        ]
        return min(gaps)

    best = max(nearest(x, y) for x in range(101 - width) for y in range(81 - height))
    assert nearest(x, y) >= best - 0.05  # candidates are a grid
    assert nearest(x, y) > 0


def test_carried_patches_are_centered_and_scaled_to_the_box():
    image = placed([[10, 10, 50, 70], [60, 10, 80, 20]], [0, 1], carries=[0])
    (rectangle,) = rectangles("on:person", image, Patch(0.25))
    x, y, width, height = rectangle.tolist()
    assert (width, height) == (25, 25)  # a quarter of 40 x 60, as a square
    assert abs(x + width / 2 - 30) <= 1
    assert abs(y + height / 2 - 40) <= 1


@pytest.mark.parametrize("text", ["", "middle", "on:", "CORNER"])
def test_other_places_are_rejected(text):
    with pytest.raises(ObjectSeekerError, match="corner, far, random, or on:CLASS"):
        Placement.parse(text)


@pytest.fixture
def dataset(tmp_path):
    rng = np.random.default_rng(1)
    images, annotations = [], []
    for n, size in enumerate([(100, 80), (64, 90)]):
        PIL.Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(tmp_path / f"{n}.png")
        images.append({"id": n, "file_name": f"{n}.png", "width": size[0], "height": size[1]})
        annotations += [
            {"id": 2 * n, "image_id": n, "category_id": 5, "bbox": [8.5, 9, 30, 40], "iscrowd": 0},
            {"id": 2 * n + 1, "image_id": n, "category_id": 7, "bbox": [30, 30, 20, 20], "iscrowd": 1},
        ]
    categories = [{"id": 5, "name": "person"}, {"id": 7, "name": "car"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    return open_dataset(f"coco:{tmp_path / 'truth.json'}:{tmp_path}")


def test_a_given_patch_changes_nothing_but_its_rectangles_and_keeps_the_annotations(dataset, tmp_path):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = (255, 0, 0)
    PIL.Image.fromarray(pixels).save(tmp_path / "patch.png")
    out = tmp_path / "out"
    attack = attack_dataset(dataset, "random", patch=PATCH, out=out, patch_image=tmp_path / "patch.png")
    assert attack.system is None
    written = open_dataset(f"coco:{out / 'annotations.json'}:{out / 'images'}", strict=True)
    for before, after in zip(dataset.images, written.images, strict=True):
        assert (before.id, written.names) == (after.id, dataset.names)
        np.testing.assert_allclose(before.ground_truth.xyxy, after.ground_truth.xyxy)
        assert before.ground_truth.label.tolist() == after.ground_truth.label.tolist()
        assert before.ignore.tolist() == after.ignore.tolist()
        clean, attacked = before.load(), after.load()
        ((x, y, width, height),) = attack.rectangles[before.id]
        inside = np.zeros(clean.shape[:2], np.bool_)
        inside[y : y + height, x : x + width] = True
        assert (clean == attacked)[~inside].all()
        assert attacked[y, x].tolist() == [255, 0, 0]
        assert attacked[y + height - 1, x].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(load_image(out / "patch.png"), pixels)
    assert "prints at 20 cm" in (out / "print.txt").read_text()


def test_a_carried_patch_says_how_large_to_print_it(dataset, tmp_path):
    PIL.Image.new("RGB", (8, 8)).save(tmp_path / "patch.png")
    attack_dataset(
        dataset, "on:person", patch=Patch(0.12), out=tmp_path / "out", patch_image=tmp_path / "patch.png", sample=1
    )
    assert "30% as tall as the person" in (tmp_path / "out" / "print.txt").read_text()  # 12 of 40 pixels


def test_what_cannot_be_attacked_is_an_error(dataset, tmp_path):
    with pytest.raises(ObjectSeekerError, match="no class 'dog'"):
        attack_dataset(dataset, "on:dog", out=tmp_path / "out")
    with pytest.raises(ObjectSeekerError, match="needs annotated images"):
        attack_dataset(tmp_path, "corner", out=tmp_path / "out")
    with pytest.raises(ObjectSeekerError, match="one patch"):
        attack_dataset(dataset, "corner", patch=Patch(0.01, count=2), out=tmp_path / "out")


def test_random_search_finds_what_blinds_a_detector():
    """The detector finds the object unless there is enough blue; so the patch must become blue."""
    image = placed([[50, 40, 90, 70]], [0])
    image.pixels[:] = 120

    def detect(images):
        blue = [float(((one[..., 2] > 150) & (one[..., 0] < 100)).mean()) for one in images]
        return [Detections([[50, 40, 90, 70]], [max(0.9 - 30 * share, 0.0)], [0]) for share in blue]

    pipeline = SimpleNamespace(seeker=SimpleNamespace(detector=detect), class_names=NAMES)
    data = SimpleNamespace(names=NAMES)
    setup = AttackSetup(None, pipeline, patch=PATCH, budget=AttackBudget(steps=200))
    training = PatchTraining(setup, data, [image], Placement("corner"))
    pixels, curve = training.run()
    assert curve == sorted(curve, reverse=True)
    before = detect([image.pixels])[0].score[0]
    after = detect([draw_rectangles(image.pixels, pixels, rectangles("corner", image).tolist())])[0].score[0]
    assert after < before / 2


@pytest.mark.parametrize("system", ["undefended", "defended"])
@pytest.mark.parametrize("text", ["corner", "on:person"])
def test_gradients_hide_objects_and_fabricate_boxes(system, text):
    """In the network bright pixels hide the object's box and raise a wrong one: the patch must become bright."""
    torch = pytest.importorskip("torch")
    from objectseeker.attack.whitebox import WhiteBox
    from objectseeker.detectors.torch_module import torch_detector

    class Bright(torch.nn.Module):
        def forward(self, images):
            level = images.mean((1, 2, 3)) / 20 - 5
            boxes = images.new_tensor([[8, 8, 40, 40], [44, 44, 60, 60]]).expand(len(images), 2, 4)
            scores = torch.stack([torch.sigmoid(-level), torch.sigmoid(level)], 1)
            return boxes, torch.stack([scores, torch.zeros_like(scores)], 2)

    module = Bright()
    white = WhiteBox(predict=module, detector=torch_detector(module, layout="decoded,fit=stretch", input_size=64))
    image = placed([[8, 8, 40, 40]], [0], size=(64, 64), carries=[0])
    pipeline = SimpleNamespace(rule=Rule(base_threshold=0.3, mask_threshold=0.5), class_names=NAMES)
    defense = SimpleNamespace(masks=Halves(3), fill=114)
    setup = AttackSetup(defense, pipeline, white, patch=Patch(0.2), budget=AttackBudget(steps=40))
    data = SimpleNamespace(names=NAMES)
    pixels, curve = PatchTraining(setup, data, [image], Placement.parse(text), system).run()
    assert pixels.mean() > 220
    assert np.mean(curve[-5:]) < curve[0]
