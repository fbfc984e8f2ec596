"""Shadow mode: a process that reads the queue and reports what it would do, and cannot write to it."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import StrEnum
from typing import NoReturn

import anyio
import structlog
from msgspec import Struct

from queue_runtime.backoff import Outage, pause, rest
from queue_runtime.current import Current
from queue_runtime.errors import StoreUnavailable, WritesRefused
from queue_runtime.lanes import supported
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Registry
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Order, Store
from queue_runtime.takeover import Activity, look
from queue_runtime.task import (
    ArchivedTask,
    Attempt,
    Backlog,
    Lease,
    NewTask,
    Pause,
    QueueStats,
    Settled,
    Settlement,
    SweepReport,
    Task,
    TaskFilter,
)

ROWS = 1000
"""Held and ended rows that one report looks at."""


BOOK_SECONDS = 5.0
"""How long a report waits for Phorge's book of daemons."""


class ShadowStore:
    """A store of which only the reading methods work. Whatever loop or route is given it, nothing is written."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- refused

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        _refuse("enqueue")

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        _refuse("enqueue_once")

    async def lease(
        self,
        owner: str,
        limit: int,
        seconds: int,
        *,
        classes: Collection[str] | None = None,
        without_classes: Collection[str] = (),
        queues: Collection[str] | None = None,
        only: Collection[int] | None = None,
        without: Collection[int] = (),
        due_first: bool = False,
        order: Order = "strict",
    ) -> list[Task]:
        _refuse("lease")

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        _refuse("renew")

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        _refuse("settle")

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        _refuse("cancel")

    async def awaken(self, task_ids: Sequence[int]) -> int:
        _refuse("awaken")

    async def free(self, task_ids: Sequence[int]) -> int:
        _refuse("free")

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        _refuse("priority")

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        _refuse("delay")

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        _refuse("retry")

    async def pause(self, pause: Pause) -> None:
        _refuse("pause")

    async def resume(self, pause: Pause) -> bool:
        _refuse("resume")

    async def sweep(self, limit: int) -> SweepReport:
        _refuse("sweep")

    # ---- passed on

    async def paused(self) -> list[Pause]:
        return await self._store.paused()

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        return await self._store.get(task_ids)

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._store.get_archived(task_ids)

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await self._store.list_active(limit, offset=offset, after=after, where=where)

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await self._store.list_archived(limit, before=before, where=where)

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        return await self._store.history(task_ids)

    async def stats(self) -> QueueStats:
        return await self._store.stats()

    async def backlog(self) -> list[Backlog]:
        return await self._store.backlog()

    async def operations(self) -> dict[str, object]:
        return await self._store.operations()

    async def ping(self) -> None:
        # the store's own ping may try whether it can write
        await self._store.paused()

    async def changed(self, timeout: float) -> bool:
        return await self._store.changed(timeout)


def _refuse(operation: str) -> NoReturn:
    raise WritesRefused(operation)


class Would(StrEnum):
    """What this process would do with a waiting task, were it no shadow."""

    RUN = "run here"
    DELEGATE = "have Phorge run"
    LEAVE = "leave to others"


class Report(Struct, frozen=True):
    """What one look at the queue found."""

    would: dict[Would, Counter[str]]
    """waiting tasks by class"""

    oldest_seconds: int
    """since when the oldest waiting task has been in the queue, seconds; 0 where none waits"""

    activity: Activity

    native_alive: tuple[str, ...] | None
    """hosts of native taskmasters by Phorge's book of daemons, of idle ones too; None: nobody can say"""


class Shadow:
    """Looks at the queue as a worker would, and says in the log now and then what it would have taken, and who works.

    `supported`, `queues` and `stats` are what the faces see of a worker: one that has run nothing. `book` tells the
    hosts of native taskmasters that are alive, where it can; None: the queue is in no table that they know.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        lifecycle: Lifecycle,
        current: Current,
        *,
        book: Callable[[], Awaitable[tuple[str, ...] | None]] | None = None,
    ) -> None:
        self._store = store
        self._book = book
        self._registry = registry
        self._current = current
        self._outage = Outage("shadow", lifecycle)
        self._log = structlog.get_logger().bind()
        self.stats = WorkerStats()
        self.last: Report | None = None

    @property
    def supported(self) -> list[str]:
        """The classes that it would lease."""
        return supported(self._registry, self._current.config.task_classes)

    @property
    def queues(self) -> list[str] | None:
        """The queues that it would lease from; None: all."""
        queues = self._current.config.queues
        return None if queues is None else sorted(queues)

    async def run(self, stop: anyio.Event) -> None:
        """Report until told to stop, every SWEEP_SECONDS."""
        self._log.warning("shadow mode: this process reads and reports, and takes nothing", classes=self.supported)
        wait = 0.0
        while await pause(stop, wait):
            try:
                await self.report()
            except StoreUnavailable as error:
                wait = self._outage.failed(error)
                continue
            self._outage.over()
            wait = 0.0
            if not await rest(stop, lambda: self._current.config.sweep_seconds):
                break

    async def report(self) -> Report:
        """Look once, and say what was found."""
        found: dict[Would, Counter[str]] = {one: Counter() for one in Would}
        backlog = await self._store.backlog()
        for group in backlog:
            found[self._would(group)][group.task_class] += group.waiting
        oldest = min((group.oldest for group in backlog), default=None)
        activity = await look(self._store, round(self._current.config.sweep_seconds) or 1, rows=ROWS)
        alive = None
        if self._book is not None:
            with anyio.move_on_after(BOOK_SECONDS):
                alive = await self._book()
        self.last = Report(found, 0 if oldest is None else max(int(time.time()) - oldest, 0), activity, alive)
        self._say(self.last)
        return self.last

    def _would(self, group: Backlog) -> Would:
        config = self._current.config
        outside = config.queues is not None and group.queue not in config.queues
        if outside or (config.task_classes is not None and group.task_class not in config.task_classes):
            return Would.LEAVE
        handler = self._registry.find(group.task_class)
        if handler is None:
            return Would.LEAVE
        return Would.RUN if handler.gate is None else Would.DELEGATE

    def _say(self, report: Report) -> None:
        activity = report.activity
        self._log.info(
            "shadow report",
            would_run=dict(report.would[Would.RUN]),
            would_delegate=dict(report.would[Would.DELEGATE]),
            nobody_here=dict(report.would[Would.LEAVE]),
            oldest_seconds=report.oldest_seconds,
            held_by={str(one): count for one, count in activity.held.items()},
            ended_by={str(one): count for one, count in activity.ended.items()},
            native_hosts=sorted(activity.native_hosts),
            **self._alive(report),
        )

    def _alive(self, report: Report) -> dict[str, object]:
        if self._book is None:
            return {}
        return {"native_alive": "unknown" if report.native_alive is None else sorted(report.native_alive)}
