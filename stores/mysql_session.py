"""One transaction: its statements, its time, and the rule by which a broken one is played again.

A transaction is a function of a session that may be called again from the start: what it read before is void then.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import uniform
from typing import TypeVar

from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import U32
from stores.mysql_driver import Answer, Connection, Row
from stores.mysql_errors import MISSING, Kind, ServerError, for_caller
from stores.mysql_pool import ROOM_SECONDS, Pool
from stores.mysql_server import LOCK_WAIT, Server
from stores.mysql_text import Sql, Value, literal

T = TypeVar("T")
REPLAY_SECONDS = 10.0
"""How long a transaction is played again after deadlocks and lock waits."""

LOCKED_SECONDS = 50.0
"""How long a call waits for a row without which it cannot be, as long as MySQL's own clients do by default."""

RECONNECTS = 3
"""How often a transaction is played again on another connection because its own was gone before the commit."""

READ_SECONDS = 10.0
"""How long a list or a count may take."""


class Session:
    """A connection inside or outside of a transaction."""

    def __init__(self, connection: Connection, server: Server, options: StoreOptions) -> None:
        self._connection = connection
        self.server = server
        self.options = options
        self.committing = False
        """whether a COMMIT was sent and its answer has not been seen"""
        self.wrote = False

    @property
    def connection_name(self) -> str:
        """The named lock that this connection holds as long as it lives."""
        return self._connection.name

    @property
    def is_ghost(self) -> bool:
        """Whether the connection is gone here while its transaction may go on at the server."""
        return self._connection.closed and self._connection.in_transaction

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    @property
    def now(self) -> Sql:
        """The store's time as SQL: the server's, unless a test has its own."""
        return Sql("UNIX_TIMESTAMP()") if self.options.now is None else Sql(self.options.now())

    def fill(self, statement: str, /, **values: Value) -> str:
        """A statement of mysql.sql, by its name, with its values."""
        return self.server.statements[statement].fill(values)

    async def trip(self, *statements: str) -> list[Answer]:
        """Send statements in one trip; the answer of each."""
        sql = ";".join(statements)
        if len(sql) * 4 > self.server.packet and len(sql.encode(errors="surrogatepass")) >= self.server.packet:
            raise InvalidRequest("data", f"the server takes at most {self.server.packet} bytes (max_allowed_packet)")
        return await self._connection.run(sql)

    async def rows(self, statement: str, /, **values: Value) -> Sequence[Row]:
        """All rows of one statement, in a trip of its own."""
        return (await self.trip(self.fill(statement, **values)))[0].rows

    async def read(self, statement: str, /, **values: Value) -> Sequence[Row]:
        """As `rows`, for a SELECT that may have much to look at: the server ends it after READ_SECONDS."""
        text = self.fill(statement, **values)
        if self.server.is_mariadb:
            text = f"SET STATEMENT max_statement_time = {READ_SECONDS} FOR {text}"
        else:
            text = f"SELECT /*+ MAX_EXECUTION_TIME({READ_SECONDS * 1000:.0f}) */ {text.removeprefix('SELECT')}"
        return (await self.trip(text))[0].rows

    def patient(self, select: str) -> str:
        """A SELECT that waits for rows which somebody else has locked, in all no longer than for one of them.

        On MySQL, whose time-out is for SELECTs that lock nothing, it may wait so long for each.
        """
        if not self.server.is_mariadb:
            return select
        return f"SET STATEMENT max_statement_time = @@innodb_lock_wait_timeout FOR {select}"

    async def begin(self, *statements: str) -> list[Answer]:
        """Begin a transaction, with its first statements in the same trip; the answers of these."""
        self._connection.in_transaction = True
        return (await self.trip("BEGIN", *statements))[1:]

    async def commit(self, *statements: str) -> list[Answer]:
        """Send the last statements with the COMMIT, in one trip."""
        self.committing = True
        answers = await self.trip(*statements, "COMMIT")
        self.committing = self._connection.in_transaction = False
        self.wrote = True
        return answers[:-1]

    async def end(self) -> None:
        """Roll back what is open, if anything is."""
        if self._connection.in_transaction:
            self.committing = False
            await self.trip("ROLLBACK")
            self._connection.in_transaction = False

    @asynccontextmanager
    async def waiting(self, seconds: int) -> AsyncIterator[None]:
        """A block in which a statement waits so long for a row that somebody else has locked."""
        if seconds != LOCK_WAIT:
            await self.trip(f"SET SESSION innodb_lock_wait_timeout = {seconds}")
        try:
            yield
        finally:
            if seconds != LOCK_WAIT and not self._connection.closed:
                await self.trip(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT}")

    async def draw_ids(self, count: int, *, patience: int = LOCK_WAIT) -> tuple[int, int]:
        """The first id of a block of this many, and the time. Waits for the counter for `patience` seconds.

        With 0 it raises ServerError at once where somebody else has it locked, and leaves a transaction open; a server
        without NOWAIT waits for 1 s. In autocommit and before any transaction: inside one the counter's row would stay
        locked until the commit, for every enqueuer of the install (docs/decisions/0006). Ids that end up unused are a
        gap, which harms nobody.
        """
        assert not self._connection.in_transaction, "ids are drawn outside a transaction"
        draw = (
            self.fill("draw_ids", count=count),
            self.fill("drawn_in_use", count=count),
            self.fill("time", now=self.now),
        )
        if patience == 0 and self.server.skips_locked:
            # the transaction begins and ends within the trip: the counter is not locked for longer than by the draw
            self._connection.in_transaction = True
            _, _, drawn, used, time, _ = await self.trip("BEGIN", self.fill("lock_counter"), *draw, "COMMIT")
            self._connection.in_transaction = False
        else:
            async with self.waiting(max(patience, 1)):
                drawn, used, time = await self.trip(*draw)
        in_use = bool(used.rows[0][0])
        # the counter is new, or was set back: in an old install its first ids are in use
        if drawn.insert_id and (drawn.affected == 1 or in_use):
            (lifted,) = await self.trip(self.fill("lift_counter"))
            if lifted.affected or in_use:  # or somebody else has lifted it
                drawn, _, time = await self.trip(*draw)
        last_id = drawn.insert_id
        if not last_id:
            raise StoreFull("enqueue", f"task ids end at {U32}, and fewer than {count} are left")
        return last_id - count + 1, int(time.rows[0][0])


async def _kill(connection_id: int, session: "Session") -> None:
    await session.trip(f"KILL {connection_id}")


class Undecided(StoreUnavailable):
    """The answer of a COMMIT was lost. `connection` is the name of the one that it was sent on."""

    def __init__(self, operation: str, reason: str, connection: str) -> None:
        super().__init__(operation, reason)
        self.connection = connection


class Sessions:
    """Plays transactions on connections of a pool."""

    def __init__(self, pool: Pool, options: StoreOptions) -> None:
        self._pool = pool
        self._options = options
        connections = pool.settings.connections
        self._enqueues = asyncio.Semaphore(max(connections // 2, 1))
        self._lists = asyncio.Semaphore(max(connections // 2 - 1, 1))
        self.waits = asyncio.Semaphore(connections // 4)
        """For waits at the server for rows that somebody else has locked; who finds no room looks again and again."""

        self.write_refused = False
        """whether the server took no writes when it was last asked to"""
        self._ghosts: set[str] = set()
        """connections lost in mid-transaction: their locks stay for as long as the server does not notice"""

    async def play(
        self,
        operation: str,
        work: Callable[[Session], Awaitable[T]],
        *,
        seconds: float = REPLAY_SECONDS,
        reads: bool = False,
    ) -> T:
        """Play a transaction, again where it was surely rolled back. Raises StoreUnavailable where nobody knows.

        After a deadlock or a lock wait it is played again for up to `seconds`. A lost connection is replaced at once as
        long as no COMMIT was on its way. A server that takes no writes is left, as one that is gone, but for what only
        `reads`.
        """
        until = time.monotonic() + seconds
        reconnects = 0
        replays = 0
        while True:
            session: Session | None = None
            try:
                async with self._pool.connection(operation) as (connection, server):
                    session = Session(connection, server, self._options)
                    if not reads:
                        self._leave_read_only(connection, server)
                    if self._ghosts:
                        await self._end_ghosts(session)
                    try:
                        answer = await work(session)
                    finally:
                        if not connection.closed:
                            await session.end()
                    if session.wrote:
                        self.write_refused = False
                    return answer
            except ServerError as error:
                failure = error
            self._learn(failure, session)
            if failure.kind is Kind.REPLAY and time.monotonic() < until:
                replays += 1
                await asyncio.sleep(uniform(0.001, 0.01) * min(2**replays, 32))
                continue
            in_doubt = session is not None and session.committing and failure.kind is Kind.LOST
            if failure.connection_lost and session is not None and not in_doubt and reconnects < RECONNECTS:
                reconnects += 1
                await asyncio.sleep(0 if reconnects == 1 else uniform(0.05, 0.2))
                continue
            if in_doubt and session is not None:
                reason = f"{self._pool.settings.address}: {failure}"
                raise Undecided(operation, reason, session.connection_name) from failure
            raise for_caller(failure, operation, self._pool.settings.address) from failure

    def _learn(self, failure: ServerError, session: Session | None) -> None:
        if failure.connection_lost or failure.number in MISSING:
            self._pool.forget()
        if session is not None and session.is_ghost:
            self._ghosts.add(session.connection_name)
        if failure.kind in {Kind.READ_ONLY, Kind.FULL}:
            self.write_refused = True

    def _leave_read_only(self, connection: Connection, server: Server) -> None:
        if server.read_only and not self._options.read_only:
            connection.abort()
            raise ServerError(Kind.READ_ONLY, 0, "the server is read-only")

    @asynccontextmanager
    async def enqueueing(self) -> AsyncIterator[None]:
        """A block that enqueues. They get half of the connections, and wait for them for up to LOCKED_SECONDS.

        So where somebody holds the id counter for long, enqueues wait, and nothing else.
        """
        try:
            async with asyncio.timeout(LOCKED_SECONDS):
                await self._enqueues.acquire()
        except TimeoutError:
            raise StoreUnavailable("enqueue", "enqueues before it take their time") from None
        try:
            yield
        finally:
            self._enqueues.release()

    @asynccontextmanager
    async def listing(self, operation: str) -> AsyncIterator[None]:
        """A block that lists or counts, which may take long. Together with enqueues they leave connections over.

        So leases, renewals and outcomes find one, however many lists are asked for.
        """
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._lists.acquire()
        except TimeoutError:
            raise StoreUnavailable(operation, "lists before it take their time") from None
        try:
            yield
        finally:
            self._lists.release()

    async def _end_ghosts(self, session: Session) -> None:
        """Kill connections that were lost in mid-transaction, where the server still has them."""
        for name in tuple(self._ghosts):
            (answer,) = await session.trip(f"SELECT IS_USED_LOCK({literal(name)})")
            if answer.rows[0][0] is not None:
                try:
                    await session.trip(f"KILL {int(answer.rows[0][0])}")
                except ServerError as error:
                    if error.connection_lost:
                        raise
                    # it has ended by itself just now
            self._ghosts.discard(name)

    async def bury(self, doubt: Undecided) -> None:
        """Return when the connection of a lost COMMIT is gone, so that nothing of it can still happen.

        Each connection holds a named lock of the server, which ends with it. Raises StoreUnavailable.
        """

        async def look(session: Session) -> int | None:
            (answer,) = await session.trip(f"SELECT IS_USED_LOCK({literal(doubt.connection)})")
            return None if answer.rows[0][0] is None else int(answer.rows[0][0])

        until = time.monotonic() + REPLAY_SECONDS
        killed = False
        while (found := await self.play(doubt.operation, look)) is not None:
            if time.monotonic() > until:
                raise StoreUnavailable(doubt.operation, f"connection {found} with a lost answer does not end")
            if not killed:
                killed = True
                with suppress(StoreUnavailable):  # it has ended by itself
                    await self.play(doubt.operation, partial(_kill, found))
            await asyncio.sleep(0.02)
