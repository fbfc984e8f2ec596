"""uvicorn as the HTTP server: about four times as many requests a second."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from queue_runtime.engine import KEEP_ALIVE_SECONDS, MAX_HEAD_BYTES
from queue_runtime.listen import BACKLOG


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the supervisor's."""
        yield


class Uvicorn:
    """The fast server, from the extra of that name."""

    def __init__(self, app: ASGIApp, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            )
        )

    async def serve(self) -> None:
        await self._server.serve(sockets=self._sockets)

    def close(self) -> None:
        self._server.should_exit = True
        for one in getattr(self._server, "servers", ()):
            one.close()
        # Not once: a connection that is accepted at this moment would be in use for as long as its client likes.
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    def cut(self) -> None:
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
