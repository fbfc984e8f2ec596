"""The outermost layer of the app: token, request id, envelope for every error, access log, counting."""

import time

import structlog
from starlette.types import Receive, Scope, Send

from queue_runtime.api import access
from queue_runtime.api.auth import Guard
from queue_runtime.api.bounds import Bounds
from queue_runtime.api.errors import ApiError, ClientGone, reply_to
from queue_runtime.api.reply import Reply
from queue_runtime.api.request import Limits, Request
from queue_runtime.api.routing import Routes
from queue_runtime.errors import EventConflict, InvalidRequest, StoreUnavailable, WritesRefused
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics

log = structlog.get_logger()

FOLD_SECONDS = 10
"""An outage is logged this often, not once for each request that met it."""


class Edge:
    """Everything that holds for each request, whatever its route."""

    def __init__(self, routes: Routes, *, guard: Guard, limits: Limits, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self.routes = routes
        self._guard = guard
        self._limits = limits
        self._bounds = Bounds(limits.seconds)
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
        request = Request(scope, receive, self._limits, self._bounds)
        try:
            reply = await self._answer(request)
            if not request.complete:
                await request.discard()
        except ClientGone:
            log.info("the client went away", uri=access.uri(scope), client=request.client, request_id=request.id)
            return
        headers = [*reply.headers, *self._headers(request)]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else reply.body})
        seconds = time.perf_counter() - started
        self._metrics.request(request.route, reply.status, seconds)
        access.line(scope, reply.status, seconds, request.id, request.client)

    async def _answer(self, request: Request) -> Reply:
        """What a route says, or what the error on the way becomes."""
        try:
            self._guard.check(request)
            request.check()
            return await self.routes.answer(request)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the caller gets an envelope
            self._report(error, request)
            return reply_to(error)

    def _headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", request.id.encode())]
        over = self._lifecycle.stopping.is_set() or not request.complete or request.ambiguous
        if over and request.scope["http_version"].startswith("1"):
            headers.append((b"connection", b"close"))
        return headers

    def _report(self, error: Exception, request: Request) -> None:
        if isinstance(error, StoreUnavailable | TimeoutError):
            self._report_outage(error, request)
        elif not isinstance(error, ApiError | InvalidRequest | EventConflict | WritesRefused):
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
