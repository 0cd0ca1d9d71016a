"""Hostile input: each gets a status and a one-line message, and the server keeps serving."""

import json
import socket
import struct
import time
import zlib

import numpy as np
import pytest
from serving import PATIENT, SMALL, file_of, make_image, serving, until

from objectseeker.detectors.network.preprocess import resampling
from objectseeker.serve.limits import RequestRejectedError, allowed_hosts

INFER = "/v2/models/objectseeker/infer"


@pytest.fixture(scope="module")
def running():
    with serving(limits=SMALL) as started:
        yield started


@pytest.fixture(autouse=True)
def still_serving(running):
    """Whatever was sent, the next image is answered, and no request stays in flight."""
    yield
    status, answer = running.post("/detect", file_of(make_image()))
    assert status == 200
    assert answer["detections"][0]["bbox"] == [30.0, 20.0, 30.0, 20.0]
    assert running.metric("objectseeker_requests_in_flight") == 0


def png_claiming(width, height):
    """A small file that claims a large image."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + content + chunk(b"IEND", b"")


WHOLE = file_of(make_image())
NOISE = np.random.default_rng(1).integers(0, 256, (100, 150, 3), np.uint8)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "it is empty"),
        (b"hello", 400, "damaged or not one of JPEG, PNG"),
        (WHOLE[: len(WHOLE) // 2], 400, "damaged or incomplete"),
        (file_of(NOISE, "JPEG")[:3000], 400, "damaged or incomplete"),
        (png_claiming(100, 100), 400, "damaged or incomplete"),
        (png_claiming(400, 400), 422, "400x400 pixels, 0.2 million: this server takes 0.02 million"),
        (png_claiming(60_000, 60_000), 422, "3600.0 million"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 400, "not one of"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\n", 415, "curl --data-binary"),
        (bytes(200_001), 413, "more than the 0.2 million bytes"),
    ],
    ids=["empty", "text", "truncated", "truncated-jpeg", "no-pixels", "large", "bomb", "eps", "form", "bytes"],
)
def test_images(running, body, status, words):
    got, answer = running.post("/detect", body)
    assert (got, list(answer)) == (status, ["error"])
    assert words in answer["error"]
    assert "\n" not in answer["error"]


def test_a_shape_that_takes_too_many_passes():
    from objectseeker import Bands, Defense, ObjectSeeker, Rule

    defense = Defense(detector="python:bright:detect", rule=Rule(), masks=Bands(0.01))
    from serving import Bright

    detector = Bright()
    with serving(defense=defense, seeker=ObjectSeeker(detector, Rule(), masks=Bands(0.01))) as strips:
        status, answer = strips.post("/detect", file_of(np.zeros((2, 6000, 3), np.uint8)))
        assert status == 422
        assert "forward passes" in answer["error"]
        assert not detector.images
        assert strips.post("/detect", file_of(np.zeros((20, 200, 3), np.uint8)))[0] == 200


def test_long_sides():
    """What resizing needs grows with the longer side: a PNG of 5 kB, 5 million pixels by one, took 120 MB for good."""
    PATIENT.check_size(20_000, 2000)
    for size in ((20_001, 1), (1, 20_001)):
        with pytest.raises(RequestRejectedError, match="20,000 per side") as rejected:
            PATIENT.check_size(*size)
        assert rejected.value.status == 422
    assert resampling(10_000, 16) is resampling(10_000, 16)
    long, again = resampling(10_001, 16), resampling(10_001, 16)
    assert long is not again
    assert np.array_equal(long.weight, again.weight)


@pytest.mark.parametrize("query", ["patch=20%25&certify=1", "cerify=1", "certify=1&certify=0", "certify", "certify=2"])
def test_queries_that_would_be_ignored(running, query):
    status, answer = running.post(f"/detect?{query}", WHOLE)
    assert (status, "the query may contain" in answer["error"] or "must be 0 or 1" in answer["error"]) == (400, True)
    assert running.post(f"{INFER}?{query}", json.dumps({"inputs": [tensor()]}))[0] == 400


def test_host_headers_against_dns_rebinding():
    """A page whose domain is rebound to this machine must not read responses."""
    with serving(limits=SMALL, hosts=("mine.test",)) as named:
        for host, status in (
            ("127.0.0.1:8000", 200),
            ("LOCALHOST", 200),
            ("localhost.:1", 200),
            ("[::1]:8000", 200),
            ("mine.test:8000", 200),
            ("evil.test:8000", 403),
            ("127.0.0.1.evil.test", 403),
            ("localhost@evil.test", 403),
            ("10.0.0.1", 403),
            ("", 403),
        ):
            got, _, content = named.ask("GET", "/v2/health/ready", headers={"Host": host})
            assert (got, host) == (status, host)
        assert "Call this server localhost or mine.test" in json.loads(content)["error"]
    from objectseeker.serve.server import open_listener

    for bound, names in (("127.0.0.1", ("127.0.0.1",)), ("localhost", ("localhost",)), ("0.0.0.0", None)):
        with open_listener(bound, 0) as listener:
            assert allowed_hosts(listener, bound) == names


def tensor(**changes):
    image = make_image(4, 2)
    values = {"name": "image", "datatype": "UINT8", "shape": [2, 4, 3], "data": image.ravel().tolist()}
    return {name: value for name, value in (values | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{", "no valid JSON"),
        (b"[" * 50_000, "no valid JSON"),
        (b"\xff\xfe", "no valid JSON"),
        ([], "must be an object"),
        ({}, "inputs must be a list"),
        ({"inputs": []}, "one tensor"),
        ({"inputs": [3]}, "one tensor"),
        ({"inputs": [tensor(), tensor()]}, "one tensor"),
        ({"inputs": [tensor(name="frame")]}, "named 'image'"),
        ({"inputs": [tensor(datatype="FP32")]}, 'must be UINT8: got "FP32"'),
        ({"inputs": [tensor(datatype=None)]}, "must be UINT8: got null"),
        ({"inputs": [tensor(shape=[2, 4])]}, "height, width, 3: got [2, 4]"),
        ({"inputs": [tensor(shape=[1, 2, 4, 3])]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[2, 3, 4])]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[0, 4, 3])]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[-2, 4, 3])]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[True, 4, 3])]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[2.0, 4, 3])]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[10**4000, 4, 3])]}, "height, width, 3"),
        ({"inputs": [tensor(shape="2,4,3")]}, "height, width, 3"),
        ({"inputs": [tensor(shape=[3, 4, 3])]}, "36 integers"),
        ({"inputs": [tensor(data=None)]}, "24 integers"),
        ({"inputs": [tensor(data="x" * 24)]}, "24 integers"),
        ({"inputs": [tensor(data=[1.5] * 24)]}, "24 integers"),
        ({"inputs": [tensor(data=[True] * 24)]}, "24 integers"),
        ({"inputs": [tensor(data=[10**30] * 24)]}, "from 0 to 255"),
        ({"inputs": [tensor(data=[10**4000] * 24)]}, "from 0 to 255"),
        ({"inputs": [tensor(data=[0] * 23 + [True])]}, "24 integers"),
        ({"inputs": [tensor(data=[0] * 23 + [[0]])]}, "24 integers"),
        ({"inputs": [tensor(data=[[[0] * 3] * 4, [[0] * 3] * 3])]}, "24 integers"),
        ({"inputs": [tensor(shape=[80, 100, 3], data=["x" * 100_000, *[0] * 23_999])]}, "24,000 integers"),
        ({"inputs": [tensor(data=[[1], [1, 2]])]}, "24 integers"),
        ({"inputs": [tensor(data=[256] * 24)]}, "from 0 to 255: got 256"),
        ({"inputs": [tensor(data=[-1] * 24)]}, "from 0 to 255"),
        ({"inputs": [tensor(parameters=[])]}, "parameters must be an object"),
        ({"inputs": [tensor(parameters={"binary_data_size": 24})]}, "there must be no data"),
        ({"inputs": [tensor(data=None, parameters={"binary_data_size": 24})]}, "none follow the JSON document"),
        ({"inputs": [tensor()], "outputs": [{"name": "nothing"}]}, 'got "nothing"'),
        ({"inputs": [tensor()], "outputs": [{"name": "boxes"}] * 2}, "each once"),
        ({"inputs": [tensor()], "outputs": ["boxes"]}, "outputs must be from boxes"),
        ({"inputs": [tensor()], "outputs": {}}, "outputs must be a list: got {}"),
        ({"inputs": [tensor()], "parameters": {"binary_data_output": "yes"}}, "true or false"),
        ({"inputs": [tensor()], "id": 7}, "id must be a string: got 7"),
        ({"inputs": [tensor(parameters={"shared_memory_region": "in"})]}, "shared_memory_region is not supported"),
        (
            {"inputs": [tensor()], "outputs": [{"name": "scores", "parameters": {"classification": 3}}]},
            "classification is not supported",
        ),
        (
            {"inputs": [tensor()], "outputs": [{"name": "scores", "parameters": {"shared_memory_region": "out"}}]},
            "shared_memory_region is not supported",
        ),
    ],
    ids=range(46),
)
def test_tensors(running, document, words):
    body = document if isinstance(document, bytes) else json.dumps(document)
    status, answer = running.post(INFER, body)
    assert status == 400
    assert words in answer["error"]
    assert len(answer["error"]) < 400


def test_binary_tensors_of_another_length(running):
    document = json.dumps({"inputs": [tensor(data=None, parameters={"binary_data_size": 24})]}).encode()
    length = str(len(document))
    assert running.post(INFER, document + bytes(24), Inference_Header_Content_Length=length)[0] == 200
    for content, said in ((bytes(23), length), (bytes(25), length), (bytes(24), "0"), (b"", "99999"), (b"", "1e3")):
        status, answer = running.post(INFER, document + content, Inference_Header_Content_Length=said)
        assert (status, "must be" in answer["error"]) == (400, True)
    flat = json.dumps({"inputs": [tensor()]}).encode()
    status, answer = running.post(INFER, flat + b"more", Inference_Header_Content_Length=str(len(flat)))
    assert (status, "4 bytes follow the JSON document" in answer["error"]) == (400, True)
    assert running.post(INFER, flat, Inference_Header_Content_Length=str(len(flat)))[0] == 200
    large = json.dumps({"inputs": [tensor(shape=[200, 200, 3], data=None)]})
    assert running.post(INFER, large)[0] == 422


def test_addresses(running):
    status, headers, content = running.ask("GET", "/detect")
    assert (status, headers["allow"]) == (405, "POST")
    assert "POST /detect" in json.loads(content)["error"]
    for path in (
        "/v2/",
        "/v2/models/other",
        "/v2/models/objectseeker/versions/1",
        "/%2e%2e/etc/passwd",
        "/%00<script>",
    ):
        status, headers, content = running.ask("GET", path)
        assert (status, headers["content-type"]) == (404, "application/json")
        assert json.loads(content)["error"].startswith("unknown ")
    status, answer = running.post("/detect", zlib.compress(WHOLE), Content_Encoding="gzip")
    assert (status, "Content-Encoding" in answer["error"]) == (415, True)


CHUNKED = b"POST /detect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 9000, 431),
        (b"\x16\x03\x01\x02\x00\x01" * 50 + b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (CHUNKED + b"\r\n" + b"1\r\nx\r\n" * 1000, 411),
        (CHUNKED + b"\r\nzz\r\n", 411),
        (CHUNKED.replace(b"POST /detect", b"GET /v2") + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Le", 408),
        (b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nabc", 408),
    ],
    ids=range(11),
)
def test_connections(running, caplog, raw, status):
    """The server hangs up within seconds, and logs no internal error."""
    begin = time.monotonic()
    received = running.say(raw)
    assert received.startswith(b"HTTP/1.1 %d " % status), received[:200]
    assert list(json.loads(received.partition(b"\r\n\r\n")[2])) == ["error"]
    assert time.monotonic() - begin < 8
    until(lambda: running.metric("objectseeker_requests_in_flight") == 0)
    assert not [record for record in caplog.records if record.exc_info]


def test_slowloris_bytes_do_not_extend_the_timeout(running):
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        begin, received = time.monotonic(), b""
        connection.settimeout(0.05)
        while time.monotonic() - begin < 8:
            try:
                connection.sendall(b"X" if begin else b"")
                received = connection.recv(4096)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - begin < 4
        assert received.startswith(b"HTTP/1.1 408 ")
    assert running.say(b"") == b""  # no request was sent


def request_without_reading(connection):
    begin = time.monotonic()
    while time.monotonic() - begin < 8:
        try:
            connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        except BlockingIOError:
            time.sleep(0.02)


def test_clients_that_take_no_answers_are_cut_off(running):
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        connection.setblocking(False)
        with pytest.raises(ConnectionError):
            request_without_reading(connection)


def test_too_many_connections_are_rejected(running, monkeypatch):
    monkeypatch.setattr("objectseeker.serve.server.MAX_IDLE_CONNECTIONS", 1 - SMALL.max_concurrent_requests)
    with socket.create_connection(("127.0.0.1", running.port)) as idle:
        idle.sendall(b"GET / HT")
        time.sleep(0.05)
        received = running.say(b"")
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in received
