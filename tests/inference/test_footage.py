"""Which frames are taken, folders of frames, and live sources. None of it needs PyAV."""

import threading

import numpy as np
import PIL.Image
import pytest
from clips import scene

from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.frame_sources import LOSSES, Choice, Folder, Frame, Lost, Place, frames_of, newest


def places(count, rate=10.0):
    return [Place(number, number / rate, lambda: scene(0)) for number in range(count)]


def frame(number):
    return Frame(number, number / 10, scene(0), number)


def numbers(choice, given):
    return [frame.number for frame in choice.of(given)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(), list(range(12))),
        (Choice(stride=5), [0, 5, 10]),
        (Choice(stride=99), [0]),
        (Choice(start=0.3, stride=4), [3, 7, 11]),
        (Choice(end=0.3), [0, 1, 2]),  # the frame at the end is not in it
        (Choice(start=0.25, end=0.6, stride=2), [3, 5]),
        (Choice(start=7), []),
    ],
)
def test_choosing(choice, expected):
    assert numbers(choice, places(12)) == expected
    assert abs(choice.count(12, 10.0) - len(expected)) <= 1


def test_what_is_no_choice_is_refused():
    for wrong in ({"stride": 0}, {"start": -1}, {"start": 3, "end": 3}, {"end": float("nan")}):
        with pytest.raises(ObjectSeekerError):
            Choice(**wrong)


def test_a_frame_that_cannot_be_loaded_is_lost_and_the_others_go_on():
    def broken():
        raise ObjectSeekerError("it is damaged")

    given = [*places(2), Place(2, 0.2, broken), Lost(3, "gone"), Place(4, 0.4, lambda: scene(0))]
    found = list(Choice().of(given))
    assert [type(one) for one in found] == [Frame, Frame, Lost, Lost, Frame]
    assert found[2] == Lost(2, "it is damaged")
    assert numbers(Choice(stride=3), given) == [0, 3]
    assert numbers(Choice(start=0.1, stride=3), given) == [1, 4]
    assert numbers(Choice(start=0.4), given) == [4]
    assert list(Choice(start=9).of([*given, Lost(None, "cut off")])) == [Lost(None, "cut off")]


def test_a_folder_of_frames_in_natural_order(tmp_path):
    for number in (1, 2, 10, 9):
        PIL.Image.fromarray(scene(number)).save(tmp_path / f"frame{number}.png")
    (tmp_path / "frame3.png").write_bytes(b"no image")
    folder = Folder(tmp_path, 5.0)
    found = list(frames_of(folder, Choice()))
    assert [file.stem for _, file in folder.files] == ["frame1", "frame2", "frame3", "frame9", "frame10"]
    assert [(one.number, getattr(one, "time", None)) for one in found] == [
        (0, 0),
        (1, 0.2),
        (2, None),
        (3, 0.6),
        (4, 0.8),
    ]
    assert np.array_equal(found[4].image, scene(10))
    assert isinstance(found[2], Lost)
    assert folder.total == 5
    with pytest.raises(ObjectSeekerError, match="fps"):
        Folder(tmp_path, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectSeekerError, match="no image"):
        Folder(tmp_path / "empty")


def test_of_a_live_source_comes_the_newest_frame():
    """Frames that come while one is in use are passed over, all but the last; losses are not."""
    all_read, closed = threading.Event(), []

    def events():
        try:
            yield frame(0)
            assert first_taken.wait(10)
            yield frame(1)
            yield frame(2)
            yield Lost(3, "noise")
            yield frame(4)
            yield frame(5)
            all_read.set()
        finally:
            closed.append(threading.current_thread())

    first_taken = threading.Event()
    stream = newest(events())
    assert next(stream).number == 0
    first_taken.set()
    assert all_read.wait(10)
    assert [event.number for event in stream] == [3, 5]
    assert closed != [threading.current_thread()]


def test_what_waits_of_a_live_source_is_one_frame_and_some_losses():
    """Frame, Lost, Frame, Lost: every loss is counted and the frame is the newest."""
    first_taken, all_read = threading.Event(), threading.Event()

    def events():
        yield frame(0)
        assert first_taken.wait(10)
        for number in range(1, 501):
            yield frame(number) if number % 2 else Lost(number, "noise")
        yield Lost(None, "the end")
        all_read.set()

    stream = newest(events())
    assert next(stream).number == 0
    first_taken.set()
    assert all_read.wait(10)
    *waited, end = stream
    assert [one.number for one in waited if isinstance(one, Frame)] == [499]
    losses = [one for one in waited if isinstance(one, Lost)]
    assert len(waited) == LOSSES == len(losses) + 1
    assert sum(1 + one.more for one in losses) == 250
    assert [one.number for one in losses] == sorted(one.number for one in losses)
    assert end == Lost(None, "the end")


class Live:
    """A source that runs on, of which frame 1 is lost: it comes when frame 0 was taken."""

    name, rate, total, live = "camera 0", 25.0, None, True

    def __init__(self):
        self.taken = threading.Event()

    def places(self):
        yield Place(0, 0.0, lambda: scene(0))
        assert self.taken.wait(10)
        yield Lost(1, "noise")
        yield Place(2, 0.1, lambda: scene(0))


def test_turns_follow_numbers_and_of_a_live_source_what_is_shown():
    turns = [(one.number, one.turn) for one in Choice(start=0.3, stride=4).of(places(12))]
    assert turns == [(3, 0), (7, 1), (11, 2)]
    assert [one.turn for one in Choice(start=0.3).of(places(6))] == [3, 4, 5]
    live, found = Live(), []
    for one in frames_of(live, Choice()):
        found.append((one.number, getattr(one, "turn", None)))
        live.taken.set()
    assert found == [(0, 0), (1, None), (2, 1)]


def test_a_live_source_that_fails_says_so_after_its_frames():
    def events():
        yield frame(0)
        raise ObjectSeekerError("unplugged")

    stream = newest(events())
    assert next(stream).number == 0
    with pytest.raises(ObjectSeekerError, match="unplugged"):
        next(stream)
