"""A store that is another process of ours: the protocol by its HTTP API, for a worker that reaches no database."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog
from msgspec import Struct

from queue_runtime import store_wire as wire
from queue_runtime.store import Order, StoreOptions
from queue_runtime.store_wire import Bell, Method
from queue_runtime.task import (
    MAX_EVENT_ID_BYTES,
    MAX_LEASE_SECONDS,
    U32,
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
    check_bytes,
    check_outcome,
    check_owner,
    check_range,
)
from stores.remote_line import CALL_SECONDS, Line, LoginNow, open_line
from stores.remote_text import fitting

log = structlog.get_logger()

Call = TypeVar("Call", bound=Struct)
Item = TypeVar("Item")

BREATH = 0.02
"""Seconds between two questions for changes: a bell that rings all the time is not asked more often."""


class RemoteStore:
    """The Store protocol on the store of a server. Time, ids, patience and all rules are the server's."""

    def __init__(self, line: Line, options: StoreOptions) -> None:
        self._line = line
        self._patience = options.patience
        self._bell: Bell | None = None
        self._asked_at = 0.0
        self._warned_of: int | None = None

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        return await self._each(wire.ENQUEUE, wire.EnqueueCall(tasks), len(tasks)) if tasks else []

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        check_bytes("event_id", event_id, MAX_EVENT_ID_BYTES)
        return await self._line.call(wire.ENQUEUE_ONCE, wire.EnqueueOnceCall(event_id, task, digest))

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
        check_owner(owner)
        check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
        call = wire.LeaseCall(
            owner=owner,
            limit=limit,
            seconds=seconds,
            classes=None if classes is None else frozenset(classes),
            without_classes=frozenset(without_classes),
            queues=None if queues is None else frozenset(queues),
            only=None if only is None else frozenset(only),
            without=frozenset(without),
            due_first=due_first,
            order=order,
        )
        tasks = await self._line.call(wire.LEASE, call)
        if len(tasks) > max(limit, 0):
            raise self._line.bad_count(wire.LEASE.name, limit, len(tasks))
        return tasks

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
        return await self._each(wire.RENEW, wire.RenewCall(leases, seconds), len(leases)) if leases else []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        for settlement in settlements:
            check_outcome(settlement.outcome)
        if not settlements:
            return []
        call = wire.SettleCall([fitting(one) for one in settlements])
        return await self._each(wire.SETTLE, call, len(settlements))

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._each(wire.CANCEL, wire.TasksCall(task_ids), len(task_ids))

    async def awaken(self, task_ids: Sequence[int]) -> int:
        return await self._line.call(wire.AWAKEN, wire.TasksCall(task_ids))

    async def free(self, task_ids: Sequence[int]) -> int:
        return await self._line.call(wire.FREE, wire.TasksCall(task_ids))

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        check_range("priority", priority, 0, U32)
        return await self._line.call(wire.PRIORITY, wire.PriorityCall(task_ids, priority))

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        check_range("delay_until", until, 1, U32)
        return await self._line.call(wire.DELAY, wire.DelayCall(task_ids, until))

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        return await self._each(wire.RETRY, wire.RetryCall(task_ids, repeat), len(task_ids))

    async def pause(self, pause: Pause) -> None:
        await self._line.call(wire.PAUSE, wire.PauseCall(pause))

    async def resume(self, pause: Pause) -> bool:
        return await self._line.call(wire.RESUME, wire.PauseCall(pause))

    async def paused(self) -> list[Pause]:
        return await self._line.call(wire.PAUSED, wire.NoArguments())

    async def sweep(self, limit: int) -> SweepReport:
        return await self._line.call(wire.SWEEP, wire.SweepCall(limit))

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        return await self._each(wire.GET, wire.TasksCall(task_ids), len(task_ids))

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._each(wire.GET_ARCHIVED, wire.TasksCall(task_ids), len(task_ids))

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await self._line.call(wire.LIST_ACTIVE, wire.ListActiveCall(limit, offset, after, where))

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await self._line.call(wire.LIST_ARCHIVED, wire.ListArchivedCall(limit, before, where))

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        return await self._each(wire.HISTORY, wire.TasksCall(task_ids), len(task_ids))

    async def stats(self) -> QueueStats:
        return await self._line.call(wire.STATS, wire.NoArguments())

    async def backlog(self) -> list[Backlog]:
        return await self._line.call(wire.BACKLOG, wire.NoArguments())

    async def operations(self) -> dict[str, object]:
        return await self._line.call(wire.OPERATIONS, wire.NoArguments())

    async def ping(self) -> None:
        await self._line.call(wire.PING, wire.NoArguments())

    async def changed(self, timeout: float) -> bool:
        """Wait for the server's bell. What rang between two calls, or while no server was there, is not missed."""
        now = asyncio.get_running_loop().time
        end = now() + timeout
        await asyncio.sleep(self._asked_at + BREATH - now())
        self._asked_at = now()
        wait = min(max(end - now(), 0.0), wire.MAX_WAIT)
        heard = await self._line.call(wire.CHANGED, wire.ChangedCall(wait, self._bell), wait=wait)
        self._compare(heard.patience)
        before, self._bell = self._bell, heard.bell
        return heard.bell != before

    async def _each(self, method: Method[Call, list[Item]], call: Call, asked: int) -> list[Item]:
        """An answer that has one value for each that was asked, in the same order, or is none."""
        answers = await self._line.call(method, call)
        if len(answers) != asked:
            raise self._line.bad_count(method.name, asked, len(answers))
        return answers

    def _compare(self, patience: int) -> None:
        """Say where a run here would go on, cut off from the server, when another worker may have its task already."""
        if self._patience > patience and self._warned_of != patience:
            self._warned_of = patience
            log.error(
                "LEASE_SECONDS is longer here than at the server: set both alike",
                patience=self._patience,
                patience_of_the_server=patience,
            )


@asynccontextmanager
async def open_store(
    url: str,
    token: str,
    options: StoreOptions = StoreOptions(),
    *,
    seconds: float = CALL_SECONDS,
    login_now: LoginNow | None = None,
) -> AsyncIterator[RemoteStore]:
    """The store behind the server at `http://host:port[/prefix]`, `https://…` or `unix:/path`, which may be away.

    Of the options only `patience` is looked at: it must not be more than the server's, which decides, as it does on
    the clock and everything else. `seconds`: how long the server may be silent. `login_now` is asked for URL and token
    at each request, where the token, or user and password in the URL, may change while the store is open.
    """
    async with open_line(login_now or (lambda: (url, token)), seconds=seconds) as line:
        yield RemoteStore(line, options)
