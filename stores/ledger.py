"""Some rows read whole and changed by plain rules. The store that loads one has locked its rows, so that nobody else
can touch them before it writes back what has changed: what a rule saw is what it changes."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from queue_runtime.task import (
    MAX_MESSAGE,
    MAX_TRACE,
    PARKED_OWNERS,
    U32,
    ArchivedTask,
    Attempt,
    AttemptKind,
    Failure,
    Lease,
    Result,
    Task,
    is_sentinel,
)
from stores.spent_receipts import first_unspent, is_receipt, spend


class Ledger:
    """The rows of some ids, as they were read and then as the rules made them. Nothing here reaches the store."""

    def __init__(
        self,
        now: int,
        active: Iterable[Task],
        archived: Iterable[ArchivedTask],
        spent: Mapping[int, str | None],
    ) -> None:
        self.now = now
        self._active = {row.id: row for row in active}
        self._archived = {row.id: row for row in archived}
        self._spent = dict(spent)
        self.changed: set[int] = set()
        """ids whose row has to be written"""
        self.attempts: list[tuple[int, Attempt]] = []
        """entries for the error history, in their order"""
        self.ended = 0
        """how many more rows are archived now than before (negative: came back)"""

    def active(self, task_id: int) -> Task | None:
        """The row, if it is active."""
        return self._active.get(task_id)

    def archived(self, task_id: int) -> ArchivedTask | None:
        """The row, if it is archived."""
        return self._archived.get(task_id)

    def all_active(self) -> list[Task]:
        """Every active row of the ids, once."""
        return list(self._active.values())

    def spent(self, task_id: int) -> str | None:
        """The spent expiries of the row."""
        return self._spent.get(task_id)

    def held(self, lease: Lease) -> Task | None:
        """The row, if this lease is valid: same owner, and for a receipt same expiry, which is still to come."""
        row = self._active.get(lease.task_id)
        if row is None or not is_held(row.lease_owner, row.lease_expires, lease, self.now):
            return None
        return row

    def put(self, row: Task) -> Task:
        """An active row as it is from now on."""
        self._active[row.id] = row
        self.changed.add(row.id)
        return row

    def prolong(self, row: Task, seconds: int) -> Task:
        """Move the expiry of a held row to so many seconds from now, never back; of a receipt, to an unspent one."""
        expires = self.now + seconds
        if row.lease_expires is not None and row.lease_expires >= expires:
            return row
        if is_receipt(row.lease_owner):
            self._spend_receipt(row)
            expires = first_unspent(self.spent(row.id), expires)
        return self.put(replace(row, lease_expires=expires))

    def give_back(self, row: Task, owner: str | None, expires: int | None) -> None:
        """Take the row from its holder."""
        self._spend_receipt(row)
        self.put(replace(row, lease_owner=owner, lease_expires=expires, date_modified=self.now))

    def archive(self, row: Task, result: Result, duration_us: int = 0) -> ArchivedTask:
        """End an active task."""
        archived = ended_task(row, result, duration_us, self.now)
        del self._active[row.id]
        self._archived[row.id] = archived
        self.changed.add(row.id)
        self.ended += 1
        return archived

    def revive(self, archived: ArchivedTask) -> Task:
        """Bring an archived task back, ready and without failures."""
        self._spend_receipt(archived)
        del self._archived[archived.id]
        self.ended -= 1
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
        entry = attempt_entry(kind, failure, failures=row.failure_count, owner=row.lease_owner, now=self.now)
        self.attempts.append((row.id, entry))

    def _spend_receipt(self, row: Task | ArchivedTask) -> None:
        if row.lease_expires is not None and row.lease_expires > self.now and is_receipt(row.lease_owner):
            self._spent[row.id] = spend(self.spent(row.id), row.lease_expires, self.now)


def ended_task(row: Task, result: Result, duration_us: int, now: int) -> ArchivedTask:
    """An active row as it is once archived."""
    return ArchivedTask(
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


def attempt_entry(kind: AttemptKind, failure: Failure, *, failures: int, owner: str | None, now: int) -> Attempt:
    """The history entry of a run of this owner, after so many earlier failures."""
    return Attempt(
        attempt=min(failures + 1, U32),
        kind=kind,
        when=now,
        owner=None if owner is None else storable(owner),
        duration_us=failure.duration_us,
        message=storable(failure.message[:MAX_MESSAGE]),
        trace=storable(failure.trace[:MAX_TRACE]),
    )


def storable(text: str) -> str:
    """The text with what has no UTF-8 form (lone surrogates, as tracebacks may hold) written as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


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
