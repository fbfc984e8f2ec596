"""Renews held leases in one batch, and stops the runs that lost theirs."""

import math
import time
from typing import Protocol

import anyio
import structlog

from queue_runtime.backoff import Outage, pause
from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.store import Store
from queue_runtime.task import Lease

BATCH = 1000

LEAST_BOUND = 0.5
"""Seconds a renewal may always take, even when the deadline of a run is near or past."""


class Held(Protocol):
    """A lease that somebody in this process holds."""

    lease: Lease
    lease_until: float
    """the end of the lease by `time.monotonic()`, measured from before the call that granted it"""

    @property
    def stops_unsure(self) -> bool:
        """Whether it is under way, not told to stop yet, and must not go on without a lease."""
        ...

    def lost(self) -> None:
        """Somebody else has the task, or it has ended."""
        ...

    def unsure(self) -> None:
        """The lease could not be renewed for so long that somebody else may have taken the task."""
        ...


class Heartbeat:
    """Every third of the lease it renews all leases that are held, for a whole lease.

    A task is held from its lease until its outcome is written: one whose outcome waits in the settler during an
    outage is renewed too, so that nobody runs it a second time while its success is on the way.

    When the store does not answer, a run goes on until its last renewal is a lease and the patience old: not
    before then can another worker have taken the task. Meanwhile `failing` keeps the lease loop from starting
    more.
    """

    def __init__(self, store: Store, lifecycle: Lifecycle, *, lease_seconds: int, patience: int) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._patience = patience
        self._outage = Outage("heartbeat", lifecycle)
        self._log = structlog.get_logger().bind()
        self._held: dict[int, Held] = {}

    @property
    def failing(self) -> bool:
        """Whether the last renewal found no store."""
        return self._outage.on

    @property
    def task_ids(self) -> tuple[int, ...]:
        """Ids of all tasks that this process holds."""
        return tuple(self._held)

    def hold(self, held: Held) -> None:
        """Renew this lease from now on."""
        self._held[held.lease.task_id] = held

    def drop(self, held: Held) -> None:
        """Renew it no more: its outcome is written, or it is left to run out."""
        if self._held.get(held.lease.task_id) is held:
            del self._held[held.lease.task_id]

    async def extend(self, held: Held, seconds: int) -> bool:
        """Renew one lease for `seconds` at once; False: it is lost. Raises StoreUnavailable."""
        await self._renew([held], seconds)
        return self._held.get(held.lease.task_id) is held

    async def run(self, stop: anyio.Event) -> None:
        """Beat until told to stop, which is when nothing is held any more."""
        wait = self._third
        while await pause(stop, wait):
            wait = await self.beat()

    async def beat(self) -> float:
        """Renew everything once; the seconds until the next beat."""
        try:
            with anyio.fail_after(min(self._third, max(self._until_unsure(), LEAST_BOUND))):
                everything = list(self._held.values())
                for start in range(0, len(everything), BATCH):
                    await self._renew(everything[start : start + BATCH], self._lease_seconds)
        except (StoreUnavailable, TimeoutError) as error:
            if not isinstance(error, StoreUnavailable):
                error = StoreUnavailable("renew", "no answer")
            wait = self._outage.failed(error)
            self._stop_unsure()
            return min(wait, max(self._until_unsure(), 0.0))
        self._outage.over()
        return self._third

    @property
    def _third(self) -> float:
        return self._lease_seconds / 3

    async def _renew(self, held: list[Held], seconds: int) -> None:
        asked_at = time.monotonic()  # from BEFORE the call: a slow reply makes us stop early, never late
        rows = await self._store.renew([one.lease for one in held], seconds)
        for one, row in zip(held, rows, strict=True):
            if self._held.get(one.lease.task_id) is not one:
                continue  # settled meanwhile
            if row is None:
                one.lost()
            else:
                one.lease_until = max(one.lease_until, asked_at + seconds)

    def _until_unsure(self) -> float:
        """Seconds until the first run has to be stopped."""
        ends = (one.lease_until for one in self._held.values() if one.stops_unsure)
        return min(ends, default=math.inf) + self._patience - time.monotonic()

    def _stop_unsure(self) -> None:
        now = time.monotonic()
        for one in list(self._held.values()):
            if one.stops_unsure and one.lease_until + self._patience <= now:
                one.unsure()
