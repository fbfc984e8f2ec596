"""Some rows read whole, changed by plain rules, and written back: inside one write transaction nobody else can
touch them, so what a rule saw is what it changes."""

from collections.abc import Iterable

from msgspec.structs import replace

from queue_runtime.task import (
    PARKED_OWNERS,
    ArchivedTask,
    AttemptKind,
    Failure,
    Lease,
    Result,
    Task,
    is_sentinel,
)
from stores.spent_receipts import first_unspent, is_receipt, spend
from stores.sqlite_history import remember
from stores.sqlite_rows import ID, RESULT, SPENT, active_task, archived_task, id_list
from stores.sqlite_session import Session


class Ledger:
    """The rows of these ids. Nothing is stored before `write`."""

    def __init__(self, session: Session, task_ids: Iterable[int]) -> None:
        self._session = session
        self.now = session.now()
        self._active: dict[int, Task] = {}
        self._archived: dict[int, ArchivedTask] = {}
        self._spent: dict[int, str | None] = {}
        self._changed: set[int] = set()
        self._ended = 0
        for row in session.rows("rows", (id_list(task_ids),)):
            self._spent[row[ID]] = row[SPENT]
            if row[RESULT] is None:
                self._active[row[ID]] = active_task(row)
            else:
                self._archived[row[ID]] = archived_task(row)

    def active(self, task_id: int) -> Task | None:
        """The row, if it is active."""
        return self._active.get(task_id)

    def archived(self, task_id: int) -> ArchivedTask | None:
        """The row, if it is archived."""
        return self._archived.get(task_id)

    def all_active(self) -> list[Task]:
        """Every active row of the ids, once."""
        return list(self._active.values())

    def held(self, lease: Lease) -> Task | None:
        """The row, if this lease is valid: same owner, and for a receipt same expiry, which is still to come."""
        row = self._active.get(lease.task_id)
        if row is None or not is_held(row.lease_owner, row.lease_expires, lease, self.now):
            return None
        return row

    def put(self, row: Task) -> Task:
        """An active row as it is from now on."""
        self._active[row.id] = row
        self._changed.add(row.id)
        return row

    def prolong(self, row: Task, seconds: int) -> Task:
        """Move the expiry of a held row to so many seconds from now, never back; of a receipt, to an unspent one."""
        expires = self.now + seconds
        if row.lease_expires is not None and row.lease_expires >= expires:
            return row
        if is_receipt(row.lease_owner):
            self._spend_receipt(row)
            expires = first_unspent(self._spent[row.id], expires)
        return self.put(replace(row, lease_expires=expires))

    def spent(self, task_id: int) -> str | None:
        """The spent expiries of the row."""
        return self._spent[task_id]

    def give_back(self, row: Task, owner: str | None, expires: int | None) -> None:
        """Take the row from its holder."""
        self._spend_receipt(row)
        self.put(replace(row, lease_owner=owner, lease_expires=expires, date_modified=self.now))

    def archive(self, row: Task, result: Result, duration_us: int = 0) -> ArchivedTask:
        """End an active task."""
        archived = ArchivedTask(
            id=row.id,
            task_class=row.task_class,
            data_id=row.data_id,
            priority=row.priority,
            date_created=row.date_created,
            date_modified=self.now,
            result=result,
            duration_us=duration_us,
            archived_epoch=self.now,
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
        del self._active[row.id]
        self._archived[row.id] = archived
        self._changed.add(row.id)
        self._ended += 1
        return archived

    def revive(self, archived: ArchivedTask) -> Task:
        """Bring an archived task back, ready and without failures."""
        self._spend_receipt(archived)
        del self._archived[archived.id]
        self._ended -= 1
        return self.put(
            Task(
                id=archived.id,
                task_class=archived.task_class,
                data_id=archived.data_id,
                priority=archived.priority,
                date_created=archived.date_created,
                date_modified=self.now,
                lease_expires=0,
                object_phid=archived.object_phid,
                container_phid=archived.container_phid,
                queue=archived.queue,
                idempotency_key=archived.idempotency_key,
                max_attempts=archived.max_attempts,
            )
        )

    def remember(self, row: Task, kind: AttemptKind, failure: Failure) -> None:
        """Write down how the run of the row's holder ended."""
        remember(
            self._session,
            row.id,
            kind,
            failure,
            failures=row.failure_count,
            owner=row.lease_owner,
            now=self.now,
        )

    def write(self) -> None:
        """Store every row that was changed."""
        self._session.many("write", [self._values(task_id) for task_id in self._changed])
        if self._ended:
            self._session.run("count_ended", (self._ended,))

    def _values(self, task_id: int) -> tuple[object, ...]:
        task = self._active.get(task_id)
        if task is not None:
            failure_time, end = task.failure_time, (None, None, None)
            return (*_common(task), failure_time, self._spent[task_id], *end)
        archived = self._archived[task_id]
        return (
            *_common(archived),
            None,
            self._spent[task_id],
            archived.result.value,
            archived.duration_us,
            archived.archived_epoch,
        )

    def _spend_receipt(self, row: Task | ArchivedTask) -> None:
        if row.lease_expires is not None and row.lease_expires > self.now and is_receipt(row.lease_owner):
            self._spent[row.id] = spend(self._spent[row.id], row.lease_expires, self.now)


def _common(row: Task | ArchivedTask) -> tuple[object, ...]:
    return (
        row.id,
        row.priority,
        row.lease_owner,
        row.lease_expires,
        row.failure_count,
        row.lost_count,
        row.date_modified,
    )


def is_held(owner: str | None, expires: int | None, lease: Lease, now: int) -> bool:
    """Whether an active row with this owner and expiry is held by the lease. A sentinel never fences."""
    if owner != lease.owner or is_sentinel(lease.owner) or lease.owner in PARKED_OWNERS:
        return False
    return lease.expires is None or (expires == lease.expires and lease.expires > now)


def is_repeat(archived_owner: str | None, archived_expires: int | None, lease: Lease) -> bool:
    """Whether the lease is the one that an archived row was ended by."""
    if archived_owner != lease.owner or is_sentinel(lease.owner):
        return False
    return lease.expires is None or archived_expires == lease.expires
