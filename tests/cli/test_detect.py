"""`objectseeker detect` as a user calls it: certificates, datasets, and what is kept when it is stopped."""

import json
import signal
import subprocess
import sys
import time

import pytest
from command import run, write_dataset

from objectseeker import Defense

OPTIONS = ["-d", "python:mine:detect", "--set", "masks=halves:3"]
# Waits for ever on image 1 if there is a file "wait1", and so on; says in "waiting" that it does.
SLOW = """
import pathlib, time
from mine import detect as see

def detect(images):
    if pathlib.Path(f"wait{images[0][0, 0, 2]}").exists():
        pathlib.Path("waiting").touch()
        time.sleep(60)
    return see(images)

detect.names = ("bright",)
"""


@pytest.fixture
def workplace(tmp_path):
    write_dataset(tmp_path, [(30, 20, 30, 20), (10, 5, 30, 25), (50, 30, 30, 20)])
    return tmp_path


def stopped(folder, number, by, *arguments):
    """Start detect, send the signal while the detector is at image `number`, and say how it ended."""
    (folder / f"wait{number}").touch()
    command = [sys.executable, "-m", "objectseeker.cli", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "waiting").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(by)
    _, errors = process.communicate(timeout=30)
    (folder / f"wait{number}").unlink()
    (folder / "waiting").unlink()  # a file that the detector's source names is part of the detector
    return process.returncode, errors


def test_killed_and_interrupted_it_goes_on_to_the_same_files(workplace):
    import numpy as np
    import PIL.Image

    (workplace / "slow.py").write_text(SLOW)
    for number in range(3):  # a mark by which the detector knows the image
        file = workplace / "images" / f"{number}.png"
        image = np.array(PIL.Image.open(file))
        image[0, 0, 2] = number
        PIL.Image.fromarray(image).save(file)
    arguments = ["detect", "images", "-d", "python:slow:detect", "--set", "masks=halves:3", "--certify", "--out"]
    code, _ = stopped(workplace, 1, signal.SIGKILL, *arguments, "o")
    assert code == -signal.SIGKILL
    arguments.insert(1, "--trust-detector")  # this one reads no weights, so whether they changed is unknown
    code, errors = stopped(workplace, 2, signal.SIGINT, *arguments, "o")
    assert code == 130, errors
    assert "1 of 3 images done before" in errors
    assert "2 of 3 images are kept in o, rerun the same command to resume" in errors
    assert "Traceback" not in errors
    assert "2 of 3 images done before" in run(workplace, *arguments, "o").stderr
    run(workplace, *arguments, "whole")
    for file in sorted((workplace / "whole").rglob("*.*")):
        if file.name != "progress.jsonl":
            assert (workplace / "o" / file.relative_to(workplace / "whole")).read_bytes() == file.read_bytes(), file


def test_certificates_of_the_boxes_themselves(workplace):
    done = run(workplace, "detect", "images", *OPTIONS, "--out", "o", "--certify", "--patch-area", "2%")
    assert "12 half masks: 3 images x 13 views = 39 forward passes" in done.stderr
    assert done.stdout.startswith("3 boxes in 3 images")
    assert "against a patch of 2 %" in done.stdout
    assert "If an image is already attacked, objects may be missing from its boxes" in done.stdout
    rows = json.loads((workplace / "o" / "detections.json").read_text())
    assert {row["defense_sha256"] for row in rows} == {Defense.load(workplace / "o" / "defense.json").sha256}
    answer = json.loads(
        run(workplace, "detect", "images", *OPTIONS, "--out", "o", "--certify", "--patch-area", "0.02", "--json").stdout
    )
    for where in ("far", "close", "over", "anywhere"):
        assert answer["certificates"][where] == sum(row[where] for row in rows)
    assert "already attacked" in answer["certificates"]["about"]
    other = run(workplace, "detect", "images", *OPTIONS, "--out", "o", "--certify", "--patch-area", "3%", code=2)
    assert "patch_area was 0.02, now 0.03" in other.stderr
    assert other.stderr.count("\n") == 1
    less = run(workplace, "detect", "images", *OPTIONS, "--out", "p", "--patch-area", "3%", code=2)
    assert "--certify" in less.stderr


def test_a_data_set_keeps_its_ids(workplace):
    content = json.loads((workplace / "truth.json").read_text())
    for image, annotation in zip(content["images"], content["annotations"], strict=True):
        annotation["image_id"] = image["id"] = 900 - image["id"]
        annotation["category_id"] = 21
    content["categories"] = [{"id": 21, "name": "lamp"}]
    (workplace / "truth.json").write_text(json.dumps(content))
    arguments = ["detect", "coco:truth.json:images", *OPTIONS, "--out", "o", "--no-annotate"]
    assert "class map" in run(workplace, *arguments, code=2).stderr
    run(workplace, *arguments, "--class-map", "bright=lamp")
    rows = json.loads((workplace / "o" / "detections.json").read_text())
    assert [(row["image_id"], row["category_id"], row["image"]) for row in rows] == [
        (900, 21, "0.png"),
        (899, 21, "1.png"),
        (898, 21, "2.png"),
    ]
    alone = run(workplace, "detect", "coco:truth.json:images", "images", *OPTIONS, "--out", "p", code=2)
    assert "give it alone" in alone.stderr


def test_a_detector_that_may_be_another_needs_your_word_to_go_on(workplace):
    (workplace / "some").mkdir()
    (workplace / "images" / "0.png").rename(workplace / "some" / "0.png")
    run(workplace, "detect", "some", *OPTIONS, "--out", "o", "--no-annotate")
    arguments = ["detect", "some/0.png", "images/1.png", *OPTIONS, "--out", "o", "--no-annotate"]
    rejected = run(workplace, *arguments, code=2)
    assert "--trust-detector" in rejected.stderr
    assert "1 of 2 images done before" in run(workplace, *arguments, "--trust-detector").stderr
