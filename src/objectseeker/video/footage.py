"""Frames of a video, whatever it comes from: which of them are taken, and folders of frames."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from objectseeker.core.image import Image
from objectseeker.errors import ObjectSeekerError, require_count, require_number
from objectseeker.files.images import load_image, no_image_in, walk_images

USUAL_RATE = 25.0  # frames a second of a source that does not say


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame: its number in the source, from 0, and the seconds since the first."""

    number: int
    time: float
    image: Image


@dataclass(frozen=True, slots=True)
class Lost:
    """A frame that is not there, and why; without a number: all that would have followed."""

    number: int | None
    reason: str


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
                yield _loaded(place)

    def count(self, total: int, rate: float) -> int:
        """About how many of `total` frames that is."""
        end = total if self.end is None else min(total, round(self.end * rate))
        return max(0, -(-(end - round(self.start * rate)) // self.stride))


def _loaded(place: Place | Lost) -> Frame | Lost:
    if isinstance(place, Lost):
        return place
    try:
        return Frame(place.number, place.time, place.load())
    except ObjectSeekerError as error:
        return Lost(place.number, str(error))


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

    return newest(chosen()) if video.live else chosen()


def newest(events: Generator[Frame | Lost]) -> Generator[Frame | Lost]:
    """Of the frames that come while one is in use the last alone; nothing that was lost is passed over."""
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
                        if waiting and isinstance(waiting[-1], Frame) and isinstance(event, Frame):
                            waiting.pop()
                        waiting.append(event)
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


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of images that are the frames of a video, in natural order: frame2 comes before frame10."""

    path: Path
    rate: float = USUAL_RATE
    live: bool = field(default=False, init=False)
    files: tuple[Path, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if require_number(self.rate, "fps") <= 0:
            raise ObjectSeekerError(f"fps must be above 0, got {self.rate!r}")
        files = sorted(walk_images(self.path), key=lambda file: natural(str(file.relative_to(self.path))))
        if not files:
            raise ObjectSeekerError(no_image_in(self.path))
        object.__setattr__(self, "files", tuple(files))

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def total(self) -> int:
        return len(self.files)

    def places(self) -> Generator[Place | Lost]:
        for number, file in enumerate(self.files):
            yield Place(number, number / self.rate, partial(load_image, file))


def natural(text: str) -> list[tuple[str, int, str]]:
    """A key by which numbers inside names count as numbers."""
    return [(letters, int(digits or 0), digits) for letters, digits in re.findall(r"(\D*)(\d*)", text)]
