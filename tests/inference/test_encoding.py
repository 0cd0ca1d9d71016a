"""Annotated video: what is written can be read again, whatever happens meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from clips import scene

from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.frame_sources import FrameSelection, open_video, read_frames
from objectseeker.inference.video import VideoWriter

pytest.importorskip("av", reason="PyAV (the extra video) is not installed")

TIMES = [0, 0.04, 0.5, 0.51, 2.0]


def write(file, size=(63, 47), times=TIMES, rate=25):
    writer = VideoWriter(file, rate)
    for number, time in enumerate(times):
        writer.add(PIL.Image.fromarray(scene(3 * number, size=size)), time)
    return writer


def read(file):
    return list(read_frames(open_video(str(file)), FrameSelection()))


def test_images_and_times_are_kept_and_sides_made_even(tmp_path):
    file = tmp_path / "a.mp4"
    writer = write(file)
    assert not file.exists()
    assert writer.close()
    frames = read(file)
    assert [frame.time for frame in frames] == pytest.approx(TIMES, abs=0.0001)
    for number, frame in enumerate(frames):
        assert frame.image.shape == (48, 64, 3)
        difference = frame.image[:47, :63].astype(int) - scene(3 * number, size=(63, 47))
        assert np.abs(difference).mean() < 4  # no pixel is moved
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]
    assert open_video(str(file)).total == 5  # an ordinary file: it says how long it is


@pytest.mark.parametrize("size", [(64, 48), (1280, 64)])  # players take small and large videos to differ in colors
def test_colors_are_kept(tmp_path, size):
    writer = VideoWriter(tmp_path / "a.mp4", 25)
    writer.add(PIL.Image.new("RGB", size, (30, 200, 60)), 0)
    writer.close()
    (frame,) = read(tmp_path / "a.mp4")
    assert np.abs(frame.image.astype(int) - (30, 200, 60)).max() <= 4


def test_a_killed_program_leaves_a_file_that_plays(tmp_path):
    file = tmp_path / "a.mp4"
    program = f"import os, test_encoding; test_encoding.write(test_encoding.Path({str(file)!r})); os._exit(9)"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert done.returncode == 9
    frames = [event for event in read("video:" + str(file) + ".partial") if event.number is not None]
    assert len(frames) >= len(TIMES) - 1
    assert [frame.time for frame in frames] == pytest.approx(TIMES[: len(frames)], abs=0.0001)


@pytest.mark.parametrize("rate", [0.0001, 1e6])
def test_one_image_an_hour_and_a_thousand_a_second(tmp_path, rate):
    times = [0, 3600, 7200] if rate < 1 else [0, 0.001, 0.002]
    write(tmp_path / "a.mp4", times=times, rate=rate).close()
    assert [frame.time for frame in read(tmp_path / "a.mp4")] == pytest.approx(times, abs=0.0001)


def test_a_clock_that_jumps_back_and_a_image_of_another_size(tmp_path):
    writer = write(tmp_path / "a.mp4", size=(64, 48), times=[0, 3.0, 1.0])
    writer.add(PIL.Image.new("RGB", (30, 90), "white"), 4.0)
    writer.close()
    frames = read(tmp_path / "a.mp4")
    assert [frame.time for frame in frames] == pytest.approx([0, 3.0, 3.0, 4.0], abs=0.001)
    assert frames[3].image[24, 32].min() > 240
    assert frames[3].image[24, 2].max() < 15


def test_nothing_to_write_and_nowhere_to_write_it(tmp_path):
    assert not VideoWriter(tmp_path / "a.mp4", 25).close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ObjectSeekerError, match=r"cannot write .*none.*a\.mp4: No such file"):
        write(tmp_path / "none" / "a.mp4")
