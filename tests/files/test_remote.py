"""Addresses: what they may carry, who is asked how often, and what an answer is called."""

import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import PIL.Image
import pytest
from ftp_server import ftp_server
from observe_job import run_here

from objectseeker.datasets import open_dataset
from objectseeker.errors import ObjectSeekerError
from objectseeker.files import remote
from objectseeker.files.images import load_image
from objectseeker.files.remote import Url, redact_url, reject_credentials, walk_url

pytest.importorskip("fsspec")


def make_image() -> bytes:
    stream = io.BytesIO()
    PIL.Image.new("RGB", (9, 7), (200, 90, 10)).save(stream, "PNG")
    return stream.getvalue()


# Credentials


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("ftp://bob:PW-17@host/img", "ftp://host contains a user's name or password"),
        ("ftp://bob:PW-17/x@host/img", "ftp:// contains a user's name or password"),
        ("https://PW-17@host/a.jpg", "https://host contains a user's name or password"),
        ("zip://a.png::https://u:PW-17@host/x.zip", "https://host contains a user's name or password"),
        ("https://host/a.jpg?w=3&token=PW-17", "a credential as token"),
        ("https://host/a.jpg?X-Amz-Signature=PW-17", "a credential as X-Amz-Signature"),
        ("https://host/a.jpg?AWSAccessKeyId=PW-17", "a credential as AWSAccessKeyId"),
        ("https://host/a.jpg?sv=2024&sig=PW-17", "a credential as sig"),
    ],
)
def test_credentials_are_refused_and_never_repeated(address, named, tmp_path):
    (tmp_path / "truth.json").write_text('{"images": [], "annotations": [], "categories": []}')
    (tmp_path / "list.txt").write_text(f"{address}\n")
    for attempt in (
        lambda: Url(address),
        lambda: load_image(address),
        lambda: open_dataset(address),
        lambda: open_dataset(f"list:{address}"),
        lambda: open_dataset(f"coco:{tmp_path / 'truth.json'}:{address}"),
        lambda: run_here(f"list:{tmp_path / 'list.txt'}", tmp_path / "run"),
    ):
        with pytest.raises(ObjectSeekerError) as caught:
            attempt()
        assert named in str(caught.value)
        assert "~/.netrc" in str(caught.value)
        assert "PW-17" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "address",
    [
        "ftp://bob@host/img",
        "sftp://me@host:22/a.png",
        "abfs://container@account.dfs.core.windows.net/a.png",
        "s3://arn:aws:s3:us-west-2:123:accesspoint/name/a.png",
        "s3://bucket/a:b@c.jpg",
        "http://host:8080/a.jpg?w=1&author=me&keyword=design",
        "zip::file:///data/x.zip",
    ],
)
def test_addresses_without_credentials_are_left_alone(address):
    reject_credentials(address)


def test_a_user_and_a_host_stay_in_the_address_of_every_file():
    with ftp_server({"/images/a.png": make_image(), "/images/deep/b.png": make_image()}) as (port, told):
        folder = f"ftp://bob@127.0.0.1:{port}/images"
        found = {below: address for below, address, _ in walk_url(folder)}
        assert found == {"a.png": f"{folder}/a.png", "deep/b.png": f"{folder}/deep/b.png"}
        assert load_image(found["deep/b.png"]).shape == (7, 9, 3)
        assert "USER bob" in told


# Web servers


@pytest.fixture
def web(monkeypatch):
    """An address that answers what is put into the list, in turn, and the last for ever; and its log."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "RETRY_DELAY", 0.0)
    answers, log = [], []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            log.append((self.command, self.headers.get("Authorization")))
            status = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            content = make_image() if status == 200 else b""
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/a.png", answers, log
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "attempts", "named"),
    [
        (500, remote.ATTEMPTS, "the server answers 500 Internal Server Error"),
        (503, remote.ATTEMPTS, "the server answers 503 Service Unavailable"),
        (429, remote.ATTEMPTS, "the server answers 429 Too Many Requests"),
        (403, 1, "the server answers 403 Forbidden"),
        (404, 1, "there is no such file"),
    ],
)
def test_an_answer_is_called_what_it_is_and_asked_for_again_if_it_may_pass(web, status, attempts, named):
    address, answers, log = web
    answers.append(status)
    with pytest.raises(ObjectSeekerError, match=f"cannot read image {address}: {named}"):
        load_image(address)
    assert len(log) == 2 * attempts  # fsspec asks twice for what fails


def test_a_server_that_fails_once_is_forgiven(web):
    address, answers, _ = web
    answers += [503, 503, 200]
    assert load_image(address).shape == (7, 9, 3)


def test_a_folder_on_a_server_that_fails_is_not_called_missing(web):
    address, answers, _ = web
    answers.append(503)
    with pytest.raises(ObjectSeekerError, match=f"cannot open {address}: the server answers 503"):
        open_dataset(address)


def test_a_password_comes_from_the_usual_file(web, tmp_path, monkeypatch):
    address, answers, log = web
    answers.append(200)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login bob password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    load_image(address)
    assert {authorization for _, authorization in log} == {"Basic Ym9iOnNlY3JldA=="}


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    pytest.importorskip("aiohttp")
    from ftp_server import silent_server

    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    monkeypatch.setattr(remote, "READ_TIMEOUT", 0.1)
    with silent_server() as (port, _), pytest.raises(ObjectSeekerError, match=r"no answer within 0\.1 seconds"):
        load_image(f"http://127.0.0.1:{port}/a.png")


def test_paths_are_never_taken_for_addresses_with_credentials(tmp_path):
    file = tmp_path / "user:password@host.png"
    file.write_bytes(make_image())
    assert load_image(Path(file)).shape == (7, 9, 3)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://camera.local/live", "rtsp://camera.local/live"),
        ("rtsp://name:secret@camera:554/live/1?token=secret#secret", "rtsp://camera:554/live/1"),
        ("https://[::1]:80/a.mp4?key=secret", "https://[::1]:80/a.mp4"),
        ("rtsp://name:sec@ret@camera/live", "rtsp://camera/live"),
        ("rtsp://name:secret/secret@camera/live", "rtsp://..."),
        ("rtsp://name:secret?x@camera/live", "rtsp://..."),
        ("rtsp://name:123/secret@camera/live", "rtsp://..."),
        ("http://host/a.mp4?mail=a@b&key=secret", "http://..."),
    ],
)
def test_what_is_shown_of_an_address_holds_no_secret(address, shown):
    assert redact_url(address) == shown
    assert "secret" not in shown
