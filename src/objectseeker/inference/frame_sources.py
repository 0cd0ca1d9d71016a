"""Frames of a video, whatever it comes from: which of them are taken, and folders of frames."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from objectseeker.core.masks import Image
from objectseeker.core.recipes import rolling_index
from objectseeker.datasets.sequences import natural_sort_key, number_frames
from objectseeker.errors import ObjectSeekerError, require_count, require_number
from objectseeker.files.images import load_image, no_image_in, walk_images

USUAL_RATE = 25.0  # frames a second of a source that does not say
LOSSES = 100  # of a live source that wait to be named


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame: its number in the source, from 0, and the seconds since the first.

    `turn` decides which share of rolling masks it is shown: `core.rolling.turn_of` its number; of a live source, where
    frames are passed over as time goes, how many were shown before it.
    """

    number: int
    time: float
    image: Image
    turn: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A frame that is not there, and why; without a number: all that would have followed.

    `more` before it are not there either, and nobody kept why.
    """

    number: int | None
    reason: str
    more: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A frame before its pixels are asked for: `load` makes the image."""

    number: int
    time: float
    load: Callable[[], Image]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which frames are taken: every `stride`-th of those from `start` until before `end`, in seconds."""

    stride: int = 1
    start: float = 0.0
    end: float | None = None

    def __post_init__(self) -> None:
        require_count(self.stride, "stride")
        if require_number(self.start, "start") < 0:
            raise ObjectSeekerError(f"start must be at least 0 seconds, got {self.start!r}")
        if self.end is not None and require_number(self.end, "end") <= self.start:
            raise ObjectSeekerError(f"end must be after start ({self.start:g} seconds), got {self.end!r}")

    def of(self, places: Iterable[Place | Lost]) -> Iterator[Frame | Lost]:
        """The frames that are taken; one that cannot be loaded is lost, and the others go on."""
        first: int | None = None
        for place in places:
            if place.number is None:
                yield place
                continue
            if isinstance(place, Place):
                if self.end is not None and place.time >= self.end:
                    return
                if place.time < self.start:
                    continue
            elif first is None and self.start > 0:
                continue  # nobody knows when it was; no frame that is taken came before it
            first = place.number if first is None else first
            if (place.number - first) % self.stride == 0:
                yield self._loaded(place)

    def _loaded(self, place: Place | Lost) -> Frame | Lost:
        if isinstance(place, Lost):
            return place
        try:
            return Frame(place.number, place.time, place.load(), rolling_index(place.number, self.stride))
        except ObjectSeekerError as error:
            return Lost(place.number, str(error))

    def count(self, total: int, rate: float) -> int:
        """About how many of `total` frames that is."""
        end = total if self.end is None else min(total, round(self.end * rate))
        return max(0, -(-(end - round(self.start * rate)) // self.stride))


class Video(Protocol):
    """Where frames come from. `total` is about how many there are, where that is known."""

    @property
    def name(self) -> str:
        """As results call it: nothing secret."""
        ...

    @property
    def rate(self) -> float:
        """Frames a second, about."""
        ...

    @property
    def total(self) -> int | None: ...

    @property
    def live(self) -> bool:
        """Whether time goes on there while nobody reads."""
        ...

    def places(self) -> Generator[Place | Lost]:
        """All frames in order; to be asked for once."""
        ...


def frames_of(video: Video, choice: Choice) -> Generator[Frame | Lost]:
    """The frames of a video that are taken. A live one is read all the time, and what comes is the newest frame."""

    def chosen() -> Generator[Frame | Lost]:
        with closing(video.places()) as places:
            yield from choice.of(places)

    return _counted(newest(chosen())) if video.live else chosen()


def _counted(events: Generator[Frame | Lost]) -> Generator[Frame | Lost]:
    """What is shown of a live source: turns follow one another, whatever was passed over."""
    turn = 0
    with closing(events):
        for event in events:
            if isinstance(event, Lost):
                yield event
            else:
                yield replace(event, turn=turn)
                turn += 1


def newest(events: Generator[Frame | Lost]) -> Generator[Frame | Lost]:
    """Of the frames that come while one is in use the last alone; all that were lost are counted, the last ones named.

    What waits is at most one frame and LOSSES that were lost, however long that one is in use.
    """
    waiting: deque[Frame | Lost] = deque()
    changed = threading.Condition()
    ended: list[BaseException | None] = []
    closed = False

    def read() -> None:
        failure: BaseException | None = None
        try:
            with closing(events):  # by the thread that runs it
                for event in events:
                    if closed:
                        break
                    with changed:
                        _join(waiting, event)
                        changed.notify()
        except BaseException as error:  # whoever waits for a frame gets it
            failure = error
        with changed:
            ended.append(failure)
            changed.notify()

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: waiting or ended)
                if not waiting:
                    break
                event = waiting.popleft()
            yield event
        if ended[0] is not None:
            raise ended[0]
    finally:
        closed = True


def _join(waiting: deque[Frame | Lost], event: Frame | Lost) -> None:
    """Let `event` wait: a frame instead of one that does, a loss instead of the first of too many."""
    alike = [one for one in waiting if type(one) is type(event)]
    if isinstance(event, Frame):
        for frame in alike:
            waiting.remove(frame)
    elif len(alike) >= LOSSES:
        first, second = (one for one in alike[:2] if isinstance(one, Lost))
        waiting.remove(first)
        waiting[waiting.index(second)] = replace(second, more=second.more + first.more + 1)
    waiting.append(event)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of images that are the frames of a video, in natural order: frame2 comes before frame10.

    They have the numbers that datasets give them (`datasets.sequences.number_frames`).
    """

    path: Path
    rate: float = USUAL_RATE
    live: bool = field(default=False, init=False)
    files: tuple[tuple[int, Path], ...] = field(init=False, repr=False)  # by frame

    def __post_init__(self) -> None:
        if require_number(self.rate, "fps") <= 0:
            raise ObjectSeekerError(f"fps must be above 0, got {self.rate!r}")
        root = self.path.absolute()
        files = sorted(walk_images(root), key=lambda file: natural_sort_key(file.relative_to(root).as_posix()))
        if not files:
            raise ObjectSeekerError(no_image_in(self.path))
        folders = list(dict.fromkeys(file.parent for file in files))
        if len(folders) > 1:
            raise ObjectSeekerError(
                f"{self.path} holds images in several folders, such as {folders[0]} and {folders[1]}. A video is the "
                "images of one folder: give that, or move the other images away."
            )
        object.__setattr__(self, "files", tuple(zip(number_frames(files), files, strict=True)))

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def total(self) -> int:
        return len(self.files)

    def places(self) -> Generator[Place | Lost]:
        for number, file in self.files:
            yield Place(number, number / self.rate, partial(load_image, file))
