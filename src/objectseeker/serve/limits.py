"""Limits on what a request may cost; every limit is checked before the work that it limits.

They prevent denial of service: a server that runs out of memory, or waits for a slow client, detects nothing. Each
limit has its own HTTP status and message.

Host header check, against DNS rebinding. A web page can rebind its domain to 127.0.0.1 after loading. The browser then
treats this server as same-origin and lets the page read its responses, but still sends the page's domain as Host.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from objectseeker.core.masks import Image
from objectseeker.core.recipes import Recipe
from objectseeker.errors import ObjectSeekerError, require_count, require_number, sanitize_line
from objectseeker.files.images import MAX_IMAGE_PIXELS, decode_image, header_size

MAX_JSON_BYTES = 8_000_000  # as Python objects they take thirty times as much
MAX_VIEW_RATIO = 4  # of a square image's forward passes: long, narrow images have many bands
SQUARE_SIDE = 1000  # pixels; of that square image
MAX_IMAGE_SIDE = 20_000  # pixels: the memory of resizing grows with the longer side
MAX_MESSAGE_LENGTH = 400
UPLOAD = "of the request"  # stands in messages for the file name, which an upload does not have


class RequestRejectedError(Exception):
    """A request that gets no result: HTTP status, message, and when to retry (seconds), if that helps."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        line = sanitize_line(message)
        self.message = line if len(line) <= MAX_MESSAGE_LENGTH else f"{line[:MAX_MESSAGE_LENGTH]} ..."


class ClientDisconnectedError(Exception):
    """The client has disconnected; no one waits for a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one server.

    Args:
        max_concurrent_requests: Requests at a time, including those still being received; each may hold `max_body_mb`.
        max_body_mb: Size of a request body, in million bytes.
        max_megapixels: Size of an image.
        queue_timeout: Seconds that an image may wait until detection starts.
        receive_timeout: Seconds to receive a request, and to deliver its response.

    Raises:
        ObjectSeekerError: If a limit is not a positive number, or larger than what is ever decoded.
    """

    max_concurrent_requests: int = 32
    max_body_mb: float = 32.0
    max_megapixels: float = 50.0
    queue_timeout: float = 30.0
    receive_timeout: float = 20.0

    def __post_init__(self) -> None:
        require_count(self.max_concurrent_requests, "max_concurrent_requests")
        for name in ("max_body_mb", "max_megapixels", "queue_timeout", "receive_timeout"):
            value = require_number(getattr(self, name), name)
            if value <= 0:
                raise ObjectSeekerError(f"{name} must be above 0: got {value!r}. Choose a positive number.")
        if self.max_pixels > MAX_IMAGE_PIXELS:
            raise ObjectSeekerError(
                f"max_megapixels must be at most {MAX_IMAGE_PIXELS / 1e6:g}, the most that is ever decoded: "
                f"got {self.max_megapixels:g}. Choose a smaller number."
            )

    @property
    def max_bytes(self) -> int:
        return int(self.max_body_mb * 1e6)

    @property
    def max_pixels(self) -> int:
        return int(self.max_megapixels * 1e6)

    def check_size(self, width: int, height: int) -> None:
        """Reject an image that is too large, before it is decoded."""
        if width * height > self.max_pixels:
            raise RequestRejectedError(
                422,
                f"the image has {width}x{height} pixels, {width * height / 1e6:.1f} million: this server takes "
                f"{self.max_megapixels:g} million. Make it smaller.",
            )
        if max(width, height) > MAX_IMAGE_SIDE:
            raise RequestRejectedError(
                422,
                f"the image has {width}x{height} pixels: this server takes {MAX_IMAGE_SIDE:,} per side. "
                "Cut it into pieces.",
            )


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """Receive the body of a request, within the limits on bytes and time."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestRejectedError(415, f"the body is encoded: got {encoding!r}. Send it without Content-Encoding.")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limits.max_bytes:
        raise _too_long(limits)
    body = bytearray()  # not a list: parts may have a byte each
    try:
        async with asyncio.timeout(limits.receive_timeout):
            async for part in request.stream():
                if len(body) + len(part) > limits.max_bytes:
                    raise _too_long(limits)
                body += part
    except TimeoutError:
        raise RequestRejectedError(
            408,
            f"the body did not arrive within {limits.receive_timeout:g} seconds: got {len(body):,} bytes. "
            "Send it faster.",
        ) from None
    except ClientDisconnect:
        raise ClientDisconnectedError from None
    return bytes(body)


def _too_long(limits: ServerLimits) -> RequestRejectedError:
    return RequestRejectedError(413, f"the body has more than the {limits.max_body_mb:g} million bytes. Send less.")


def check_image(content: bytes, limits: ServerLimits, masks: Recipe) -> None:
    """Reject a body that is not an image, or a too large one, from its header alone.

    Against decompression bombs: a small file can claim, and decode to, any number of pixels.
    """
    if content[:2] == b"--":
        raise RequestRejectedError(
            415, "the body is a form. Send the file itself as the body, as curl --data-binary @image.jpg does."
        )
    try:
        width, height = header_size(content, UPLOAD)
    except ObjectSeekerError as error:
        raise RequestRejectedError(400, str(error)) from None
    limits.check_size(width, height)
    check_forward_passes(masks, width, height)


def check_forward_passes(masks: Recipe, width: int, height: int) -> None:
    """Reject an image whose shape takes far more forward passes than that of others."""
    max_passes = MAX_VIEW_RATIO * masks.forward_passes(SQUARE_SIDE, SQUARE_SIDE)
    try:
        passes = masks.forward_passes(width, height)
    except ObjectSeekerError as error:
        raise RequestRejectedError(422, str(error)) from None
    if passes > max_passes:
        raise RequestRejectedError(
            422,
            f"an image of {width}x{height} pixels takes {passes:,} forward passes with {masks}: this server takes at "
            f"most {max_passes:,}. Cut it into shorter pieces.",
        )


def decode(content: bytes) -> Image:
    """Decode an uploaded image, exactly as `load_image` decodes a file."""
    try:
        return decode_image(content, UPLOAD)
    except ObjectSeekerError as error:
        raise RequestRejectedError(400, str(error)) from None


def allowed_hosts(listener: socket.socket, host: str) -> tuple[str, ...] | None:
    """Return the names a client may call this server by, next to localhost; None for any.

    Only a server that listens on a loopback address needs the check: others are reachable without a browser.
    """
    return (host,) if _is_loopback(listener.getsockname()[0]) else None


def is_allowed_host(host_header: str, hosts: Sequence[str]) -> bool:
    """Return whether a Host header, with or without a port, is a loopback address or one of `hosts`."""
    name = host_header.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.lower().removesuffix(".")
    return name == "localhost" or _is_loopback(name) or name in {host.lower() for host in hosts}


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
