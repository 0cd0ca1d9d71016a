"""Annotated video: H.264 in MP4, playable up to the last frame however the program ends."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps

from objectseeker.core.masks import Image
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import PARTIAL_SUFFIX
from objectseeker.inference.decoding import pyav

TICK = Fraction(1, 90_000)  # of time, as MPEG counts it: every rate in use is a whole number of them, or nearly
PIXELS = "yuv420p"  # what every player knows
KEY_EVERY = 50  # frames from one that can be jumped to, to the next

# Every frame is a piece of its own, on the disk before the next: what is there can be played at any moment. When all
# are there, they become an ordinary file.
PIECES = {"movflags": "hybrid_fragmented+frag_every_frame", "flush_packets": "1"}
QUALITY = {"preset": "veryfast", "crf": "20", "tune": "zerolatency"}  # which keeps no frames back


class VideoWriter:
    """Writes pictures with their times; the size is that of the first, made even by a line of its own edge.

    The file has another name until `close`. A picture of another size is made to fit, on black.
    """

    def __init__(self, file: Path, rate: float) -> None:
        nominal = min(max(rate, 1.0), 240.0)  # what the encoder plans with; the times of frames are their own
        self._av, self.file, self._rate = pyav(), file, Fraction(nominal).limit_denominator(1001)
        self._unfinished = file.with_name(file.name + PARTIAL_SUFFIX)
        self._container: Any = None
        self._stream: Any = None
        self._last = -1

    def add(self, picture: PIL.Image.Image, time: float) -> None:
        """One more picture, shown from `time` on, in seconds."""
        try:
            if self._container is None:
                self._begin(picture.size)
            fitting = picture if picture.size == self._size else PIL.ImageOps.pad(picture, self._size)
            rgb = self._av.VideoFrame.from_ndarray(_even(np.asarray(fitting)), format="rgb24")
            frame = rgb.reformat(format=PIXELS, dst_colorspace="ITU709")
            self._last = max(round(time / TICK), self._last + 1)  # a clock may jump back; a video's must not
            frame.pts, frame.time_base = self._last, TICK
            self._container.mux(self._stream.encode(frame))
        except (self._av.FFmpegError, OSError) as error:
            raise self._failed(error) from None

    def close(self) -> bool:
        """Finish the file; whether there is one."""
        if self._container is None:
            return False
        container, self._container = self._container, None
        try:
            container.mux(self._stream.encode(None))
            container.close()
            os.replace(self._unfinished, self.file)  # noqa: PTH105
        except (self._av.FFmpegError, OSError) as error:
            raise self._failed(error) from None
        return True

    def _begin(self, size: tuple[int, int]) -> None:
        self._size = size
        try:
            self._container = self._av.open(str(self._unfinished), "w", format="mp4", options=PIECES)
            self._stream = self._container.add_stream("libx264", rate=self._rate, options=QUALITY)
        except ValueError:  # a build of PyAV without it
            raise ObjectSeekerError("this PyAV cannot write H.264: install another, or use --no-annotate") from None
        self._stream.width, self._stream.height = (side + side % 2 for side in size)
        self._stream.pix_fmt = PIXELS
        coder = self._stream.codec_context
        coder.time_base, coder.gop_size = TICK, KEY_EVERY
        coder.colorspace = coder.color_primaries = coder.color_trc = coder.color_range = (
            1  # BT.709, as television has it
        )

    def _failed(self, error: Exception) -> ObjectSeekerError:
        return ObjectSeekerError(f"cannot write {self.file}: {getattr(error, 'strerror', None) or error}")


def _even(picture: Image) -> Image:
    """With even sides, which the format asks for: the last row or column twice, no pixel moved."""
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
