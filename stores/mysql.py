"""The store on Phorge's own tables: native PHP may enqueue, and even run tasks, on the same rows at the same time.

What it keeps beside Phorge's columns is in the companion database. The rules are in `ledger`, `settling` and
`operating`; how rows are locked and written in the modules beside this; the statements in `sql/mysql.sql`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from queue_runtime.errors import InvalidRequest
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
    Verdict,
    check_bytes,
    check_outcome,
    check_range,
)
from queue_runtime.wire import event_digest
from stores import mysql_counts, mysql_dispatchable, mysql_lists, mysql_settle, mysql_sweep, operating
from stores.backlog_cache import BacklogCache
from stores.dispatchable import Page, Which
from stores.lease_request import LeaseRequest, lowered
from stores.mysql_candidates import Candidates
from stores.mysql_changes import Changes
from stores.mysql_enqueue import Enqueue, EnqueueOnce
from stores.mysql_lease import lease
from stores.mysql_pauses import read_pauses
from stores.mysql_pool import Pool
from stores.mysql_session import Session, Sessions
from stores.mysql_settings import MysqlSettings
from stores.mysql_waits import Waits

T = TypeVar("T")


class MysqlStore:
    """The Store protocol on one namespace of one server."""

    def __init__(self, sessions: Sessions, options: StoreOptions) -> None:
        self._sessions = sessions
        self._changes = Changes(options)
        self._candidates = Candidates()
        self._cursor = mysql_sweep.Cursor()
        self._backlog = BacklogCache()
        self._estimate = mysql_counts.Estimate()
        self._waits = Waits(sessions)
        self._patience = mysql_settle.Patience()

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        tasks = list(tasks)
        if not tasks:
            return []
        answers = await Enqueue(self._sessions, tasks).run()
        self._changes.ring()
        return answers

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        check_bytes("event_id", event_id, MAX_EVENT_ID_BYTES)
        same = event_digest(task) if digest is None else digest
        (answer,) = await EnqueueOnce(self._sessions, event_id, same, task).run()
        self._changes.ring()
        return answer

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
        tasks = await self._sessions.play(
            "lease", lambda session: lease(session, request, self._candidates, dispatch=order == "dispatch")
        )
        if self._candidates.hurry:
            self._changes.ring()
        return tasks

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
        leases = list(leases)
        return await mysql_settle.renew(self._sessions, self._waits, leases, seconds) if leases else []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        settlements = list(settlements)
        for settlement in settlements:
            check_outcome(settlement.outcome)
        if not settlements:
            return []
        settled = await self._sessions.play("settle", mysql_settle.Settle(settlements, self._patience).work)
        if any(map(_rings, settlements, settled)):
            self._changes.ring()
        return settled

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        cancelled = await self._change("cancel", task_ids, operating.cancel)
        found = {row.id: row for row in cancelled if row is not None}
        return [found.pop(task_id, None) for task_id in task_ids]

    async def awaken(self, task_ids: Sequence[int]) -> int:
        return await self._change("awaken", task_ids, lambda ledger, _: operating.awaken(ledger))

    async def free(self, task_ids: Sequence[int]) -> int:
        return await self._change("free", task_ids, lambda ledger, _: operating.free(ledger))

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        check_range("priority", priority, 0, U32)
        return await self._change("priority", task_ids, lambda ledger, _: operating.set_priority(ledger, priority))

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        check_range("delay_until", until, 1, U32)
        return await self._change("delay", task_ids, lambda ledger, _: operating.delay(ledger, until))

    async def _change(self, operation: str, task_ids: Sequence[int], rule: mysql_settle.Rule[T]) -> T:
        answer = await mysql_settle.change(self._waits, operation, task_ids, rule)
        self._changes.ring()
        return answer

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        revived = await mysql_settle.retry(self._waits, list(task_ids), repeat=repeat)
        self._changes.ring()
        return revived

    async def pause(self, pause: Pause) -> None:
        await self._sessions.play("pause", lambda session: _write_pause(session, "pause", pause))

    async def resume(self, pause: Pause) -> bool:
        lifted = await self._sessions.play("resume", lambda session: _write_pause(session, "resume", pause))
        self._changes.ring()
        return lifted

    async def paused(self) -> list[Pause]:
        return await self._read("paused", read_pauses)

    async def sweep(self, limit: int) -> SweepReport:
        return await self._sessions.play("sweep", lambda session: mysql_sweep.sweep(session, limit, self._cursor))

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        ids = list(task_ids)
        return await self._read("get", lambda session: mysql_lists.get(session, ids))

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        ids = list(task_ids)
        return await self._read("get_archived", lambda session: mysql_lists.get_archived(session, ids))

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await self._list(
            "list_active", lambda session: mysql_lists.list_active(session, limit, offset, after, where)
        )

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await self._list(
            "list_archived", lambda session: mysql_lists.list_archived(session, limit, before, where)
        )

    async def dispatchable(self, which: Which, limit: int) -> Page:
        """For a dispatch over this store; see stores/dispatchable.py."""
        return await self._sessions.play(
            "dispatchable", lambda session: mysql_dispatchable.dispatchable(session, which, limit)
        )

    async def names(self) -> Collection[str]:
        """For a dispatch over this store; see stores/dispatchable.py."""
        return await self._sessions.play("names", mysql_dispatchable.names)

    async def _read(self, operation: str, work: Callable[[Session], Awaitable[T]]) -> T:
        return await self._sessions.play(operation, work, reads=True)

    async def _list(self, operation: str, work: Callable[[Session], Awaitable[T]]) -> T:
        async with self._sessions.listing(operation):
            return await self._read(operation, work)

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        ids = list(task_ids)
        return await self._read("history", lambda session: mysql_lists.history(session, ids))

    async def stats(self) -> QueueStats:
        return await self._estimate.get(lambda: self._list("stats", mysql_counts.stats))

    async def backlog(self) -> list[Backlog]:
        return await self._backlog.get(lambda: self._read("backlog", mysql_counts.backlog))

    async def operations(self) -> dict[str, object]:
        return await self._list("operations", mysql_counts.operations)

    async def ping(self) -> None:
        await self._sessions.play("ping", _try_writing if self._sessions.write_refused else _try_reading)

    async def changed(self, timeout: float) -> bool:
        return await self._changes.wait(self._sessions, timeout)


def _rings(settlement: Settlement, settled: Settled) -> bool:
    """Whether the outcome made work leasable, now or later."""
    if settled.verdict is not Verdict.SETTLED:
        return False
    outcome = settlement.outcome
    if isinstance(outcome, Complete):
        return bool(outcome.followups)
    return not isinstance(outcome, Fail)


async def _write_pause(session: Session, statement: str, pause: Pause) -> bool:
    if not session.server.companion:
        raise InvalidRequest("kind", "a pause needs the companion database, which this account has not")
    (answer,) = await session.trip(session.fill(statement, kind=pause.kind.value, name=pause.name.encode()))
    return answer.affected > 0


async def _try_reading(session: Session) -> None:
    await session.rows("read_counter")


async def _try_writing(session: Session) -> None:
    await session.begin()
    await session.commit(session.fill("touch_counter"))


@asynccontextmanager
async def open_store(
    settings: MysqlSettings,
    options: StoreOptions = StoreOptions(),
    *,
    skip_locked: bool = True,
    password_now: Callable[[], str] | None = None,
) -> AsyncIterator[MysqlStore]:
    """Open the store. The server need not be there yet: each call says so by StoreUnavailable until it is.

    `skip_locked` False forbids SKIP LOCKED even where the server has it. `password_now` is asked at each connect, where
    the account's password may change while the store is open; else it is that of the settings.
    """
    pool = Pool(settings, options, skip_locked=skip_locked, password_now=password_now)
    try:
        yield MysqlStore(Sessions(pool, options), options)
    finally:
        with anyio.CancelScope(shield=True):
            await pool.close()
