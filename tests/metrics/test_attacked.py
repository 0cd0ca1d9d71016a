"""A run against the same images attacked: what is lost, what is fabricated, and which images certificates cover."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
from command import run as command

from objectseeker import Defense, Detections, Halves, Patch, Rule, observe
from objectseeker.core.threats import PATCH_LOCATIONS, ThreatModel
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.attacked import changed_rectangle, evaluate_attacked, match_images, patch_explains

SIZE = (90, 60)
BOX = (10, 15, 40, 45)
BRIGHT = 200
FAR = ThreatModel(area=0.02)


def detect(images):
    """A box around what is bright, unless something blue is to be seen; another box where something green is."""
    found = []
    for image in images:
        bright = (image[..., 0] > BRIGHT) & (image[..., 1] > BRIGHT)
        blue, green = ((image[..., c] > BRIGHT) & (image[..., 0] < 100) & (image[..., 3 - c] < 100) for c in (2, 1))
        boxes = []
        for shown in (bright, green):
            ys, xs = np.nonzero(shown)
            if len(xs) > 9 and not (shown is bright and blue.any()):
                boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
        found.append(Detections(np.array(boxes, float).reshape(-1, 4), [0.9] * len(boxes), [0] * len(boxes)))
    return found


detect.names = ("bright",)  # type: ignore[attr-defined]
detect.fingerprint = "bright:1"  # type: ignore[attr-defined]


def make_image(patch=None):
    image = np.full((*SIZE[::-1], 3), 30, np.uint8)
    x1, y1, x2, y2 = BOX
    image[y1:y2, x1:x2] = 255
    if patch is not None:
        x, y, side, color = patch
        image[y : y + side, x : x + side] = color
    return image


BLUE, GREEN = (0, 0, 255), (0, 255, 0)


def stored(folder, images, *, ids=None, detector=detect):
    """A run of images with one object each, stored under `ids`."""
    (folder / "images").mkdir(parents=True)
    ids = [f"p{n}" for n in range(len(images))] if ids is None else ids
    listed, annotations = [], []
    for n, (key, image) in enumerate(zip(ids, images, strict=True)):
        PIL.Image.fromarray(image).save(folder / "images" / f"{key}.png")
        listed.append({"id": key, "file_name": f"{key}.png", "width": SIZE[0], "height": SIZE[1]})
        x1, y1, x2, y2 = BOX
        annotations.append({"id": n, "image_id": key, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    content = {"images": listed, "annotations": annotations, "categories": [{"id": 1, "name": "bright"}]}
    (folder / "truth.json").write_text(json.dumps(content))
    return observe(f"coco:{folder / 'truth.json'}:{folder / 'images'}", defense_of(detector), out=folder / "run")


def defense_of(detector):
    rule = Rule(base_threshold=0.5, mask_threshold=0.7)
    return Defense(detector=detector, rule=rule, masks=Halves(8), fingerprint="bright:1")


def measure(clean, attacked):
    return evaluate_attacked(clean, attacked, defense_of(detect), threat=FAR)


def clean_and(tmp_path, attacked, **options):
    clean = stored(tmp_path / "clean", [make_image() for _ in attacked])
    return clean, stored(tmp_path / "attacked", attacked, **options)


def test_a_patch_takes_the_undefended_detectors_objects_and_not_the_certified_ones(tmp_path):
    attacked = [make_image((70, 5, 9, BLUE)), make_image((75, 48, 9, BLUE))]
    found = measure(*clean_and(tmp_path, attacked))
    assert found.clean.undefended.ap50 == 100
    assert found.attacked.undefended.ap50 == 0
    assert found.attacked.defended.ap50 == 100
    assert found.lost == dict.fromkeys(PATCH_LOCATIONS, 0)
    assert found.certified["far"] == 2
    assert found.outside_threat == 0
    assert found.differences["undefended.ap50"].value == -100
    assert found.differences["defended.ap50"].value == 0
    assert "certified and lost: 0 of" in found.sentences()[0]


def test_a_lost_object_that_was_certified_is_counted(tmp_path):
    """The attacked run comes from images in which the whole object is gone, though only the patch may differ."""
    clean, attacked = clean_and(tmp_path, [make_image((70, 5, 9, BLUE))])
    empty = stored(tmp_path / "empty", [np.full_like(make_image(), 30)])
    forged = replace(attacked, folder=empty.folder, files=empty.files, fingerprint=empty.fingerprint)
    found = measure(clean, forged)
    assert found.lost["far"] == 1
    assert sum(found.lost.values()) > 0


def test_a_patch_beyond_the_threat_is_not_the_certificates(tmp_path):
    attacked = [make_image((50, 5, 30, BLUE))]  # 900 of 5,400 pixels
    found = measure(*clean_and(tmp_path, attacked))
    assert sum(found.certified.values()) == 0
    assert found.outside_threat == 1
    assert "1 of 1 images" in found.sentences()[1]


def test_fabricated_boxes_are_new_and_match_nothing(tmp_path):
    attacked = [make_image((70, 5, 9, GREEN)), make_image()]
    found = measure(*clean_and(tmp_path, attacked))
    assert found.fabricated["undefended"].value == 0.5
    assert found.attacked.undefended.ap50 < 100


def test_images_are_matched_by_id_or_file_name(tmp_path):
    clean = stored(tmp_path / "clean", [make_image(), make_image((70, 5, 9, GREEN))], ids=["a", "b"])
    attacked = stored(tmp_path / "attacked", [make_image((70, 5, 9, BLUE))], ids=["b"])
    assert match_images(clean, attacked) == [(1, 0)]
    folder = observe(tmp_path / "attacked" / "images", defense_of(detect), out=tmp_path / "unlabeled")
    assert match_images(clean, folder) == [(1, 0)]
    assert measure(clean, folder).attacked.undefended.ap50 == 0
    other = stored(tmp_path / "other", [make_image()], ids=["c"])
    with pytest.raises(ObjectSeekerError, match="has the image 'c'"):
        match_images(clean, other)


def test_changed_pixels_are_explained_by_the_patches_that_contain_them():
    rng = np.random.default_rng(0)
    width, height = 24, 18
    for _ in range(150):
        x1, y1 = rng.uniform(0, 14), rng.uniform(0, 10)
        box = np.array([[x1, y1, x1 + rng.uniform(1, 9), y1 + rng.uniform(1, 7)]])
        left, top = int(rng.integers(width - 2)), int(rng.integers(height - 2))
        right, bottom = left + int(rng.integers(1, 7)), top + int(rng.integers(1, 7))
        rectangle = np.array([left, top, min(right, width), min(bottom, height)])
        for patch in ThreatModel(area=float(rng.choice([0.02, 0.06]))).patches():
            wide, tall = patch.size(width, height)
            expected = any(
                allowed_at(x, y, wide, tall, box[0], patch, width, height)
                for x in range(rectangle[2] - wide, rectangle[0] + 1)
                for y in range(rectangle[3] - tall, rectangle[1] + 1)
            )
            assert patch_explains(rectangle, patch, box, width, height).tolist() == [expected]


def allowed_at(x, y, wide, tall, box, patch, width, height):
    """Say literally whether a patch may be at a position."""
    if not (1 - wide <= x <= width - 1 and 1 - tall <= y <= height - 1):
        return False
    dx, dy = max(box[0] - (x + wide), x - box[2], 0), max(box[1] - (y + tall), y - box[3], 0)
    over = x < box[2] and x + wide > box[0] and y < box[3] and y + tall > box[1]
    far = not over and (dx > width / 10 or dy > height / 10)
    return {"far": far, "over": over, "close": not far and not over, "anywhere": True}[patch.location]


def test_equal_images_have_no_changed_rectangle():
    assert changed_rectangle(make_image(), make_image()) is None
    assert changed_rectangle(make_image(), make_image((70, 5, 9, BLUE))).tolist() == [70, 5, 79, 14]
    assert patch_explains(None, Patch(), np.array([BOX], float), *SIZE).all()


def test_a_vacuous_certificate_is_about_no_image():
    """No position is far from an object that fills the image: it counts as certified far, and may be lost."""
    everything = np.array([[0.0, 0.0, *SIZE]])
    assert not patch_explains(None, Patch(location="far"), everything, *SIZE).any()
    assert not patch_explains(np.array([1, 1, 3, 3]), Patch(location="far"), everything, *SIZE).any()
    assert patch_explains(None, Patch(location="over"), everything, *SIZE).all()
    assert not patch_explains(None, Patch(location="outside"), everything, *SIZE).any()


def test_the_command_from_the_images_to_the_table(tmp_path):
    """observe, attack with a given patch, observe, evaluate --attacked: as a user does it."""
    source = """
import numpy as np
from objectseeker import Detections

def detect(images):
    found = []
    for image in images:
        ys, xs = np.nonzero((image[..., 0] > 200) & (image[..., 1] > 200))
        blind = ((image[..., 2] > 200) & (image[..., 0] < 100)).any() or len(xs) < 9
        box = [] if blind else [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
        found.append(Detections(box, [0.9] * len(box), [0] * len(box)))
    return found

detect.names = ("bright",)  # type: ignore[attr-defined]
"""
    stored(tmp_path, [make_image(), make_image()])
    (tmp_path / "sight.py").write_text(source)
    PIL.Image.new("RGB", (8, 8), BLUE).save(tmp_path / "blue.png")
    detector = ["-d", "python:sight:detect", "--masks", "halves:8"]
    command(tmp_path, "observe", "coco:truth.json:images", *detector, "--out", "clean")
    place = ["--universal", "far", "--patch-area", "2%", "--patch-image", "blue.png", "--out", "attack"]
    done = command(tmp_path, "attack", "coco:truth.json:images", *place)
    assert "2 patches in 2 images" in done.stdout
    command(tmp_path, "observe", "coco:attack/annotations.json:attack/images", *detector, "--out", "attacked")
    arguments = ["evaluate", "clean", "--attacked", "attacked", "--patch-area", "2%", "--out", "result"]
    done = command(tmp_path, *arguments)
    assert "certified and lost: 0 of" in done.stdout
    written = json.loads((tmp_path / "result" / "attacked.json").read_text())
    assert written["attacked"]["undefended"]["ap50"] == 0
    assert written["attacked"]["defended"]["ap50"] == 100
    assert written["certified_under_attack"]["far"] == 2
    assert json.loads(command(tmp_path, *arguments, "--json").stdout) == written
    for words, message in [
        (["--sample", 2], "Add --universal"),
        (["--universal", "corner", "--max-objects", 2], "--max-objects 2"),
        (["--universal", "nowhere"], "corner, far, random, or on:CLASS"),
    ]:
        assert message in command(tmp_path, "attack", "coco:truth.json:images", *words, code=2).stderr
