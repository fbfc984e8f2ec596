"""uvicorn as the HTTP server: about four times as many requests a second."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from queue_runtime.descriptors import Descriptors
from queue_runtime.engine import KEEP_ALIVE_SECONDS, MAX_HEAD_BYTES, refusal
from queue_runtime.listen import ACCEPTS, TURNS, stop_accepting, take_all_waiting

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the supervisor's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        take_all_waiting(sockets or ())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stop_accepting(self.servers)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)


class JoiningTransport(asyncio.Transport):
    """A transport that keeps the head of a reply back until something follows it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif isinstance(data, bytes) and data.endswith(b"\r\n\r\n") and data != _CONTINUE:
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send the head of a reply that has no body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class _Connection(HttpToolsProtocol):
    """uvicorn's, with two things less to do for each request: a system call, and a timer of the keep-alive time.

    And with bounds that uvicorn has not: of the time until the first head is complete, and of the size of a head.
    """

    _idle_since = 0.0
    _idle_timer: asyncio.TimerHandle | None = None
    _unused_bytes = 0
    """received since the parser last made something of it; it keeps all of a head, and of what follows a body"""

    def __init__(self, descriptors: Descriptors, **given: Any) -> None:
        super().__init__(**given)
        self._descriptors = descriptors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._joining = self.transport = JoiningTransport(transport)
        self._idle_since = self.loop.time()
        self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_if_idle)
        self._descriptors.refuses(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        super().data_received(data)
        if self._unused_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._unused_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused_bytes = 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """No line of the log: who asks for another protocol is answered in this one."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST)

    def _refuse(self, status: HTTPStatus) -> None:
        headers, body = refusal(status)
        head = b"".join([b"%s: %s\r\n" % header for header in headers])
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), head, body))
        self.transport.close()

    def on_response_complete(self) -> None:
        self._joining.flush()
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        # uvicorn would set a timer here, and take it back when the next request comes.
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._idle_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # in use: the end of the reply sets the timer again
        remaining = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if remaining > 0:
            self._idle_timer = self.loop.call_later(remaining, self._end_if_idle)
        else:
            self.transport.close()


class Uvicorn:
    """The fast server, from the extra of that name."""

    def __init__(self, app: ASGIApp, sockets: list[socket.socket], descriptors: Descriptors) -> None:
        self._sockets = sockets
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=partial(_Connection, descriptors),  # type: ignore[arg-type]  # it is only called
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=ACCEPTS,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            )
        )

    async def serve(self) -> None:
        await self._server.serve(sockets=self._sockets)

    def close(self) -> None:
        self._server.should_exit = True
        stop_accepting(getattr(self._server, "servers", ()))
        # Not once: a connection that is accepted at this moment would be in use for as long as its client likes.
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    def cut(self) -> None:
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
