"""Video files, cameras and streams by PyAV: frames upright, eight bits a channel, on a white page, as images are."""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import reject_oversized
from objectseeker.files.remote import is_url, redact_url
from objectseeker.inference.frame_sources import USUAL_RATE, Folder, Lost, Place, Video

PREFIX = "video:"
SUFFIXES = frozenset(
    {".3gp", ".asf", ".avi", ".dv", ".flv", ".h264", ".h265", ".hevc", ".ivf", ".m2ts", ".m2v", ".m4v", ".mjpeg"}
    | {".mjpg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv", ".y4m"}
)
COLORS = {1: 1, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}  # FFmpeg's numbers for standards: in a frame, and in a conversion
LIVE = frozenset({"rtmp", "rtmps", "rtp", "rtsp", "rtsps", "srt", "udp"})  # schemes of streams that wait for nobody
NO_VIDEO, DAMAGED = "it is damaged or no video", "it is damaged"
SILENCE = (20.0, 20.0)  # seconds that a stream may take to be opened, and to send more

# A file is never more than its own bytes: no play list or session description in it opens another file or address.
FILE_FORMATS = (
    "asf,avi,dv,flv,gif,apng,h264,hevc,ivf,m4v,matroska,webm,mjpeg,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,mpegvideo,mxf,"
    "nut,obu,ogg,rm,webp_pipe,yuv4mpegpipe"
)
STREAM_PROTOCOLS = "crypto,data,http,https,httpproxy,rtmp,rtmps,rtp,rtsp,rtsps,srt,srtp,tcp,tls,udp"


def pyav() -> Any:
    """The module `av`, or how to get it."""
    try:
        import av
    except ImportError:
        raise ObjectSeekerError("video needs PyAV: pip install 'objectseeker[video]'") from None
    return av


def is_video(given: str) -> bool:
    """Whether an argument names a video: video:ANYTHING, a camera's number, a stream, or a file by its suffix."""
    if os.path.exists(given):  # noqa: PTH110  # a name that no file can have is none
        return Path(given).is_file() and _suffix(given) in SUFFIXES
    if given.startswith(PREFIX) or _is_camera(given):
        return True
    return _scheme(given) in LIVE or _suffix(given) in (SUFFIXES | {".m3u8"} if is_url(given) else SUFFIXES)


def open_video(given: str, *, rate: float | None = None) -> Video:
    """The video that an argument names. `rate` is how many frames a second a folder of them has."""
    what = given if os.path.exists(given) else given.removeprefix(PREFIX)  # noqa: PTH110
    if Path(what).is_dir():
        return Folder(Path(what), USUAL_RATE if rate is None else rate)
    if rate is not None:
        raise ObjectSeekerError(f"{_shown(what)} says itself how many frames a second it has: --fps is for folders")
    if _is_camera(what) and not Path(what).exists():
        return _camera(int(what))
    if is_url(what):
        scheme = _scheme(what)
        options = {"protocol_whitelist": STREAM_PROTOCOLS} | ({"rtsp_transport": "tcp"} if "rtsp" in scheme else {})
        return Decoded(what, redact_url(what), options=options, timeout=SILENCE, live=scheme in LIVE)
    if not Path(what).is_file():
        raise ObjectSeekerError(f"there is no file or folder {what}")
    if Path(what).stat().st_size == 0:
        raise ObjectSeekerError(f"cannot read video {what}: it is empty")
    own = {"protocol_whitelist": "file", "format_whitelist": FILE_FORMATS}
    return Decoded(f"file:{what}", what, options=own)


def _camera(number: int) -> Video:
    if sys.platform == "darwin":
        return Decoded(str(number), f"camera {number}", format="avfoundation", options={"framerate": "30"}, live=True)
    if not sys.platform.startswith("linux"):
        raise ObjectSeekerError(f"camera {number}: cameras can be read on Linux and macOS; give a file or an address")
    device = Path(f"/dev/video{number}")
    if not device.exists():
        there = sorted(str(found).removeprefix("/dev/video") for found in Path("/dev").glob("video[0-9]*"))
        which = f"there are {', '.join(there)}" if there else "there is none"
        raise ObjectSeekerError(f"there is no camera {number} ({device}): {which}")
    return Decoded(str(device), f"camera {number}", format="v4l2", live=True)


class Decoded:
    """A video that PyAV decodes. It is opened at once, and can be gone through once."""

    def __init__(
        self,
        address: str,
        shown: str,
        *,
        format: str | None = None,
        options: dict[str, str] | None = None,
        timeout: tuple[float, float] | None = None,
        live: bool = False,
    ) -> None:
        self._av, self._shown, self.live = pyav(), shown, live
        self.name = shown if is_url(shown) or live else Path(shown).name
        try:
            self._container = self._av.open(
                address, format=format, options=options or {}, timeout=timeout, metadata_errors="ignore"
            )
        except (self._av.FFmpegError, OSError, ValueError) as error:
            readable = address.startswith("file:") and not isinstance(error, PermissionError)
            reason = NO_VIDEO if readable else _reason(error)
            raise ObjectSeekerError(f"cannot read video {shown}: {reason}") from None
        self._stream = self._container.streams.best("video")
        if self._stream is None or self._stream.codec_context is None:
            self._container.close()
            what = "there are no pictures in it" if self._stream is None else "nothing here decodes its pictures"
            raise ObjectSeekerError(f"cannot read video {shown}: {what}")
        self.rate = float(self._stream.average_rate or self._stream.guessed_rate or USUAL_RATE)
        seconds = None if live else self._seconds()
        self.total = self._stream.frames or (None if seconds is None else round(seconds * self.rate)) or None

    def places(self) -> Generator[Place | Lost]:
        try:
            yield from self._places()
        finally:
            self._container.close()

    def _places(self) -> Iterator[Place | Lost]:
        number, time, first = -1, 0.0, None
        for number, found in enumerate(self._decoded()):
            if isinstance(found, str):
                yield Lost(number, found)
                continue
            at = found.time if found.pts is not None and found.time_base else None
            if first is None and at is not None:
                first = at - number / self.rate  # those that were lost before it
            time = number / self.rate if at is None else float(at - first)
            yield Place(number, time, partial(_as_image, found, f"{self._shown}, frame {number}"))
        if self._broken_off:
            yield Lost(None, f"{self._shown} breaks off after {number + 1:,} frames: {self._broken_off}")
            return
        if number < 0:
            yield Lost(None, f"there are no pictures in {self._shown}")
            return
        seconds = None if self.live else self._seconds()
        end = time + 1 / self.rate
        if seconds is not None and seconds - end > max(0.5, 3 / self.rate):
            yield Lost(None, f"{self._shown} is cut off: {end:.1f} of {seconds:.1f} seconds are there")

    def _decoded(self) -> Iterator[Any]:
        """Every frame, or why it could not be decoded; `_broken_off` says why reading ended, if not in order."""
        self._broken_off = ""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except (self._av.FFmpegError, OSError) as error:
                self._broken_off, packet = _reason(error), None
            try:
                incomplete = packet is not None and packet.is_corrupt
                for frame in self._stream.codec_context.decode(packet):
                    yield "parts of it are missing" if incomplete or frame.is_corrupt else frame
            except self._av.error.EOFError:  # it was asked for its last frames before
                pass
            except (self._av.FFmpegError, OSError) as error:
                yield _reason(error)
            if packet is None:
                return

    def _seconds(self) -> float | None:
        """How long it says it is."""
        if self._stream.duration is not None and self._stream.time_base:
            return float(self._stream.duration * self._stream.time_base)
        alone = len(self._container.streams) == 1  # else another may be longer
        return self._container.duration / 1e6 if alone and self._container.duration else None


def _as_image(frame: Any, where: str) -> Image:
    reject_oversized(frame.width, frame.height, where)
    usual = 1 if frame.width >= 1280 or frame.height > 576 else 5  # where it does not say: as players take it
    colors = COLORS.get(int(frame.colorspace), usual)
    if any(component.is_alpha for component in frame.format.components):
        rgba = frame.to_ndarray(format="rgba", src_colorspace=colors).astype(np.uint16)
        alpha = rgba[..., 3:]
        rgb = ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    else:
        rgb = frame.to_ndarray(format="rgb24", src_colorspace=colors)
    matrix = frame.side_data.get("DISPLAYMATRIX")
    return np.ascontiguousarray(rgb if matrix is None else _upright(rgb, bytes(matrix)))


def _upright(image: Image, matrix: bytes) -> Image:
    """Turned and mirrored as the file says: x' = a x + c y, y' = b x + d y, by quarter turns."""
    a, b, _, c, d = struct.unpack("=5i", matrix[:20])
    if abs(b) > abs(a):
        image, a, d = image.swapaxes(0, 1), c, b
    return image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]


def _reason(error: Exception) -> str:
    """What FFmpeg says, without the address that it repeats."""
    if "Invalid data" in str(error):
        return DAMAGED
    return getattr(error, "strerror", None) or type(error).__name__


def _is_camera(given: str) -> bool:
    return re.fullmatch(r"[0-9]{1,3}", given) is not None


def _scheme(given: str) -> str:
    return given.partition("://")[0].lower() if is_url(given) else ""


def _suffix(given: str) -> str:
    path = re.split(r"[?#]", given)[0] if is_url(given) else given
    return os.path.splitext(path)[1].lower()  # noqa: PTH122  # addresses are no paths


def _shown(given: str) -> str:
    return redact_url(given) if is_url(given) else given
