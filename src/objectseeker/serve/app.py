"""The application: endpoints, access log, Host header check, and the web page.

All errors are {"error": "a message"}, as in the Open Inference Protocol. The page at / loads nothing from elsewhere:
whatever an image or its name contains is shown as text, never as markup, and the content security policy allows no
other script or style.
"""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections.abc import Sequence
from functools import partial
from importlib import resources
from string import Template
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from objectseeker import __version__
from objectseeker.inference.results import CERTIFICATE_SCOPE
from objectseeker.serve.limits import (
    ClientDisconnectedError,
    RequestRejectedError,
    ServerLimits,
    check_image,
    decode,
    is_allowed_host,
    read_body,
)
from objectseeker.serve.monitoring import CONTENT_TYPE_LATEST, Metrics, log
from objectseeker.serve.protocol import JSON_LENGTH, ServedModel, read_request, to_tensors, write_response
from objectseeker.serve.queueing import InferenceResult, Workers

CLIENT_CLOSED_REQUEST = 499  # what proxies log for a client that did not wait


def _web_file(path: str) -> str:
    return resources.files("objectseeker").joinpath(path).read_text(encoding="utf-8")


def _policy_source(text: str) -> str:
    """Return the hash by which a content security policy allows a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE = _web_file("report/web/palette.css") + _web_file("serve/web/page.css")
_SCRIPT = _web_file("serve/web/page.js")
PAGE = Template(_web_file("serve/web/page.html")).substitute(
    style=_STYLE, script=_SCRIPT, about=html.escape(CERTIFICATE_SCOPE)
)
PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_policy_source(_SCRIPT)}; style-src {_policy_source(_STYLE)}; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Service:
    """The endpoints of one model."""

    def __init__(self, model: ServedModel, workers: Workers, limits: ServerLimits, metrics: Metrics) -> None:
        self.model, self.workers, self.limits, self.metrics = model, workers, limits, metrics

    async def page(self, request: Request) -> Response:
        return Response(PAGE, media_type="text/html", headers=PAGE_HEADERS)

    async def detect(self, request: Request) -> Response:
        """Take an image file; return JSON as `objectseeker detect` writes it."""
        threat = self.model.threat if _query_flags(request, "certify") else None
        with self.workers.admit():
            content = await read_body(request, self.limits)
            await self.workers.run_blocking(partial(check_image, content, self.limits, self.model.defense.masks))
            result = await self.workers.detect_upload(partial(decode, content), threat, _wait_for_disconnect(request))
            _log_result(request, result)
            return JSONResponse(self.model.to_response(result.image))

    async def infer(self, request: Request) -> Response:
        """Take tensors, return tensors."""
        self._require_model(request)
        _query_flags(request)
        masks, json_length = self.model.defense.masks, request.headers.get(JSON_LENGTH)
        with self.workers.admit():
            body = await read_body(request, self.limits)
            inference = await self.workers.run_blocking(partial(read_request, body, json_length, self.limits, masks))
            threat = self.model.threat if inference.certify else None
            result = await self.workers.detect_upload(lambda: inference.image, threat, _wait_for_disconnect(request))
            _log_result(request, result)
            parameters = {"alert": result.image.alert, "defense_sha256": self.model.version}
            header = {"model_name": self.model.name, "model_version": self.model.version, "parameters": parameters}
            content, length = write_response(inference, to_tensors(result.image), header)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={JSON_LENGTH: str(length)})

    async def server(self, request: Request) -> Response:
        return JSONResponse({"name": "objectseeker", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def metadata(self, request: Request) -> Response:
        self._require_model(request)
        return JSONResponse(self.model.metadata())

    async def model_ready(self, request: Request) -> Response:
        self._require_model(request)
        return JSONResponse({"name": self.model.name, "ready": True})

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        return JSONResponse({"ready": True})  # the detector is loaded before the server listens

    async def prometheus(self, request: Request) -> Response:
        return Response(self.metrics.prometheus(), media_type=CONTENT_TYPE_LATEST)

    def _require_model(self, request: Request) -> None:
        name, version = request.path_params["model"], request.path_params.get("version", self.model.version)
        if name != self.model.name:
            raise RequestRejectedError(404, f"unknown model: got {name[:80]!r}. Use {self.model.name!r}.")
        if version != self.model.version:
            raise RequestRejectedError(404, f"unknown version: got {version[:80]!r}. Use {self.model.version}.")


def build_app(
    model: ServedModel, workers: Workers, limits: ServerLimits, metrics: Metrics, *, hosts: Sequence[str] | None = None
) -> Any:
    """Return the application, ready to be served.

    Args:
        model: What is served.
        workers: Its detectors and their queue.
        limits: What a request may cost.
        metrics: What is counted.
        hosts: Names that a client may call the server by, next to localhost; None for any.
    """
    service = Service(model, workers, limits, metrics)
    routes = [
        Route("/", service.page),
        Route("/detect", service.detect, methods=["POST"]),
        Route("/metrics", service.prometheus),
        Route("/v2", service.server),
        Route("/v2/health/live", service.live),
        Route("/v2/health/ready", service.ready),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(path, service.metadata),
            Route(f"{path}/ready", service.model_ready),
            Route(f"{path}/infer", service.infer, methods=["POST"]),
        ]
    handlers = {
        RequestRejectedError: _rejected,
        ClientDisconnectedError: _disconnected,
        HTTPException: _not_found,
        Exception: _internal_error,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return AccessLogMiddleware(app if hosts is None else HostHeaderMiddleware(app, hosts), metrics)


class HostHeaderMiddleware:
    """Rejects unknown Host headers with 403, against DNS rebinding."""

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        host = Headers(scope=scope).get("host")  # every browser sends it, and h11 rejects two
        if host is None or is_allowed_host(host, self._hosts):
            await self._app(scope, receive, send)
            return
        message = f"unknown Host: got {host[:80]!r}. Call this server localhost or {', '.join(self._hosts)}."
        scope["log_fields"]["error"] = message
        await JSONResponse({"error": message}, 403)(scope, receive, send)


class AccessLogMiddleware:
    """Counts and logs every response."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        begin, status = time.monotonic(), 0
        scope["log_fields"] = {}

        async def send_and_note(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:  # _internal_error has responded
            log.exception("failed")
        seconds, endpoint = time.monotonic() - begin, getattr(scope.get("endpoint"), "__name__", "other")
        self._metrics.requests.labels(endpoint, str(status)).inc()
        self._metrics.request_seconds.labels(endpoint).observe(seconds)
        fields = {"endpoint": endpoint, "method": scope["method"][:16], "status": status, "seconds": round(seconds, 4)}
        log.info("answered", extra={"fields": fields | scope["log_fields"]})


def _query_flags(request: Request, *flags: str) -> bool:
    """Return whether one of these flags is 1; reject any other query instead of ignoring it."""
    items = request.query_params.multi_items()
    names = [name for name, _ in items]
    for name, value in items:
        if name not in flags or names.count(name) > 1:
            known = " and ".join(flags) or "nothing"
            raise RequestRejectedError(400, f"the query may contain {known} here, once: got {name[:80]!r}. Omit it.")
        if value not in ("0", "1"):
            raise RequestRejectedError(400, f"{name} must be 0 or 1: got {value[:80]!r}.")
    return any(value == "1" for _, value in items)


def _log_result(request: Request, result: InferenceResult) -> None:
    image = result.image
    request.scope["log_fields"] |= {
        "width": image.size[0],
        "height": image.size[1],
        "queue_seconds": round(result.queue_seconds, 4),
        "inference_seconds": round(result.inference_seconds, 4),
        "boxes": len(image.detections),
        "recovered_boxes": image.recovered_boxes,
        "alert": image.alert,
        "certified": image.certificates is not None,
    }


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRejectedError)
    request.scope["log_fields"] |= {"error": error.message}
    headers = {} if error.retry_after is None else {"Retry-After": str(max(error.retry_after, 1))}
    return JSONResponse({"error": error.message}, error.status, headers=headers)


async def _disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    endpoint = f"{request.method[:16]} {request.url.path[:80]}"
    known = "POST /detect, POST /v2/models/NAME/infer or GET /, /v2, /v2/models/NAME, /v2/health/ready, /metrics"
    message = f"unknown endpoint: got {endpoint!r}. Use {known}."
    return JSONResponse({"error": message}, error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    message = f"an internal error of the detector or this server ({type(error).__name__}). See the server's log."
    return JSONResponse({"error": message}, 500)
