"""The store whose tasks are in a database of record and whose dispatch goes through Redis Streams.

The record is the truth: every method is its method, and losing all of Redis loses nothing. The streams carry what can
run now to the workers, queue by queue. While Redis is away workers lease from the record itself.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import structlog
from msgspec.structs import asdict, replace

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import DispatchState, Order, StoreOptions
from queue_runtime.task import (
    MAX_LEASE_SECONDS,
    ArchivedTask,
    Attempt,
    Backlog,
    Complete,
    Lease,
    NewTask,
    Pause,
    QueueStats,
    Release,
    Settled,
    Settlement,
    SweepReport,
    Task,
    TaskFilter,
    Verdict,
    check_owner,
    check_range,
)
from stores.dispatchable import Page, Record, Which
from stores.redis_address import Address
from stores.redis_link import Link
from stores.redis_server import SAFE_POLICY
from stores.streams_bell import BLOCK_SECONDS, Bell
from stores.streams_changes import Changes
from stores.streams_chores import Chores
from stores.streams_feeder import CAP, Feeder, Tending
from stores.streams_lease import Asked, Dispatcher
from stores.streams_line import BACK_SECONDS, Line, LineDownError
from stores.streams_order import Policy, Preference, strangers

CONNECTIONS = 8

_log = structlog.get_logger().bind(source="dispatch")

BEGIN_SECONDS = 0.5
"""How long the first calls wait until everything is in the streams. Until it is, the record's lease stands in."""


class StreamsStore:
    """The Store protocol on a record, with a dispatch beside it."""

    def __init__(  # noqa: PLR0917
        self,
        record: Record,
        line: Line,
        bell: Bell,
        feeder: Feeder,
        dispatcher: Dispatcher,
        changes: Changes,
        chores: Chores,
    ) -> None:
        self._record = record
        self._line = line
        self._bell = bell
        self._feeder = feeder
        self._dispatcher = dispatcher
        self._changes = changes
        self._chores = chores
        self._beginning: asyncio.Task[None] | None = None
        self._begins_until = 0.0

    @property
    def dispatch(self) -> DispatchState:
        """How tasks get to the workers at present."""
        return self._line.state

    # ---- what makes work: the record's answer is the answer, then the streams are told

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        rows = await self._record.enqueue(tasks)
        if rows:
            await self._tell(self._feeder.tasks(rows))
        return rows

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        row = await self._record.enqueue_once(event_id, task, digest=digest)
        await self._tell(self._feeder.tasks([row]))
        return row

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        settled = await self._record.settle(settlements)
        done = [one for one, how in zip(settlements, settled, strict=True) if how.verdict is Verdict.SETTLED]
        released = [one.task_id for one in done if isinstance(one.outcome, Release)]
        if released:
            await self._tell(self._feeder.named(released))
        if any(isinstance(one.outcome, Complete) and one.outcome.followups for one in done):
            await self._tell(self._feeder.new_ones())
        return settled

    async def awaken(self, task_ids: Sequence[int]) -> int:
        changed = await self._record.awaken(task_ids)
        await self._tell_named(task_ids, changed)
        return changed

    async def free(self, task_ids: Sequence[int]) -> int:
        changed = await self._record.free(task_ids)
        await self._tell_named(task_ids, changed)
        return changed

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        changed = await self._record.delay(task_ids, until)
        await self._tell_named(task_ids, changed)
        return changed

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        rows = await self._record.retry(task_ids, repeat=repeat)
        if any(rows):
            await self._tell(self._feeder.tasks(rows))
        return rows

    async def resume(self, pause: Pause) -> bool:
        lifted = await self._record.resume(pause)
        if lifted:
            await self._tell(self._feeder.walk())
        return lifted

    async def _tell_named(self, task_ids: Sequence[int], changed: int) -> None:
        if changed:
            await self._tell(self._feeder.named(list(task_ids)))

    async def _tell(self, work: Coroutine[Any, Any, Any]) -> None:
        """Have the streams told. The caller waits for a moment at most: what is missed the sweep delivers."""
        if not self._line.open:
            work.close()
        elif self._chores.full:
            work.close()
            self._line.hang_up("too many calls wait for their answers")
        else:
            await self._chores.hurry(work)

    # ---- leasing

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
        self._check_faults()
        if order == "dispatch" and only is None and limit > 0 and self._line.up:
            check_owner(owner)
            check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
            asked = Asked(
                owner=owner,
                limit=limit,
                seconds=seconds,
                classes=classes,
                without_classes=without_classes,
                queues=queues,
                without=without,
                due_first=due_first,
            )
            try:
                await self._begin()
                return await self._dispatcher.lease(asked)
            except LineDownError:
                pass  # the record's own lease stands in, at once
        tasks = await self._record.lease(
            owner,
            limit,
            seconds,
            classes=classes,
            without_classes=without_classes,
            queues=queues,
            only=only,
            without=without,
            due_first=due_first,
        )
        await self._dispatcher.forget(tasks)
        return tasks

    async def changed(self, timeout: float) -> bool:
        self._check_faults()
        if self._line.up:
            await self._begin()
        return await self._changes.wait(timeout)

    async def _begin(self) -> None:
        """Deliver everything once, before the first read, which waits for that no longer than for a moment."""
        loop = asyncio.get_running_loop()
        if self._beginning is None:
            self._begins_until = loop.time() + BEGIN_SECONDS
            self._beginning = self._chores.start(self._feeder.deliver_all())
        if not self._beginning.done() and loop.time() < self._begins_until:
            await asyncio.wait({self._beginning}, timeout=self._begins_until - loop.time())

    def _check_faults(self) -> None:
        self._chores.check()
        self._line.check()

    async def sweep(self, limit: int) -> SweepReport:
        report = await self._record.sweep(limit)
        if not self._line.up:
            return report
        try:
            added = await self._feeder.tend() + await self._feeder.walk_now_and_then()
        except LineDownError:
            return report
        return replace(report, redelivered=added)

    # ---- the record's alone

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        return await self._record.renew(leases, seconds)

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._record.cancel(task_ids)

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        return await self._record.priority(task_ids, priority)

    async def pause(self, pause: Pause) -> None:
        await self._record.pause(pause)

    async def paused(self) -> list[Pause]:
        return await self._record.paused()

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        return await self._record.get(task_ids)

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        return await self._record.get_archived(task_ids)

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        return await self._record.list_active(limit, offset=offset, after=after, where=where)

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        return await self._record.list_archived(limit, before=before, where=where)

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        return await self._record.history(task_ids)

    async def stats(self) -> QueueStats:
        return await self._record.stats()

    async def backlog(self) -> list[Backlog]:
        return await self._record.backlog()

    async def dispatchable(self, which: Which, limit: int) -> Page:
        return await self._record.dispatchable(which, limit)

    async def names(self) -> Collection[str]:
        return await self._record.names()

    async def operations(self) -> dict[str, object]:
        facts = await self._record.operations()
        server = self._line.link.facts
        dispatch: dict[str, object] = asdict(self.dispatch)
        if server.version:
            dispatch["server"] = f"{server.product} {server.version}"
        if server.policy not in {"", SAFE_POLICY}:
            dispatch["warning"] = (
                f"maxmemory-policy is {server.policy}: entries may vanish, and the sweep delivers again"
            )
        return {**facts, "backend": "streams", "record": facts["backend"], "dispatch": dispatch}

    async def ping(self) -> None:
        await self._record.ping()

    async def aclose(self) -> None:
        """Stop listening, give back what was read, and leave the streams."""
        await self._bell.aclose()
        await self._changes.aclose()
        await self._chores.aclose()
        if self._line.open and self._line.began:
            with suppress(LineDownError):
                await self._line.script("streams_leave", self._line.consumer, read=lambda _: None, seconds=0.5)
        await self._line.aclose()


@asynccontextmanager
async def open_store(
    record: Record,
    url: str,
    options: StoreOptions = StoreOptions(),
    *,
    prefix: str = "queue-runtime-streams",
    group: str = "queue-runtime",
    queues: Sequence[str] = (),
    policy: Policy = "strict",
    block_seconds: Callable[[], float] = lambda: BLOCK_SECONDS,
    url_now: Callable[[], str] | None = None,
    back_seconds: float = BACK_SECONDS,
    tending: Tending | None = None,
    cap: int = CAP,
    dice: random.Random | None = None,
) -> AsyncIterator[StreamsStore]:
    """Put a dispatch beside an opened record. Nothing is sent before the first call, and Redis need not be there.

    `queues`: the queues by preference; none: the known ones. `back_seconds`: how long Redis must have answered before
    it is trusted again. `block_seconds` is asked before each blocking read, and `url_now` at each connect, where user
    or password in the URL may change while the store is open. Raises StoreUnusable where the URL names no server.
    """
    if not prefix or set("{}") & set(prefix):
        raise InvalidRequest("prefix", "must not be empty and must not hold braces")
    times = replace(tending or Tending(), patience=options.patience)
    for queue, meant in strangers(queues, [queue for _, queue in options.routes.patterns]).items():
        _log.warning(
            "QUEUES names a queue that no route leads to: it has only what callers put there by its name",
            queue=queue,
            did_you_mean=meant,
        )
    link = Link(Address(url, url_now), connections=CONNECTIONS, allow_eviction=True)
    line = Line(link, record.names, prefix=prefix, group=group, back_seconds=back_seconds)
    chores = Chores()
    preference = Preference(queues, policy, dice=dice)
    bell = Bell(line, preference.queues, block_seconds=block_seconds)
    feeder = Feeder(record, line, bell, times, cap=cap)
    changes = Changes(record, line, bell, feeder, chores, times)
    dispatcher = Dispatcher(record, line, feeder, bell, chores, preference, cap=cap)
    bell.ring = changes.ring
    line.deliver_all = feeder.deliver_all
    store = StreamsStore(record, line, bell, feeder, dispatcher, changes, chores)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
