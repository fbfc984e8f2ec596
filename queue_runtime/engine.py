"""What the server asks of an HTTP library, and hypercorn as one.

Nothing here knows of queues: an engine gets an app and sockets that listen already.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

import h11
import orjson
import structlog
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol import events as streams
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr, wrap_app
from starlette.types import ASGIApp

from queue_runtime.descriptors import Descriptors
from queue_runtime.listen import ACCEPTS, TURNS, stop_accepting, take_all_waiting

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

    def __init__(self, app: ASGIApp, sockets: Sequence[socket.socket], descriptors: Descriptors) -> None:
        self._sockets = sockets
        self._descriptors = descriptors
        self._config = _config()
        self._app = wrap_app(app, 0, "asgi")  # type: ignore[arg-type]  # hypercorn types each ASGI message
        self._context = WorkerContext(None)
        self._closing = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self) -> None:
        for one in self._sockets:
            start = asyncio.start_unix_server if one.family == socket.AF_UNIX else asyncio.start_server
            self._listeners.append(await start(self._accepted, sock=one, backlog=ACCEPTS))
        take_all_waiting(self._sockets)
        await self._closing.wait()
        self.close()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await self._context.terminated.set()  # idle connections end; others do when their request has ended
        while self._connections:
            await asyncio.wait(self._connections)

    def close(self) -> None:
        stop_accepting(self._listeners)
        self._closing.set()

    def cut(self) -> None:
        for writer in self._connections.values():
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._descriptors.refuses(writer.transport):
            return
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


def refusal(status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of the reply to what is no request: the contract's envelope, and the connection ends."""
    words = f"the request is malformed: {HTTPStatus(status).phrase}"
    body = orjson.dumps({"error": {"code": "ERR_BAD_REQUEST", "message": words}})
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ], body


class _Connection(TCPServer):
    """A connection that speaks HTTP/1, and ends when its client has closed it, not when its keep-alive time is over."""

    _client_closed = False

    async def run(self) -> None:
        """Hypercorn's own would begin HTTP/2 for a client that asks for it, and lose that when the client leaves."""
        line = self.writer.get_extra_info("socket")
        try:
            client = parse_socket_addr(line.family, line.getpeername())
            server = parse_socket_addr(line.family, line.getsockname())
            async with TaskGroup(self.loop) as group:
                self._task_group = group
                self.protocol = _Http1(  # type: ignore[assignment]  # a protocol, where TCPServer has one that picks one
                    self.app,
                    self.config,
                    self.context,
                    group,
                    ConnectionState(self.state),
                    False,
                    client,
                    server,
                    self.protocol_send,
                )
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        finally:
            await self._close()

    async def _read_data(self) -> None:
        await super()._read_data()
        self._client_closed = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if not (self._client_closed and isinstance(event, Updated)):
            await super().protocol_send(event)


class _Http1(H11Protocol):
    """HTTP/1 and nothing else. Who asks for another protocol is answered in this one, as RFC 9110 has it."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Where hypercorn would change to HTTP/2."""

    async def _create_stream(self, request: h11.Request) -> None:
        if request.http_version not in {b"1.0", b"1.1"}:
            await self._send_error_response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            await self.send(Closed())
            return
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            streams.Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        headers, body = refusal(status_code)
        for event in (
            h11.Response(status_code=status_code, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            await self._send_h11_event(event)


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
