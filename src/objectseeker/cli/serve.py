"""The command `objectseeker serve`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, stderr_console, warn
from objectseeker.cli._options import (
    ADVANCED,
    DefenseOptions,
    Devices,
    ThreatModelOptions,
    TrustDetector,
    expand_groups,
    option,
    print_rule,
    split_setting,
    warn_unsuitable_masks,
    warn_untuned,
)

if TYPE_CHECKING:
    from objectseeker.serve.limits import ServerLimits

MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
LIMITS = ("max_concurrent_requests", "max_body_mb", "max_megapixels", "queue_timeout", "receive_timeout")
SERVER = "Server"


def complete_limit(incomplete: str) -> list[str]:
    """Complete the key of a limit."""
    return [f"{key}=" for key in LIMITS if key.startswith(incomplete)]


@app.command()
@expand_groups
def serve(
    defense: DefenseOptions,
    threat: ThreatModelOptions,
    host: Annotated[str, option(SERVER, "ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option(SERVER, "N", "Port to listen on; 0: any free one.", min=0, max=65535)] = 8000,
    limits: Annotated[
        list[str] | None,
        option(
            SERVER,
            "KEY=VALUE",
            "Change a limit of requests; repeatable. Keys: above.",
            "--limit",
            autocompletion=complete_limit,
        ),
    ] = None,
    model_name: Annotated[str, option(ADVANCED, "NAME", "Name of the model in the protocol.")] = "objectseeker",
    device: Devices = None,
    trust_detector: TrustDetector = False,
) -> None:
    """Serve the defended detector over HTTP: the Open Inference Protocol, image files, and a web page.

    GET / is a page to drop an image on. POST /detect takes an image file and returns what detect writes; with
    ?certify=1 also the certificates, against --patch-area and related options. POST /v2/models/NAME/infer takes
    tensors, in JSON or in binary form. GET /v2/models/NAME returns the defense; GET /metrics is for Prometheus.
    Standard output is the log, in JSON lines.

    There is no authentication: the server listens on this machine only, unless --host names another address, and
    until then it rejects every Host header but localhost, 127.0.0.1 and --host. Ctrl-C and TERM shut it down
    gracefully: it first answers all admitted requests.

    Limits: max_concurrent_requests=32 (more get status 503), max_body_mb=32, max_megapixels=50 (million pixels of an
    image), queue_timeout=30 (seconds until detection starts), receive_timeout=20 (seconds to receive a request).

    Needs the packages of the extra "serve".

    Example:  objectseeker serve --defense tuned/defense.json
    Example:  objectseeker serve --defense builtin-fast --limit max_megapixels=20 --limit queue_timeout=5
    Example:  curl --data-binary @image.jpg 'http://127.0.0.1:8000/detect?certify=1'
    """
    if not MODEL_NAME.fullmatch(model_name):
        raise ObjectSeekerError(
            f"--model-name must be letters, digits, dots, dashes and underscores: got {model_name[:80]!r}. "
            "Choose another name."
        )
    try:
        from objectseeker.serve.limits import MAX_VIEW_RATIO, SQUARE_SIDE, ServerLimits, allowed_hosts
        from objectseeker.serve.protocol import ServedModel
        from objectseeker.serve.queueing import load_seekers
        from objectseeker.serve.server import DefenseServer, open_listener
    except ModuleNotFoundError as missing:
        raise ObjectSeekerError(
            f"serve needs a missing package: got no {missing.name}. pip install 'objectseeker[serve]'"
        ) from None
    server_limits = _server_limits(ServerLimits, limits or ())
    threat_model = threat.threat_model()
    listener = open_listener(host, port)
    served = defense.build()
    seekers = load_seekers(served, device, trust_detector=trust_detector)
    loaded: Any = seekers[0].detector
    bound = served.with_fingerprint(served.fingerprint or loaded.fingerprint)
    passes = 1 + len(bound.masks.masks(SQUARE_SIDE, SQUARE_SIDE))  # rejects masks for streams
    print_rule(bound)
    warn_untuned(bound, "IMAGES", defense.settings)
    stderr_console.print(
        f"{passes:,} forward passes for a square image, at most {MAX_VIEW_RATIO * passes:,} for any other shape"
    )
    warn_unsuitable_masks(bound.masks, threat.patch_count)
    hosts = allowed_hosts(listener, host)
    server = DefenseServer(
        seekers, ServedModel(model_name, bound, loaded.names, threat_model), server_limits, hosts=hosts
    )
    server.run(listener, lambda: _print_address(host, listener.getsockname()[1], public=hosts is None))


def _server_limits(kind: type[ServerLimits], settings: Sequence[str]) -> ServerLimits:
    """Read KEY=VALUE settings; the class is passed because its module needs the extra "serve"."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, text = split_setting(setting)
        if key not in LIMITS:
            raise ObjectSeekerError(f"--limit must be KEY=VALUE: got {setting[:80]!r}. Keys are {', '.join(LIMITS)}.")
        try:
            values[key] = int(text) if key == "max_concurrent_requests" else float(text)
        except ValueError:
            raise ObjectSeekerError(f"--limit {key} must be a number: got {text[:80]!r}. Choose another.") from None
    return kind(**values)


def _print_address(host: str, port: int, *, public: bool) -> None:
    address = f"[{host}]" if ":" in host else host
    url = f"http://{address}:{port}/"
    stderr_console.print(escape(f"Serving at {url} (Ctrl-C shuts it down gracefully)"))
    if public:
        warn("other machines may reach this server, which has no authentication. Put a proxy in front of it.")
    stderr_console.print(escape(f"Next: curl --data-binary @image.jpg '{url}detect?certify=1'"))
