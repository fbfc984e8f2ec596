"""Notices a blocked event loop, and names the handler that blocks it."""

import asyncio
import sys
import threading
import time
import traceback

import anyio
import structlog

from queue_runtime.stats import WorkerStats

THRESHOLD = 1.0
"""Seconds after which a blocked event loop is worth a warning."""

STACK_LINES = 6


class Watchdog:
    """A thread that asks the event loop for a sign of life, four times in each threshold.

    While the event loop is blocked nothing else in the process can speak: no renewal, no answer to a probe.
    """

    def __init__(self, stats: WorkerStats, *, threshold: float = THRESHOLD) -> None:
        self._stats = stats
        self._threshold = threshold
        self._log = structlog.get_logger().bind()
        self._alive_at = 0.0
        self._asleep = threading.Event()

    async def run(self, stop: anyio.Event) -> None:
        """Watch this event loop until told to stop."""
        loop = asyncio.get_running_loop()
        self._asleep.clear()
        thread = threading.Thread(target=self._watch, args=(loop, threading.get_ident()), name="watchdog", daemon=True)
        thread.start()
        try:
            await stop.wait()
        finally:
            self._asleep.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        interval = self._threshold / 4
        while not self._asleep.wait(interval):
            asked_at = time.monotonic()
            try:
                loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the event loop is closed
            named = False
            while self._alive_at < asked_at and not self._asleep.wait(interval):
                if not named and time.monotonic() - asked_at >= self._threshold:
                    named = True
                    self._name(loop, loop_thread)
            blocked = self._alive_at - asked_at
            if blocked >= self._threshold:
                self._stats.blocked_seconds += blocked
                self._log.warning("event loop was blocked", seconds=round(blocked, 2))

    def _answer(self) -> None:
        self._alive_at = time.monotonic()

    def _name(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        task = asyncio.current_task(loop)
        frame = sys._current_frames().get(loop_thread)
        stack = traceback.format_stack(frame)[-STACK_LINES:] if frame is not None else []
        self._log.warning(
            "event loop is blocked: renewals, API and probes stand still",
            running=None if task is None else task.get_name(),
            stack="".join(stack),
        )
