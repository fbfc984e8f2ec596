"""Has the store do its housekeeping now and then."""

import random

import anyio
import structlog

from queue_runtime.backoff import Outage, pause, rest
from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.store import Store
from queue_runtime.task import SweepReport

LIMIT = 1000

BREATH = 0.05
"""Seconds between two rounds of one sweep, in which everybody else gets at the store."""


RED_AFTER = 600.0
"""Seconds of trouble after which readiness turns red: a lock held on the rows to purge is nobody's alarm."""


class SweepLoop:
    """Sweeps every `sweep_seconds`, and goes on at once while there is more to do.

    Trouble waits here and disturbs nobody: not the API, not the worker, not the start.
    """

    def __init__(self, store: Store, lifecycle: Lifecycle, *, sweep_seconds: float, limit: int = LIMIT) -> None:
        self._store = store
        self.sweep_seconds = sweep_seconds
        """may be changed while it runs"""
        self._limit = limit
        self._outage = Outage("sweep", lifecycle, red_after=RED_AFTER)
        self._log = structlog.get_logger().bind()

    async def run(self, stop: anyio.Event) -> None:
        """Sweep until told to stop."""
        # Many processes that start together do not sweep together.
        wait = random.uniform(0, min(self.sweep_seconds, 1.0))
        while await pause(stop, wait):
            try:
                report = await self.sweep_once()
            except StoreUnavailable as error:
                wait = self._outage.failed(error)
                continue
            self._outage.over()
            wait = BREATH
            if not report.more and not await rest(stop, lambda: self.sweep_seconds):
                break

    async def sweep_once(self) -> SweepReport:
        """One round of housekeeping."""
        report = await self._store.sweep(self._limit)
        if report.expired or report.promoted or report.redelivered:
            self._log.debug("swept", expired=report.expired, promoted=report.promoted, redelivered=report.redelivered)
        return report
