"""objectseeker attack on the command line: boxes alone, gradients, runs, and a broken guarantee."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command import run, write_dataset

from objectseeker.demo.samples import samples

DETECTOR = """
import numpy as np
from objectseeker import Detections
from objectseeker.core.masks import fill_rectangles

def see(image, looked_at):
    '''A box around what is bright; blue on dark ground anywhere in what it sees blinds it.'''
    ys, xs = np.nonzero(image[..., 0] > 220)
    blinded = ((looked_at[..., 2] > 180) & (looked_at[..., 0] < 100)).any()
    few = len(xs) < 9 or blinded
    box = [] if few else [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
    return Detections(box, [0.9] * len(box), [0] * len(box))

def detect(images):
    return [see(image, image) for image in images]

class Leaky:
    '''Masks, but looks at the whole image for what blinds it.'''
    names = ("bright",)
    def __call__(self, images):
        return detect(images)
    def detect_views(self, image, removed, value):
        views = []
        for rectangles in np.reshape(removed, (len(removed), -1, 4)):
            view = image
            for rectangle in rectangles:
                view = fill_rectangles(view, rectangle, value)
            views.append(see(view, image))
        return views

detect.names = ("bright",)
leaky = Leaky()
"""
QUICK = ["--set", "masks=halves:6", "--patch-area", "2%", "--steps", 6, "--restarts", 2]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = write_dataset(tmp_path_factory.mktemp("attack"), [(10, 15, 40, 30), (40, 15, 40, 30)])
    (folder / "fragile.py").write_text(DETECTOR)
    observe = ["observe", "coco:truth.json:images", "-d", "python:fragile:detect", "--out", "run"]
    run(folder, *observe, "--masks", "halves:6")
    return folder


def test_a_sound_defense_keeps_what_the_detector_loses(workplace):
    arguments = ["attack", "images/0.png", "-d", "python:fragile:detect", *QUICK, "--out", "sound", "--json"]
    found = json.loads(run(workplace, *arguments).stdout)
    (row,) = found["objects"]
    assert found["mode"] == "black-box"
    assert row["class"] == "bright"
    assert row["certified"]
    assert row["undefended_survived"] is False
    assert row["defended_survived"] is True
    assert found["recall"]["defended"]["recall_under_attack"]["rate"] == 1
    assert found == json.loads((workplace / "sound" / "attack.json").read_text())
    names = {"images/0-0-undefended.png", "images/0-0-defended.png", "annotated/0-0.jpg", "curves.csv"}
    assert {name for name in names if (workplace / "sound" / name).is_file()} == names
    assert json.loads(run(workplace, *arguments).stdout) == found  # the seed decides


def test_a_broken_guarantee_is_loud_and_can_be_seen_again(workplace):
    arguments = ["attack", "images/0.png", "-d", "python:fragile:leaky", *QUICK, "--out", "unsound"]
    done = run(workplace, *arguments, code=3)
    assert "GUARANTEE BROKEN" in done.stderr
    assert "certified objects hidden: 1 of 1" in done.stdout
    script = workplace / "unsound" / "broken" / "0-0" / "check.py"
    again = subprocess.run([sys.executable, script], cwd=workplace, capture_output=True, text=True)
    assert "'guarantee_broken': True" in again.stdout, again.stderr


def test_the_objects_of_a_run_are_attacked(workplace):
    arguments = ["attack", "run", *QUICK[2:], "--out", "of_run", "--patch-location", "anywhere"]
    done = run(workplace, *arguments)
    assert "certified objects hidden: 0 of 2" in done.stdout
    assert "disappeared 2 of 2: 100% (34% to 100%) 0 of 2: 0% (0% to 66%)" in " ".join(done.stdout.split())
    found = json.loads((workplace / "of_run" / "attack.json").read_text())
    assert {row["image"] for row in found["objects"]} == {"0", "1"} or len(found["objects"]) == 2
    assert found["defense"]["masks"] == "halves:6"
    one = run(workplace, *arguments, "--max-objects", 1, "--json")
    assert len(json.loads(one.stdout)["objects"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.png"], "nothing.png"),
        (["images"], "no run in images"),
        (["images/0.png", "--patch-area", "much"], "'much'"),
        (["images/0.png", "--patch-area", "150%"], "patch"),
        (["images/0.png", "--patch-location", "near"], "'near'"),
        (["images/0.png", "--mode", "gray"], "'gray'"),
        (["images/0.png", "--mode", "white-box"], "no gradients"),
        (["images/0.png", "--steps", "0"], "steps"),
        (["images/0.png", "--set", "size=2"], "size=2"),
        (["images/0.png", "--defense", "builtin"], "--detector"),
        (["run"], "--detector"),
    ],
)
def test_bad_input_is_one_sentence(workplace, arguments, message):
    done = run(workplace, "attack", *arguments, "-d", "python:fragile:detect", "--out", "bad", code=2)
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert message in done.stderr.splitlines()[-1]


def test_the_builtin_detector_is_attacked_by_its_gradients(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    image_file = next(sample.path for sample in samples() if sample.name == "lunch")
    small = ["--set", "input_size=128", "--set", "masks=halves:2", "--steps", 3, "--restarts", 1, "--max-objects", 1]
    found = json.loads(run(tmp_path, "attack", image_file, *small, "--patch-area", "4%", "--json").stdout)
    assert found["mode"] == "white-box"
    (row,) = found["objects"]
    assert row["found_undefended"]
    assert row["undefended_survived"] in (True, False)
    assert len((tmp_path / "attack" / "curves.csv").read_text().splitlines()) >= 3
