"""By which name a server may be called.

A page on the internet can let its own name lead to 127.0.0.1 after it was loaded. A browser then takes this server for
the page's own, and lets the page read its answers. But it still says the page's name as Host.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence


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
