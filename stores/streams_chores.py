"""Work in the background that no caller waits for to its end."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from queue_runtime.errors import StoreUnavailable
from stores.streams_line import LineDownError

HURRY_SECONDS = 0.05
"""How long a caller waits for what is done for it after its commit."""

CLOSE_SECONDS = 1.0
MOST = 64
LATE_SECONDS = 0.5
"""More work than that under way, some of it for so long, means that the server does not keep up."""


class Chores:
    """Runs them. An outage in one is no news, because the line says so; a fault of our own is raised by `check`."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], float] = {}
        """since when, the oldest first"""
        self._named: dict[str, asyncio.Task[None]] = {}
        self._fault: BaseException | None = None
        self._slow = 0

    @property
    def full(self) -> bool:
        """Whether too much is under way. Many callers at one moment are not too much."""
        return len(self._running) >= MOST and time.monotonic() - next(iter(self._running.values())) > LATE_SECONDS

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        """Begin with it."""
        task = asyncio.create_task(self._run(work))
        self._running[task] = time.monotonic()
        task.add_done_callback(self._running.pop)
        return task

    def start_once(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Begin with it, unless work of this name is under way."""
        running = self._named.get(name)
        if running is not None and not running.done():
            work.close()
        else:
            self._named[name] = self.start(work)

    async def hurry(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin with it and wait for a moment; while earlier work is slow nobody waits at all."""
        task = self.start(work)
        if self._slow:
            return
        _, late = await asyncio.wait({task}, timeout=HURRY_SECONDS)
        if late:
            self._slow += 1
            task.add_done_callback(self._caught_up)

    def _caught_up(self, _task: "asyncio.Task[None]") -> None:
        self._slow -= 1

    async def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except (LineDownError, StoreUnavailable):
            pass
        except Exception as fault:  # noqa: BLE001  raised where the store is called next
            self._fault = fault

    def check(self) -> None:
        """Raise a fault that has happened."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    async def aclose(self) -> None:
        """Wait a moment for what is under way, and end the rest."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
