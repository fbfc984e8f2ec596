"""Runs the ASGI app, by hypercorn or by uvicorn, and ends it within a bound.

Neither server takes over signals: the supervisor owns them, and moves the lifecycle on. While it is only
stopping, the server goes on accepting (the app answers with `Connection: close`). When it is closing, the
listener goes first, idle connections at once, and open requests within CLOSE_SECONDS.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Literal

import anyio
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from queue_runtime.descriptors import Descriptors
from queue_runtime.engine import Engine, Hypercorn
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.listen import files_of, name_of, open_all, remove_files

log = structlog.get_logger()

Kind = Literal["hypercorn", "uvicorn"]
OnStarted = Callable[[Sequence[str]], None]

CLOSE_SECONDS = 3.0
CUT_SECONDS = 1.0
"""After CLOSE_SECONDS what is still open is cut off, and the server gets this long to notice."""


class Server:
    """One app on one or more addresses: `host:port`, `[::1]:port`, `:port` (all interfaces) or `unix:/path`."""

    def __init__(self, app: ASGIApp, *, listen: Sequence[str], kind: Kind, lifecycle: Lifecycle) -> None:
        self._requests = OpenRequests(app)
        self._listen = listen
        self._kind = kind
        self._lifecycle = lifecycle

    async def run(self, on_started: OnStarted | None = None) -> None:
        """Serve until the lifecycle is closing. `on_started` is told the addresses, with the real port for 0.

        Raises ListenError, which names the address, where one cannot be listened on.
        """
        sockets = open_all(self._listen)
        names, files = [name_of(one) for one in sockets], files_of(sockets)
        descriptors = Descriptors()
        with descriptors.watched():
            engine = self._engine(sockets, descriptors)
            serving = asyncio.create_task(engine.serve())
            closing = asyncio.create_task(self._lifecycle.closing.wait())
            try:
                if on_started is not None:
                    on_started(names)
                await asyncio.wait((serving, closing), return_when=asyncio.FIRST_COMPLETED)
            finally:
                closing.cancel()
                with anyio.CancelScope(shield=True):
                    await self._end(engine, serving)
                remove_files(files)

    def _engine(self, sockets: list[socket.socket], descriptors: Descriptors) -> Engine:
        if self._kind == "hypercorn":
            return Hypercorn(self._requests, sockets, descriptors)
        from queue_runtime.uvicorn_engine import Uvicorn  # noqa: PLC0415  uvicorn is in the extra `fast`

        return Uvicorn(self._requests, sockets, descriptors)

    async def _end(self, engine: Engine, serving: asyncio.Task[None]) -> None:
        now = asyncio.get_running_loop().time
        end = now() + CLOSE_SECONDS
        while not serving.done() and now() < end:
            engine.close()
            await asyncio.wait((serving,), timeout=0.05)
        if not serving.done():
            log.warning("requests are cut off, they did not end in time", requests=self._requests.count)
            engine.cut()
            await asyncio.sleep(0)
            self._requests.cancel()
            await asyncio.wait((serving,), timeout=CUT_SECONDS)
        if not serving.done():
            log.warning("the HTTP server did not end in time")
            serving.cancel()
        elif error := serving.exception():
            raise error


class OpenRequests:
    """The app, and the tasks that answer requests now."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[object]] = set()
        self._cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if task is None or scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        self._tasks.add(task)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cut:
                raise
        finally:
            self._tasks.discard(task)
        return None

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._tasks)

    def cancel(self) -> None:
        """End them all; that is our own doing, and no error for the server to report."""
        self._cut = True
        for task in self._tasks:
            task.cancel()
