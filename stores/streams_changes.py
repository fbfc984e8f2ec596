"""Hears that work may be there: from the streams, and from the record, whose news it passes on to the streams."""

import asyncio

import anyio

from queue_runtime.errors import StoreUnavailable
from stores.dispatchable import Record
from stores.streams_bell import Bell
from stores.streams_chores import Chores
from stores.streams_feeder import Feeder, Tending
from stores.streams_line import Line, LineDownError

_REST_SHARE = 20
"""A look at the record that found nothing new is rested from for so many times as long as it took."""

_LONGEST_REST = 0.5


class Changes:
    """One caller waits here (the doorbell)."""

    def __init__(  # noqa: PLR0917
        self, record: Record, line: Line, bell: Bell, feeder: Feeder, chores: Chores, tending: Tending
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._record = record
        self._line = line
        self._bell = bell
        self._feeder = feeder
        self._chores = chores
        self._tending = tending
        self._rung = False
        self._wake = asyncio.Event()
        self._listening: asyncio.Task[bool] | None = None
        self._listens_until = 0.0
        self._look_wanted = False
        self._look_at = 0.0
        self._tend_at = self._loop.time() + tending.every

    def ring(self) -> None:
        """There is work in the streams, or another way to get at it."""
        self._rung = True
        self._wake.set()

    async def wait(self, timeout: float) -> bool:
        """Until something changed, or the time is over. Raises StoreUnavailable where the record cannot be asked."""
        self._bell.start()
        deadline = self._loop.time() + timeout
        while True:
            self._wake.clear()
            now = self._loop.time()
            self._tend(now)
            listening = self._listen(deadline)
            if now >= deadline and self._listens_until <= deadline:
                await asyncio.wait([listening])  # its last look
            if self._heard():
                self._rung = self._look_wanted = True
            if self._look_wanted and now >= min(self._look_at, deadline):
                await self._look()
            if self._rung:
                self._rung = False
                return True
            if now >= deadline:
                return False
            await self._sleep(deadline)

    def _listen(self, deadline: float) -> "asyncio.Task[bool]":
        """Have the record wait for news, unless it does so already, perhaps for an earlier caller."""
        if self._listening is None:
            seconds = max(0.0, deadline - self._loop.time())
            self._listens_until = deadline
            self._listening = asyncio.create_task(self._record.changed(seconds), name="streams-record")
            self._listening.add_done_callback(lambda _: self._wake.set())
        return self._listening

    def _heard(self) -> bool:
        """Whether the record had news."""
        if self._listening is None or not self._listening.done():
            return False
        listening, self._listening = self._listening, None
        return listening.result()

    async def _look(self) -> None:
        """Give the streams what is new in the record. Looks that find nothing are rested from."""
        self._look_wanted = False
        if not self._line.up:
            return
        began = self._loop.time()
        try:
            added = await self._feeder.look()
        except LineDownError:
            return
        except StoreUnavailable:
            self._look_wanted = True
            raise
        now = self._loop.time()
        self._look_at = now + (0.0 if added else min(_REST_SHARE * (now - began), _LONGEST_REST))

    def _tend(self, now: float) -> None:
        if self._line.up and now >= self._tend_at:
            self._tend_at = now + self._tending.every
            self._chores.start_once("tend", self._feeder.tend())

    async def _sleep(self, deadline: float) -> None:
        moment = min(deadline, self._tend_at) if self._line.up else deadline
        if self._look_wanted:
            moment = min(moment, self._look_at)
        seconds = moment - self._loop.time()
        if seconds > 0:
            with anyio.move_on_after(seconds):
                await self._wake.wait()

    async def aclose(self) -> None:
        """Stop at once."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
