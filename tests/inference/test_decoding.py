"""Videos as from cameras, phones and networks, encoded here: what is decoded is what was put in."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from clips import encode, moving, scene, turned

from objectseeker.errors import ObjectSeekerError
from objectseeker.inference.frame_sources import (
    FrameFolder,
    FrameSelection,
    LostFrame,
    VideoFrame,
    is_video,
    open_video,
    read_frames,
)

pytest.importorskip("av", reason="PyAV (the extra video) is not installed")


def read(given, **choice):
    return list(read_frames(open_video(str(given)), FrameSelection(**choice)))


def close(image, other):
    """Whether two images are alike but for what a codec does to them."""
    return image.shape == other.shape and np.abs(image.astype(int) - other).mean() < 6


def test_frames_come_in_order_with_their_times(tmp_path):
    times = [0, 0.04, 0.2, 0.21, 1.0]  # of a varying rate
    file = encode(tmp_path / "a.mp4", moving(5), times=times)
    video = open_video(str(file))
    assert (video.name, video.total, video.live) == ("a.mp4", 5, False)
    frames = list(read_frames(video, FrameSelection()))
    assert [frame.number for frame in frames] == [0, 1, 2, 3, 4]
    assert [frame.time for frame in frames] == pytest.approx(times, abs=0.002)
    assert all(close(frame.image, image) for frame, image in zip(frames, moving(5), strict=True))
    assert [frame.number for frame in read(file, start=0.1, end=0.5)] == [2, 3]
    assert [frame.number for frame in read(file, stride=99)] == [0]


@pytest.mark.parametrize(
    ("codec", "pixels", "name"),
    [
        ("ffv1", "yuv420p10le", "ten.mkv"),
        ("ffv1", "gray", "gray.mkv"),
        ("ffv1", "gray16le", "gray16.mkv"),
        ("mpeg4", "yuv420p", "old.avi"),
        ("libx264", "yuv444p", "full.mov"),
        ("libx264", "yuvj420p", "range.mp4"),
    ],
)
def test_pixel_formats(tmp_path, codec, pixels, name):
    file = encode(tmp_path / name, moving(3), codec=codec, pixels=pixels)
    gray = pixels.startswith("gray")
    for frame, image in zip(read(file), moving(3), strict=True):
        assert close(frame.image, image.mean(axis=2, keepdims=True).repeat(3, axis=2) if gray else image)
        assert frame.image.dtype == np.uint8


@pytest.mark.parametrize(
    ("standard", "red", "blue"), [("bt709", 0.2126, 0.0722), ("smpte170m", 0.299, 0.114), ("bt2020nc", 0.2627, 0.0593)]
)
def test_colors_are_those_that_the_file_says(tmp_path, standard, red, blue):
    """The same color by two standards: a decoder that knows one of them only is off by twenty and more."""
    color = np.array((30, 200, 60)) / 255
    light = color @ (red, 1 - red - blue, blue)
    values = 16 + 219 * light, *(128 + 112 * (color[c] - light) / (1 - k) for c, k in ((2, blue), (0, red)))
    planes = np.rint(np.ones((3, 48, 64)) * np.array(values)[:, None, None]).astype(np.uint8)
    options = {"colorspace": standard, "crf": "1"}
    (frame,) = read(
        encode(tmp_path / "a.mkv", [planes], pixels="yuv444p", given="yuv444p", options=options, size=(64, 48))
    )
    assert np.abs(frame.image - 255 * color).max() <= 4


def test_odd_sizes(tmp_path):
    image = scene(11, size=(63, 47))
    (frame,) = read(encode(tmp_path / "a.mkv", [image], codec="ffv1", pixels="bgr0"))
    assert np.array_equal(frame.image, image)


def test_a_frame_of_too_many_pixels_is_lost(tmp_path, monkeypatch):
    file = encode(tmp_path / "a.mp4", moving(2))
    monkeypatch.setenv("OBJECTSEEKER_MAX_MEGAPIXELS", "0.003")
    lost = read(file)
    assert [(type(event), event.number) for event in lost] == [(LostFrame, 0), (LostFrame, 1)]
    assert "a.mp4, frame 1: its 64x48 pixels" in lost[1].reason


def test_transparency_is_laid_on_white(tmp_path):
    image = np.zeros((48, 64, 4), np.uint8)
    image[:24] = (200, 100, 50, 255)
    image[24:] = (200, 100, 51, 100)
    (frame,) = read(encode(tmp_path / "a.mov", [image], codec="png", pixels="rgba", given="rgba"))
    assert (frame.image[:24] == (200, 100, 50)).all()
    assert (frame.image[24:] == (233, 194, 175)).all()  # round(value * 100 / 255 + 155)


@pytest.mark.parametrize(
    ("matrix", "as_shown"),
    [
        ((1, 0, 0, 1), lambda image: image),
        ((0, 1, -1, 0), lambda image: np.rot90(image, -1)),  # a phone held upright
        ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
        ((0, -1, 1, 0), lambda image: np.rot90(image, 1)),
        ((-1, 0, 0, 1), lambda image: image[:, ::-1]),  # a mirror
        ((0, 1, 1, 0), lambda image: image.swapaxes(0, 1)),
    ],
)
def test_frames_are_turned_upright(tmp_path, matrix, as_shown):
    file = turned(encode(tmp_path / "a.mp4", moving(2)), matrix)
    for frame, image in zip(read(file), moving(2), strict=True):
        assert close(frame.image, as_shown(image))
        assert frame.image.flags.c_contiguous


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_a_cut_off_file_keeps_what_is_there(tmp_path, name):
    container = {"movflags": "faststart"} if name == "a.mp4" else {}
    file = encode(tmp_path / name, moving(20), rate=5, container=container, codec="mjpeg", pixels="yuvj420p")
    file.write_bytes(file.read_bytes()[: int(0.7 * file.stat().st_size)])
    frames, lost = [], []
    for event in read(file):
        (frames if isinstance(event, VideoFrame) else lost).append(event)
    assert 3 < len(frames) < 20
    assert all(close(frame.image, moving(20)[frame.number]) for frame in frames)
    assert lost[-1].number is None
    assert "is truncated" in lost[-1].reason


def test_a_damaged_frame_is_lost_and_the_others_go_on(tmp_path):
    file = encode(tmp_path / "a.mov", moving(6), codec="png", pixels="rgb24")  # every frame stands alone
    content = bytearray(file.read_bytes())
    header = b"\x89PNG"
    third = content.index(header, content.index(header, content.index(header) + 1) + 1)
    content[third : third + 8] = bytes(8)
    file.write_bytes(content)
    events = read(file)
    assert [type(event) for event in events] == [VideoFrame, VideoFrame, LostFrame, VideoFrame, VideoFrame, VideoFrame]
    assert events[2].number == 2
    assert all(
        np.array_equal(event.image, scene(2 * event.number)) for event in events if isinstance(event, VideoFrame)
    )


def noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (96, 128, 3), np.uint8)


def test_a_frame_that_is_patched_up_is_lost(tmp_path):
    """A decoder fills what is missing from the frames before: that would be another image."""
    file = encode(tmp_path / "a.avi", [noise(number) for number in range(6)], options={"g": "1", "bf": "0"})
    content = bytearray(file.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 60] = bytes(60)
    file.write_bytes(content)
    events = read(file)
    assert [event.number for event in events] == list(range(6))
    assert [event.reason for event in events if isinstance(event, LostFrame)] == ["parts of it are missing"]


@contextmanager
def served(content, send):
    """The address of a server of one file, of which it sends that many bytes; and what was requested of it."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:send])

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_a_stream_that_breaks_off_keeps_what_came(tmp_path):
    content = encode(tmp_path / "a.ts", moving(20), options={"bf": "0", "tune": "zerolatency"}).read_bytes()
    with served(content, len(content)) as (address, _):
        assert [event.number for event in read(f"{address}/a.ts?key=secret")] == list(range(20))
        assert open_video(f"{address}/a.ts?key=secret").name == f"{address}/a.ts"
    with served(content, 2 * len(content) // 3) as (address, _):
        *frames, lost = read(f"{address}/a.ts")
    assert 3 < len(frames) < 20
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert (lost.number, "stops after" in lost.reason) == (None, True)


def test_a_file_opens_no_other_file_and_no_address(tmp_path):
    """Play lists stay what they are, whatever they are called: bytes of no video."""
    content = encode(tmp_path / "a.ts", [noise(number) for number in range(3)]).read_bytes()
    with served(content, len(content)) as (address, asked):
        for target in (f"{address}/a.ts", "a.ts"):
            stream = ["#EXTM3U", "#EXT-X-TARGETDURATION:1", "#EXTINF:1,", target, "#EXT-X-ENDLIST", ""]
            (tmp_path / "list.m3u8").write_text("\n".join(stream))
            (tmp_path / "list.mp4").write_text(f"ffconcat version 1.0\nfile {target}\n")
            for given in (f"video:{tmp_path / 'list.m3u8'}", str(tmp_path / "list.mp4")):
                with pytest.raises(ObjectSeekerError, match="cannot read video"):
                    open_video(given)
    assert asked == []


def test_what_cannot_be_read_is_named_in_a_sentence(tmp_path):
    (tmp_path / "text.mp4").write_text("These are words, and no video.\n" * 50)
    (tmp_path / "empty.mp4").touch()
    encode(tmp_path / "sound.mkv", moving(1), codec="ffv1", pixels="bgr0")
    wrong = {
        tmp_path / "text.mp4": "text.mp4: it is damaged or not a video",
        tmp_path / "empty.mp4": "it is empty",
        tmp_path / "none.mp4": "there is no file",
        "987": "no camera 987",
        "rtsp://name:word@127.0.0.1:1/live?token=x": "cannot read video rtsp://127.0.0.1:1/live: ",
    }
    for given, words in wrong.items():
        with pytest.raises(ObjectSeekerError, match=words) as error:
            open_video(str(given))
        assert "word@" not in str(error.value)
    with pytest.raises(ObjectSeekerError, match="--fps"):
        open_video(str(tmp_path / "sound.mkv"), rate=5)


def test_what_names_a_video(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frames").mkdir()
    (tmp_path / "7").mkdir()
    (tmp_path / "frames" / "1.png").touch()
    videos = ["a.mp4", "A.MOV", "0", "12", "video:frames", "video:x.dat", "rtsp://host/live", "https://host/a.mp4?x=1"]
    others = ["frames", "7", "a.jpg", "a.gif", "1234", "coco:a.json:b", "https://host/list.txt", "s3://bucket/images"]
    assert [given for given in videos if not is_video(given)] == []
    assert [given for given in others if is_video(given)] == []
    assert isinstance(open_video("video:frames", rate=5), FrameFolder)
