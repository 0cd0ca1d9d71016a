"""Streams: frame after frame as it comes, read one ahead, each as if it were alone."""

import threading
import time

import numpy as np
import pytest
from clips import bright_box, moving

from objectseeker import Halves, ObjectSeeker, Patch, Rule
from objectseeker.core.recipes import Rolling
from objectseeker.errors import ObjectSeekerError

SEEKER = ObjectSeeker(bright_box, Rule(), masks=Halves(5))


@pytest.fixture
def threads_end():
    """Whether all threads that the test began have ended, soon."""
    before = set(threading.enumerate())

    def end():
        deadline = time.monotonic() + 10
        while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not left

    return end


def seen(observation):
    return observation.masks, observation.base, list(observation.masked)


def test_a_stream_gives_what_each_image_alone_gives():
    frames = [*moving(4), np.full((30, 90, 3), 20, np.uint8)]
    assert list(SEEKER.stream(iter(frames))) == SEEKER(frames)
    for frame, watched in zip(frames, SEEKER.defend_stream(frames), strict=True):
        alone = SEEKER.defend(frame)
        assert seen(watched.observation) == seen(alone.observation)
        assert (watched.base, watched.recovered) == (alone.base, alone.recovered)
        assert np.array_equal(watched.image, frame)
    assert list(SEEKER.stream([])) == []


def test_frames_are_read_one_ahead_and_no_further(threads_end):
    read = []

    def source():
        for number, frame in enumerate(moving(9)):
            read.append(number)
            yield frame

    stream = SEEKER.stream(source())
    assert read == []  # nothing before the first is requested
    for number in range(4):
        next(stream)
        deadline = time.monotonic() + 10
        while len(read) < number + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert read == list(range(number + 2))
    stream.close()
    assert threads_end()
    assert len(read) == 5


def test_reading_goes_on_while_the_detector_works():
    """The second frame is read while the detector is at the first: it waits for that, and gets it."""
    reading = threading.Event()

    def source():
        yield moving(1)[0]
        reading.set()
        yield moving(1)[0]

    def detector(images):
        assert reading.wait(10)
        return bright_box(images)

    assert len(list(ObjectSeeker(detector, Rule(), masks=Halves(1)).stream(source()))) == 2


def test_an_error_of_the_source_comes_after_the_frames_before_it(threads_end):
    def source():
        yield from moving(2)
        raise OSError("the cable is out")

    stream = SEEKER.stream(source())
    assert [next(stream), next(stream)] == SEEKER(moving(2))
    with pytest.raises(OSError, match="the cable is out"):
        next(stream)
    for broken in ([np.zeros((4, 4))], 7):
        with pytest.raises((ObjectSeekerError, TypeError)):
            list(SEEKER.stream(broken))
    assert threads_end()


def test_a_source_is_closed_by_the_thread_that_reads_it(threads_end):
    closed = []

    def source():
        try:
            yield from moving(9)
        finally:
            closed.append(threading.current_thread() is threading.main_thread())

    next(SEEKER.stream(source()))  # and then forgotten
    assert threads_end()
    assert closed == [False]


def test_a_source_may_read_every_frame_into_the_same_memory():
    def source():
        memory = np.empty((48, 64, 3), np.uint8)
        for frame in moving(5):
            memory[:] = frame
            yield memory

    assert list(SEEKER.stream(source())) == SEEKER(moving(5))


def test_rolling_masks_show_every_frame_its_share():
    rolling = ObjectSeeker(bright_box, Rule(), masks=Rolling(Halves(5), 3))
    frames = moving(7)
    watched = list(rolling.defend_stream(frames))
    for number, (frame, one) in enumerate(zip(frames, watched, strict=True)):
        own = rolling.for_frame(number)
        assert own.masks == Rolling(Halves(5), 3).recipe_for_frame(number)
        assert seen(one.observation) == seen(own.defend(frame).observation)
        assert own.certify(one.observation, one.detections, Patch()).certified.shape == (1, len(one.detections))
    some = [(4, frames[4]), (6, frames[6])]  # frame 5 is lost
    later = rolling.defend_stream(some)
    assert [seen(one.observation) for one in later] == [seen(watched[number].observation) for number in (4, 6)]
    assert list(rolling.stream(some)) == [watched[number].detections for number in (4, 6)]
    shown = [key for one in watched[2:5] for key in one.observation.masks.keys]
    assert sorted(shown) == sorted(Halves(5).masks(64, 48).keys)
    with pytest.raises(ObjectSeekerError, match="single image"):
        rolling(frames[:1])
