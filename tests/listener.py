"""Servers of tests that answer as a test likes: what they have accepted ends with them, whatever it was about to do.

async with listening(serve) as port: ...
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from queue_runtime.listen import TURNS, stop_accepting

HOST = "127.0.0.1"
LIMIT = 2**20
"""Bytes that a reader keeps: more than any head or payload of a test."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Any number of addresses, and one way to serve their connections.

    A connection ends when `serve` returns. That its client has gone in the middle is no error; all others are raised
    by `close`.
    """

    def __init__(self, serve: Serve, *, tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._lines: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._errors: list[BaseException] = []

    async def on_port(self, port: int = 0) -> int:
        """Listen on this port of the loopback, or on one that is free; which."""
        server = await asyncio.start_server(self._accepted, HOST, port, limit=LIMIT)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def on_socket(self, path: str) -> None:
        """Listen on a Unix socket."""
        self._servers.append(await asyncio.start_unix_server(self._accepted, path, limit=LIMIT))

    async def close(self) -> None:
        """End everything, and wait for its end."""
        stop_accepting(self._servers)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for task, transport in self._lines.items():
            task.cancel()
            transport.abort()  # here, because a task that has not begun never comes to its own end
        while self._lines:
            await asyncio.wait(self._lines)
        await asyncio.sleep(0)  # for the sockets
        if self._errors:
            raise self._errors[0]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer))
        self._lines[task] = writer.transport
        task.add_done_callback(self._ended)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if self._tls is not None:
                    await writer.start_tls(self._tls)
                await self._serve(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._lines[task]
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)


@asynccontextmanager
async def listening(serve: Serve, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Listen on a port of the loopback, by default on one that is free; which."""
    listener = Listener(serve, tls=tls)
    try:
        yield await listener.on_port(port)
    finally:
        await listener.close()
