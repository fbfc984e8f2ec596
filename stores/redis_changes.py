"""Hears that work may have become leasable: the server's message, a look now and then, and rows coming due."""

import asyncio

import anyio

from queue_runtime.store import StoreOptions
from stores.redis_calls import Calls
from stores.redis_ear import Ear
from stores.redis_orders import Orders

_SELDOM = 1.0
"""Seconds between two looks while messages are heard; they are the safety net."""

_DEAF = 0.1
"""The same while they are not."""

_TEST_CLOCK = 0.025
_TICK = 0.001


class Changes:
    """One caller waits here (the doorbell).

    A look reads the version that every change raises, and asks for a message at the next one. Whatever happens
    after it is told; whatever happened before it shows in the version.
    """

    def __init__(self, calls: Calls, options: StoreOptions, orders: Orders) -> None:
        self._calls = calls
        self._patience = options.patience
        self._test_clock = options.now is not None
        self._ear = Ear(calls.link, f"{calls.keys}bell", orders.channel, heard=self._heard, given=orders.heard)
        self._bell = asyncio.Event()
        self._rung = False
        self._asked = False
        """whether the next change will be told"""
        self._version: int | None = None
        self._told: int | None = None
        """the last second up to which rows coming due were told of"""
        self._look_at = 0.0
        self._due_at: float | None = None

    async def wait(self, timeout: float) -> bool:
        """Until something changed, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._ear.start()
        # Whoever was rung for a moment ago sends its lease first: the look would be served before it, and it can wait.
        await asyncio.sleep(0)
        while True:
            now = loop.time()
            if not self._rung and (not self._asked or now >= min(deadline, self._next_look())):
                await self._look()
            if self._rung:
                self._rung = False
                return True
            if now >= deadline:
                return False
            await self._sleep(min(deadline, self._next_look()) - loop.time())

    def _heard(self, version: int | None) -> None:
        """The server told of a change, or (None) was heard again after a silence."""
        self._asked = False
        if version is None or version != self._version:
            self._version = version
            self._rung = True
            self._bell.set()

    @property
    def hears_orders(self) -> bool:
        """Whether tasks can be handed to this store now."""
        return self._ear.hears_own and self._ear.hears

    def _next_look(self) -> float:
        if self._test_clock:
            return self._look_at + _TEST_CLOCK
        moment = self._look_at + (_SELDOM if self._ear.hears else _DEAF)
        return moment if self._due_at is None else min(moment, max(self._due_at, self._look_at + _TICK))

    async def _look(self) -> None:
        told = "" if self._told is None else self._told
        self._asked = True  # before the call: a message that comes while the reply is on its way counts
        try:
            version, now, micros, next_due = await self._calls.script("changed", self._patience, told, repeatable=True)
        except BaseException:
            self._asked = False
            raise
        self._look_at = asyncio.get_running_loop().time()
        if version != self._version:
            self._version, self._rung = version, True
        if self._told is None or self._told > now:
            self._told = now
        if 0 <= next_due <= now:
            self._told, self._rung, self._due_at = now, True, None
        else:
            self._due_at = None if next_due < 0 else self._look_at + next_due - now - micros / 1_000_000

    async def _sleep(self, seconds: float) -> None:
        self._bell.clear()
        if self._rung or seconds <= 0:
            return
        with anyio.move_on_after(seconds):
            await self._bell.wait()

    async def aclose(self) -> None:
        """Stop listening."""
        await self._ear.aclose()
