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
    ThreatOptions,
    TrustDetector,
    defense_of,
    grouped,
    note_masks,
    say,
)

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@app.command()
@grouped
def serve(
    rule: RuleOptions,
    detector: DetectorOptions,
    masks: MaskOptions,
    threat: ThreatOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")] = 8000,
    name: Annotated[str, typer.Option(help="Name of the model in the Open Inference Protocol.")] = "objectseeker",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda (every GPU of this machine), or named: cuda:0,cuda:1.")
    ] = None,
    trust_detector: TrustDetector = False,
    queue: Annotated[int, typer.Option(help="Requests at a time; more are refused with 503 at once.")] = 32,
    megabytes: Annotated[float, typer.Option(help="Largest body of a request.")] = 32.0,
    megapixels: Annotated[float, typer.Option(help="Largest image.")] = 50.0,
    wait: Annotated[float, typer.Option(help="Seconds an image may wait until it is begun with.")] = 30.0,
    receive: Annotated[float, typer.Option(help="Seconds in which a request must have come in.")] = 20.0,
) -> None:
    """Serve the defended detector over HTTP: the Open Inference Protocol, image files, and a page.

    GET / is a page to drop a photograph on. POST /detect takes an image file and answers what detect writes; with
    ?certify=1 also the certificates, against --patch and its like. POST /v2/models/NAME/infer takes tensors, in JSON or
    in binary form. GET /v2/models/NAME says which defense answers; GET /metrics is for Prometheus. What happens is
    written to the output stream, a line of JSON each.

    There is no authentication: it listens on this machine alone unless --host says otherwise, and as long as it does
    it must be called localhost, 127.0.0.1 or what --host says. Ctrl-C and TERM stop it in order: everything that was
    taken is answered first.

    Needs the packages of the extra "serve".

    Example:  objectseeker serve --defense tuned/defense.json
    Example:  curl --data-binary @photo.jpg 'http://127.0.0.1:8000/detect?certify=1'
    """
    from objectseeker.serve.limits import MORE_VIEWS, SQUARE, Limits

    limits = Limits(places=queue, megabytes=megabytes, megapixels=megapixels, wait=wait, receive=receive)
    if not NAME.fullmatch(name):
        raise ObjectSeekerError(f"a model's name has letters, digits, dots, dashes and underscores, got {name[:80]!r}")
    try:
        from objectseeker.serve.app import build_app
        from objectseeker.serve.limits import names_of
        from objectseeker.serve.monitoring import Metrics, log, write_lines
        from objectseeker.serve.queueing import Workers
        from objectseeker.serve.responses import Model
        from objectseeker.serve.server import BACKLOG, bound_socket, run, server_of
    except ModuleNotFoundError as missing:
        raise ObjectSeekerError(f"serve needs {missing.name}: pip install 'objectseeker[serve]'") from None
    against = threat.threat()
    listener = bound_socket(host, port)
    defense = defense_of(detector, masks, rule)
    seekers = _seekers(defense, device, trust_detector)
    loaded: Any = seekers[0].detector
    bound = defense.with_fingerprint(defense.identity or loaded.fingerprint)
    passes = 1 + len(bound.masks.masks(SQUARE, SQUARE))  # refuses masks that are not for single images
    say(bound)
    notes.print(
        f"{passes:,} forward passes for a square image, at most {MORE_VIEWS * passes:,} for one of another shape"
    )
    note_masks(bound.masks, threat.patches)
    model = Model(name, bound, loaded.names, against)
    metrics = Metrics(bound.sha256)
    workers = Workers(seekers, limits, metrics)
    hosts = names_of(listener, host)
    server = server_of(build_app(model, workers, limits, metrics, hosts=hosts), limits)
    listener.listen(BACKLOG)  # from here on a connection is not refused
    _say_where(host, listener.getsockname()[1], public=hosts is None)
    write_lines()
    log.info("serving", extra={"fields": {"host": host, "port": listener.getsockname()[1], "defense": bound.sha256}})
    try:
        run(server, listener)
    finally:
        workers.close()
    log.info("stopped", extra={"fields": {"answered": server.server_state.total_requests}})


def _seekers(defense: Defense, device: str | None, trust_detector: bool) -> list[ObjectSeeker]:
    """The defended detector on each device; it must be the same one on all."""
    from objectseeker.runs.engines.engine_selection import every_gpu

    devices = every_gpu() if device == "cuda" else [None] if device is None else device.split(",")
    seekers = [defense.seeker(one, trust_detector=trust_detector) for one in devices]
    loaded: list[Any] = [seeker.detector for seeker in seekers]
    for one, detector in zip(devices, loaded, strict=True):
        if detector.fingerprint != loaded[0].fingerprint:
            raise ObjectSeekerError(
                f"the detector on {one} is not the one on {devices[0]}: certificates do not carry over; serve "
                "each from a process of its own"
            )
    return seekers


def _say_where(host: str, port: int, *, public: bool) -> None:
    shown = f"[{host}]" if ":" in host else host
    notes.print(escape(f"Serving at http://{shown}:{port}/ (Ctrl-C stops it in order)"))
    if public:
        warn("other machines may reach this server, which has no authentication: put a proxy in front of it")
