"""The store of one Redis or Valkey server: a script for each method, and one hash tag for all keys of a queue.

The rules are in `lua/`, where each call is one atomic round on the server; `lua/fragments` has the layout.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.store import Order, StoreOptions
from queue_runtime.task import (
    AWAKEN_BACK,
    MAX_EVENT_ID_BYTES,
    MAX_LEASE_SECONDS,
    U32,
    ArchivedTask,
    Attempt,
    Backlog,
    Fail,
    Failure,
    Lease,
    NewTask,
    Pause,
    PauseKind,
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
from stores import redis_lease, redis_lists, redis_settle, redis_upkeep
from stores.backlog_cache import BacklogCache
from stores.lease_request import LeaseRequest, lowered
from stores.redis_address import Address
from stores.redis_calls import Calls
from stores.redis_changes import Changes
from stores.redis_enqueue import Enqueuer
from stores.redis_lease import UNREADABLE
from stores.redis_link import Link
from stores.redis_orders import Orders
from stores.redis_rows import archived_task, id_texts, pack

CONNECTIONS = 10
"""Default number of connections for calls; one more listens."""

PIECE = 2000
"""So many tasks of an operator's command are changed by one script, which takes up to 15 microseconds for each of them:
the server serves nobody else meanwhile."""


class RedisStore:
    """The Store protocol on one queue of a server."""

    def __init__(self, calls: Calls, options: StoreOptions, *, event_days: int | None) -> None:
        self.calls = calls
        self._options = options
        self._event_days = event_days
        self._enqueuer = Enqueuer(calls, options.routes)
        self._orders = Orders(calls.keys)
        self._changes = Changes(calls, options, self._orders)
        self._backlog = BacklogCache()

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        return await self._enqueuer.enqueue(list(tasks)) if tasks else []

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        check_bytes("event_id", event_id, MAX_EVENT_ID_BYTES)
        return await self._enqueuer.enqueue_once(event_id, event_digest(task) if digest is None else digest, task)

    @property
    def hands(self) -> bool:
        """Whether new tasks are handed to workers that wait: while messages are heard."""
        return self._changes.hears_orders

    def on_handed(self, listener: Callable[[str], None]) -> None:
        self._orders.listener = listener

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
        stands: bool = False,
        recall: Sequence[str] = (),
    ) -> list[Task]:
        if (came := self._orders.take(recall)) is not None:
            return came
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
        ended = self._orders.ended
        recall = [one for one in recall if one not in ended]
        self._orders.end(recall)  # before the call: what they are handed is in its reply, whatever comes meanwhile
        place = (self._orders.channel, self._orders.draw(owner)) if stands and self._changes.hears_orders else None
        tasks, unreadable = await redis_lease.lease(
            self.calls, self._options, request, ended=(recall, ended), order=place
        )
        self._orders.forgotten(ended)
        if len(tasks) + len(unreadable) >= request.limit:
            self._orders.end([owner])
        if unreadable:
            # where this fails they are met again when their lease is over; the others have their lease all the same
            with suppress(StoreUnavailable):
                await self.settle([Settlement.held(lease, Fail(Failure(UNREADABLE))) for lease in unreadable])
        return tasks

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
        return await redis_settle.renew(self.calls, leases, seconds) if leases else []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        for settlement in settlements:
            check_outcome(settlement.outcome)
        return await redis_settle.settle(self.calls, self._options.routes, settlements) if settlements else []

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        cancelled: list[ArchivedTask | None] = []
        for piece in _pieces(task_ids):
            reply = await self.calls.script("cancel", pack(id_texts(piece)))
            cancelled += [
                archived_task(task_id, head, ended) if head else None
                for task_id, head, ended in zip(piece, reply[::2], reply[1::2], strict=True)
            ]
        return cancelled

    async def awaken(self, task_ids: Sequence[int]) -> int:
        return await self._count("awaken", task_ids, AWAKEN_BACK)

    async def free(self, task_ids: Sequence[int]) -> int:
        return await self._count("free", task_ids)

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        check_range("priority", priority, 0, U32)
        return await self._count("priority", task_ids, priority)

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        check_range("delay_until", until, 1, U32)
        return await self._count("delay", task_ids, until)

    async def _count(self, name: str, task_ids: Sequence[int], *arguments: int) -> int:
        count = 0
        for piece in _pieces(list(dict.fromkeys(task_ids))):
            count += int(await self.calls.script(name, pack(id_texts(piece)), *arguments))
        return count

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        rows: list[Task | None] = []
        for piece in _pieces(task_ids):
            reply = await self.calls.script("retry", pack(id_texts(piece)), int(repeat))
            rows += redis_settle.read_active(piece, reply)
        return rows

    async def pause(self, pause: Pause) -> None:
        await self.calls.script("pause", f"{pause.kind}:{pause.name}", repeatable=True)

    async def resume(self, pause: Pause) -> bool:
        return bool(await self.calls.script("resume", f"{pause.kind}:{pause.name}"))

    async def paused(self) -> list[Pause]:
        found = await self.calls.script("paused", repeatable=True)
        parts = (member.decode(errors="replace").partition(":") for member in found)
        pauses = (Pause(PauseKind(kind), name) for kind, _, name in parts if kind in list(PauseKind))
        return sorted(pauses, key=lambda one: (one.kind, one.name))

    async def sweep(self, limit: int) -> SweepReport:
        return await redis_upkeep.sweep(self.calls, limit, self._options.retention, self._event_days)

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        return await redis_lists.get(self.calls, task_ids)

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await redis_lists.get_archived(self.calls, task_ids)

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await redis_lists.list_active(self.calls, self._options, limit, offset=offset, after=after, where=where)

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await redis_lists.list_archived(self.calls, limit, before, where)

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        return await redis_lists.history(self.calls, task_ids)

    async def stats(self) -> QueueStats:
        return await redis_lists.stats(self.calls)

    async def backlog(self) -> list[Backlog]:
        return await self._backlog.get(lambda: redis_lists.backlog(self.calls, self._options))

    async def operations(self) -> dict[str, object]:
        return await redis_upkeep.operations(self.calls)

    async def ping(self) -> None:
        if self._options.read_only:
            await self.paused()  # what tells more writes
        else:
            await redis_upkeep.ping(self.calls)

    async def changed(self, timeout: float) -> bool:
        return await self._changes.wait(timeout)

    async def aclose(self) -> None:
        """Stop listening and close the connections."""
        await self._changes.aclose()
        await self.calls.link.aclose()


def _pieces(task_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(task_ids), PIECE):
        yield task_ids[start : start + PIECE]


@asynccontextmanager
async def open_store(
    url: str,
    options: StoreOptions = StoreOptions(),
    *,
    prefix: str = "queue-runtime",
    connections: int = CONNECTIONS,
    allow_eviction: bool = False,
    event_days: int | None = None,
    url_now: Callable[[], str] | None = None,
) -> AsyncIterator[RedisStore]:
    """Open a queue. Nothing is sent before the first call; raises StoreUnusable where the URL names no server.

    `event_days`: how long events are remembered; None for ever. `url_now` is asked at each connect, where user or
    password in the URL may change while the store is open.
    """
    if not prefix or set("{}") & set(prefix):
        raise InvalidRequest("prefix", "must not be empty and must not hold braces")
    link = Link(Address(url, url_now), connections=connections, allow_eviction=allow_eviction)
    store = RedisStore(Calls(link, prefix, options.now), options, event_days=event_days)
    try:
        yield store
    finally:
        await store.aclose()
