"""The rules in plain Python: what every store must do, readable in one sitting. For tests only.

Change a rule here first, in the same commit as the rule. State is changed only after everything that can be
refused was checked, and never across an `await`, so each method is one atomic round.
"""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from msgspec.structs import replace

from queue_runtime.errors import EventConflict
from queue_runtime.store import Order, StoreOptions
from queue_runtime.task import (
    AWAKEN_BACK,
    DEFAULT_PRIORITY,
    LOST_MESSAGE,
    MAX_EVENT_ID_BYTES,
    MAX_HISTORY,
    MAX_LEASE_BYTES,
    MAX_LEASE_LIMIT,
    MAX_LEASE_SECONDS,
    MAX_LIST,
    MAX_MESSAGE,
    MAX_TRACE,
    PARKED_OWNERS,
    U32,
    YIELD_FLOOR,
    ArchivedTask,
    Attempt,
    AttemptKind,
    Backlog,
    Complete,
    Fail,
    Failure,
    Lease,
    NewTask,
    Pause,
    PauseKind,
    QueueStats,
    Release,
    Result,
    Retry,
    Sentinel,
    Settled,
    Settlement,
    State,
    SweepReport,
    Task,
    TaskFilter,
    Unknown,
    Verdict,
    Yield,
    check_bytes,
    check_outcome,
    check_owner,
    check_range,
    due_at,
    is_sentinel,
    is_worker,
    state_of,
)
from queue_runtime.wire import event_digest

WINDOW = 1000
"""Phase 2 picks by priority among this many rows, those due longest."""

NOT_HELD = frozenset({Sentinel.RETRY, Sentinel.DELAY, Sentinel.UNKNOWN})


@dataclass
class Tables:
    """Everything the store knows."""

    last_id: int = 0
    active: dict[int, Task] = field(default_factory=dict)
    archived: dict[int, ArchivedTask] = field(default_factory=dict)
    data: dict[int, str] = field(default_factory=dict)
    history: dict[int, list[Attempt]] = field(default_factory=dict)
    keys: dict[str, Task] = field(default_factory=dict)
    events: dict[str, tuple[str, Task]] = field(default_factory=dict)
    pauses: set[Pause] = field(default_factory=set)
    spent: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """task id -> expiries of receipts that were given back, taken away or renewed; never granted again"""


class ReferenceStore:
    """The Store protocol in memory."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._now: Callable[[], int] = options.now or (lambda: int(time.time()))
        self.tables = Tables()
        self._rung = False
        self._announced = self._now()

    # ---- enqueue

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        rows = [self._insert(task, DEFAULT_PRIORITY) for task in tasks]
        self._rung = True
        return rows

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        check_bytes("event_id", event_id, MAX_EVENT_ID_BYTES)
        digest = event_digest(task) if digest is None else digest
        if event_id not in self.tables.events:
            self.tables.events[event_id] = (digest, self._insert(task, DEFAULT_PRIORITY))
            self._rung = True
        known, row = self.tables.events[event_id]
        if known != digest:
            raise EventConflict(event_id)
        return row

    def _insert(self, new: NewTask, default_priority: int) -> Task:
        if new.idempotency_key is not None and new.idempotency_key in self.tables.keys:
            return self.tables.keys[new.idempotency_key]
        self.tables.last_id += 1
        now = self._now()
        row = Task(
            id=self.tables.last_id,
            task_class=new.task_class,
            data_id=self.tables.last_id,
            priority=default_priority if new.priority is None else new.priority,
            date_created=now,
            date_modified=now,
            lease_owner=None if new.delay_until is None else Sentinel.DELAY,
            lease_expires=new.delay_until,
            object_phid=new.object_phid,
            container_phid=new.container_phid,
            queue=self._options.routes.queue_for(new.task_class) if new.queue is None else new.queue,
            idempotency_key=new.idempotency_key,
            max_attempts=new.max_attempts,
        )
        self.tables.active[row.id] = row
        self.tables.data[row.id] = new.data
        if new.idempotency_key is not None:
            self.tables.keys[new.idempotency_key] = row
        return row

    # ---- lease

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
        limit = min(limit, MAX_LEASE_LIMIT)
        now = self._now()

        def asked(row: Task) -> bool:
            return (
                (classes is None or row.task_class in classes)
                and row.task_class not in without_classes
                and (queues is None or row.queue in queues)
                and (only is None or row.id in only)
                and row.id not in without
                and not self._is_paused(row)
            )

        rows = [row for row in self.tables.active.values() if asked(row)]
        fresh = [row for row in rows if row.lease_owner is None and row.lease_expires is None]
        due = [row for row in rows if self._is_due(row, now)]
        due.sort(key=lambda row: (row.lease_expires or 0, row.id))
        phases = [sorted(fresh, key=_by_priority), sorted(due[:WINDOW], key=_by_priority)]
        if due_first:
            phases.reverse()

        taken: list[Task] = []
        size = 0
        for row in (row for phase in phases for row in phase):
            if len(taken) >= limit:
                break
            if is_worker(row.lease_owner) and row.lost_count + 1 >= self._options.max_lost:
                self._archive(self._count_loss(row, now), Result.FAILURE, 0, now)
                continue
            size += len(self.tables.data[row.id].encode())
            if taken and size > MAX_LEASE_BYTES:
                break
            taken.append(self._take(row, owner, seconds, now))
        return taken

    def _is_due(self, row: Task, now: int) -> bool:
        if row.lease_expires is None:
            return False
        due = due_at(row.lease_owner, row.lease_expires, self._options.patience)
        return due is not None and due <= now

    def _is_paused(self, row: Task) -> bool:
        return not self.tables.pauses.isdisjoint(
            (Pause(PauseKind.ALL), Pause(PauseKind.CLASS, row.task_class), Pause(PauseKind.QUEUE, row.queue))
        )

    def _take(self, row: Task, owner: str, seconds: int, now: int) -> Task:
        if is_worker(row.lease_owner):
            row = self._count_loss(row, now)
        row = self._put(row, lease_owner=owner, lease_expires=self._expiry(row.id, owner, now + seconds))
        return replace(row, data=self.tables.data[row.id])

    def _count_loss(self, row: Task, now: int) -> Task:
        row = replace(row, lost_count=row.lost_count + 1)
        self._remember(row, AttemptKind.LOST, Failure(LOST_MESSAGE), now)
        return row

    def _expiry(self, task_id: int, owner: str, expires: int) -> int:
        """The first second from this one on that no receipt of the task ended in. Workers need no such care."""
        while is_receipt(owner) and expires in self.tables.spent[task_id]:
            expires += 1
        return expires

    # ---- renew and settle

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        check_range("seconds", seconds, 1, MAX_LEASE_SECONDS)
        now = self._now()
        renewed: list[Task | None] = []
        for lease in leases:
            row = self._held(lease, now)
            if row is not None and (row.lease_expires or 0) < now + seconds:
                self._spend_receipt(row)
                row = self._put(row, lease_expires=self._expiry(row.id, lease.owner, now + seconds))
            renewed.append(row)
        return renewed

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        for settlement in settlements:
            check_outcome(settlement.outcome)
        now = self._now()
        self._rung = True
        return [self._settle(settlement, now) for settlement in settlements]

    def _settle(self, settlement: Settlement, now: int) -> Settled:
        lease = settlement.lease
        row = self.tables.active.get(settlement.task_id) if lease is None else self._held(lease, now)
        if row is None:
            return self._replay(settlement)
        if not isinstance(settlement.outcome, Release):
            row = replace(row, lost_count=0)
        match settlement.outcome:
            case Complete(duration_us, followups):
                archived = self._archive(row, Result.SUCCESS, duration_us, now)
                for followup in followups:
                    self._insert(followup, row.priority)
                return Settled(Verdict.SETTLED, archived)
            case Fail(failure):
                self._remember(row, AttemptKind.FAILURE, failure, now)
                return Settled(Verdict.SETTLED, self._archive(row, Result.FAILURE, 0, now))
            case Retry(wait, failure, class_maximum):
                maximum = row.max_attempts if row.max_attempts is not None else class_maximum
                last = maximum is not None and row.failure_count + 1 >= maximum
                self._remember(row, AttemptKind.FAILURE if last else AttemptKind.RETRY, failure, now)
                row = replace(row, failure_count=row.failure_count + 1)
                if last:
                    return Settled(Verdict.SETTLED, self._archive(row, Result.FAILURE, 0, now))
                self._give_back(replace(row, failure_time=now), Sentinel.RETRY, now + wait, now)
            case Yield(wait):
                self._give_back(row, Sentinel.YIELD, now + max(wait, YIELD_FLOOR), now)
            case Unknown(wait):
                self._give_back(row, Sentinel.UNKNOWN, now + wait, now)
            case Release():
                self._give_back(row, None, None, now)
        return Settled(Verdict.SETTLED)

    def _held(self, lease: Lease, now: int) -> Task | None:
        row = self.tables.active.get(lease.task_id)
        if row is None or row.lease_owner != lease.owner or is_sentinel(lease.owner) or lease.owner in PARKED_OWNERS:
            return None
        if lease.expires is not None and not (row.lease_expires == lease.expires > now):
            return None
        return row

    def _replay(self, settlement: Settlement) -> Settled:
        lease, archived = settlement.lease, self.tables.archived.get(settlement.task_id)
        wanted = {Complete: Result.SUCCESS, Fail: Result.FAILURE}.get(type(settlement.outcome))
        if (
            lease is None
            or archived is None
            or archived.result != wanted
            or archived.lease_owner != lease.owner
            or is_sentinel(lease.owner)
            or (lease.expires is not None and archived.lease_expires != lease.expires)
        ):
            return Settled(Verdict.LOST)
        return Settled(Verdict.REPLAYED, archived)

    def _give_back(self, row: Task, owner: str | None, expires: int | None, now: int) -> None:
        self._spend_receipt(row)
        if expires is not None:
            expires = min(expires, U32)
        self._put(row, lease_owner=owner, lease_expires=expires, date_modified=now)

    def _spend_receipt(self, row: Task | ArchivedTask) -> None:
        if is_receipt(row.lease_owner) and row.lease_expires is not None:
            self.tables.spent[row.id].add(row.lease_expires)

    def _archive(self, row: Task, result: Result, duration_us: int, now: int) -> ArchivedTask:
        del self.tables.active[row.id]
        archived = ArchivedTask(
            id=row.id,
            task_class=row.task_class,
            data_id=row.data_id,
            priority=row.priority,
            date_created=row.date_created,
            date_modified=now,
            result=result,
            duration_us=duration_us,
            archived_epoch=now,
            lease_owner=row.lease_owner,
            lease_expires=row.lease_expires,
            failure_count=row.failure_count,
            object_phid=row.object_phid,
            container_phid=row.container_phid,
            queue=row.queue,
            idempotency_key=row.idempotency_key,
            max_attempts=row.max_attempts,
            lost_count=row.lost_count,
        )
        self.tables.archived[row.id] = archived
        return archived

    def _remember(self, row: Task, kind: AttemptKind, failure: Failure, now: int) -> None:
        entries = self.tables.history.setdefault(row.id, [])
        entries.append(
            Attempt(
                attempt=row.failure_count + 1,
                kind=kind,
                when=now,
                owner=row.lease_owner,
                duration_us=failure.duration_us,
                message=_storable(failure.message[:MAX_MESSAGE]),
                trace=_storable(failure.trace[:MAX_TRACE]),
            )
        )
        del entries[:-MAX_HISTORY]

    def _put(self, row: Task, **changes: object) -> Task:
        row = replace(row, **changes)
        self.tables.active[row.id] = row
        return row

    # ---- operators

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        now = self._now()
        return [self._cancel(task_id, now) for task_id in task_ids]

    def _cancel(self, task_id: int, now: int) -> ArchivedTask | None:
        row = self.tables.active.get(task_id)
        return None if row is None else self._archive(row, Result.CANCELLED, 0, now)

    async def awaken(self, task_ids: Sequence[int]) -> int:
        moment = self._now() - AWAKEN_BACK
        rows = [
            row
            for row in self._rows(task_ids)
            if row.lease_owner == Sentinel.YIELD and row.failure_count == 0 and (row.lease_expires or 0) > moment
        ]
        for row in rows:
            self._put(row, lease_expires=moment)
        self._rung = True
        return len(rows)

    async def free(self, task_ids: Sequence[int]) -> int:
        now = self._now()
        rows = [row for row in self._rows(task_ids) if row.lease_owner is not None]
        for row in rows:
            self._give_back(row, None, now, now)
        self._rung = True
        return len(rows)

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        check_range("priority", priority, 0, U32)
        rows = self._rows(task_ids)
        for row in rows:
            self._put(row, priority=priority, date_modified=self._now())
        return len(rows)

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        check_range("delay_until", until, 1, U32)
        rows = [row for row in self._rows(task_ids) if row.lease_owner in (None, Sentinel.DELAY)]
        for row in rows:
            self._put(row, lease_owner=Sentinel.DELAY, lease_expires=until, date_modified=self._now())
        self._rung = True
        return len(rows)

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        self._rung = True
        return [self._retry(task_id, repeat) for task_id in task_ids]

    def _retry(self, task_id: int, repeat: bool) -> Task | None:
        archived = self.tables.archived.get(task_id)
        if archived is None or (archived.result == Result.SUCCESS and not repeat):
            return None
        self._spend_receipt(archived)
        del self.tables.archived[task_id]
        row = Task(
            id=archived.id,
            task_class=archived.task_class,
            data_id=archived.data_id,
            priority=archived.priority,
            date_created=archived.date_created,
            date_modified=self._now(),
            lease_expires=0,
            object_phid=archived.object_phid,
            container_phid=archived.container_phid,
            queue=archived.queue,
            idempotency_key=archived.idempotency_key,
            max_attempts=archived.max_attempts,
        )
        self.tables.active[task_id] = row
        return row

    def _rows(self, task_ids: Sequence[int]) -> list[Task]:
        """The active rows of these ids, each once."""
        return [self.tables.active[task_id] for task_id in dict.fromkeys(task_ids) if task_id in self.tables.active]

    async def pause(self, pause: Pause) -> None:
        self.tables.pauses.add(pause)

    async def resume(self, pause: Pause) -> bool:
        self._rung = True
        was_set = pause in self.tables.pauses
        self.tables.pauses.discard(pause)
        return was_set

    async def paused(self) -> list[Pause]:
        return sorted(self.tables.pauses, key=lambda pause: (pause.kind, pause.name))

    async def sweep(self, limit: int) -> SweepReport:
        if self._options.retention is None:
            return SweepReport()
        horizon = self._now() - self._options.retention
        over = [row for row in self.tables.archived.values() if row.archived_epoch <= horizon]
        over.sort(key=lambda row: (row.archived_epoch, row.id))
        for row in over[:limit]:
            for table in (self.tables.archived, self.tables.data, self.tables.history):
                table.pop(row.id, None)
            if row.idempotency_key is not None:
                self.tables.keys.pop(row.idempotency_key, None)
        return SweepReport(expired=len(over[:limit]), more=len(over) > limit)

    # ---- reading

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        rows = [self.tables.active.get(task_id) for task_id in task_ids]
        return [None if row is None else replace(row, data=self.tables.data[row.id]) for row in rows]

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        rows = [self.tables.archived.get(task_id) for task_id in task_ids]
        return [None if row is None else replace(row, data=self.tables.data[row.id]) for row in rows]

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        now = self._now()
        rows = sorted(self.tables.active.values(), key=_by_priority)
        rows = [row for row in rows if self._fits(row, where) and (after is None or _by_priority(row) > after)]
        if where.states is not None:
            rows = [row for row in rows if self._state(row, now) in where.states]
        return rows[offset : offset + min(limit, MAX_LIST)]

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        rows = sorted(self.tables.archived.values(), key=lambda row: -row.id)
        rows = [row for row in rows if self._fits(row, where) and (before is None or row.id < before)]
        if where.results is not None:
            rows = [row for row in rows if row.result in where.results]
        if where.ended_since is not None:
            rows = [row for row in rows if row.archived_epoch >= where.ended_since]
        return rows[: min(limit, MAX_LIST)]

    def _fits(self, row: Task | ArchivedTask, where: TaskFilter) -> bool:
        return (
            (where.classes is None or row.task_class in where.classes)
            and (where.queues is None or row.queue in where.queues)
            and (where.object_phid is None or row.object_phid == where.object_phid)
            and (where.container_phid is None or row.container_phid == where.container_phid)
            and (where.min_failures is None or row.failure_count >= where.min_failures)
            and (where.max_failures is None or row.failure_count <= where.max_failures)
            and (where.min_priority is None or row.priority >= where.min_priority)
            and (where.max_priority is None or row.priority <= where.max_priority)
        )

    def _state(self, row: Task, now: int) -> State:
        return state_of(row.lease_owner, row.lease_expires, now, self._options.patience)

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        return [list(self.tables.history.get(task_id, ())) for task_id in task_ids]

    async def stats(self) -> QueueStats:
        now = self._now()
        rows = [row for row in self.tables.active.values() if row.lease_owner not in PARKED_OWNERS]
        leased = [
            row
            for row in rows
            if row.lease_owner is not None
            and row.lease_owner not in NOT_HELD
            and row.lease_expires is not None
            and row.lease_expires >= now
        ]
        return QueueStats(
            active=len(rows),
            leased=len(leased),
            archived=len(self.tables.archived),
            failed=sum(row.failure_count > 0 for row in rows),
        )

    async def backlog(self) -> list[Backlog]:
        now = self._now()
        groups: dict[tuple[str, str, int], list[int]] = {}
        for row in self.tables.active.values():
            if self._state(row, now) is State.READY:
                groups.setdefault((row.task_class, row.queue, row.priority), []).append(row.date_created)
        return [
            Backlog(task_class=name, queue=queue, priority=priority, waiting=len(dates), oldest=min(dates))
            for (name, queue, priority), dates in sorted(groups.items())
        ]

    async def operations(self) -> dict[str, object]:
        return {"backend": "reference", "snapshot": "observational", "generatedEpoch": self._now()}

    async def ping(self) -> None:
        return None

    async def changed(self, timeout: float) -> bool:
        with anyio.move_on_after(timeout):
            while not (self._rung or self._came_due()):  # noqa: ASYNC110  a test's clock rings no event
                await anyio.sleep(0.005)
        heard = self._rung or self._came_due()
        self._rung, self._announced = False, self._now()
        return heard

    def _came_due(self) -> bool:
        now = self._now()
        moments = (
            due_at(row.lease_owner, row.lease_expires, self._options.patience)
            for row in self.tables.active.values()
            if row.lease_expires is not None
        )
        return any(self._announced < moment <= now for moment in moments if moment is not None)


def is_receipt(owner: str | None) -> bool:
    """Whether this owner's lease is a receipt: an HTTP caller's, whose name may come back."""
    return not (owner is None or is_worker(owner) or is_sentinel(owner) or owner in PARKED_OWNERS)


def _storable(text: str) -> str:
    """The text with what has no UTF-8 form (lone surrogates, as tracebacks may hold) written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _by_priority(row: Task) -> tuple[int, int]:
    return row.priority, row.id


@asynccontextmanager
async def open_store(options: StoreOptions = StoreOptions()) -> AsyncIterator[ReferenceStore]:
    """Open an empty store."""
    yield ReferenceStore(options)
