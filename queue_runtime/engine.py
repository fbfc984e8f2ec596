"""What the server asks of an HTTP library, and hypercorn as one.

Nothing here knows of queues: an engine gets an app and sockets that listen already.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Protocol

import structlog
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from queue_runtime.listen import BACKLOG

log = structlog.get_logger()

KEEP_ALIVE_SECONDS = 75
MAX_HEAD_BYTES = 64 * 2**10
NO_LIMIT = 2**31


class Engine(Protocol):
    """One of the two servers, on sockets that listen already."""

    async def serve(self) -> None:
        """Serve until `close` was called and all connections are gone."""
        ...

    def close(self) -> None:
        """Stop listening and end idle connections. Is called again and again until `serve` returns."""
        ...

    def cut(self) -> None:
        """End connections that are in use, whatever they do."""
        ...


class Hypercorn:
    """The server of the house: hypercorn's connections on listeners of our own.

    `hypercorn.asyncio.serve` would do but for three things: it has no way to cut a connection that does not end,
    from Python 3.12 on it waits for such a one without a bound, and it keeps a connection that its client closed
    for the whole keep-alive time.
    """

    def __init__(self, app: ASGIApp, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        self._config = _config()
        self._app = wrap_app(app, 0, "asgi")  # type: ignore[arg-type]  # hypercorn types each ASGI message
        self._context = WorkerContext(None)
        self._closing = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self) -> None:
        for one in self._sockets:
            start = asyncio.start_unix_server if one.family == socket.AF_UNIX else asyncio.start_server
            self._listeners.append(await start(self._accepted, sock=one, backlog=BACKLOG))
        await self._closing.wait()
        self.close()
        await self._context.terminated.set()  # idle connections end; others do when their request has ended
        while self._connections:
            await asyncio.wait(self._connections)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._closing.set()

    def cut(self) -> None:
        for writer in self._connections.values():
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        if not task.cancelled() and (error := task.exception()):
            log.error("a connection ended in an error", exc_info=error)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            await _Connection(self._app, loop, self._config, self._context, {}, reader, writer)
        except* OSError:
            pass  # the client hung up in the middle of something


class _Connection(TCPServer):
    """A connection that ends when its client has closed it, and not when its keep-alive time is over."""

    _client_closed = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self._client_closed = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if not (self._client_closed and isinstance(event, Updated)):
            await super().protocol_send(event)


def _config() -> Config:
    logger = logging.getLogger("hypercorn.error")
    logger.setLevel(logging.WARNING)
    config = Config()
    config.errorlog = logger
    config.accesslog = None
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = NO_LIMIT
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    # A bounded queue would make hypercorn wait for ever on a refused upload that nobody reads any more. Memory
    # is bounded by the faces, which read a body at once and up to a limit.
    config.max_app_queue_size = 0
    return config
