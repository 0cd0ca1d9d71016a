"""A server in a thread of the test, around a detector that can be held up, and ways to talk to it."""

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
from objectseeker.serve.limits import Limits

SMALL = Limits(places=2, megabytes=0.2, megapixels=0.02, receive=0.7)
PATIENT = Limits()


class Bright:
    """Finds what is bright, while it is not held; notes what it was shown."""

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
        """Status, headers and content of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body, **headers):
        """Status and document of an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, _, content = self.ask("POST", path, body, named)
        return status, json.loads(content)

    def say(self, raw, timeout=10.0):
        """Everything that comes back for bytes that may be no HTTP, until the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(raw)
            received = b""
            while part := connection.recv(65536):
                received += part
        return received

    def figure(self, name):
        return self.metrics._registry.get_sample_value(name) or 0.0


@contextmanager
def serving(*detectors, limits=PATIENT, defense=None, seeker=None, threat=None, hosts=None):
    """Serve a stub, or several as devices; or a defense with its seeker."""
    for needed in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'objectseeker[serve]'")
    from objectseeker.serve.app import build_app
    from objectseeker.serve.monitoring import Metrics
    from objectseeker.serve.queueing import Workers
    from objectseeker.serve.responses import Model
    from objectseeker.serve.server import bound_socket, server_of

    if defense is None:
        masks, rule = Halves(3), Rule()
        defense = Defense(detector="python:bright:detect", rule=rule, masks=masks)
        seekers = [ObjectSeeker(detector, rule, masks=masks) for detector in detectors or [Bright()]]
        seeker = seekers[0]
    else:
        seekers = [seeker]
    model = Model("objectseeker", defense, seeker.detector.names, threat or ThreatModel())
    metrics = Metrics(defense.sha256)
    workers = Workers(seekers, limits, metrics)
    listener = bound_socket("127.0.0.1", 0)
    server = server_of(build_app(model, workers, limits, metrics, hosts=hosts), limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield Running(listener.getsockname()[1], seeker, model, metrics)
    finally:
        server.should_exit = True
        thread.join(20)
        workers.close()
        assert not thread.is_alive()


def until(condition, seconds=20):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def picture(width=90, height=60):
    """A bright box on a dark ground."""
    image = np.full((height, width, 3), 30, np.uint8)
    image[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3] = 255
    return image


def file_of(image, kind="PNG"):
    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, kind)
    return stream.getvalue()
