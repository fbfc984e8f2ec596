"""The outermost layer of the app: token, request id, envelope for every error, access log, counting."""

import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queue_runtime.api import access
from queue_runtime.api.auth import Guard
from queue_runtime.api.errors import ApiError, ClientGone, reply_to
from queue_runtime.api.request import SCOPE_KEY, Limits, Request
from queue_runtime.errors import EventConflict, InvalidRequest, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics

log = structlog.get_logger()

FOLD_SECONDS = 10
"""An outage is logged this often, not once for each request that met it."""


class Edge:
    """Everything that holds for each request, whatever its route."""

    def __init__(self, app: ASGIApp, *, guard: Guard, limits: Limits, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self.app = app
        self._guard = guard
        self._limits = limits
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._outage_logged_at = -float(FOLD_SECONDS)
        self._outages_unlogged = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._exchange(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await _answer_lifespan(receive, send)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = Request(scope, receive, self._limits)
        scope[SCOPE_KEY] = request
        status = 0

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if not request.complete:
                    await request.discard()
                status = message["status"]
                message["headers"] = [*message["headers"], *self._headers(request)]
            elif scope["method"] == "HEAD":
                message["body"] = b""
            await send(message)

        try:
            try:
                self._guard.check(request)
                request.check()
                await self.app(scope, receive, respond)
            except ClientGone:
                raise
            except Exception as error:
                self._report(error, request)
                if status:
                    raise
                await reply_to(error)(scope, receive, respond)
        except ClientGone:
            log.info("the client went away", uri=access.uri(scope), client=request.client, request_id=request.id)
            return
        seconds = time.perf_counter() - started
        route = scope.get("route")
        self._metrics.request(getattr(route, "path", "(none)"), status, seconds)
        access.line(scope, status, seconds, request.id, request.client)

    def _headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", request.id.encode())]
        over = self._lifecycle.stopping.is_set() or not request.complete or request.ambiguous
        if over and request.scope["http_version"].startswith("1"):
            headers.append((b"connection", b"close"))
        return headers

    def _report(self, error: Exception, request: Request) -> None:
        if isinstance(error, StoreUnavailable | TimeoutError):
            self._report_outage(error, request)
        elif not isinstance(error, ApiError | InvalidRequest | EventConflict):
            log.exception("a request failed", uri=access.uri(request.scope), request_id=request.id, exc_info=error)

    def _report_outage(self, error: Exception, request: Request) -> None:
        now = time.monotonic()
        if now - self._outage_logged_at < FOLD_SECONDS:
            self._outages_unlogged += 1
            return
        log.warning(
            "the store does not answer, callers get 503",
            reason=str(error) or "it took too long",
            uri=access.uri(request.scope),
            request_id=request.id,
            others=self._outages_unlogged,
        )
        self._outage_logged_at = now
        self._outages_unlogged = 0


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """There is nothing to start or to stop here: the supervisor owns all of that."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
