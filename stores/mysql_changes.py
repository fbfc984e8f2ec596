"""Notices that work may have become leasable: own writes, tasks enqueued by anybody, and rows coming due."""

import asyncio
from collections import deque

import anyio
from msgspec import Struct

from queue_runtime.store import StoreOptions
from stores.mysql_session import Session, Sessions

SOON = 0.025
"""Seconds between two looks at the tables while something is going on."""

SELDOM = 0.25
LIVELY_SECONDS = 10.0
"""For so long after the last activity the tables are looked at every SOON."""

AT_ONCE = 0.005
"""The first look after a new id was seen: PHP draws the id before the row can be seen."""

YOUNG_SECONDS = 1.0
"""For so long after its id was drawn a row is waited for."""

MARGIN = 0.001
"""Seconds into a new second of the server's clock: what comes due does so at its beginning."""


class Sign(Struct, frozen=True):
    """What a set of rows looked like: the same rows have the same sign."""

    count: int
    mark: int
    latest: int = 0


class Seen(Struct, frozen=True):
    """One look at the tables."""

    counter: int
    """the last task id that was given out"""

    second: float
    """how far the server's clock was into its second"""

    young: Sign
    """ready rows whose ids were drawn lately"""

    due: Sign
    """rows whose time has come; `latest` is the last of these times"""


class Changes:
    """One caller waits here (the doorbell); what this process writes itself passes by."""

    def __init__(self, options: StoreOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_test_clock = options.now is not None
        self._bell = asyncio.Event()
        self._rung = False
        self._seen: Seen | None = None
        self._draws: deque[tuple[float, int]] = deque()
        """when the counter was seen to have moved, and what it had been before"""
        self._looked_at = self._second_ends = self._lively_until = 0.0
        self._awaited = False
        """whether the last look saw a new id and no row, and was not itself a look at once"""

    def ring(self) -> None:
        """This process has made work leasable."""
        self._rung = True
        self._liven()
        self._bell.set()

    def _liven(self) -> None:
        """Work has come: for a while more may come soon. That some is leased or ended says nothing of the kind."""
        self._lively_until = self._loop.time() + LIVELY_SECONDS

    async def wait(self, sessions: Sessions, timeout: float) -> bool:
        """Until something changed, or the time is over. Raises StoreUnavailable where the tables cannot be read."""
        deadline = self._loop.time() + timeout
        while True:
            late = self._loop.time() >= deadline
            if not self._rung and (late or self._loop.time() >= self._next_look()):
                await self._look(sessions)
            if self._rung:
                self._rung = False
                return True
            if late:
                return False
            await self._sleep(min(deadline, self._next_look()) - self._loop.time())

    def _next_look(self) -> float:
        if self._awaited:
            return self._looked_at + AT_ONCE
        interval = SOON if self._looked_at < self._lively_until or self._has_test_clock else SELDOM
        moment = self._looked_at + interval
        # Even when nothing goes on, a row that comes due is seen at once: whole seconds are when rows do.
        return min(moment, self._second_ends) if self._second_ends > self._looked_at else moment

    async def _look(self, sessions: Sessions) -> None:
        base = self._base()
        seen = await sessions.play("changed", lambda session: _read(session, base))
        before, self._seen = self._seen, seen
        self._looked_at = self._loop.time()
        self._second_ends = self._looked_at + 1 - seen.second + MARGIN
        if before is None:
            self._rung = True  # nobody knows what happened until now
            return
        drawn = seen.counter != before.counter
        self._awaited = drawn and seen.young.count == 0 and not self._awaited
        if drawn:
            self._liven()
            self._remember(before.counter, seen.counter)
        if (seen.young != before.young and seen.young.count) or _has_more(before.due, seen.due):
            self._liven()
            self._rung = True

    def _base(self) -> int:
        """Rows above this id are young."""
        while self._draws and self._draws[0][0] < self._loop.time() - YOUNG_SECONDS:
            self._draws.popleft()
        if self._draws:
            return self._draws[0][1]
        return 0xFFFFFFFF if self._seen is None else self._seen.counter

    def _remember(self, before: int, counter: int) -> None:
        if counter < before:  # set back: an older database was restored
            self._draws.clear()
            self._rung = True
        else:
            self._draws.append((self._looked_at, before))

    async def _sleep(self, seconds: float) -> None:
        self._bell.clear()
        if self._rung or seconds <= 0:
            return
        with anyio.move_on_after(seconds):
            await self._bell.wait()


def _has_more(before: Sign, now: Sign) -> bool:
    """Whether rows came, and not only went. A row that nobody takes counts once."""
    return now.latest > before.latest or now.count > before.count or (now.count == before.count and now != before)


async def _read(session: Session, base: int) -> Seen:
    ((counter, microseconds, young_count, young_mark, due_count, due_mark, due_latest),) = await session.rows(
        "changed", now=session.now, base=base
    )
    return Seen(
        counter=counter or 0,
        second=microseconds / 1_000_000,
        young=Sign(young_count, young_mark),
        due=Sign(due_count, due_mark, due_latest or 0),
    )
