"""A video, defended frame by frame: what was found in each, as one line of JSON and as a picture."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import PIL.Image

from objectseeker.core.masks import Image
from objectseeker.core.seeker import DefendedImage, ObjectSeeker, prefetch_one
from objectseeker.inference.drawing import CERTIFIED, PARTLY, VULNERABLE, Key, with_legend
from objectseeker.inference.frame_sources import Frame, Lost
from objectseeker.inference.image_sources import Categories
from objectseeker.inference.images import CERTIFICATE, Found, boxes_of, coco_result, found_by, patch_words, picture_of
from objectseeker.metrics.settings import ThreatModel

REASONS = 20  # that are kept of frames that failed; every one is in its own line


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """How it went with one frame: under which masks it was seen, and what was found; or why nothing was."""

    frame: Frame | Lost
    masks: str = ""
    passes: int = 0
    found: Found | None = None
    failure: str = ""


def watch(
    seeker: ObjectSeeker, events: Generator[Frame | Lost], *, threat: ThreatModel | None = None
) -> Generator[Watched]:
    """Frame after frame, in order, read one ahead; one that fails does not stop the others.

    With `Rolling` masks a frame's turn decides its share, whatever was lost before it. A detector may be a frame ahead,
    so when it fails, the frames that it had begun are shown to it again, each alone.
    """
    begun: deque[Frame | Lost] = deque()

    def images() -> Iterator[tuple[int, Image]]:
        try:
            for event in ahead:
                begun.append(event)
                if isinstance(event, Frame):
                    yield event.turn, event.image
        except Exception as error:  # of a foreign file: nothing follows, and what came before it counts
            begun.append(Lost(None, str(error) or type(error).__name__))

    def seen(frame: Frame, defended: DefendedImage) -> Watched:
        of_frame = seeker.for_frame(frame.turn)
        found = found_by(of_frame, defended, "", threat)  # a frame is known by its number
        return Watched(frame, str(of_frame.masks), 1 + len(defended.observation.masks), found)

    with closing(prefetch_one(events)) as ahead:
        while True:
            try:
                for defended in seeker.defend_stream(images(), prefetch=False):
                    while isinstance(begun[0], Lost):
                        yield _lost(begun.popleft())
                    watched = seen(begun[0], defended)
                    begun.popleft()
                    yield watched
                yield from map(_lost, begun)
                return
            except Exception:  # foreign code, whatever it raises
                if not any(isinstance(event, Frame) for event in begun):
                    raise
            while begun:
                event = begun.popleft()
                if isinstance(event, Lost):
                    yield _lost(event)
                    continue
                try:
                    watched = seen(event, seeker.for_frame(event.turn).defend(event.image))
                except Exception as error:
                    reason = "not enough memory" if isinstance(error, MemoryError) else str(error)
                    watched = Watched(event, failure=f"the detector failed: {reason or type(error).__name__}")
                yield watched


def _lost(event: Frame | Lost) -> Watched:
    assert isinstance(event, Lost)
    more = f" (and {event.more:,} frames before it are not there)" if event.more else ""
    return Watched(event, failure=event.reason + more)


@dataclass(frozen=True, slots=True)
class Lines:
    """How frames are written down: a line each, on its own enough to say what it is about."""

    video: str
    categories: Categories
    defense: str
    alert: bool = False

    def of(self, watched: Watched) -> dict[str, Any]:
        frame, found = watched.frame, watched.found
        line: dict[str, Any] = {"video": self.video, "frame": frame.number}
        if isinstance(frame, Frame):
            line["time"] = round(frame.time, 6)
        if found is None:
            return line | {"failed": watched.failure, "defense": self.defense}
        line |= {"size": found.size, "masks": watched.masks, "passes": watched.passes}
        line["boxes"] = [coco_result(row) for row in boxes_of(found, self.categories)]
        line["found_by_masks_only"] = found.recovered
        return line | ({"alert": found.recovered > 0} if self.alert else {}) | {"defense": self.defense}


@dataclass(slots=True)
class Sums:
    """What there is to say about all frames together, so far."""

    frames: int = 0
    passes: int = 0
    boxes: int = 0
    recovered: int = 0
    flagged: int = 0
    failed: int = 0
    reasons: list[str] = field(default_factory=list)
    cut_off: str = ""
    certified: Counter[str] = field(default_factory=Counter)  # by the names of CERTIFICATE but the last

    def add(self, watched: Watched) -> None:
        found = watched.found
        if found is None:
            self._failed(watched)
            return
        self.frames += 1
        self.passes += watched.passes
        self.boxes += len(found.boxes)
        self.recovered += found.recovered
        self.flagged += found.recovered > 0
        for row in found.certificates or ():
            self.certified.update(name for name, value in zip(CERTIFICATE[:-1], row, strict=False) if value)

    def _failed(self, watched: Watched) -> None:
        if watched.frame.number is None:
            self.cut_off = watched.failure
            return
        self.failed += 1 + (watched.frame.more if isinstance(watched.frame, Lost) else 0)
        if len(self.reasons) < REASONS:
            self.reasons.append(f"frame {watched.frame.number}: {watched.failure}")


def annotated(image: Image, found: Found, names: Sequence[str], threat: ThreatModel | None = None) -> PIL.Image.Image:
    """The frame with its boxes, above a strip that says the same in every frame: pictures of one size make a video."""
    height, width = image.shape[:2]
    drawn = picture_of(image, found, names, threat).crop((0, 0, width, height))
    keys = [Key("found by masking only", dashed=True)]
    if threat is not None:
        looks = {"certified anywhere": CERTIFIED, "where the label says": PARTLY, "not certified": VULNERABLE}
        keys += [Key(text, color) for text, color in looks.items()] + [Key(f"against {patch_words(threat)}", None)]
    return with_legend(drawn, keys)
