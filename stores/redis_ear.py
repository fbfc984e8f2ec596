"""Listens to the bell and to the channel of one store, on a connection of its own."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress

import anyio
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoPermissionError, RedisError

from queue_runtime.backoff import Backoff
from queue_runtime.errors import StoreUnavailable
from stores.redis_address import hang_up
from stores.redis_link import Link

_VERSION = re.compile(rb"\d{1,20}")

_SILENCE = 5.0
"""After so many silent seconds the server is asked whether it is still there; after as many again it is not."""


class Ear:
    """Calls `heard` with the number in each ring, and with None when it hears again after not having heard.

    While nothing can be heard it keeps trying; `hears` tells, and the listener looks for itself meanwhile.
    `given` gets the messages of the store's own channel; an account may lack the right to that one alone.
    """

    def __init__(
        self,
        link: Link,
        bell: str,
        own: str,
        *,
        heard: Callable[[int | None], None],
        given: Callable[[bytes], None],
    ) -> None:
        self._link = link
        self._bell = bell
        self._own = own
        self._heard = heard
        self._given = given
        self._task: asyncio.Task[None] | None = None
        self.hears = False
        self.hears_own = False

    def start(self) -> None:
        """Begin to listen, once. A fault of our own in there is raised here."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="redis-ear")
        elif self._task.done():
            self._task.result()

    async def aclose(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                era, connection = self._link.era, await self._link.connect("changed")
            except StoreUnavailable:
                await anyio.sleep(backoff.next())
                continue
            try:
                await self._listen(connection, era, backoff)
            except (RedisError, OSError):
                await anyio.sleep(backoff.next())
            finally:
                self.hears = self.hears_own = False
                await hang_up(connection)

    async def _listen(self, connection: AbstractConnection, era: int, backoff: Backoff) -> None:
        await self._subscribe(connection)
        asked = False
        while era == self._link.era:
            message = await connection.read_response(timeout=_SILENCE)
            if message is None:
                if asked:
                    raise TimeoutError
                await connection.send_command("PING", check_health=False)
                asked = True
                continue
            asked = False
            if message[0] == b"subscribe":
                self.hears = True
                backoff.reset()
                self._heard(None)
            elif message[0] == b"message" and message[1] == self._own.encode():
                self._given(message[2])
            elif message[0] == b"message" and _VERSION.fullmatch(message[2]):  # anybody may write there
                self._heard(int(message[2]))

    async def _subscribe(self, connection: AbstractConnection) -> None:
        """Ask for both channels. Where the own one is refused there is the bell alone."""
        await connection.send_command("SUBSCRIBE", self._own)
        with suppress(NoPermissionError):
            if await connection.read_response(timeout=_SILENCE) is None:
                raise TimeoutError
            self.hears_own = True
        await connection.send_command("SUBSCRIBE", self._bell)
