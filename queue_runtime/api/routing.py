"""From a route to the function of a face: methods, the JSON body, and the time it may take."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from queue_runtime.api.errors import method_not_allowed, too_slow
from queue_runtime.api.reply import Reply
from queue_runtime.api.request import SCOPE_KEY, Request
from queue_runtime.wire import Body, decode

Handler = Callable[[Request], Awaitable[Reply]]
BodyHandler = Callable[[Request, Body], Awaitable[Reply]]


class Endpoint:
    """What one path does for one method; every other method is answered in the envelope."""

    def __init__(self, method: str, handler: Handler) -> None:
        self.method = method
        self._allowed = ("GET", "HEAD") if method == "GET" else (method,)
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self._allowed:
            raise method_not_allowed(", ".join(self._allowed))
        reply = await self._handler(scope[SCOPE_KEY])
        await reply(scope, receive, send)


def get(path: str, handler: Handler) -> Route:
    """A route that reads. HEAD is answered too."""

    async def answer(request: Request) -> Reply:
        async with asyncio.timeout(request.seconds):
            return await handler(request)

    return Route(path, Endpoint("GET", answer), methods=None)


def post(path: str, body: type[Body], handler: BodyHandler[Body], *, bounded: bool = True) -> Route:
    """A route that takes a JSON object. `bounded` False: the handler keeps its time itself."""
    decoder = msgspec.json.Decoder(body)

    async def answer(request: Request) -> Reply:
        try:
            async with asyncio.timeout(request.seconds) as bound:
                asked = decode(decoder, await request.read(bound))
                if bounded:
                    return await handler(request, asked)
        except TimeoutError:
            if not request.complete:
                raise too_slow() from None
            raise
        return await handler(request, asked)

    return Route(path, Endpoint("POST", answer), methods=None)
