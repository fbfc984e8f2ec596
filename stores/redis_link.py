"""A bounded set of connections to the server of the queue, one command and one reply at a time on each."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from queue_runtime.errors import StoreUnavailable
from stores.redis_address import CONNECT_SECONDS, Address, hang_up
from stores.redis_errors import Cut, Refused, error_code, reason_of, translate
from stores.redis_server import ServerFacts, objection, read_info

FACTS_SECONDS = 30.0
"""How long what the server says of itself is believed: its eviction policy may be changed while it runs."""

WAIT_SECONDS = 10.0
"""How long a caller waits for one of the connections."""

Reply = Any
"""What the driver parsed: bytes, int, None, or lists of these. Goes no further than the stores/redis modules."""


class Link:
    """Connects when it is used. A connection whose reply was not read to its end is closed, never used again."""

    def __init__(self, address: Address, *, connections: int, allow_eviction: bool) -> None:
        self._address = address
        self._allow_eviction = allow_eviction
        self._room = anyio.Semaphore(connections, fast_acquire=True)
        self._idle: list[AbstractConnection] = []
        self.era = 0
        """Counts the times that all connections were given up; an older one is not kept."""
        self._closed = False
        self.facts = ServerFacts()
        self._facts_until = 0.0

    async def call(self, operation: str, *command: bytes | str | int) -> Reply:
        """Send a command and read its reply. Raises Refused, Cut or another StoreUnavailable; a server's error that
        is none of these as it is."""
        async with self._turn(operation):
            connection, era = await self._take(operation), self.era
            whole = False
            try:
                packed = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub knows one argument
                async with asyncio.timeout(self._address.reply_seconds):
                    if time.monotonic() > self._facts_until:
                        await self._look_again(operation, connection)
                    await connection.send_packed_command(packed, check_health=False)
                    reply = await connection.read_response()
                whole = True
            except TimeoutError:
                raise Cut(operation, f"no reply within {self._address.reply_seconds:g} s") from None
            except RedisError as error:
                whole = isinstance(error, ResponseError)
                raise await self._meaning(operation, error) from error
            except OSError as error:
                raise Cut(operation, f"the connection was lost ({reason_of(error)})") from error
            finally:
                # also after cancellation: a reply that may still come belongs to nobody
                await self._give_back(connection, era, whole=whole)
            return reply

    def look_again(self) -> None:
        """Have the next call ask the server first whether a queue can still live there."""
        self._facts_until = 0.0

    async def _look_again(self, operation: str, connection: AbstractConnection) -> None:
        self._believe(await _ask_facts(connection))
        if self.facts.role == "slave":
            await self.drop_all()
            raise Refused(operation, "the server is a replica")
        if (problem := objection(self.facts, allow_eviction=self._allow_eviction)) is not None:
            await self.drop_all()  # and no new connection is used while it is so
            raise StoreUnavailable(operation, problem)

    def _believe(self, facts: ServerFacts) -> None:
        self.facts = facts
        self._facts_until = time.monotonic() + FACTS_SECONDS

    async def _meaning(self, operation: str, error: RedisError) -> Exception:
        meaning = translate(operation, error)
        if isinstance(meaning, Refused):
            if meaning.moved_to is not None:
                self._address.moved_to = meaning.moved_to
            if error_code(error) in ("READONLY", "MOVED", "MASTERDOWN"):
                await self.drop_all()
        return error if meaning is None else meaning

    @asynccontextmanager
    async def _turn(self, operation: str) -> AsyncIterator[None]:
        """One of the places; waiting for it has a bound."""
        try:
            self._room.acquire_nowait()
        except anyio.WouldBlock:
            try:
                with anyio.fail_after(WAIT_SECONDS):
                    await self._room.acquire()
            except TimeoutError:
                raise StoreUnavailable(operation, f"no free connection within {WAIT_SECONDS:g} s") from None
        try:
            yield
        finally:
            self._room.release()

    async def _take(self, operation: str) -> AbstractConnection:
        while self._idle:
            connection = self._idle.pop()
            if not await _is_stale(connection):
                return connection
            await hang_up(connection)
        return await self.connect(operation)

    async def _give_back(self, connection: AbstractConnection, era: int, *, whole: bool) -> None:
        if whole and era == self.era and not self._closed:
            self._idle.append(connection)
        else:
            await hang_up(connection)

    async def connect(self, operation: str) -> AbstractConnection:
        """A new connection to a server that a queue can live on. Nothing happened when it fails."""
        connection: AbstractConnection | None = None
        try:
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                connection = await self._address.open()
                self._believe(await _ask_facts(connection))
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            await self._lost(connection)
            meaning = translate(operation, error) if isinstance(error, RedisError) else None
            if meaning is None or isinstance(meaning, Cut):
                meaning = Refused(operation, f"cannot connect ({reason_of(error)})")
            raise meaning from error
        except BaseException:
            await self._lost(connection)
            raise
        if self.facts.role == "slave":
            await self._lost(connection)
            raise Refused(operation, "the server is a replica")
        if (problem := objection(self.facts, allow_eviction=self._allow_eviction)) is not None:
            await self._lost(connection)
            raise StoreUnavailable(operation, problem)
        return connection

    async def _lost(self, connection: AbstractConnection | None) -> None:
        self._address.moved_to = None
        if connection is not None:
            await hang_up(connection)

    async def drop_all(self) -> None:
        """Give up every connection: the server is no longer the right one. Those in use go when their call ends."""
        self.era += 1
        idle, self._idle = self._idle, []
        for connection in idle:
            await hang_up(connection)

    async def aclose(self) -> None:
        """Close what is idle; the rest closes when its call ends."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect()


async def _is_stale(connection: AbstractConnection) -> bool:
    """Whether the server has closed it, or has said something that nobody asked for."""
    try:
        if hasattr(connection, "can_read"):
            return bool(await connection.can_read())
        return bool(await connection.can_read_destructive())  # the name before redis-py 8
    except (RedisError, OSError):
        return True


async def _ask_facts(connection: AbstractConnection) -> ServerFacts:
    await connection.send_command("INFO")
    try:
        info = await connection.read_response()
    except ResponseError as error:
        if error_code(error) == "NOPERM" or "unknown command" in str(error):  # renamed away
            return ServerFacts()
        raise
    return read_info(info)
