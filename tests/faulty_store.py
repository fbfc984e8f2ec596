"""A store that refuses calls, or acts and loses the reply, as a plan says. The second kind finds the bugs.

faulty = FaultyStore(store)
faulty.refuse("settle", times=3)        # the next three settles do nothing
faulty.lose_reply("enqueue")            # the next enqueue happens, and its caller never hears of it
faulty.down = True                      # an outage: everything is refused until it is False again
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TypeVar, cast

from queue_runtime.errors import QueueRuntimeError, StoreUnavailable
from queue_runtime.store import Order, Store
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
from stores.dispatchable import Page, Record, Which

Reply = TypeVar("Reply")


class Fault(StrEnum):
    REFUSE = "refuse"
    """Nothing happens, and the caller is told StoreUnavailable."""

    LOSE_REPLY = "lose reply"
    """It happens, and the caller is told StoreUnavailable all the same."""


Plan = Callable[[str], Fault | None]
"""Asked before each call with the name of the method."""


class FaultyStore:
    """Any store behind a bad line. `calls` counts by method, `faults` counts the calls that went wrong."""

    def __init__(self, store: Store, plan: Plan | None = None) -> None:
        self._store = store
        self._plan = plan
        self._next: dict[str, deque[Fault]] = {}
        self.down = False
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def refuse(self, method: str, *, times: int = 1) -> None:
        """Refuse the next calls of this method."""
        self._next.setdefault(method, deque()).extend([Fault.REFUSE] * times)

    def lose_reply(self, method: str, *, times: int = 1) -> None:
        """Act on the next calls of this method, and lose their replies."""
        self._next.setdefault(method, deque()).extend([Fault.LOSE_REPLY] * times)

    def _fault(self, method: str) -> Fault | None:
        if self.down:
            return Fault.REFUSE
        if self._next.get(method):
            return self._next[method].popleft()
        return None if self._plan is None else self._plan(method)

    async def _call(self, method: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        self.calls[method] += 1
        fault = self._fault(method)
        if fault is None:
            return await call()
        self.faults[method] += 1
        if fault is Fault.LOSE_REPLY:
            with suppress(QueueRuntimeError):  # an error is a reply too, and gets lost like one
                await call()
        raise StoreUnavailable(method, f"planned fault: {fault}")

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        return await self._call("enqueue", lambda: self._store.enqueue(tasks))

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        return await self._call("enqueue_once", lambda: self._store.enqueue_once(event_id, task, digest=digest))

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
        return await self._call(
            "lease",
            lambda: self._store.lease(
                owner,
                limit,
                seconds,
                classes=classes,
                without_classes=without_classes,
                queues=queues,
                only=only,
                without=without,
                due_first=due_first,
                order=order,
            ),
        )

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        return await self._call("renew", lambda: self._store.renew(leases, seconds))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return await self._call("settle", lambda: self._store.settle(settlements))

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._call("cancel", lambda: self._store.cancel(task_ids))

    async def awaken(self, task_ids: Sequence[int]) -> int:
        return await self._call("awaken", lambda: self._store.awaken(task_ids))

    async def free(self, task_ids: Sequence[int]) -> int:
        return await self._call("free", lambda: self._store.free(task_ids))

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        return await self._call("priority", lambda: self._store.priority(task_ids, priority))

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        return await self._call("delay", lambda: self._store.delay(task_ids, until))

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        return await self._call("retry", lambda: self._store.retry(task_ids, repeat=repeat))

    async def pause(self, pause: Pause) -> None:
        return await self._call("pause", lambda: self._store.pause(pause))

    async def resume(self, pause: Pause) -> bool:
        return await self._call("resume", lambda: self._store.resume(pause))

    async def paused(self) -> list[Pause]:
        return await self._call("paused", self._store.paused)

    async def sweep(self, limit: int) -> SweepReport:
        return await self._call("sweep", lambda: self._store.sweep(limit))

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        return await self._call("get", lambda: self._store.get(task_ids))

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._call("get_archived", lambda: self._store.get_archived(task_ids))

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await self._call(
            "list_active", lambda: self._store.list_active(limit, offset=offset, after=after, where=where)
        )

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await self._call("list_archived", lambda: self._store.list_archived(limit, before=before, where=where))

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        return await self._call("history", lambda: self._store.history(task_ids))

    async def stats(self) -> QueueStats:
        return await self._call("stats", self._store.stats)

    async def backlog(self) -> list[Backlog]:
        return await self._call("backlog", self._store.backlog)

    async def operations(self) -> dict[str, object]:
        return await self._call("operations", self._store.operations)

    async def ping(self) -> None:
        return await self._call("ping", self._store.ping)

    async def changed(self, timeout: float) -> bool:
        return await self._call("changed", lambda: self._store.changed(timeout))

    # ---- of a store of record, for the dispatch over it

    async def dispatchable(self, which: Which, limit: int) -> Page:
        return await self._call("dispatchable", lambda: cast(Record, self._store).dispatchable(which, limit))

    async def names(self) -> Collection[str]:
        return await self._call("names", lambda: cast(Record, self._store).names())
