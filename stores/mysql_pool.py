"""A bounded pool of connections. A connection comes back only in a known state, else it is closed.

aiomysql's own pool is not used: it hands out a connection whose last caller was cancelled in mid-reply, and knows
neither the second driver nor a look at the server.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import uniform

from msgspec.structs import replace

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from stores.mysql_driver import Connection, connect
from stores.mysql_server import SESSION, SHADOW_SESSION, Server, look
from stores.mysql_settings import MysqlSettings
from stores.mysql_text import literal

IDLE_SECONDS = 60.0
"""A connection idle for longer is closed rather than used again: Phorge gets it back, and no time-out can hit it."""

AGE_SECONDS = 300.0
"""A connection is replaced after about so long: where the address leads to another server now, it leads there too."""

LOOK_SECONDS = 60.0
"""After a failure, or at most this long, the next connection looks at the server anew."""

AWAY_SECONDS = 10.0
"""For so long tables of a companion that was there are waited for: somebody may put a copy back, table by table."""

ROOM_SECONDS = 10.0
"""How long a call waits for a free connection."""


class Pool:
    """Connections to one server, opened when they are needed, at most `settings.connections` of them."""

    def __init__(
        self,
        settings: MysqlSettings,
        options: StoreOptions,
        *,
        skip_locked: bool,
        password_now: Callable[[], str] | None = None,
    ) -> None:
        self.settings = settings
        self._password_now = password_now or (lambda: settings.password)
        self._options = options
        self._session = SHADOW_SESSION if options.read_only else SESSION
        self._skip_locked = skip_locked
        self._room = asyncio.Semaphore(settings.connections)
        self._idle: list[tuple[Connection, float]] = []
        self._server: Server | None = None
        self._looked_at = 0.0
        self._had_companion = False
        self._make_again_at = math.inf
        self._looking = asyncio.Lock()
        self._closed = False

    @asynccontextmanager
    async def connection(self, operation: str) -> AsyncIterator[tuple[Connection, Server]]:
        """A connection in autocommit, and what its server can do. Raises ServerError or StoreUnavailable.

        After an error that leaves it in doubt it is closed; so it is where the caller is cancelled.
        """
        if self._closed:
            raise StoreUnavailable(operation, "the store is closed")
        await self._enter(operation)
        try:
            connection = await self._take()
            try:
                yield connection, await self._known_server(connection)
            finally:
                old = time.monotonic() >= connection.old_at
                if not (old or connection.closed or connection.in_transaction or self._closed):
                    self._idle.append((connection, time.monotonic()))
                else:
                    connection.abort()
        finally:
            self._room.release()

    async def _enter(self, operation: str) -> None:
        if not self._room.locked():
            await self._room.acquire()  # at once: a time-out around it would cost more than all the rest here
            return
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise StoreUnavailable(operation, f"all {self.settings.connections} connections were busy") from None

    async def _take(self) -> Connection:
        now = time.monotonic()
        while self._idle:
            connection, since = self._idle.pop()  # the newest: the others grow old and are closed
            if now - since <= IDLE_SECONDS and now < connection.old_at:
                return connection
            connection.abort()
        connection = await connect(replace(self.settings, password=self._password_now()))
        try:
            await connection.run(f"{self._session}; SELECT GET_LOCK({literal(connection.name)}, 0)")
        except BaseException:
            connection.abort()
            raise
        connection.old_at = now + AGE_SECONDS * uniform(0.75, 1.25)
        return connection

    async def _known_server(self, connection: Connection) -> Server:
        known = self._server
        if known is not None and time.monotonic() - self._looked_at < LOOK_SECONDS:
            return known
        async with self._looking:  # many callers wait here right after an outage: one of them looks
            if self._server is None or time.monotonic() - self._looked_at >= LOOK_SECONDS:
                make = not self._had_companion or time.monotonic() >= self._make_again_at
                server = await look(connection, self.settings, self._options, skip_locked=self._skip_locked, make=make)
                if self._had_companion and not server.companion:
                    self._make_again_at = min(self._make_again_at, time.monotonic() + AWAY_SECONDS)
                    # without it pauses would be lifted and keys forgotten, in silence
                    reason = f"the database {self.settings.companion_database} lacks a table or cannot be used any more"
                    raise StoreUnavailable("open", reason)
                self._had_companion, self._make_again_at = server.companion, math.inf
                self._server, self._looked_at = server, time.monotonic()
            return self._server

    def forget(self) -> None:
        """After a failure of a connection or a missing table: what is idle is closed, the server looked at anew."""
        self._server = None
        for connection, _ in self._idle:
            connection.abort()
        self._idle.clear()

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        self._closed = True
        for connection, _ in self._idle:
            await connection.close()
        self._idle.clear()
