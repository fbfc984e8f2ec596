"""What operators change in the rows of a ledger: cancel, awaken, free, priority, delay, retry. For every SQL store."""

from collections.abc import Sequence

from msgspec.structs import replace

from queue_runtime.task import AWAKEN_BACK, ArchivedTask, Result, Sentinel, Task
from stores.ledger import Ledger


def cancel(ledger: Ledger, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
    """Archive active rows as cancelled."""
    cancelled: list[ArchivedTask | None] = []
    for task_id in task_ids:
        row = ledger.active(task_id)
        cancelled.append(None if row is None else ledger.archive(row, Result.CANCELLED))
    return cancelled


def awaken(ledger: Ledger) -> int:
    """Make yields that never failed due now."""
    moment = ledger.now - AWAKEN_BACK
    rows = [
        row
        for row in ledger.all_active()
        if row.lease_owner == Sentinel.YIELD and row.failure_count == 0 and (row.lease_expires or 0) > moment
    ]
    for row in rows:
        ledger.put(replace(row, lease_expires=moment))
    return len(rows)


def free(ledger: Ledger) -> int:
    """Take rows from their owners."""
    rows = [row for row in ledger.all_active() if row.lease_owner is not None]
    for row in rows:
        ledger.give_back(row, None, ledger.now)
    return len(rows)


def set_priority(ledger: Ledger, priority: int) -> int:
    """Set the priority of active rows."""
    rows = ledger.all_active()
    for row in rows:
        ledger.put(replace(row, priority=priority, date_modified=ledger.now))
    return len(rows)


def delay(ledger: Ledger, until: int) -> int:
    """Delay rows that nobody holds."""
    rows = [row for row in ledger.all_active() if row.lease_owner in (None, Sentinel.DELAY)]
    for row in rows:
        ledger.put(replace(row, lease_owner=Sentinel.DELAY.value, lease_expires=until, date_modified=ledger.now))
    return len(rows)


def retry(ledger: Ledger, task_ids: Sequence[int], *, repeat: bool) -> list[Task | None]:
    """Bring archived tasks back."""
    revived: list[Task | None] = []
    for task_id in task_ids:
        archived = ledger.archived(task_id)
        if archived is None or (archived.result is Result.SUCCESS and not repeat):
            revived.append(None)
        else:
            revived.append(ledger.revive(archived))
    return revived
