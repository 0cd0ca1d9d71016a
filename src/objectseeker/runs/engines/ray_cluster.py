"""A Ray cluster: how to reach it, and what it has room for."""

from __future__ import annotations

import os
import re
import secrets
import socket
import textwrap
from dataclasses import dataclass
from typing import Any

from objectseeker.errors import ObjectSeekerError

CONNECT_SECONDS = 5.0
OLDEST = (2, 52)  # before that Ray takes no notice of the token: whoever reaches a port may run code
STORE_BYTES = 256 * 2**20  # Ray's memory for findings on their way, where the cluster is ours


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What is asked of the cluster. `workers` None: as many as fit, also when machines come or go.

    With no `address` a cluster of this machine alone is started, and stopped at the end. `patience` is how long in
    seconds to wait while there is no worker at all.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    start_timeout: float = 120.0


def import_ray(address: str | None) -> Any:
    """Ray, told what it only listens to before it is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    if address is None:
        # Ray's switch for clusters of several machines, whatever its name says: without them it listens at 127.0.0.1
        # alone, where no other machine reaches it.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if address is None and not os.environ.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        # The workers of our own cluster prove who they are with a token that is never written down; left alone, Ray
        # would make one and leave it in the home folder.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # leave the GPUs of a worker without GPUs alone
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ObjectSeekerError("--engine ray needs Ray: pip install 'objectseeker[ray]'") from None
    _require_token(ray.__version__)
    return ray


def _require_token(version: str) -> None:
    """Refuse a Ray that lets anybody in."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise ObjectSeekerError(
            f"Ray {version} takes orders from whoever reaches it, since it asks for no token: install "
            f"{'.'.join(map(str, OLDEST))} or later on every machine, pip install 'objectseeker[ray]'"
        )


def connect(ray: Any, address: str | None) -> bool:
    """Make sure that there is a cluster; whether that was to be done."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        try:
            ray.init(address="local", include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        except Exception as error:  # it has no class of its own for a start that takes too long
            raise ObjectSeekerError(f"Ray could not be started on this machine: {first_line(error)}") from None
        return True
    _require_answer(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        refused = "InvalidAuthToken" in f"{error} {error.__cause__}"
        reason = "it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" if refused else first_line(error)
        raise ObjectSeekerError(f"cannot join the Ray cluster at {address}: {reason}") from None
    return True


def _require_answer(address: str) -> None:
    """Ray itself would try for a minute and then print pages."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # auto, local
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ObjectSeekerError(
            f"no Ray cluster answers at {address} ({error}): start one with ray start --head, or leave --address out"
        ) from None


def worker_capacity(nodes: list[dict[str, Any]], request: ClusterRequest) -> int:
    """How many workers fit on the machines that are up, if nobody else used them."""
    workers = 0
    for node in nodes:
        if node["Alive"]:
            asked = (("CPU", request.cpus), ("GPU", request.gpus))
            fits = [int(node["Resources"].get(kind, 0) // amount) for kind, amount in asked if amount > 0]
            workers += min(fits, default=1)
    return workers


def first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return textwrap.shorten(line, 200, placeholder=" ...")
