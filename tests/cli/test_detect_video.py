"""`objectseeker detect` of a video as a user calls it."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import PIL.Image
import pytest
from clips import encode, moving, scene
from command import DETECTOR, run

from objectseeker import Defense, Halves
from objectseeker.core.recipes import Rolling
from objectseeker.inference.frame_sources import FrameSelection, open_video, read_frames

pytest.importorskip("av", reason="PyAV (the extra video) is not installed")

OPTIONS = ["-d", "python:mine:detect", "--set"]


@pytest.fixture
def workplace(tmp_path):
    (tmp_path / "mine.py").write_text(DETECTOR)
    frames = moving(12, 60, (160, 120))  # with room for labels
    encode(tmp_path / "clip.mkv", frames, codec="ffv1", pixels="bgr0", rate=10)  # to the pixel
    return tmp_path


def lines(folder):
    return [json.loads(line) for line in (folder / "frames.jsonl").read_text().splitlines()]


def boxes(line):
    return [box["bbox"] for box in line["boxes"]]


def test_a_video_is_decoded_defended_written_and_reopened(workplace):
    done = run(workplace, "detect", "clip.mkv", *OPTIONS, "masks=halves:3", "--out", "o")
    assert "about 12 frames x 13 views = 156 forward passes" in done.stderr
    assert "12 boxes in 12 frames" in done.stdout
    assert "13 forward passes per frame" in done.stdout
    written = lines(workplace / "o")
    assert [line["frame"] for line in written] == list(range(12))
    assert [line["time"] for line in written] == pytest.approx([number / 10 for number in range(12)])
    assert [boxes(line) for line in written] == [[[2.0 * number, 60.0, 20.0, 16.0]] for number in range(12)]
    assert {line["defense_sha256"] for line in written} == {Defense.load(workplace / "o" / "defense.json").sha256}
    again = list(read_frames(open_video(str(workplace / "o" / "annotated.mp4")), FrameSelection()))
    assert [frame.time for frame in again] == pytest.approx([line["time"] for line in written], abs=0.001)
    for number, frame in enumerate(again):
        inside = frame.image[66:70, 2 * number + 6 : 2 * number + 14].astype(int)
        assert np.abs(inside - (255, 240, 230)).max() < 40
    again = run(workplace, "detect", "clip.mkv", *OPTIONS, "masks=halves:3", "--out", "o", code=2)
    assert "o holds results of a video: use another folder" in again.stderr
    assert len(lines(workplace / "o")) == 12


def test_rolling_masks_parts_of_a_video_and_json(workplace):
    where = ["--start", "0:00.3", "--end", "1", "--stride", "2"]
    options = [*OPTIONS, "masks=rolling:2:halves:3", *where, "--no-annotate", "--certify", "--json"]
    done = run(workplace, "detect", "clip.mkv", *options, "--out", "o")
    answer = json.loads(done.stdout)
    assert "Frames with a stride of 2 are shown other shares" in " ".join(done.stderr.split())
    written = lines(workplace / "o")
    assert [line["frame"] for line in written] == [3, 5, 7, 9]
    shares = [str(Rolling(Halves(3), 2).recipe_for_frame(number // 2)) for number in (3, 5, 7, 9)]
    assert [line["masks"] for line in written] == shares
    assert sum(line["forward_passes"] for line in written[:2]) == 1 + 13
    assert answer["forward_passes"] == 2 * 14
    assert (answer["frames"], answer["failed"], answer["stop_reason"], answer["interrupted"]) == (4, 0, None, False)
    assert answer["certificates"]["far"] == sum(box["far"] for line in written for box in line["boxes"])
    assert answer["alerts"] == sum(line["alert"] for line in written)
    assert not (workplace / "o" / "annotated.mp4").exists()


def test_a_folder_of_frames(workplace):
    (workplace / "frames").mkdir()
    for number in (1, 2, 10):
        PIL.Image.fromarray(scene(number)).save(workplace / "frames" / f"{number}.png")
    (workplace / "frames" / "3.png").write_text("no image")
    options = [*OPTIONS, "masks=rolling:2:halves:3", "--out", "o"]
    rejected = run(workplace, "detect", "frames", *options, code=2)
    assert "video:FOLDER" in rejected.stderr
    done = run(workplace, "detect", "video:frames", "--fps", "2", *options, code=1)
    assert "skipped: frame 2: cannot read image" in done.stderr
    first, second, broken, last = lines(workplace / "o")
    assert [boxes(line)[0][0] for line in (first, second, last)] == [1.0, 2.0, 10.0]
    assert (last["frame"], last["time"]) == (3, 1.5)
    assert last["masks"] == second["masks"] != first["masks"]  # the one that is lost had its share
    assert "boxes" not in broken


def test_questions_that_make_no_sense(workplace):
    wrong = {
        ("clip.mkv", "a.png"): "give it alone",
        ("images", "--stride", "2"): "--stride: only for videos",
        ("clip.mkv", "--start", "soon"): "--start must be a time in seconds or as h:mm:ss: got 'soon'",
        ("clip.mkv", "--start", "99"): "no frame of clip.mkv is selected",
    }
    (workplace / "images").mkdir()
    PIL.Image.fromarray(scene(3)).save(workplace / "images" / "a.png")
    for arguments, words in wrong.items():
        done = run(workplace, "detect", *arguments, *OPTIONS, "masks=halves:1", "--out", "o", code=2)
        assert words in done.stderr
    assert not (workplace / "o" / "frames.jsonl").exists()  # the folder can be used


# Waits for ever where the box is at column 31: in the seventh frame.
SLOW = """
import pathlib, time
from mine import detect as see

def detect(images):
    if images[0][62, 31, 0] > 200:
        pathlib.Path("waiting").touch()
        time.sleep(60)
    return see(images)

detect.names = ("bright",)
"""


def test_ctrl_c_ends_it_in_order(workplace):
    (workplace / "slow.py").write_text(SLOW)
    command = ["detect", "clip.mkv", "-d", "python:slow:detect", "--set", "masks=halves:1", "--out", "o"]
    process = subprocess.Popen(
        [sys.executable, "-m", "objectseeker.cli", *command],
        cwd=workplace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (workplace / "waiting").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert len(lines(workplace / "o")) == 6  # every line is there before the next frame is begun
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Stopped by Ctrl-C. 6 frames are kept in o." in errors
    assert "6 boxes in 6 frames" in printed
    assert "Traceback" not in errors
    assert len(list(read_frames(open_video(str(workplace / "o" / "annotated.mp4")), FrameSelection()))) == 6
    assert sorted(file.name for file in (workplace / "o").iterdir()) == [
        "annotated.mp4",
        "defense.json",
        "frames.jsonl",
    ]
