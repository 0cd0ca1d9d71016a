"""Detect in a video: every frame, with one line of JSON per frame and an annotated video."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps

from objectseeker.core.masks import Image
from objectseeker.core.recipes import Rolling
from objectseeker.core.seeker import DefendedImage, ObjectSeeker, prefetch_one
from objectseeker.core.threats import ThreatModel
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import PARTIAL_SUFFIX
from objectseeker.inference.drawing import CERTIFICATE_LOOKS, LegendEntry, fabrication_legend, with_legend
from objectseeker.inference.frame_sources import (
    FrameSelection,
    LostFrame,
    Video,
    VideoFrame,
    import_pyav,
    read_frames,
)
from objectseeker.inference.journal import FILE as JOURNAL
from objectseeker.inference.results import (
    DetectionRun,
    ImageResult,
    annotate_result,
    error_reason,
    to_image_result,
)
from objectseeker.runs.manifest import ObservationSettings

FRAMES, ANNOTATED = "frames.jsonl", "annotated.mp4"

TICK = Fraction(1, 90_000)  # of time, as MPEG counts it: every common rate is a whole number of them, or nearly
PIXEL_FORMAT = "yuv420p"  # which every player supports
KEY_FRAME_INTERVAL = 50  # frames

# Every frame is a fragment of its own, on disk before the next: what is there can be played at any time. When all are
# there, they become an ordinary file.
CONTAINER_OPTIONS = {"movflags": "hybrid_fragmented+frag_every_frame", "flush_packets": "1"}
CODEC_OPTIONS = {"preset": "veryfast", "crf": "20", "tune": "zerolatency"}  # which holds no frames back

FrameEvent = tuple[VideoFrame | LostFrame, ImageResult]


def detect_frames(
    seeker: ObjectSeeker,
    events: Generator[VideoFrame | LostFrame],
    *,
    threat: ThreatModel | None = None,
    only_certified: bool = False,
) -> Generator[FrameEvent]:
    """Detect in consecutive frames, reading one ahead; a frame that fails does not stop the others.

    With `Rolling` masks the number of a frame selects its share, whatever was lost before it. A detector may have
    started on the next frame, so when it fails, the frames that it had started are processed again, each separately.
    """
    started: deque[VideoFrame | LostFrame] = deque()

    def images() -> Iterator[tuple[int, Image]]:
        try:
            for event in frames:
                started.append(event)
                if isinstance(event, VideoFrame):
                    yield event.rolling_index, event.image
        except Exception as error:  # of an untrusted file: nothing follows, and the frames before it count
            started.append(LostFrame(None, str(error) or type(error).__name__))

    def to_event(frame: VideoFrame | LostFrame, defended: DefendedImage | None = None) -> FrameEvent:
        named = ImageResult(name=f"frame {frame.number}", id=frame.number)
        if isinstance(frame, LostFrame):
            skipped = f" (and {frame.skipped:,} frames before it are missing)" if frame.skipped else ""
            return frame, replace(named, error=frame.reason + skipped)
        own = seeker.for_frame(frame.rolling_index)
        try:
            seen = own.defend(frame.image) if defended is None else defended
            result = to_image_result(own, seen, threat, only_certified=only_certified)
        except Exception as error:  # code of others, whatever it raises
            if defended is not None:
                raise
            result = ImageResult(error=f"the detector failed: {error_reason(error)}")
        return frame, replace(result, name=named.name, id=named.id, time=frame.time)

    with closing(prefetch_one(events)) as frames:
        while True:
            try:
                for defended in seeker.defend_stream(images(), prefetch=False):
                    while isinstance(started[0], LostFrame):
                        yield to_event(started.popleft())
                    event = to_event(started[0], defended)
                    started.popleft()
                    yield event
                yield from map(to_event, started)
                return
            except Exception:  # code of others, whatever it raises
                if not any(isinstance(frame, VideoFrame) for frame in started):
                    raise
            while started:
                yield to_event(started.popleft())


@dataclass(slots=True, eq=False, kw_only=True)
class VideoDetection(DetectionRun):
    """A detection run over the selected frames of a video, camera or stream."""

    video: Video
    selection: FrameSelection

    @property
    def total(self) -> int | None:
        return None if self.video.total is None else self.selection.count(self.video.total, self.video.rate)

    def results(self, on_start: Callable[[str], None] = lambda cost: None) -> Generator[ImageResult]:
        if self.out is not None:
            require_empty(self.out)
            if self.defense is not None:
                self.defense.save(self.out / "defense.json")
        on_start(self._describe_cost())
        began, totals, writer = time.monotonic(), self.totals, None
        if self.out is not None and self.annotate:
            writer = VideoWriter(self.out / ANNOTATED, self.video.rate / self.selection.stride)
        try:
            with (
                nullcontext() if self.out is None else open_frames_file(self.out) as write_record,
                nullcontext() if writer is None else closing(writer),
                closing(
                    detect_frames(
                        self.seeker,
                        read_frames(self.video, self.selection),
                        threat=self.threat,
                        only_certified=self.only_certified,
                    )
                ) as stream,
            ):
                for frame, result in stream:
                    if frame.number is None:
                        totals.stop_reason = result.error
                    else:
                        skipped = frame.skipped if isinstance(frame, LostFrame) else 0
                        totals.add(result, self.categories, count=1 + skipped)
                    totals.seconds = time.monotonic() - began
                    if write_record is not None:
                        write_record(result.to_frame_record(self.video.name, self.categories, totals.defense_sha256))
                    if writer is not None and isinstance(frame, VideoFrame) and not result.error:
                        annotated = annotate_frame(frame.image, result, self.categories.detector_names, self.threat)
                        writer.add(annotated, frame.time)
                    yield result
        except ObjectSeekerError as error:  # a full disk
            raise ObjectSeekerError(f"{error}; {self.kept}") from None
        finally:
            if self.out is not None:
                totals.files = [FRAMES, *([ANNOTATED] if writer is not None and totals.images else []), "defense.json"]
        if not (totals.images or totals.failed or totals.stop_reason):
            raise ObjectSeekerError(f"no frame of {self.video.name} is selected: start is after its end")

    def _describe_cost(self) -> str:
        views, why = ObservationSettings(self.seeker.masks).views_per_image()
        if self.total is None:
            cost = f"{views:,} forward passes per frame, until {self.video.name} ends or Ctrl-C is pressed"
        else:
            cost = f"about {self.total:,} frames x {views:,} views = {self.total * views:,} forward passes"
        note = ""
        if isinstance(self.seeker.masks, Rolling) and (self.selection.stride > 1 or self.video.live):
            how = "of a live source" if self.video.live else f"with a stride of {self.selection.stride}"
            note = (
                f". Frames {how} are shown other shares of the masks than in a run of all frames: certificates over "
                "time of such a run do not cover them"
            )
        return f"{why}: {cost}{note}"


def require_empty(out: Path) -> None:
    """Reject a folder with earlier results: nothing is overwritten."""
    for name, kind in ((FRAMES, "a video"), (JOURNAL, "images")):
        if (out / name).exists():
            raise ObjectSeekerError(f"{out} holds results of {kind}: use another folder, or remove it")


@contextmanager
def open_frames_file(out: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Create the file of frame records, and return how to write one; remove the file if it stays empty."""
    file = out / FRAMES
    out.mkdir(parents=True, exist_ok=True)
    try:
        stream = file.open("x", encoding="utf-8")
    except FileExistsError:
        raise ObjectSeekerError(f"{out} holds results of a video: use another folder, or remove it") from None

    def write(record: dict[str, Any]) -> None:
        try:
            stream.write(json.dumps(record) + "\n")
            stream.flush()  # to the system, before the next frame starts
        except OSError as error:
            raise ObjectSeekerError(f"cannot write {FRAMES}: {error.strerror}") from None

    try:
        with stream:
            yield write
    finally:
        if file.stat().st_size == 0:
            file.unlink()


def annotate_frame(
    image: Image, result: ImageResult, names: tuple[str, ...], threat: ThreatModel | None = None
) -> PIL.Image.Image:
    """Draw the boxes on a frame, above a legend that is the same for every frame of one size."""
    height, width = image.shape[:2]
    annotated = annotate_result(image, result, names, threat).crop((0, 0, width, height))
    legend = [LegendEntry("recovered by masking", dashed=True)]
    if threat is not None:
        legend += [LegendEntry(text, color) for text, color in CERTIFICATE_LOOKS.items()]
        legend += fabrication_legend()
        legend.append(LegendEntry(f"against {threat.describe()}", None))
    return with_legend(annotated, legend)


class VideoWriter:
    """Writes images with times as H.264 in MP4, playable to the last frame however the program ends.

    The size is that of the first image, made even by repeating its last row or column; an image of another size is
    padded with black. The file has another name until `close`.
    """

    def __init__(self, file: Path, rate: float) -> None:
        nominal = min(max(rate, 1.0), 240.0)  # what the encoder plans with; frames have their own times
        self._av, self.file, self._rate = import_pyav(), file, Fraction(nominal).limit_denominator(1001)
        self._partial = file.with_name(file.name + PARTIAL_SUFFIX)
        self._container: Any = None
        self._stream: Any = None
        self._last = -1

    def add(self, image: PIL.Image.Image, time: float) -> None:
        """Add an image, shown from `time` in seconds."""
        try:
            if self._container is None:
                self._open(image.size)
            fitting = image if image.size == self._size else PIL.ImageOps.pad(image, self._size)
            rgb = self._av.VideoFrame.from_ndarray(_make_even(np.asarray(fitting)), format="rgb24")
            frame = rgb.reformat(format=PIXEL_FORMAT, dst_colorspace="ITU709")
            self._last = max(round(time / TICK), self._last + 1)  # a clock may jump back; a video's must not
            frame.pts, frame.time_base = self._last, TICK
            self._container.mux(self._stream.encode(frame))
        except (self._av.FFmpegError, OSError) as error:
            raise self._write_error(error) from None

    def close(self) -> bool:
        """Finish the file; return whether there is one."""
        if self._container is None:
            return False
        container, self._container = self._container, None
        try:
            container.mux(self._stream.encode(None))
            container.close()
            os.replace(self._partial, self.file)  # noqa: PTH105
        except (self._av.FFmpegError, OSError) as error:
            raise self._write_error(error) from None
        return True

    def _open(self, size: tuple[int, int]) -> None:
        self._size = size
        try:
            self._container = self._av.open(str(self._partial), "w", format="mp4", options=CONTAINER_OPTIONS)
            self._stream = self._container.add_stream("libx264", rate=self._rate, options=CODEC_OPTIONS)
        except ValueError:  # a build of PyAV without it
            raise ObjectSeekerError("this PyAV cannot write H.264: install another, or use --no-annotate") from None
        self._stream.width, self._stream.height = (side + side % 2 for side in size)
        self._stream.pix_fmt = PIXEL_FORMAT
        codec = self._stream.codec_context
        codec.time_base, codec.gop_size = TICK, KEY_FRAME_INTERVAL
        codec.colorspace = codec.color_primaries = codec.color_trc = codec.color_range = 1  # BT.709, as for television

    def _write_error(self, error: Exception) -> ObjectSeekerError:
        return ObjectSeekerError(f"cannot write {self.file}: {getattr(error, 'strerror', None) or error}")


def _make_even(image: Image) -> Image:
    """Repeat the last row or column if a side is odd, as the format requires; no pixel moves."""
    height, width = image.shape[:2]
    return np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
