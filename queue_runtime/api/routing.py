"""From a path to the function of a face: methods, the JSON body, and the time it may take."""

from collections.abc import Awaitable, Callable, Iterable

import msgspec
from starlette.routing import compile_path

from queue_runtime.api.errors import method_not_allowed, not_found, too_slow
from queue_runtime.api.reply import Reply
from queue_runtime.api.request import Request
from queue_runtime.wire import Body, decode

Handler = Callable[[Request], Awaitable[Reply]]
BodyHandler = Callable[[Request, Body], Awaitable[Reply]]


class Route:
    """What one path does for one method; every other method is answered in the envelope.

    `takes_body` False: the handler reads none, and one that comes all the same is dropped before it is called.
    """

    def __init__(self, method: str, path: str, handler: Handler, *, takes_body: bool = False) -> None:
        self.method = method
        self.path = path
        self.pattern = compile_path(path)[0]
        self.handler = handler
        self.takes_body = takes_body
        self.allowed = ("GET", "HEAD") if method == "GET" else (method,)


class Routes:
    """All routes. A path without a name in it is looked up, however many routes there are."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.all = list(routes)
        self._plain = {route.path: route for route in self.all if "{" not in route.path}
        self._named = [route for route in self.all if "{" in route.path]

    async def answer(self, request: Request) -> Reply:
        """What the route of this request says. Raises ApiError where there is none."""
        route = self._plain.get(request.path) or self._match(request)
        request.route = route.path
        if request.method not in route.allowed:
            raise method_not_allowed(", ".join(route.allowed))
        if not (request.complete or route.takes_body):
            await request.drop_body()
        return await route.handler(request)

    def _match(self, request: Request) -> Route:
        for route in self._named:
            if found := route.pattern.match(request.path):
                request.parameters = found.groupdict()
                return route
        raise not_found("no such path")


def get(path: str, handler: Handler, *, leaves: bool = False) -> Route:
    """A route that reads. HEAD is answered too. `leaves`: it may take long, and ends when its caller has gone."""

    async def answer(request: Request) -> Reply:
        with request.bounded():
            answer = handler(request)
            return await (request.while_there(answer) if leaves else answer)

    return Route("GET", path, answer)


def post(
    path: str, body: type[Body], handler: BodyHandler[Body], *, bounded: bool = True, leaves: bool = False
) -> Route:
    """A route that takes a JSON object.

    `bounded` False: the handler keeps its time itself. `leaves`: it may wait long, and ends when its caller has gone.
    """
    decoder = msgspec.json.Decoder(body)

    async def answer(request: Request) -> Reply:
        try:
            with request.bounded() as bound:
                asked = decode(decoder, await request.read(bound))
                if bounded:
                    answer = handler(request, asked)
                    return await (request.while_there(answer) if leaves else answer)
        except TimeoutError:
            if not request.complete:
                raise too_slow() from None
            raise
        return await handler(request, asked)

    return Route("POST", path, answer, takes_body=True)
