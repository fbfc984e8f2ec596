"""The store of one SQLite file: a thread that writes, two that read, one table for active and archived tasks.

Calls that wait at the same time share one commit. The rules are in `sqlite_lease`, `sqlite_settle` and their
neighbours; the statements in `sql/sqlite.sql`.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Order, StoreOptions
from queue_runtime.task import (
    MAX_EVENT_ID_BYTES,
    MAX_LEASE_SECONDS,
    U32,
    ArchivedTask,
    Attempt,
    Backlog,
    Complete,
    Fail,
    Lease,
    NewTask,
    Pause,
    QueueStats,
    Settled,
    Settlement,
    SweepReport,
    Task,
    TaskFilter,
    check_bytes,
    check_outcome,
    check_range,
)
from queue_runtime.wire import event_digest
from stores import (
    operating,
    sqlite_dispatchable,
    sqlite_enqueue,
    sqlite_history,
    sqlite_lease,
    sqlite_ledger,
    sqlite_lists,
    sqlite_operators,
    sqlite_settle,
)
from stores.backlog_cache import BacklogCache
from stores.dispatchable import Page, Which
from stores.lease_request import LeaseRequest, lowered
from stores.ledger import Ledger
from stores.sqlite_changes import Changes
from stores.sqlite_lane_sweep import LaneSweep
from stores.sqlite_session import Session, Synchronous, open_reading, open_sessions
from stores.sqlite_threads import SHARED_COMMIT, SessionThread, serve_reads, serve_writes

T = TypeVar("T")


class SqliteStore:
    """The Store protocol on one file."""

    def __init__(self, writer: SessionThread, reader: SessionThread, lister: SessionThread, changes: Changes) -> None:
        self._writer = writer
        self._reader = reader
        self._lister = lister
        """reads what may take seconds, so that readiness and reads by id need not wait for it"""
        self._changes = changes
        self._backlog = BacklogCache()
        self._lane_sweep = LaneSweep()

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        tasks = list(tasks)
        if not tasks:
            return []
        return await self._writer.call("enqueue", lambda session: sqlite_enqueue.enqueue(session, tasks), rings=True)

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        check_bytes("event_id", event_id, MAX_EVENT_ID_BYTES)
        same = event_digest(task) if digest is None else digest
        return await self._writer.call(
            "enqueue_once",
            lambda session: sqlite_enqueue.enqueue_once(session, event_id, same, task),
            rings=True,
        )

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
        request = LeaseRequest(
            owner=owner,
            limit=lowered(limit),
            seconds=seconds,
            classes=classes,
            without_classes=without_classes,
            queues=queues,
            only=only,
            without=without,
            due_first=due_first,
        )
        return await self._writer.call("lease", lambda session: sqlite_lease.lease(session, request))

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
        leases = list(leases)
        return await self._writer.call("renew", lambda session: sqlite_settle.renew(session, leases, seconds))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        settlements = list(settlements)
        for settlement in settlements:
            check_outcome(settlement.outcome)
        return await self._writer.call(
            "settle",
            lambda session: sqlite_settle.settle(session, settlements),
            rings=any(_may_ring(settlement) for settlement in settlements),
        )

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        ids = list(task_ids)
        return await self._writer.call("cancel", _changing(ids, lambda ledger: operating.cancel(ledger, ids)))

    async def awaken(self, task_ids: Sequence[int]) -> int:
        ids = list(task_ids)
        return await self._writer.call("awaken", _changing(ids, operating.awaken), rings=True)

    async def free(self, task_ids: Sequence[int]) -> int:
        ids = list(task_ids)
        return await self._writer.call("free", _changing(ids, operating.free), rings=True)

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        check_range("priority", priority, 0, U32)
        ids = list(task_ids)
        return await self._writer.call(
            "priority", _changing(ids, lambda ledger: operating.set_priority(ledger, priority))
        )

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        check_range("delay_until", until, 1, U32)
        ids = list(task_ids)
        return await self._writer.call(
            "delay", _changing(ids, lambda ledger: operating.delay(ledger, until)), rings=True
        )

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        ids = list(task_ids)
        return await self._writer.call(
            "retry", _changing(ids, lambda ledger: operating.retry(ledger, ids, repeat=repeat)), rings=True
        )

    async def pause(self, pause: Pause) -> None:
        await self._writer.call("pause", lambda session: sqlite_operators.pause(session, pause))

    async def resume(self, pause: Pause) -> bool:
        return await self._writer.call("resume", lambda session: sqlite_operators.resume(session, pause), rings=True)

    async def paused(self) -> list[Pause]:
        return await self._reader.call("paused", sqlite_lease.read_pauses)

    async def sweep(self, limit: int) -> SweepReport:
        report = await self._writer.call("sweep", lambda session: sqlite_operators.sweep(session, limit))
        if not report.more:
            await self._lane_sweep.sweep(self._lister, self._writer)
        return report

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        ids = list(task_ids)
        return await self._reader.call("get", lambda session: sqlite_lists.get(session, ids))

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        ids = list(task_ids)
        return await self._reader.call("get_archived", lambda session: sqlite_lists.get_archived(session, ids))

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await self._lister.call(
            "list_active", lambda session: sqlite_lists.list_active(session, limit, offset, after, where)
        )

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await self._lister.call(
            "list_archived", lambda session: sqlite_lists.list_archived(session, limit, before, where)
        )

    async def dispatchable(self, which: Which, limit: int) -> Page:
        """For a dispatch over this store; see stores/dispatchable.py."""
        return await self._reader.call(
            "dispatchable", lambda session: sqlite_dispatchable.dispatchable(session, which, limit)
        )

    async def names(self) -> Collection[str]:
        """For a dispatch over this store; see stores/dispatchable.py."""
        return await self._writer.call("names", sqlite_dispatchable.names)

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        ids = list(task_ids)
        return await self._reader.call("history", lambda session: sqlite_history.read_history(session, ids))

    async def stats(self) -> QueueStats:
        return await self._reader.call("stats", sqlite_lists.stats)

    async def backlog(self) -> list[Backlog]:
        return await self._backlog.get(lambda: self._reader.call("backlog", sqlite_lists.backlog))

    async def operations(self) -> dict[str, object]:
        return await self._lister.call("operations", sqlite_lists.operations)

    async def ping(self) -> None:
        if self._writer.failing:
            await self._writer.call("ping", _try_writing)
        else:
            await self._reader.call("ping", _try_reading)

    async def changed(self, timeout: float) -> bool:
        return await self._changes.wait(self._writer, timeout)


def _changing(task_ids: Sequence[int], change: Callable[[Ledger], T]) -> Callable[[Session], T]:
    """Work that loads these rows, has them changed by a rule, and writes them back."""

    def work(session: Session) -> T:
        ledger = sqlite_ledger.load(session, task_ids)
        answer = change(ledger)
        sqlite_ledger.write(session, ledger)
        return answer

    return work


def _may_ring(settlement: Settlement) -> bool:
    """Whether the outcome makes work leasable, now or later."""
    outcome = settlement.outcome
    if isinstance(outcome, Complete):
        return bool(outcome.followups)
    return not isinstance(outcome, Fail)


def _try_reading(session: Session) -> None:
    session.row("lease_gates")
    if (reason := session.displaced()) is not None:
        raise StoreUnavailable("ping", reason)


def _try_writing(session: Session) -> None:
    """Write a row that needs some pages, and take it away again."""
    session.run("try_room")
    session.run("delete_payload", (0,))


@asynccontextmanager
async def open_store(
    path: str | Path, options: StoreOptions = StoreOptions(), *, synchronous: Synchronous = "FULL"
) -> AsyncIterator[SqliteStore]:
    """Open the file, which is made when it is missing. Raises StoreUnusable where waiting would not help."""
    writing, reading = await anyio.to_thread.run_sync(open_sessions, Path(path), options, synchronous)
    try:
        listing = await anyio.to_thread.run_sync(open_reading, Path(path), options)
    except BaseException:
        for session in (reading, writing):
            session.connection.close()
        raise
    changes = Changes(options)
    writer = SessionThread("sqlite-writer", writing, serve_writes, changes.answered, at_once=SHARED_COMMIT)
    reader, lister = (
        SessionThread(name, session, serve_reads, lambda _batch, _wrote: None, at_once=1)
        for name, session in (("sqlite-reader", reading), ("sqlite-lister", listing))
    )
    try:
        await changes.begin(writer)
        yield SqliteStore(writer, reader, lister, changes)
    finally:
        with anyio.CancelScope(shield=True):
            for thread in (lister, reader, writer):
                thread.close()
                await anyio.to_thread.run_sync(thread.join)
