"""A server in a thread of the test, around a detector that can be blocked, and ways to talk to it."""

import http.client
import io
import json
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import PIL.Image
import pytest

from objectseeker import Defense, Detections, Halves, ObjectSeeker, Rule
from objectseeker.metrics import ThreatModel

for needed in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'objectseeker[serve]'")

from objectseeker.serve.limits import ServerLimits
from objectseeker.serve.protocol import ServedModel
from objectseeker.serve.server import DefenseServer, open_listener

SMALL = ServerLimits(max_concurrent_requests=2, max_body_mb=0.2, max_megapixels=0.02, receive_timeout=0.7)
PATIENT = ServerLimits()


class Bright:
    """Detects what is bright, unless it is blocked; counts its images."""

    names = ("bright",)

    def __init__(self):
        self.free, self.begun = threading.Event(), threading.Event()
        self.free.set()
        self.images = 0

    def __call__(self, images):
        self.begun.set()
        assert self.free.wait(20)
        self.images += 1
        return [self.see(image) for image in images]

    @staticmethod
    def see(image):
        ys, xs = np.nonzero(image[..., 0] > 200)
        boxes = [] if len(xs) < 5 else [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
        return Detections(boxes, [0.9] * len(boxes), [0] * len(boxes))


class Running:
    def __init__(self, port, seeker, model, metrics):
        self.port, self.seeker, self.model, self.metrics = port, seeker, model, metrics

    def ask(self, method, path, body=None, headers=None):
        """Return status, headers and content of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body, **headers):
        """Return status and document of a response."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, _, content = self.ask("POST", path, body, named)
        return status, json.loads(content)

    def say(self, raw, timeout=10.0):
        """Return everything the server sends for raw bytes until it hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(raw)
            received = b""
            while part := connection.recv(65536):
                received += part
        return received

    def metric(self, name):
        return self.metrics._registry.get_sample_value(name) or 0.0


@contextmanager
def serving(*detectors, limits=PATIENT, defense=None, seeker=None, threat=None, hosts=None):
    """Serve a stub, or several as devices; or a defense with its seeker."""
    if defense is None:
        masks, rule = Halves(3), Rule()
        defense = Defense(detector="python:bright:detect", rule=rule, masks=masks)
        seekers = [ObjectSeeker(detector, rule, masks=masks) for detector in detectors or [Bright()]]
        seeker = seekers[0]
    else:
        seekers = [seeker]
    model = ServedModel("objectseeker", defense, seeker.detector.names, threat or ThreatModel())
    listener = open_listener("127.0.0.1", 0)
    server = DefenseServer(seekers, model, limits, hosts=hosts)
    thread = threading.Thread(target=server.uvicorn.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.uvicorn.started)
    try:
        yield Running(listener.getsockname()[1], seeker, model, server.metrics)
    finally:
        server.uvicorn.should_exit = True
        thread.join(20)
        server.workers.close()
        assert not thread.is_alive()


def until(condition, seconds=20):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def make_image(width=90, height=60):
    """Return a bright box on a dark background."""
    image = np.full((height, width, 3), 30, np.uint8)
    image[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3] = 255
    return image


def file_of(image, kind="PNG"):
    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, kind)
    return stream.getvalue()
