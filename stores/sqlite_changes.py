"""Notices that work may have become leasable: own writes, other processes' commits, and rows coming due."""

import asyncio
import time
from collections.abc import Sequence

import anyio

from queue_runtime.store import StoreOptions
from stores.sqlite_session import Session
from stores.sqlite_threads import AnyRequest, SessionThread

_SOON = 0.025
"""Seconds between two looks at the file while something is going on."""

_SELDOM = 0.25
_LIVELY_SECONDS = 10.0
"""For so long after the last activity the file is looked at every _SOON."""

_TICK = 0.001


class Changes:
    """One caller waits here (the doorbell); the threads' answers pass by."""

    def __init__(self, options: StoreOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = options.now
        self._bell = asyncio.Event()
        self._rung = False
        self._stale = True
        """whether writes since the last look may have moved the next due moment"""
        self._version = 0
        self._next_due: int | None = None
        self._announced = self._time()
        """the last second up to which rows coming due were announced: a due row nobody takes rings once"""
        self._look_at = 0.0
        self._lively_until = 0.0

    async def begin(self, writer: SessionThread) -> None:
        """Count changes from here on."""
        self._version = await writer.call("open", _read_version, alone=True)

    def answered(self, batch: Sequence[AnyRequest], wrote: bool) -> None:
        """A round of our own is done."""
        if wrote:
            self._stale = True
            self._lively_until = self._loop.time() + _LIVELY_SECONDS
        if any(request.rings and request.error is None for request in batch):
            self._rung = True
            self._bell.set()

    async def wait(self, writer: SessionThread, timeout: float) -> bool:
        """Until something changed, or the time is over."""
        deadline = self._loop.time() + timeout
        while True:
            late = self._loop.time() >= deadline
            if not self._rung and (late or self._is_look_due()):
                await self._look(writer)
            if self._rung:
                self._rung = False
                self._announced = self._time()
                return True
            if late:
                return False
            await self._sleep(min(deadline, self._next_look()) - self._loop.time())

    def _is_look_due(self) -> bool:
        return self._loop.time() >= self._next_look()

    def _next_look(self) -> float:
        now = self._loop.time()
        interval = _SOON if self._stale or now < self._lively_until or self._now is not None else _SELDOM
        moment = self._look_at + interval
        if self._next_due is not None and self._now is None:
            moment = min(moment, max(now + self._next_due - time.time(), self._look_at + _TICK))
        return moment

    async def _look(self, writer: SessionThread) -> None:
        """Ask the file. On the writer's connection, whose own commits do not count as a change."""
        now = self._time()
        self._announced = min(self._announced, now)  # the clock was set back
        before, self._version = self._version, await writer.call("changed", _read_version, alone=True)
        if self._version != before:
            self._rung = self._stale = True
            self._lively_until = self._loop.time() + _LIVELY_SECONDS
        if self._stale or (self._next_due is not None and self._next_due <= now):
            self._stale = False  # a write that ends while we wait sets it again
            self._next_due = await writer.call("changed", self._read_next_due, alone=True)
        if self._next_due is not None and self._next_due <= now:
            self._rung = True
        self._look_at = self._loop.time()

    def _read_next_due(self, session: Session) -> int | None:
        ((moment,),) = session.rows("next_due", {"announced": self._announced, "patience": session.options.patience})
        return None if moment is None else int(moment)

    async def _sleep(self, seconds: float) -> None:
        self._bell.clear()
        if self._rung or seconds <= 0:
            return
        with anyio.move_on_after(seconds):
            await self._bell.wait()

    def _time(self) -> int:
        return int(time.time()) if self._now is None else self._now()


def _read_version(session: Session) -> int:
    """A number that moves when another connection commits."""
    ((version,),) = session.rows("data_version")
    return int(version)
