"""Which address does what. All errors are {"error": "a sentence"}, as the Open Inference Protocol has them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from objectseeker import __version__
from objectseeker.serve import web_page
from objectseeker.serve.limits import Limits, Refused, is_one_of
from objectseeker.serve.monitoring import CONTENT_TYPE_LATEST, Metrics, log
from objectseeker.serve.protocol import JSON_LENGTH, read_request, write_response
from objectseeker.serve.queueing import Done, Workers
from objectseeker.serve.responses import Model, tensors_of
from objectseeker.serve.uploads import GoneError, decode, read_body, require_image

LEFT = 499  # what proxies write down for a client that did not wait


class Service:
    """The addresses of one model."""

    def __init__(self, model: Model, workers: Workers, limits: Limits, metrics: Metrics) -> None:
        self.model, self.workers, self.limits, self.metrics = model, workers, limits, metrics

    async def page(self, request: Request) -> Response:
        return Response(web_page.PAGE, media_type="text/html", headers=web_page.HEADERS)

    async def detect(self, request: Request) -> Response:
        """An image file in, JSON as `detect` writes it out."""
        threat = self.model.threat if _asked(request, "certify") else None
        with self.workers.place():
            content = await read_body(request, self.limits)
            await self.workers.read(partial(require_image, content, self.limits, self.model.defense.masks))
            done = await self.workers.look(partial(decode, content), threat, _gone(request))
            _note(request, done)
            return JSONResponse(self.model.document(done.found))

    async def infer(self, request: Request) -> Response:
        """Tensors in, tensors out."""
        self._require_model(request)
        _asked(request)
        masks, json_length = self.model.defense.masks, request.headers.get(JSON_LENGTH)
        with self.workers.place():
            body = await read_body(request, self.limits)
            asked = await self.workers.read(partial(read_request, body, json_length, self.limits, masks))
            threat = self.model.threat if asked.certify else None
            done = await self.workers.look(lambda: asked.image, threat, _gone(request))
            _note(request, done)
            parameters = {"alert": done.found.recovered > 0, "defense": self.model.version}
            about = {"model_name": self.model.name, "model_version": self.model.version, "parameters": parameters}
            content, length = write_response(asked, tensors_of(done.found), about)
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
        return JSONResponse({"ready": True})  # the detector is loaded before anything is listened to

    async def figures(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _require_model(self, request: Request) -> None:
        name, version = request.path_params["model"], request.path_params.get("version", self.model.version)
        if name != self.model.name:
            raise Refused(404, f"there is no model {name[:80]!r} here: this server has {self.model.name!r}")
        if version != self.model.version:
            raise Refused(
                404, f"there is no version {version[:80]!r} here: the defense that is served is {self.model.version}"
            )


def build_app(
    model: Model, workers: Workers, limits: Limits, metrics: Metrics, *, hosts: Sequence[str] | None = None
) -> Any:
    """The application, ready to be served; with `hosts`, only to who calls it by one of these names."""
    service = Service(model, workers, limits, metrics)
    routes = [
        Route("/", service.page),
        Route("/detect", service.detect, methods=["POST"]),
        Route("/metrics", service.figures),
        Route("/v2", service.server),
        Route("/v2/health/live", service.live),
        Route("/v2/health/ready", service.ready),
    ]
    for place in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(place, service.metadata),
            Route(f"{place}/ready", service.model_ready),
            Route(f"{place}/infer", service.infer, methods=["POST"]),
        ]
    handlers = {Refused: _refusal, GoneError: _left, HTTPException: _no_such, Exception: _fault}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return _Watched(app if hosts is None else _Named(app, hosts), metrics)


class _Named:
    """Around the application: a page elsewhere whose name leads to this machine gets nothing to read."""

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        called = Headers(scope=scope).get("host")  # every browser says it, and h11 refuses two
        if called is None or is_one_of(called, self._hosts):
            await self._app(scope, receive, send)
            return
        what = f"this server is not called {called[:80]!r}: it answers to localhost and {', '.join(self._hosts)}"
        scope["noted"]["error"] = what
        await JSONResponse({"error": what}, 403)(scope, receive, send)


class _Watched:
    """Around the application: every answer is counted and written down."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        begin, status = time.monotonic(), 0
        fields: dict[str, Any] = {}
        scope["noted"] = fields

        async def answer(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:  # it was answered, by _fault
            log.exception("failed")
        took, what = time.monotonic() - begin, getattr(scope.get("endpoint"), "__name__", "other")
        self._metrics.requests.labels(what, str(status)).inc()
        self._metrics.seconds.labels(what).observe(took)
        about = {"what": what, "method": scope["method"][:16], "status": status, "seconds": round(took, 4)}
        log.info("answered", extra={"fields": about | fields})


def _asked(request: Request, *flags: str) -> bool:
    """Whether the query sets one of its flags to 1; what else it holds would not be heeded, so it is refused."""
    given = request.query_params.multi_items()
    for name, value in given:
        if name not in flags or [other for other, _ in given].count(name) > 1:
            known = " and ".join(flags) or "nothing"
            raise Refused(400, f"a query may hold {known} here, once, got {name[:80]!r}")
        if value not in ("0", "1"):
            raise Refused(400, f"{name} must be 0 or 1, got {value[:80]!r}")
    return any(value == "1" for _, value in given)


def _note(request: Request, done: Done) -> None:
    """What the line about this request says beside its status."""
    found = done.found
    request.scope["noted"] |= {
        "width": found.size[0],
        "height": found.size[1],
        "waited": round(done.waited, 4),
        "worked": round(done.took, 4),
        "boxes": len(found.boxes),
        "found_by_masks_only": found.recovered,
        "alert": found.recovered > 0,
        "certified": found.certificates is not None,
    }


async def _gone(request: Request) -> None:
    """Returns when the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    request.scope["noted"] |= {"error": error.sentence}
    headers = {} if error.retry_after is None else {"Retry-After": str(max(error.retry_after, 1))}
    return JSONResponse({"error": error.sentence}, error.status, headers=headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=LEFT)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method[:16]} {request.url.path[:80]}"
    where = "POST /detect, POST /v2/models/NAME/infer and GET /, /v2, /v2/models/NAME, /v2/health/ready, /metrics"
    return JSONResponse(
        {"error": f"there is no {what!r} here: there are {where}"}, error.status_code, headers=error.headers
    )


async def _fault(request: Request, error: Exception) -> Response:
    what = f"the detector or this server failed on the request ({type(error).__name__}): its log says how"
    return JSONResponse({"error": what}, 500)
