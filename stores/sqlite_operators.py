"""What operators do on SQLite: cancel, awaken, free, priority, delay, retry, pause; and the sweep."""

from collections.abc import Sequence

from msgspec.structs import replace

from queue_runtime.task import AWAKEN_BACK, ArchivedTask, Pause, Result, Sentinel, SweepReport, Task
from stores.sqlite_ledger import Ledger
from stores.sqlite_session import Session


def cancel(session: Session, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
    """Archive active rows as cancelled."""
    ledger = Ledger(session, task_ids)
    cancelled: list[ArchivedTask | None] = []
    for task_id in task_ids:
        row = ledger.active(task_id)
        cancelled.append(None if row is None else ledger.archive(row, Result.CANCELLED))
    ledger.write()
    return cancelled


def awaken(session: Session, task_ids: Sequence[int]) -> int:
    """Make yields that never failed due now."""
    ledger = Ledger(session, task_ids)
    moment = ledger.now - AWAKEN_BACK
    rows = [
        row
        for row in ledger.all_active()
        if row.lease_owner == Sentinel.YIELD and row.failure_count == 0 and (row.lease_expires or 0) > moment
    ]
    for row in rows:
        ledger.put(replace(row, lease_expires=moment))
    ledger.write()
    return len(rows)


def free(session: Session, task_ids: Sequence[int]) -> int:
    """Take rows from their owners."""
    ledger = Ledger(session, task_ids)
    rows = [row for row in ledger.all_active() if row.lease_owner is not None]
    for row in rows:
        ledger.give_back(row, None, ledger.now)
    ledger.write()
    return len(rows)


def set_priority(session: Session, task_ids: Sequence[int], priority: int) -> int:
    """Set the priority of active rows."""
    ledger = Ledger(session, task_ids)
    rows = ledger.all_active()
    for row in rows:
        ledger.put(replace(row, priority=priority, date_modified=ledger.now))
    ledger.write()
    return len(rows)


def delay(session: Session, task_ids: Sequence[int], until: int) -> int:
    """Delay rows that nobody holds."""
    ledger = Ledger(session, task_ids)
    rows = [row for row in ledger.all_active() if row.lease_owner in (None, Sentinel.DELAY)]
    for row in rows:
        ledger.put(replace(row, lease_owner=Sentinel.DELAY.value, lease_expires=until, date_modified=ledger.now))
    ledger.write()
    return len(rows)


def retry(session: Session, task_ids: Sequence[int], *, repeat: bool) -> list[Task | None]:
    """Bring archived tasks back."""
    ledger = Ledger(session, task_ids)
    revived: list[Task | None] = []
    for task_id in task_ids:
        archived = ledger.archived(task_id)
        if archived is None or (archived.result is Result.SUCCESS and not repeat):
            revived.append(None)
        else:
            revived.append(ledger.revive(archived))
    ledger.write()
    return revived


def pause(session: Session, pause: Pause) -> None:
    """Set a pause."""
    session.run("pause", (pause.kind.value, pause.name))


def resume(session: Session, pause: Pause) -> bool:
    """Lift a pause; whether it was set."""
    return session.run("resume", (pause.kind.value, pause.name)) > 0


def sweep(session: Session, limit: int) -> SweepReport:
    """Delete archived tasks whose retention is over, with all that belongs to them."""
    retention = session.options.retention
    if retention is None or limit <= 0:
        return SweepReport()
    over = session.rows("over", (session.now() - retention, limit + 1))
    deleted = over[:limit]
    ids = [(task_id,) for task_id, _ in deleted]
    for statement in ("delete_task", "delete_payload", "delete_attempts"):
        session.many(statement, ids)
    session.many("delete_key", [(key,) for _, key in deleted if key is not None])
    if deleted:
        session.run("count_deleted", (len(deleted),))
    return SweepReport(expired=len(deleted), more=len(over) > limit)
