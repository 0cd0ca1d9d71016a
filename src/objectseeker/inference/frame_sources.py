"""Frames of videos, cameras, streams, folders and arrays, and the selection of those in use."""

from __future__ import annotations

import os
import re
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from objectseeker.core.masks import Image, as_image
from objectseeker.core.recipes import rolling_index
from objectseeker.datasets.sequences import natural_sort_key, number_frames
from objectseeker.errors import ObjectSeekerError, import_optional, require_count, require_number
from objectseeker.files.images import load_image, no_image_in, reject_oversized, walk_images
from objectseeker.files.remote import is_url, redact_url

DEFAULT_RATE = 25.0  # frames per second of a source that states none
MAX_WAITING_LOSSES = 100  # lost frames of a live source that wait to be reported

PREFIX = "video:"
SUFFIXES = frozenset(
    {".3gp", ".asf", ".avi", ".dv", ".flv", ".h264", ".h265", ".hevc", ".ivf", ".m2ts", ".m2v", ".m4v", ".mjpeg"}
    | {".mjpg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv", ".y4m"}
)
COLORS = {1: 1, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}  # FFmpeg's numbers for standards: in a frame, and in a conversion
LIVE_SCHEMES = frozenset({"rtmp", "rtmps", "rtp", "rtsp", "rtsps", "srt", "udp"})
NO_VIDEO, DAMAGED = "it is damaged or not a video", "it is damaged"
TIMEOUTS = (20.0, 20.0)  # seconds until a stream is opened, and until it sends more

# A file is never more than its own bytes: no playlist or session description in it opens another file or address.
FILE_FORMATS = (
    "asf,avi,dv,flv,gif,apng,h264,hevc,ivf,m4v,matroska,webm,mjpeg,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,mpegvideo,mxf,"
    "nut,obu,ogg,rm,webp_pipe,yuv4mpegpipe"
)
STREAM_PROTOCOLS = "crypto,data,http,https,httpproxy,rtmp,rtmps,rtp,rtsp,rtsps,srt,srtp,tcp,tls,udp"


@dataclass(frozen=True, slots=True, eq=False)
class VideoFrame:
    """A frame: its number in the source, counted from 0, and the seconds since the first.

    `rolling_index` selects its share of rolling masks: that of its number (`core.recipes.rolling_index`). Frames of a
    live source are skipped as time passes; theirs counts the frames that were used before.
    """

    number: int
    time: float
    image: Image
    rolling_index: int


@dataclass(frozen=True, slots=True)
class LostFrame:
    """A frame that is missing, with the reason; without a number, all frames that would have followed.

    `skipped` frames before it are missing, too; their reasons were not kept.
    """

    number: int | None
    reason: str
    skipped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PendingFrame:
    """A frame before its pixels are decoded: `load` returns the image."""

    number: int
    time: float
    load: Callable[[], Image]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSelection:
    """The frames in use: every `stride`-th from `start` until before `end` (seconds), up to `limit`."""

    stride: int = 1
    start: float = 0.0
    end: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        require_count(self.stride, "stride")
        if self.limit is not None:
            require_count(self.limit, "limit")
        if require_number(self.start, "start") < 0:
            raise ObjectSeekerError(f"start must be at least 0 seconds: got {self.start!r}")
        if self.end is not None and require_number(self.end, "end") <= self.start:
            raise ObjectSeekerError(f"end must be after start ({self.start:g} seconds): got {self.end!r}")

    def select(self, frames: Iterable[PendingFrame | LostFrame]) -> Iterator[VideoFrame | LostFrame]:
        """Load the selected frames; one that cannot be loaded is lost, and reading continues."""
        first: int | None = None
        used = 0
        for frame in frames:
            if frame.number is None:
                yield frame
                continue
            if isinstance(frame, PendingFrame):
                if self.end is not None and frame.time >= self.end:
                    return
                if frame.time < self.start:
                    continue
            elif first is None and self.start > 0:
                continue  # its time is unknown, and no selected frame came before it
            first = frame.number if first is None else first
            if (frame.number - first) % self.stride == 0:
                yield self._load(frame)
                used += 1
                if used == self.limit:
                    return

    def _load(self, frame: PendingFrame | LostFrame) -> VideoFrame | LostFrame:
        if isinstance(frame, LostFrame):
            return frame
        try:
            return VideoFrame(frame.number, frame.time, frame.load(), rolling_index(frame.number, self.stride))
        except ObjectSeekerError as error:
            return LostFrame(frame.number, str(error))

    def count(self, total: int, rate: float) -> int:
        """Estimate the number of selected frames of `total`."""
        end = total if self.end is None else min(total, round(self.end * rate))
        frames = max(0, -(-(end - round(self.start * rate)) // self.stride))
        return frames if self.limit is None else min(frames, self.limit)


@runtime_checkable
class Video(Protocol):
    """A source of frames.

    `name` is the name in results, without secrets. `rate` and `total`, if known, are estimates: frames per second, and
    the number of frames. Frames of a `live` source pass while no one reads.
    """

    name: str
    rate: float
    total: int | None
    live: bool

    def pending_frames(self) -> Generator[PendingFrame | LostFrame]:
        """Iterate over all frames in order; may be called once."""
        ...


def read_frames(video: Video, selection: FrameSelection) -> Generator[VideoFrame | LostFrame]:
    """Read the selected frames. A live source is read all the time, and the latest frame is used."""

    def selected() -> Generator[VideoFrame | LostFrame]:
        with closing(video.pending_frames()) as frames:
            yield from selection.select(frames)

    return latest_frames(selected()) if video.live else selected()


def latest_frames(events: Generator[VideoFrame | LostFrame]) -> Generator[VideoFrame | LostFrame]:
    """Keep only the latest frame that arrives while one is in use; count losses, name the last ones.

    At most one frame and MAX_WAITING_LOSSES losses wait, however long a frame is in use. Rolling masks are numbered
    consecutively, whatever was skipped.
    """
    waiting: deque[VideoFrame | LostFrame] = deque()
    changed = threading.Condition()
    ended: list[BaseException | None] = []
    closed, used = False, 0

    def read() -> None:
        failure: BaseException | None = None
        try:
            with closing(events):  # in the thread that runs it
                for event in events:
                    if closed:
                        break
                    with changed:
                        _enqueue(waiting, event)
                        changed.notify()
        except BaseException as error:  # raised again where the frames are used
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
            if isinstance(event, VideoFrame):
                event, used = replace(event, rolling_index=used), used + 1
            yield event
        if ended[0] is not None:
            raise ended[0]
    finally:
        closed = True


def _enqueue(waiting: deque[VideoFrame | LostFrame], event: VideoFrame | LostFrame) -> None:
    """Add `event`: a frame replaces the one that waits, a loss the first of too many."""
    same_kind = [waiting_event for waiting_event in waiting if type(waiting_event) is type(event)]
    if isinstance(event, VideoFrame):
        for frame in same_kind:
            waiting.remove(frame)
    elif len(same_kind) >= MAX_WAITING_LOSSES:
        first, second = (waiting_event for waiting_event in same_kind[:2] if isinstance(waiting_event, LostFrame))
        waiting.remove(first)
        waiting[waiting.index(second)] = replace(second, skipped=second.skipped + first.skipped + 1)
    waiting.append(event)


class FrameFolder:
    """A folder of images that are the frames of a video, in natural order: frame2 comes before frame10.

    They have the numbers that datasets give them (`datasets.sequences.number_frames`).
    """

    def __init__(self, path: Path, rate: float = DEFAULT_RATE) -> None:
        _require_rate(rate)
        root = path.absolute()
        files = sorted(walk_images(root), key=lambda file: natural_sort_key(file.relative_to(root).as_posix()))
        if not files:
            raise ObjectSeekerError(no_image_in(path))
        folders = list(dict.fromkeys(file.parent for file in files))
        if len(folders) > 1:
            raise ObjectSeekerError(
                f"{path} holds images in several folders, such as {folders[0]} and {folders[1]}. A video is the "
                "images of one folder: give that, or move the other images away."
            )
        self.files = tuple(zip(number_frames(files), files, strict=True))
        self.name, self.rate, self.live = root.name, rate, False
        self.total: int | None = len(files)

    def pending_frames(self) -> Generator[PendingFrame | LostFrame]:
        for number, file in self.files:
            yield PendingFrame(number, number / self.rate, partial(load_image, file))


class ArrayFrames:
    """Images in memory, or of a generator, as frames in order."""

    def __init__(self, images: Iterable[Image], rate: float = DEFAULT_RATE) -> None:
        _require_rate(rate)
        self._images, self.name, self.rate, self.live = images, "frames", rate, False
        self.total = len(images) if isinstance(images, Sized) else None

    def pending_frames(self) -> Generator[PendingFrame | LostFrame]:
        for number, image in enumerate(self._images):
            yield PendingFrame(number, number / self.rate, partial(as_image, image))


def _require_rate(rate: float) -> None:
    if require_number(rate, "fps") <= 0:
        raise ObjectSeekerError(f"fps must be above 0: got {rate!r}")


def import_pyav() -> Any:
    """Import the module `av`; without it, say how to install it."""
    return import_optional("av", "video needs PyAV: pip install 'objectseeker[video]'")


def is_video(source: str) -> bool:
    """Return whether an argument names a video: video:ANYTHING, a camera, a stream, or by suffix."""
    if os.path.exists(source):  # noqa: PTH110  # a name that no file can have is not one
        return Path(source).is_file() and _suffix(source) in SUFFIXES
    if source.startswith(PREFIX) or _is_camera(source):
        return True
    return _scheme(source) in LIVE_SCHEMES or _suffix(source) in (SUFFIXES | {".m3u8"} if is_url(source) else SUFFIXES)


def open_video(source: str, *, rate: float | None = None) -> Video:
    """Open the video that an argument names.

    Args:
        source: A file, an address, a camera's number, or video:FOLDER.
        rate: Frames per second, for a folder of frames only.

    Raises:
        ObjectSeekerError: There is no such video, or it cannot be decoded.
    """
    name = source if os.path.exists(source) else source.removeprefix(PREFIX)  # noqa: PTH110
    if Path(name).is_dir():
        return FrameFolder(Path(name), DEFAULT_RATE if rate is None else rate)
    if rate is not None:
        shown = redact_url(name) if is_url(name) else name
        raise ObjectSeekerError(f"{shown} states its own frame rate: omit --fps, which is for folders")
    if _is_camera(name) and not Path(name).exists():
        return _open_camera(int(name))
    if is_url(name):
        scheme = _scheme(name)
        options = {"protocol_whitelist": STREAM_PROTOCOLS} | ({"rtsp_transport": "tcp"} if "rtsp" in scheme else {})
        return DecodedVideo(name, redact_url(name), options=options, timeout=TIMEOUTS, live=scheme in LIVE_SCHEMES)
    if not Path(name).is_file():
        raise ObjectSeekerError(f"there is no file or folder {name}. Check the path.")
    if Path(name).stat().st_size == 0:
        raise ObjectSeekerError(f"cannot read video {name}: it is empty")
    options = {"protocol_whitelist": "file", "format_whitelist": FILE_FORMATS}
    return DecodedVideo(f"file:{name}", name, options=options)


def _open_camera(number: int) -> Video:
    if sys.platform == "darwin":
        options = {"framerate": "30"}
        return DecodedVideo(str(number), f"camera {number}", format="avfoundation", options=options, live=True)
    if not sys.platform.startswith("linux"):
        raise ObjectSeekerError(f"camera {number}: cameras are supported on Linux and macOS; give a file or an address")
    device = Path(f"/dev/video{number}")
    if not device.exists():
        known = sorted(str(path).removeprefix("/dev/video") for path in Path("/dev").glob("video[0-9]*"))
        advice = f"choose from {', '.join(known)}" if known else "connect one"
        raise ObjectSeekerError(f"there is no camera {number} ({device}): {advice}")
    return DecodedVideo(str(device), f"camera {number}", format="v4l2", live=True)


class DecodedVideo:
    """A video decoded by PyAV: upright frames of eight bits per channel, transparency on white.

    It is opened at once, and can be read once.
    """

    def __init__(
        self,
        address: str,
        display_name: str,
        *,
        format: str | None = None,
        options: dict[str, str] | None = None,
        timeout: tuple[float, float] | None = None,
        live: bool = False,
    ) -> None:
        self._av, self._display_name, self.live = import_pyav(), display_name, live
        self.name = display_name if is_url(display_name) or live else Path(display_name).name
        try:
            self._container = self._av.open(
                address, format=format, options=options or {}, timeout=timeout, metadata_errors="ignore"
            )
        except (self._av.FFmpegError, OSError, ValueError) as error:
            readable = address.startswith("file:") and not isinstance(error, PermissionError)
            reason = NO_VIDEO if readable else _reason(error)
            raise ObjectSeekerError(f"cannot read video {display_name}: {reason}") from None
        self._stream = self._container.streams.best("video")
        if self._stream is None or self._stream.codec_context is None:
            self._container.close()
            reason = "it has no frames" if self._stream is None else "there is no decoder for its frames"
            raise ObjectSeekerError(f"cannot read video {display_name}: {reason}")
        self.rate = float(self._stream.average_rate or self._stream.guessed_rate or DEFAULT_RATE)
        seconds = None if live else self._seconds()
        self.total = self._stream.frames or (None if seconds is None else round(seconds * self.rate)) or None

    def pending_frames(self) -> Generator[PendingFrame | LostFrame]:
        try:
            yield from self._pending_frames()
        finally:
            self._container.close()

    def _pending_frames(self) -> Iterator[PendingFrame | LostFrame]:
        number, time, first = -1, 0.0, None
        for number, decoded in enumerate(self._decode()):
            if isinstance(decoded, str):
                yield LostFrame(number, decoded)
                continue
            at = decoded.time if decoded.pts is not None and decoded.time_base else None
            if first is None and at is not None:
                first = at - number / self.rate  # of those lost before it
            time = number / self.rate if at is None else float(at - first)
            yield PendingFrame(number, time, partial(_to_image, decoded, f"{self._display_name}, frame {number}"))
        if self._stop_reason:
            yield LostFrame(None, f"{self._display_name} stops after {number + 1:,} frames: {self._stop_reason}")
            return
        if number < 0:
            yield LostFrame(None, f"{self._display_name} has no frames")
            return
        seconds = None if self.live else self._seconds()
        end = time + 1 / self.rate
        if seconds is not None and seconds - end > max(0.5, 3 / self.rate):
            yield LostFrame(None, f"{self._display_name} is truncated: {end:.1f} of {seconds:.1f} seconds are there")

    def _decode(self) -> Iterator[Any]:
        """Yield every frame, or why it could not be decoded; `_stop_reason` says why reading stopped early."""
        self._stop_reason = ""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except (self._av.FFmpegError, OSError) as error:
                self._stop_reason, packet = _reason(error), None
            try:
                incomplete = packet is not None and packet.is_corrupt
                for frame in self._stream.codec_context.decode(packet):
                    yield "parts of it are missing" if incomplete or frame.is_corrupt else frame
            except self._av.error.EOFError:  # its last frames were requested before
                pass
            except (self._av.FFmpegError, OSError) as error:
                yield _reason(error)
            if packet is None:
                return

    def _seconds(self) -> float | None:
        if self._stream.duration is not None and self._stream.time_base:
            return float(self._stream.duration * self._stream.time_base)
        single = len(self._container.streams) == 1  # else another may be longer
        return self._container.duration / 1e6 if single and self._container.duration else None


def _to_image(frame: Any, name: str) -> Image:
    reject_oversized(frame.width, frame.height, name)
    default = 1 if frame.width >= 1280 or frame.height > 576 else 5  # without a statement: as players take it
    colors = COLORS.get(int(frame.colorspace), default)
    if any(component.is_alpha for component in frame.format.components):
        rgba = frame.to_ndarray(format="rgba", src_colorspace=colors).astype(np.uint16)
        alpha = rgba[..., 3:]
        rgb = ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    else:
        rgb = frame.to_ndarray(format="rgb24", src_colorspace=colors)
    matrix = frame.side_data.get("DISPLAYMATRIX")
    return np.ascontiguousarray(rgb if matrix is None else _turn_upright(rgb, bytes(matrix)))


def _turn_upright(image: Image, matrix: bytes) -> Image:
    """Turn and mirror as the file states: x' = a x + c y, y' = b x + d y, by quarter turns."""
    a, b, _, c, d = struct.unpack("=5i", matrix[:20])
    if abs(b) > abs(a):
        image, a, d = image.swapaxes(0, 1), c, b
    return image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]


def _reason(error: Exception) -> str:
    """Return FFmpeg's message without the address that it repeats."""
    if "Invalid data" in str(error):
        return DAMAGED
    return getattr(error, "strerror", None) or type(error).__name__


def _is_camera(source: str) -> bool:
    return re.fullmatch(r"[0-9]{1,3}", source) is not None


def _scheme(source: str) -> str:
    return source.partition("://")[0].lower() if is_url(source) else ""


def _suffix(source: str) -> str:
    path = re.split(r"[?#]", source)[0] if is_url(source) else source
    return os.path.splitext(path)[1].lower()  # noqa: PTH122  # addresses are not paths
