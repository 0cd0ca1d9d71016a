"""The command `objectseeker serve`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import Defense, ObjectSeeker, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, stderr_console, warn
from objectseeker.cli._options import (
    DefenseOptions,
    ThreatModelOptions,
    TrustDetector,
    expand_groups,
    print_rule,
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
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.", rich_help_panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0: any free one.", rich_help_panel=SERVER),
    ] = 8000,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="KEY=VALUE",
            help="Change a limit of requests; repeatable. Keys: above.",
            autocompletion=complete_limit,
            rich_help_panel=SERVER,
        ),
    ] = None,
    model_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the model in the protocol.", rich_help_panel="Advanced")
    ] = "objectseeker",
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES", help="cpu, openvino, cuda (all GPUs), or cuda:0,cuda:1.", rich_help_panel="Advanced"
        ),
    ] = None,
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
        from objectseeker.serve.app import build_app
        from objectseeker.serve.limits import MAX_VIEW_RATIO, SQUARE_SIDE, ServerLimits, allowed_hosts
        from objectseeker.serve.monitoring import Metrics, log, log_as_json
        from objectseeker.serve.protocol import ServedModel
        from objectseeker.serve.queueing import Workers
        from objectseeker.serve.server import BACKLOG, make_server, open_listener, run
    except ModuleNotFoundError as missing:
        raise ObjectSeekerError(
            f"serve needs a missing package: got no {missing.name}. pip install 'objectseeker[serve]'"
        ) from None
    server_limits = _server_limits(ServerLimits, limits or ())
    threat_model = threat.threat_model()
    listener = open_listener(host, port)
    served = defense.build()
    seekers = _seekers(served, device, trust_detector)
    loaded: Any = seekers[0].detector
    bound = served.with_fingerprint(served.fingerprint or loaded.fingerprint)
    passes = 1 + len(bound.masks.masks(SQUARE_SIDE, SQUARE_SIDE))  # rejects masks for streams
    print_rule(bound)
    warn_untuned(bound, "IMAGES")
    stderr_console.print(
        f"{passes:,} forward passes for a square image, at most {MAX_VIEW_RATIO * passes:,} for any other shape"
    )
    warn_unsuitable_masks(bound.masks, threat.patch_count)
    model = ServedModel(model_name, bound, loaded.names, threat_model)
    metrics = Metrics(bound.sha256)
    workers = Workers(seekers, server_limits, metrics)
    hosts = allowed_hosts(listener, host)
    server = make_server(build_app(model, workers, server_limits, metrics, hosts=hosts), server_limits)
    listener.listen(BACKLOG)  # from here on connections are accepted
    _print_address(host, listener.getsockname()[1], public=hosts is None)
    log_as_json()
    log.info("serving", extra={"fields": {"host": host, "port": listener.getsockname()[1], "defense": bound.sha256}})
    try:
        run(server, listener)
    finally:
        workers.close()
    log.info("stopped", extra={"fields": {"answered": server.server_state.total_requests}})


def _server_limits(kind: type[ServerLimits], settings: Sequence[str]) -> ServerLimits:
    """Read KEY=VALUE settings; the class is passed because its module needs the extra "serve"."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, _, text = (part.strip() for part in setting.partition("="))
        if key not in LIMITS:
            raise ObjectSeekerError(f"--limit must be KEY=VALUE: got {setting[:80]!r}. Keys are {', '.join(LIMITS)}.")
        try:
            values[key] = int(text) if key == "max_concurrent_requests" else float(text)
        except ValueError:
            raise ObjectSeekerError(f"--limit {key} must be a number: got {text[:80]!r}. Choose another.") from None
    return kind(**values)


def _seekers(defense: Defense, device: str | None, trust_detector: bool) -> list[ObjectSeeker]:
    """Load the defended detector on each device; its fingerprint must be the same on all."""
    from objectseeker.runs.engines import all_gpus

    devices = all_gpus() if device == "cuda" else [None] if device is None else device.split(",")
    seekers = [defense.build(one, trust_detector=trust_detector) for one in devices]
    loaded: list[Any] = [seeker.detector for seeker in seekers]
    for one, detector in zip(devices, loaded, strict=True):
        if detector.fingerprint != loaded[0].fingerprint:
            raise ObjectSeekerError(
                f"--device must name devices that are alike: got {one}, which differs from {devices[0]}. "
                "Certificates do not carry over. Serve each from its own process."
            )
    return seekers


def _print_address(host: str, port: int, *, public: bool) -> None:
    address = f"[{host}]" if ":" in host else host
    url = f"http://{address}:{port}/"
    stderr_console.print(escape(f"Serving at {url} (Ctrl-C shuts it down gracefully)"))
    if public:
        warn("other machines may reach this server, which has no authentication. Put a proxy in front of it.")
    stderr_console.print(escape(f"Next: curl --data-binary @image.jpg '{url}detect?certify=1'"))
