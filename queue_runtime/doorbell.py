"""Wakes whoever waits for work: the lease loop and the long polls."""

import time
from collections.abc import Callable

import anyio

from queue_runtime.backoff import Outage, pause
from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store

LISTEN_SECONDS = 30.0

AT_ONCE = 0.002
"""A store that answers faster than this tells of the same work again and again."""

SHORTEST_PAUSE = 0.002
LONGEST_PAUSE = 0.02


class Doorbell:
    """Counts rings. Read `count` before looking for work, and wait for it to differ: no ring is lost between."""

    def __init__(self) -> None:
        self.count = 0
        self._rung: anyio.Event | None = None
        self._listeners: list[Callable[[], None]] = []

    def ring(self) -> None:
        """Work may be there."""
        self.count += 1
        if self._rung is not None:
            self._rung.set()
            self._rung = None
        for listener in self._listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each ring. It must be quick and must not raise."""
        self._listeners.append(listener)

    async def wait(self, seen: int, timeout: float) -> int:
        """Return the count as soon as it differs from `seen`, or after `timeout` seconds."""
        if self.count == seen:
            if self._rung is None:
                self._rung = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._rung.wait()
        return self.count

    async def listen(self, store: Store, stop: anyio.Event) -> None:
        """Pass on what the store notices, until told to stop. The one caller of `changed()`."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._pass_on, store, stop)
            await stop.wait()
            group.cancel_scope.cancel()

    async def _pass_on(self, store: Store, stop: anyio.Event) -> None:
        outage = Outage("doorbell")
        rest = SHORTEST_PAUSE
        while True:
            asked = time.monotonic()
            try:
                heard = await store.changed(LISTEN_SECONDS)
            except StoreUnavailable as error:
                await pause(stop, outage.failed(error))
                continue
            outage.over()
            if heard:
                self.ring()
            # Not a hot loop, even over a store that answers at once for ever; a change meanwhile is remembered.
            if time.monotonic() - asked < AT_ONCE:
                await anyio.sleep(rest)
                rest = min(rest * 2, LONGEST_PAUSE)
            else:
                rest = SHORTEST_PAUSE
