"""The body of a request that the gateway passes on, as it arrives."""

from collections.abc import AsyncGenerator

import anyio
from starlette.types import Receive

POUR_SECONDS = 1.0
POUR_BYTES = 2**20
"""So much of a body that is too large is read in order to be forgotten."""


class TooLarge(Exception):
    """The body of the request has more bytes than may pass."""


class Gone(Exception):
    """The caller hung up before its request was complete."""


class WrongLength(Exception):
    """The body has not as many bytes as were announced: a server may lose it where a connection was to be switched."""


class RequestBody:
    """Chunks, of at most `limit` bytes together and exactly `declared` ones, where that is known."""

    def __init__(self, receive: Receive, limit: int, declared: int | None) -> None:
        self._receive = receive
        self._limit = limit
        self._declared = declared
        self._more = True
        self._complete = anyio.Event()

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        size = 0
        while self._more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            chunk: bytes = message.get("body", b"")
            self._more = message.get("more_body", False)
            size += len(chunk)
            if size > self._limit:
                raise TooLarge
            if self._declared is not None and (size > self._declared or (size < self._declared and not self._more)):
                raise WrongLength
            if chunk:
                yield chunk
        self._complete.set()

    async def pour_away(self) -> None:
        """Read on for a moment: a caller that is still sending when the connection is closed may miss its reply."""
        size = 0
        with anyio.move_on_after(POUR_SECONDS):
            while self._more and size <= POUR_BYTES:
                message = await self._receive()  # the last one, a disconnect, has no more either
                self._more = message.get("more_body", False)
                size += len(message.get("body", b""))

    async def end_with_caller(self, scope: anyio.CancelScope) -> None:
        """Cancel the scope when the caller hangs up after its request."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.cancel()
