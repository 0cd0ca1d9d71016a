"""Connections that uvicorn would keep: clients that send or read too slowly, too many of them, and what is no HTTP.

uvicorn waits for the rest of a header for ever. Here a connection without a complete request has `receive` seconds for
one, from its first moment or from its last answer on; bytes that trickle in do not prolong that. Bodies have as long
for themselves (`uploads.read_body`).
"""

from __future__ import annotations

import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from objectseeker.serve.limits import Limits

LONGEST_HEADER = 16_384  # bytes
MOST_CONNECTIONS = 500  # beside those that have a place
CHUNKS = "the body comes in chunks: send it in one piece, with Content-Length instead of Transfer-Encoding"
TWO_LENGTHS = "there is Transfer-Encoding beside Content-Length: send the body in one piece, with Content-Length alone"


def guarded(limits: Limits) -> type[Any]:
    """uvicorn's protocol, with these limits."""
    return type("Guarded", (_Guarded,), {"limits": limits})


class _Requests(h11.Connection):  # type: ignore[misc]  # Any where h11 is not looked into
    """Requests as h11 reads them, but for bodies in chunks: a million of one byte would hold up everybody."""

    refusal: tuple[int, str] | None = None

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names:  # the second may be meant to hide a request in the body of another
                self.refusal = (400, TWO_LENGTHS) if b"content-length" in names else (411, CHUNKS)
                raise h11.RemoteProtocolError(self.refusal[1])
        return event


class _Guarded(H11Protocol):  # type: ignore[misc]  # Any where uvicorn is not looked into
    limits: Limits
    _deadline: Any = None

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.conn = _Requests(h11.SERVER, LONGEST_HEADER)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS + self.limits.places:
            self._answer(503, "there are too many connections: try again later", (b"retry-after", b"1"))
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client does not take what it asked for."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.receive, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, a header without an end, or a body in chunks."""
        if self.conn.refusal is not None:
            self._answer(*self.conn.refusal)
        elif len(self.conn.trailing_data[0]) > LONGEST_HEADER:
            self._answer(431, f"the header has more than {LONGEST_HEADER:,} bytes: send less")
        else:
            self._answer(400, "this is no HTTP request that can be read")

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.receive, self._too_slow)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._answer(408, f"the header did not come within {self.limits.receive:g} seconds: send it faster")
        else:  # nobody asked for anything, or nobody takes the answer
            self.transport.abort()

    def _answer(self, status: int, sentence: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer without the application, and hang up; on a client that does not take even that, after a moment."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = json.dumps({"error": sentence}).encode()
            fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
            events = (
                h11.Response(status_code=status, headers=[*fields, (b"connection", b"close")]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(filter(None, map(self.conn.send, events))))
        self.transport.close()
        self.loop.call_later(1, self.transport.abort)
