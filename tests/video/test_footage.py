"""Which frames are taken, folders of frames, and live sources. None of it needs PyAV."""

import threading

import numpy as np
import PIL.Image
import pytest
from clips import scene

from objectseeker.errors import ObjectSeekerError
from objectseeker.video.footage import Choice, Folder, Frame, Lost, Place, frames_of, natural, newest


def places(count, rate=10.0):
    return [Place(number, number / rate, lambda: scene(0)) for number in range(count)]


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
    assert [file.stem for file in folder.files] == ["frame1", "frame2", "frame3", "frame9", "frame10"]
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
    assert natural("a10b2") > natural("a9b30")
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
            yield Frame(0, 0.0, scene(0))
            assert first_taken.wait(10)
            yield Frame(1, 0.1, scene(0))
            yield Frame(2, 0.2, scene(0))
            yield Lost(3, "noise")
            yield Frame(4, 0.4, scene(0))
            yield Frame(5, 0.5, scene(0))
            all_read.set()
        finally:
            closed.append(threading.current_thread())

    first_taken = threading.Event()
    stream = newest(events())
    assert next(stream).number == 0
    first_taken.set()
    assert all_read.wait(10)
    assert [event.number for event in stream] == [2, 3, 5]
    assert closed != [threading.current_thread()]


def test_a_live_source_that_fails_says_so_after_its_frames():
    def events():
        yield Frame(0, 0.0, scene(0))
        raise ObjectSeekerError("unplugged")

    stream = newest(events())
    assert next(stream).number == 0
    with pytest.raises(ObjectSeekerError, match="unplugged"):
        next(stream)
