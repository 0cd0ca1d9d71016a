"""What a request may cost, and how one that costs more is refused: each limit has its own status and sentence."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from objectseeker.errors import ObjectSeekerError, require_count, require_number, sanitize_line
from objectseeker.files.images import LARGEST_IMAGE

# By which name a server may be called.
#
# A page on the internet can let its own name lead to 127.0.0.1 after it was loaded. A browser then takes this server
# for
# the page's own, and lets the page read its answers. But it still says the page's name as Host.


def is_loopback(address: str) -> bool:
    """Whether it is an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def names_of(listener: socket.socket, host: str) -> tuple[str, ...] | None:
    """The names to answer to, beside this machine's own, where only this machine gets to the server; elsewhere any."""
    return (host,) if is_loopback(listener.getsockname()[0]) else None


def is_one_of(called: str, hosts: Sequence[str]) -> bool:
    """Whether a Host field, with a port or without, is this machine's own name or address, or one of `hosts`."""
    name = called.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.lower().removesuffix(".")
    return name == "localhost" or is_loopback(name) or name in {host.lower() for host in hosts}


MOST_JSON = 8_000_000  # bytes; as Python objects they take thirty times as much
MORE_VIEWS = 4  # times those of a square image: a long and narrow image has more bands than anybody wants to pay for
SQUARE = 1000  # pixels a side of that image
LONGEST_SIDE = 20_000  # pixels: what resizing needs grows with a side, whatever the other one is
LONGEST_SENTENCE = 400


class Refused(Exception):  # noqa: N818  # it is an answer
    """A request that gets no result: the status, a sentence that says why, and when to try again, where that helps."""

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after
        text = sanitize_line(sentence)
        self.sentence = text if len(text) <= LONGEST_SENTENCE else f"{text[:LONGEST_SENTENCE]} ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server takes on.

    `places`: requests at a time, those that are still being received among them; each may hold `megabytes`. `wait`:
    seconds until an image is begun with. `receive`: seconds in which a request must have come, and an answer be taken.
    """

    places: int = 32
    megabytes: float = 32.0
    megapixels: float = 50.0
    wait: float = 30.0
    receive: float = 20.0

    def __post_init__(self) -> None:
        require_count(self.places, "queue")
        for name in ("megabytes", "megapixels", "wait", "receive"):
            value = require_number(getattr(self, name), name)
            if value <= 0:
                raise ObjectSeekerError(f"{name} must be above 0, got {value!r}")
        if self.pixels > LARGEST_IMAGE:
            raise ObjectSeekerError(
                f"megapixels must be at most {LARGEST_IMAGE / 1e6:g}, which is all that is ever decoded, "
                f"got {self.megapixels:g}"
            )

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1e6)

    def require_pixels(self, width: int, height: int) -> None:
        """Refuse an image before it is decoded."""
        if width * height > self.pixels:
            raise Refused(
                422,
                f"the image has {width}x{height} pixels, {width * height / 1e6:.1f} million: this server takes "
                f"{self.megapixels:g} million; make it smaller",
            )
        if max(width, height) > LONGEST_SIDE:
            raise Refused(
                422,
                f"the image has {width}x{height} pixels: this server takes {LONGEST_SIDE:,} a side; cut it into pieces",
            )
