"""Admission, the queue, clients that disconnect, and graceful shutdown."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from urllib.request import Request, urlopen

import pytest
from command import DETECTOR, run
from serving import Bright, file_of, make_image, serving, until

from objectseeker import Halves, ObjectSeeker, Rule
from objectseeker.cli.serve import LIMITS, serve
from objectseeker.serve.limits import ClientDisconnectedError, RequestRejectedError, ServerLimits
from objectseeker.serve.monitoring import Metrics
from objectseeker.serve.queueing import Workers

IMAGE_FILE = file_of(make_image())


@pytest.fixture
def held():
    """A detector that waits until it is let go."""
    detector = Bright()
    detector.free.clear()
    yield detector
    detector.free.set()


def test_requests_beyond_the_limit_are_rejected_at_once(held):
    with serving(held, limits=ServerLimits(max_concurrent_requests=2)) as running, ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(running.post, "/detect", IMAGE_FILE) for _ in range(2)]
        until(lambda: running.metric("objectseeker_requests_in_flight") == 2)
        for body in (IMAGE_FILE, bytes(5_000_000)):  # before the body is read
            begin = time.monotonic()
            status, headers, content = running.ask("POST", "/detect", body)
            assert (status, headers["retry-after"].isdecimal()) == (503, True)
            assert "2 requests are in flight" in json.loads(content)["error"]
            assert time.monotonic() - begin < 2
        assert running.ask("GET", "/v2/health/ready")[0] == 200
        held.free.set()
        assert [client.result()[0] for client in waiting] == [200, 200]
        assert running.post("/detect", IMAGE_FILE)[0] == 200


def test_an_image_that_waits_too_long_is_rejected(held):
    with (
        serving(held, limits=ServerLimits(max_concurrent_requests=2, queue_timeout=0.3)) as running,
        ThreadPoolExecutor(2) as clients,
    ):
        first = clients.submit(running.post, "/detect", IMAGE_FILE)
        assert held.begun.wait(20)
        status, headers, content = running.ask("POST", "/detect", IMAGE_FILE)
        assert (status, headers["retry-after"]) == (504, "1")
        assert "did not start within 0.3 seconds" in json.loads(content)["error"]
        held.free.set()
        assert first.result()[0] == 200
        assert running.metric("objectseeker_images_total") == 1


def test_a_client_that_disconnects_costs_nothing_more(held):
    with serving(held, limits=ServerLimits(max_concurrent_requests=3)) as running, ThreadPoolExecutor(1) as clients:
        first = clients.submit(running.post, "/detect", IMAGE_FILE)
        assert held.begun.wait(20)
        head = b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(IMAGE_FILE)
        for sent in (head + IMAGE_FILE, head + IMAGE_FILE[:50]):  # while it waits, and while it is received
            with socket.create_connection(("127.0.0.1", running.port)) as leaving:
                leaving.sendall(sent)
                until(lambda: running.metric("objectseeker_requests_in_flight") == 2)
            until(lambda: running.metric("objectseeker_requests_in_flight") == 1)
        held.free.set()
        assert first.result()[0] == 200
        assert running.post("/detect", IMAGE_FILE)[0] == 200
        assert running.metric("objectseeker_images_total") == 2


@pytest.mark.parametrize("leaves", [True, False])
def test_cancelled_images_release_their_bytes(held, leaves):
    """An executor keeps canceled work until its turn: clients that disconnect could exhaust the memory."""
    seeker = ObjectSeeker(held, Rule(), masks=Halves(1))
    workers = Workers([seeker], ServerLimits(queue_timeout=0.05), Metrics("0"))

    class Upload:
        def __call__(self):
            return make_image()

    async def come_and_leave():
        stays = asyncio.Event()
        first = asyncio.ensure_future(workers.detect_upload(Upload(), None, stays.wait()))
        await asyncio.to_thread(held.begun.wait, 20)
        upload = Upload()
        kept = weakref.ref(upload)
        with pytest.raises(ClientDisconnectedError if leaves else RequestRejectedError):
            await workers.detect_upload(upload, None, asyncio.sleep(0) if leaves else stays.wait())
        del upload
        gc.collect()
        assert kept() is None
        held.free.set()
        assert len((await first).image.detections) == 1

    asyncio.run(come_and_leave())
    workers.close()


def test_every_device_has_one_image_at_a_time():
    devices = Bright(), Bright()
    for device in devices:
        device.free.clear()
    with serving(*devices) as running, ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(running.post, "/detect", IMAGE_FILE) for _ in range(3)]
        assert all(device.begun.wait(20) for device in devices)
        devices[0].free.set()  # it also has the third
        until(lambda: running.metric("objectseeker_images_total") == 2)
        assert devices[1].images == 0
        devices[1].free.set()
        assert [one.result()[0] for one in asked] == [200] * 3
    assert (devices[0].images, devices[1].images) == (2 * 2, 2)  # batches: 13 views are two


def test_a_detector_that_fails_gets_a_response():
    class Picky(Bright):
        def __call__(self, images):
            if images[0].shape[0] == 7:
                raise RuntimeError("out of luck")
            return super().__call__(images)

    with serving(Picky()) as running:
        status, answer = running.post("/detect", file_of(make_image(9, 7)))
        assert (status, "(RuntimeError)" in answer["error"]) == (500, True)
        assert "luck" not in answer["error"]  # what a detector says is for the log
        assert running.post("/detect", IMAGE_FILE)[0] == 200


def test_responses_under_load_are_complete_and_correct():
    """The short form of tests/serve_load.py."""
    sent = [make_image(60 + 10 * number, 60) for number in range(5)]
    with serving(limits=ServerLimits(max_concurrent_requests=4)) as running:
        expected = [running.seeker([image])[0].xyxy[0].tolist() for image in sent]
        rejected, wrong = [], []

        def client(number):
            for turn in range(12):
                which = (number + turn) % 5
                while (answer := running.post("/detect", file_of(sent[which])))[0] == 503:
                    rejected.append(1)
                x, y, width, height = answer[1]["detections"][0]["bbox"]
                if [x, y, x + width, y + height] != expected[which]:
                    wrong.append(answer)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert rejected
        assert running.metric("objectseeker_images_total") == 8 * 12
        assert running.metric("objectseeker_forward_passes_total") == 8 * 12 * 13
        assert running.metric("objectseeker_requests_in_flight") == 0


HELD = """
import pathlib, time
from mine import detect as see

def detect(images):
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return see(images)

detect.names = ("bright",)
"""


@contextmanager
def started(folder):
    """Start the command in its own process; yield it and its first log line."""
    command = [sys.executable, "-m", "objectseeker.cli", "serve", "-d", "python:held:detect"]
    command += ["--set", "masks=halves:3"]
    process = subprocess.Popen(
        [*command, "--port", "0"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()


def metric_at(address, name):
    lines = urlopen(f"{address}/metrics", timeout=20).read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def box_at(address):
    with urlopen(Request(f"{address}/detect", IMAGE_FILE, method="POST"), timeout=20) as answer:
        return json.loads(answer.read())["detections"][0]["bbox"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_term_and_int_answer_every_admitted_request(tmp_path, number):
    (tmp_path / "mine.py").write_text(DETECTOR)
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "go").touch()  # a detector is tried when it is loaded
    with started(tmp_path) as (process, first), ThreadPoolExecutor(6) as clients:
        assert first["event"] == "serving"
        address = f"http://127.0.0.1:{first['port']}"
        (tmp_path / "go").unlink()
        asked = [clients.submit(box_at, address) for _ in range(6)]
        until(lambda: metric_at(address, "objectseeker_requests_in_flight") == 6)
        os.kill(process.pid, number)
        until(lambda: is_closed(address))
        (tmp_path / "go").touch()
        assert [one.result() for one in asked] == [[30.0, 20.0, 30.0, 20.0]] * 6
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    lines = [json.loads(line) for line in out.splitlines()]
    answered = [line for line in lines if line.get("endpoint") == "detect"]
    assert [line["status"] for line in answered] == [200] * 6
    assert {"width", "height", "queue_seconds", "inference_seconds", "boxes", "alert", "seconds"} <= answered[0].keys()
    assert lines[-1]["event"] == "stopped"


def is_closed(address):
    """Return whether no one listens there any more."""
    try:
        return metric_at(address, "objectseeker_images_total") is None
    except OSError:  # connection closed, or cut off in the moment it was taken
        return True


def test_the_help_lists_every_limit_with_its_default():
    assert tuple(field.name for field in fields(ServerLimits)) == LIMITS
    for field in fields(ServerLimits):
        assert f"{field.name}={field.default:g}" in serve.__doc__


def test_invalid_options(tmp_path):
    (tmp_path / "mine.py").write_text(DETECTOR)
    options = ["serve", "-d", "python:mine:detect"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "Choose another --host or --port" in run(tmp_path, *options, "--port", port, code=2).stderr
    for given, words in (
        (["--model-name", "a/b"], "--model-name must be letters"),
        (["--limit", "max_concurrent_requests=0"], "max_concurrent_requests must be at least 1"),
        (["--limit", "queue_timeout=nan"], "queue_timeout must be finite"),
        (["--limit", "max_megapixels=1000"], "at most 100"),
        (["--limit", "max_body_mb=much"], "--limit max_body_mb must be a number: got 'much'"),
        (["--limit", "max_requests=3"], "--limit must be KEY=VALUE: got 'max_requests=3'. Keys are max_concurrent"),
        (["--set", "masks=rolling:2:halves:4"], "frames of a stream"),
    ):
        rejected = run(tmp_path, *options, "--port", "0", *given, code=2)
        assert words in rejected.stderr
        assert rejected.stderr.count("\n") == 1
