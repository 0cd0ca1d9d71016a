"""The body of a request, and the image in it: every limit is checked before what it limits is done."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from objectseeker.core.masks import Image
from objectseeker.core.recipes import Recipe
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import decode_image, header_size
from objectseeker.serve.limits import MORE_VIEWS, SQUARE, Limits, Refused

NAME = "of the request"  # an image that is sent has no name that could be trusted


class GoneError(Exception):
    """The client has left: nobody waits for an answer."""


async def read_body(request: Request, limits: Limits, most: int | None = None) -> bytes:
    """The whole body, received in time and no longer than `most` bytes, by default the limit."""
    most = limits.bytes if most is None else most
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise Refused(415, f"the body is encoded as {encoding!r}: send it as it is, without Content-Encoding")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise _too_long(most)
    body = bytearray()  # not a list: parts may have a byte each
    try:
        async with asyncio.timeout(limits.receive):
            async for part in request.stream():
                if len(body) + len(part) > most:
                    raise _too_long(most)
                body += part
    except TimeoutError:
        raise Refused(
            408,
            f"the body did not come within {limits.receive:g} seconds, {len(body):,} bytes of it did: send it faster",
        ) from None
    except ClientDisconnect:
        raise GoneError from None
    return bytes(body)


def _too_long(most: int) -> Refused:
    return Refused(413, f"the body has more than the {most / 1e6:g} million bytes that are taken here: send less")


def require_image(content: bytes, limits: Limits, masks: Recipe) -> None:
    """Refuse what is no image, or too large a one, by its header alone."""
    if content[:2] == b"--":
        raise Refused(415, "this is a form: send the file itself as the body, as curl --data-binary @photo.jpg does")
    try:
        width, height = header_size(content, NAME)
    except ObjectSeekerError as error:
        raise Refused(400, str(error)) from None
    limits.require_pixels(width, height)
    require_views(masks, width, height)


def require_views(masks: Recipe, width: int, height: int) -> None:
    """Refuse an image of a shape that takes far more forward passes than others."""
    most = MORE_VIEWS * masks.passes(SQUARE, SQUARE)
    try:
        views = masks.passes(width, height)
    except ObjectSeekerError as error:
        raise Refused(422, str(error)) from None
    if views > most:
        raise Refused(
            422,
            f"an image of {width}x{height} pixels takes {views:,} forward passes with {masks}: {most:,} "
            "are the most that this server takes; cut it into pieces that are less long",
        )


def decode(content: bytes) -> Image:
    """The image as `load_image` reads it from a file."""
    try:
        return decode_image(content, NAME)
    except ObjectSeekerError as error:
        raise Refused(400, str(error)) from None
