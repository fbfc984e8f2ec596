"""One run of one task: what is known about it, from its lease until its outcome is written."""

import asyncio
import math
from enum import StrEnum
from typing import Protocol

from queue_runtime.handler_spec import HandlerSpec
from queue_runtime.stats import ClassStats
from queue_runtime.task import Lease, NewTask, Outcome, Settled, Task


class Stop(StrEnum):
    """Why a run was told to stop."""

    TIMEOUT = "timed out"
    LOST = "lease lost"
    UNSURE = "lease not renewed for too long"
    SHUTDOWN = "shutdown"


class Keeper(Protocol):
    """Who looks after the runs; see runner.py."""

    def on_done(self, run: "Run", handle: "asyncio.Task[None]") -> None: ...

    def on_settled(self, run: "Run", settled: Settled) -> None: ...

    def on_lost(self, run: "Run") -> None: ...

    def stop(self, run: "Run", reason: Stop) -> None: ...

    async def renew(self, run: "Run", seconds: int) -> bool: ...


class Run:
    """One run of one task. The heartbeat keeps its lease until its outcome is written."""

    __slots__ = (
        "abandoned",
        "alarm",
        "began",
        "counts",
        "ended",
        "followups",
        "handle",
        "keeper",
        "lease",
        "lease_until",
        "outcome",
        "spec",
        "stop",
        "stop_at",
        "task",
        "told_twice",
        "worked_us",
    )

    def __init__(
        self,
        keeper: Keeper,
        task: Task,
        spec: HandlerSpec,
        lease: Lease,
        *,
        lease_until: float,
        counts: ClassStats,
    ) -> None:
        self.keeper = keeper
        self.task = task
        self.spec = spec
        self.lease = lease
        self.lease_until = lease_until
        self.counts = counts
        self.handle: asyncio.Task[None] | None = None
        self.followups: list[NewTask] | None = []
        self.began = 0.0
        self.worked_us: int | None = None
        """how long the work took, as its handler says; None: as long as the handler"""
        self.stop_at = math.inf
        """when the time-out of the class ends"""
        self.alarm = math.inf
        """when something has to be done about it: time-out, second order to stop, abandonment"""
        self.stop: Stop | None = None
        self.told_twice = False
        self.ended = False
        self.abandoned = False
        """given up although its handler still runs"""
        self.outcome: Outcome | None = None

    @property
    def deadline(self) -> float:
        return min(self.lease_until, self.stop_at)

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    @property
    def stops_unsure(self) -> bool:
        return self.stop is None and not self.ended and not self.spec.finish_unsure

    async def renew(self, seconds: int) -> bool:
        return await self.keeper.renew(self, seconds)

    def lost(self) -> None:
        self.keeper.on_lost(self)

    def unsure(self) -> None:
        self.keeper.stop(self, Stop.UNSURE)

    def on_done(self, handle: asyncio.Task[None]) -> None:
        self.keeper.on_done(self, handle)

    def on_settled(self, settled: Settled) -> None:
        self.keeper.on_settled(self, settled)

    def facts(self) -> dict[str, object]:
        """What every log line about this run says."""
        return {
            "task_id": self.task.id,
            "task_class": self.task.task_class,
            "object_phid": self.task.object_phid,
            "owner": self.lease.owner,
            "attempt": self.task.failure_count + 1,
        }
