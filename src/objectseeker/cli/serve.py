"""objectseeker serve"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from objectseeker import Defense, ObjectSeeker, ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, notes, warn
from objectseeker.cli._options import (
    DetectorOptions,
    MaskOptions,
    RuleOptions,
    ThreatModelOptions,
    TrustDetector,
    defense_of,
    grouped,
    note_masks,
    say,
)

MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@app.command()
@grouped
def serve(
    rule: RuleOptions,
    detector: DetectorOptions,
    masks: MaskOptions,
    threat: ThreatModelOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")] = 8000,
    model_name: Annotated[str, typer.Option(help="Name of the model in the Open Inference Protocol.")] = "objectseeker",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda (every GPU of this machine), or named: cuda:0,cuda:1.")
    ] = None,
    trust_detector: TrustDetector = False,
    max_concurrent_requests: Annotated[
        int, typer.Option(help="Requests at a time; the server rejects more with 503.")
    ] = 32,
    max_body_mb: Annotated[float, typer.Option(help="Largest request body, in million bytes.")] = 32.0,
    max_megapixels: Annotated[float, typer.Option(help="Largest image.")] = 50.0,
    queue_timeout: Annotated[float, typer.Option(help="Seconds an image may wait until detection starts.")] = 30.0,
    receive_timeout: Annotated[float, typer.Option(help="Seconds to receive a request.")] = 20.0,
) -> None:
    """Serve the defended detector over HTTP: the Open Inference Protocol, image files, and a web page.

    GET / is a page to drop an image on. POST /detect takes an image file and returns what detect writes; with
    ?certify=1 also the certificates, against --patch and related options. POST /v2/models/NAME/infer takes tensors, in
    JSON or in binary form. GET /v2/models/NAME returns the defense; GET /metrics is for Prometheus. Standard output is
    the log, in JSON lines.

    There is no authentication: the server listens on this machine only, unless --host names another address, and
    until then it rejects every Host header but localhost, 127.0.0.1 and --host. Ctrl-C and TERM shut it down
    gracefully: it first answers all admitted requests.

    Needs the packages of the extra "serve".

    Example:  objectseeker serve --defense tuned/defense.json
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
    limits = ServerLimits(
        max_concurrent_requests=max_concurrent_requests,
        max_body_mb=max_body_mb,
        max_megapixels=max_megapixels,
        queue_timeout=queue_timeout,
        receive_timeout=receive_timeout,
    )
    threat_model = threat.threat_model()
    listener = open_listener(host, port)
    defense = defense_of(detector, masks, rule)
    seekers = _seekers(defense, device, trust_detector)
    loaded: Any = seekers[0].detector
    bound = defense.with_fingerprint(defense.fingerprint or loaded.fingerprint)
    passes = 1 + len(bound.masks.masks(SQUARE_SIDE, SQUARE_SIDE))  # rejects masks for streams
    say(bound)
    notes.print(
        f"{passes:,} forward passes for a square image, at most {MAX_VIEW_RATIO * passes:,} for any other shape"
    )
    note_masks(bound.masks, threat.patch_count)
    model = ServedModel(model_name, bound, loaded.names, threat_model)
    metrics = Metrics(bound.sha256)
    workers = Workers(seekers, limits, metrics)
    hosts = allowed_hosts(listener, host)
    server = make_server(build_app(model, workers, limits, metrics, hosts=hosts), limits)
    listener.listen(BACKLOG)  # from here on connections are accepted
    _print_address(host, listener.getsockname()[1], public=hosts is None)
    log_as_json()
    log.info("serving", extra={"fields": {"host": host, "port": listener.getsockname()[1], "defense": bound.sha256}})
    try:
        run(server, listener)
    finally:
        workers.close()
    log.info("stopped", extra={"fields": {"answered": server.server_state.total_requests}})


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
    notes.print(escape(f"Serving at http://{address}:{port}/ (Ctrl-C shuts it down gracefully)"))
    if public:
        warn("other machines may reach this server, which has no authentication. Put a proxy in front of it.")
