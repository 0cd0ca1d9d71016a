"""Which frames are taken, folders of frames, and live sources. None of it needs PyAV."""

import threading

import numpy as np
import PIL.Image
import pytest
from clips import scene

from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.frame_sources import (
    MAX_WAITING_LOSSES,
    FrameFolder,
    FrameSelection,
    LostFrame,
    PendingFrame,
    VideoFrame,
    latest_frames,
    read_frames,
)


def pending_frames(count, rate=10.0):
    return [PendingFrame(number, number / rate, lambda: scene(0)) for number in range(count)]


def frame(number):
    return VideoFrame(number, number / 10, scene(0), number)


def numbers(choice, given):
    return [frame.number for frame in choice.select(given)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (FrameSelection(), list(range(12))),
        (FrameSelection(stride=5), [0, 5, 10]),
        (FrameSelection(stride=99), [0]),
        (FrameSelection(start=0.3, stride=4), [3, 7, 11]),
        (FrameSelection(end=0.3), [0, 1, 2]),  # the frame at the end is not in it
        (FrameSelection(start=0.25, end=0.6, stride=2), [3, 5]),
        (FrameSelection(start=7), []),
    ],
)
def test_choosing(choice, expected):
    assert numbers(choice, pending_frames(12)) == expected
    assert abs(choice.count(12, 10.0) - len(expected)) <= 1


def test_what_is_no_choice_is_refused():
    for wrong in ({"stride": 0}, {"start": -1}, {"start": 3, "end": 3}, {"end": float("nan")}):
        with pytest.raises(ObjectSeekerError):
            FrameSelection(**wrong)


def test_a_frame_that_cannot_be_loaded_is_lost_and_the_others_go_on():
    def broken():
        raise ObjectSeekerError("it is damaged")

    given = [
        *pending_frames(2),
        PendingFrame(2, 0.2, broken),
        LostFrame(3, "gone"),
        PendingFrame(4, 0.4, lambda: scene(0)),
    ]
    found = list(FrameSelection().select(given))
    assert [type(one) for one in found] == [VideoFrame, VideoFrame, LostFrame, LostFrame, VideoFrame]
    assert found[2] == LostFrame(2, "it is damaged")
    assert numbers(FrameSelection(stride=3), given) == [0, 3]
    assert numbers(FrameSelection(start=0.1, stride=3), given) == [1, 4]
    assert numbers(FrameSelection(start=0.4), given) == [4]
    assert list(FrameSelection(start=9).select([*given, LostFrame(None, "cut off")])) == [LostFrame(None, "cut off")]


def test_a_folder_of_frames_in_natural_order(tmp_path):
    for number in (1, 2, 10, 9):
        PIL.Image.fromarray(scene(number)).save(tmp_path / f"frame{number}.png")
    (tmp_path / "frame3.png").write_bytes(b"no image")
    folder = FrameFolder(tmp_path, 5.0)
    found = list(read_frames(folder, FrameSelection()))
    assert [file.stem for _, file in folder.files] == ["frame1", "frame2", "frame3", "frame9", "frame10"]
    assert [(one.number, getattr(one, "time", None)) for one in found] == [
        (0, 0),
        (1, 0.2),
        (2, None),
        (3, 0.6),
        (4, 0.8),
    ]
    assert np.array_equal(found[4].image, scene(10))
    assert isinstance(found[2], LostFrame)
    assert folder.total == 5
    with pytest.raises(ObjectSeekerError, match="fps"):
        FrameFolder(tmp_path, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectSeekerError, match="no image"):
        FrameFolder(tmp_path / "empty")


def test_of_a_live_source_comes_the_newest_frame():
    """Frames that come while one is in use are passed over, all but the last; losses are not."""
    all_read, closed = threading.Event(), []

    def events():
        try:
            yield frame(0)
            assert first_taken.wait(10)
            yield frame(1)
            yield frame(2)
            yield LostFrame(3, "noise")
            yield frame(4)
            yield frame(5)
            all_read.set()
        finally:
            closed.append(threading.current_thread())

    first_taken = threading.Event()
    stream = latest_frames(events())
    assert next(stream).number == 0
    first_taken.set()
    assert all_read.wait(10)
    assert [event.number for event in stream] == [3, 5]
    assert closed != [threading.current_thread()]


def test_what_waits_of_a_live_source_is_one_frame_and_some_losses():
    """Frames and losses in turn: every loss is counted, and the frame is the latest."""
    first_taken, all_read = threading.Event(), threading.Event()

    def events():
        yield frame(0)
        assert first_taken.wait(10)
        for number in range(1, 501):
            yield frame(number) if number % 2 else LostFrame(number, "noise")
        yield LostFrame(None, "the end")
        all_read.set()

    stream = latest_frames(events())
    assert next(stream).number == 0
    first_taken.set()
    assert all_read.wait(10)
    *waited, end = stream
    assert [one.number for one in waited if isinstance(one, VideoFrame)] == [499]
    losses = [one for one in waited if isinstance(one, LostFrame)]
    assert len(waited) == MAX_WAITING_LOSSES == len(losses) + 1
    assert sum(1 + one.skipped for one in losses) == 250
    assert [one.number for one in losses] == sorted(one.number for one in losses)
    assert end == LostFrame(None, "the end")


class Live:
    """A source that runs on, of which frame 1 is lost: it comes when frame 0 was taken."""

    name, rate, total, live = "camera 0", 25.0, None, True

    def __init__(self):
        self.taken = threading.Event()

    def pending_frames(self):
        yield PendingFrame(0, 0.0, lambda: scene(0))
        assert self.taken.wait(10)
        yield LostFrame(1, "noise")
        yield PendingFrame(2, 0.1, lambda: scene(0))


def test_turns_follow_numbers_and_of_a_live_source_what_is_shown():
    turns = [(one.number, one.rolling_index) for one in FrameSelection(start=0.3, stride=4).select(pending_frames(12))]
    assert turns == [(3, 0), (7, 1), (11, 2)]
    assert [one.rolling_index for one in FrameSelection(start=0.3).select(pending_frames(6))] == [3, 4, 5]
    live, found = Live(), []
    for one in read_frames(live, FrameSelection()):
        found.append((one.number, getattr(one, "rolling_index", None)))
        live.taken.set()
    assert found == [(0, 0), (1, None), (2, 1)]


def test_a_live_source_that_fails_says_so_after_its_frames():
    def events():
        yield frame(0)
        raise ObjectSeekerError("unplugged")

    stream = latest_frames(events())
    assert next(stream).number == 0
    with pytest.raises(ObjectSeekerError, match="unplugged"):
        next(stream)
