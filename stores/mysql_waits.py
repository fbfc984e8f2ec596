"""Calls that wait for rows which somebody else has locked: a line for each row, and one look at the tables for all.

However many wait, the server is asked a few times a second: who stands behind another for the same row sends nothing,
and the first of each line share their looks.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from functools import partial
from random import uniform
from typing import TypeVar
from weakref import WeakValueDictionary

from queue_runtime.errors import StoreUnavailable
from stores.mysql_errors import WAITED_LONG, ServerError
from stores.mysql_rows import ID
from stores.mysql_session import LOCKED_SECONDS, Session, Sessions

T = TypeVar("T")

SHORTEST, LONGEST = 0.05, 0.5
"""Seconds between two looks at a row: they double, and are up to half as long again, so that callers spread."""

_WAIT = 1
"""Seconds for which a try waits at the server. So long it may hold the other rows of its call."""

_NO_WAIT = 4.0
"""Seconds after such a try until the next of the same call: others get a chance at the rows that it held."""


class Table(StrEnum):
    """Where a row is."""

    ACTIVE = "active"
    ARCHIVED = "archived"


_STATEMENTS = {Table.ACTIVE: ("lock_rows", "see_rows"), Table.ARCHIVED: ("lock_archived", "see_archived")}
"""What tells rows that are free, and then rows that are there at all."""

Row = tuple[Table, int]
Try = Callable[[Session, bool], Awaitable[tuple[T, frozenset[int]]]]
"""A transaction: its answer, and the rows that somebody else has locked: where there are any, it has changed nothing.

With True it waits for them.
"""


class Waits:
    """The lines of one store, and what was seen of their rows."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._now = asyncio.get_running_loop().time
        self._lines: WeakValueDictionary[Row, asyncio.Lock] = WeakValueDictionary()
        self._awaited: Counter[Row] = Counter()
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._locked: frozenset[Row] = frozenset()
        self._failure: StoreUnavailable | None = None

    async def play(self, operation: str, table: Table, attempt: Try[T]) -> T:
        """Try until none of the rows is locked by somebody else; then all is done in one go.

        Between two tries it has neither a connection nor a lock, so one locked row holds up only who asks for that row.
        Raises StoreUnavailable, with nothing changed, where a row stays locked for LOCKED_SECONDS.
        """
        until = self._now() + LOCKED_SECONDS
        answer, locked = await self._sessions.play(operation, lambda session: attempt(session, False))
        while locked:
            row = table, min(locked)
            async with self._turn(operation, row, until):
                answer, locked = await self._first(operation, row, attempt, until)
        return answer

    async def pass_by(self, operation: str, table: Table, ids: Collection[int], seconds: float) -> None:
        """Return when none of these rows is locked by somebody else, or after so many seconds."""
        await self._seen_free(operation, [(table, task_id) for task_id in ids], self._now() + seconds)

    @asynccontextmanager
    async def _turn(self, operation: str, row: Row, until: float) -> AsyncIterator[None]:
        """A block that one call for this row is in at a time, in the order of their coming."""
        line = self._lines.setdefault(row, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await line.acquire()
        except TimeoutError:
            raise _stays_locked(operation, row) from None
        try:
            yield
        finally:
            line.release()

    async def _first(self, operation: str, row: Row, attempt: Try[T], until: float) -> tuple[T, frozenset[int]]:
        """The first answer by which this row is free. Others may be locked: then this is the wrong line to stand in.

        A few at a time wait at the server, where rows that are never free all at once can be had one after the other.
        """
        waits_from = self._now()
        while True:
            found = await self._sessions.play(operation, lambda session: attempt(session, False))
            if row[1] not in found[1]:
                return found
            if self._now() >= waits_from and not self._sessions.waits.locked():
                async with self._sessions.waits:
                    waited = await self._sessions.play(operation, lambda session: _wait(session, attempt))
                if waited is not None and row[1] not in waited[1]:
                    return waited
                waits_from = self._now() + _NO_WAIT
            if not await self._seen_free(operation, [row], until):
                raise _stays_locked(operation, row)

    async def _seen_free(self, operation: str, rows: Collection[Row], until: float) -> bool:
        """Whether none of them was locked by somebody else at a look before that time."""
        pause = SHORTEST
        with self._awaiting(rows):
            while (left := until - self._now()) > 0:
                await asyncio.sleep(min(uniform(pause, 1.5 * pause), left))
                try:
                    async with asyncio.timeout_at(until):
                        # no older than the pause, so these rows were among those looked at
                        locked = await self._look(operation, min(pause, left))
                except TimeoutError:
                    return False
                if locked.isdisjoint(rows):
                    return True
                pause = min(2 * pause, LONGEST)
        return False

    @contextmanager
    def _awaiting(self, rows: Collection[Row]) -> Iterator[None]:
        self._awaited.update(rows)
        try:
            yield
        finally:
            for row in rows:
                self._awaited[row] -= 1
                if not self._awaited[row]:
                    del self._awaited[row]

    async def _look(self, operation: str, age: float) -> frozenset[Row]:
        """Which of the awaited rows are locked, by a look that was no older than this when it was asked for.

        One look at a time: where it takes long, all who have come meanwhile share the next one. Raises StoreUnavailable
        to all alike.
        """
        asked = self._now()
        async with self._looking:
            if self._looked_at < asked - age:
                rows, began = list(self._awaited), self._now()
                try:
                    self._locked = await self._sessions.play(operation, partial(_locked, rows=rows))
                    self._failure = None
                except StoreUnavailable as error:
                    self._failure = error
                self._looked_at = began
            if self._failure is not None:
                raise StoreUnavailable(operation, self._failure.reason) from self._failure
            return self._locked


async def _locked(session: Session, *, rows: Collection[Row]) -> frozenset[Row]:
    """Those of the rows that somebody else has locked; in autocommit, so that it keeps none locked itself."""
    tables = [(table, sorted(task_id for where, task_id in rows if where is table)) for table in Table]
    asked = [(table, ids) for table, ids in tables if ids]
    answers = await session.trip(
        *(session.fill(statement, ids=ids) for table, ids in asked for statement in _STATEMENTS[table])
    )
    found = [frozenset(row[ID] for row in answer.rows) for answer in answers]
    return frozenset(
        (table, task_id)
        for (table, _), free, there in zip(asked, found[::2], found[1::2], strict=True)
        for task_id in there - free
    )


async def _wait(session: Session, attempt: Try[T]) -> tuple[T, frozenset[int]] | None:
    """The answer of a try that waits for locked rows; None where that took too long."""
    async with session.waiting(_WAIT):
        try:
            return await attempt(session, True)
        except ServerError as error:
            if error.number not in WAITED_LONG:
                raise
            await session.end()
            return None


def _stays_locked(operation: str, row: Row) -> StoreUnavailable:
    return StoreUnavailable(operation, f"task {row[1]} is locked by somebody else")
