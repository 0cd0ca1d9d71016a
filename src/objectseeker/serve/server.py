"""Listening, slow clients and graceful shutdown: uvicorn, with limits that it lacks.

Against slowloris: uvicorn waits forever for the rest of a header. Here, a connection must deliver a complete request
within `receive_timeout` seconds of its first moment or its last response; bytes that trickle in do not extend that.
Bodies have their own timeout (`limits.read_body`), and a client that does not take its response is cut off.

Graceful shutdown: after the first TERM or INT no connection is accepted, and every admitted request is answered.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from objectseeker.core.seeker import ObjectSeeker
from objectseeker.errors import ObjectSeekerError
from objectseeker.serve.app import build_app
from objectseeker.serve.limits import ServerLimits
from objectseeker.serve.monitoring import Metrics, log, log_as_json
from objectseeker.serve.protocol import ServedModel
from objectseeker.serve.queueing import Workers

MAX_HEADER_BYTES = 16_384
MAX_IDLE_CONNECTIONS = 500  # in addition to the concurrent requests
CHUNKED = "the body is chunked: got Transfer-Encoding. Send it in one piece, with Content-Length."
TWO_LENGTHS = "the body has two lengths: got Transfer-Encoding and Content-Length. Send Content-Length alone."
BACKLOG = 1024  # connections that wait to be accepted
KEEP_ALIVE = 0.75  # of receive_timeout: how long a connection without a request is kept


class _Connection(h11.Connection):  # type: ignore[misc]  # Any where h11 is not followed
    """h11's requests without chunked bodies: a million one-byte chunks would block everyone."""

    rejection: tuple[int, str] | None = None

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names:  # with a second length, one request could hide in another (smuggling)
                self.rejection = (400, TWO_LENGTHS) if b"content-length" in names else (411, CHUNKED)
                raise h11.RemoteProtocolError(self.rejection[1])
        return event


class _LimitedProtocol(H11Protocol):  # type: ignore[misc]  # Any where uvicorn is not followed
    limits: ServerLimits
    _deadline: Any = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Connection(h11.SERVER, MAX_HEADER_BYTES)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_IDLE_CONNECTIONS + self.limits.max_concurrent_requests:
            self._answer(503, "the server has too many connections. Retry later.", (b"retry-after", b"1"))
        else:
            self._update_deadline()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._update_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_deadline()

    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read its response."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.receive_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, an endless header, or a chunked body."""
        if self.conn.rejection is not None:
            self._answer(*self.conn.rejection)
        elif len(self.conn.trailing_data[0]) > MAX_HEADER_BYTES:
            self._answer(431, f"the header has more than {MAX_HEADER_BYTES:,} bytes. Send less.")
        else:
            self._answer(400, "the request is not valid HTTP. Send HTTP/1.1.")

    def _update_deadline(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.receive_timeout, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._answer(
                408, f"the header did not arrive within {self.limits.receive_timeout:g} seconds. Send it faster."
            )
        else:  # the client requests nothing, or does not take the response
            self.transport.abort()

    def _answer(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Respond without the application and hang up; abort after a moment if the client does not read."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = json.dumps({"error": message}).encode()
            fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
            events = (
                h11.Response(status_code=status, headers=[*fields, (b"connection", b"close")]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(filter(None, map(self.conn.send, events))))
        self.transport.close()
        self.loop.call_later(1, self.transport.abort)


def open_listener(host: str, port: int) -> socket.socket:
    """Bind a socket that does not listen yet; port 0 is any free port."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ObjectSeekerError(
            f"cannot listen: got {host[:80]}, port {port} ({error.strerror or error}). Choose another --host or --port."
        ) from None
    return listener


class DefenseServer:
    """A served model: its workers, and uvicorn around the application, with these limits.

    `hosts` are the names that a client may call it by, next to localhost; None for any.
    """

    def __init__(
        self, seekers: Sequence[ObjectSeeker], model: ServedModel, limits: ServerLimits, *, hosts: Sequence[str] | None
    ) -> None:
        self.defense_sha256, self.metrics = model.version, Metrics(model.version)
        self.workers = Workers(seekers, limits, self.metrics)
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                build_app(model, self.workers, limits, self.metrics, hosts=hosts),
                http=type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits}),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=max(1, int(KEEP_ALIVE * limits.receive_timeout)),
                backlog=BACKLOG,
            )
        )

    def run(self, listener: socket.socket, on_listening: Callable[[], None] = lambda: None) -> None:
        """Serve until TERM or INT, and answer every admitted request; a second INT does not wait."""

        def stop(signum: int, frame: Any) -> None:  # active before uvicorn installs its own handler, and after
            self.uvicorn.should_exit = True

        listener.listen(BACKLOG)  # from here on connections are accepted
        on_listening()
        log_as_json()
        host, port = listener.getsockname()[:2]
        log.info("serving", extra={"fields": {"host": host, "port": port, "defense": self.defense_sha256}})
        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.uvicorn.run(sockets=[listener])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.workers.close()
        log.info("stopped", extra={"fields": {"answered": self.uvicorn.server_state.total_requests}})
