"""Listening, and ending in order: on the first TERM or INT nothing new is taken, and all that was taken is answered."""

from __future__ import annotations

import signal
import socket
from typing import Any

import uvicorn

from objectseeker.errors import ObjectSeekerError
from objectseeker.serve.connections import guarded
from objectseeker.serve.limits import Limits

BACKLOG = 1024  # connections that wait to be looked at
KEPT = 0.75  # of the time for a request: how long a connection without one is kept


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to that address, at which nothing is answered yet; port 0 is any free one."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ObjectSeekerError(
            f"cannot listen on {host[:80]}, port {port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listener


def server_of(app: Any, limits: Limits) -> uvicorn.Server:
    """uvicorn around the application; its own way of writing logs is left out."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=guarded(limits),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, int(KEPT * limits.receive)),
            backlog=BACKLOG,
        )
    )


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until TERM or INT; returns when everything that was taken is answered. A second INT does not wait."""

    def stop(signum: int, frame: Any) -> None:  # before uvicorn's own handler is there, and after
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
