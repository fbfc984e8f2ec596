"""Loads a ledger from SQLite, and writes back what has changed, inside one write transaction."""

from collections.abc import Iterable

from queue_runtime.task import ArchivedTask, Task
from stores.ledger import Ledger
from stores.sqlite_history import remember
from stores.sqlite_rows import ID, RESULT, SPENT, active_task, archived_task, id_list
from stores.sqlite_session import Session


def load(session: Session, task_ids: Iterable[int]) -> Ledger:
    """The rows of these ids."""
    rows = session.rows("rows", (id_list(task_ids),))
    return Ledger(
        session.now(),
        [active_task(row) for row in rows if row[RESULT] is None],
        [archived_task(row) for row in rows if row[RESULT] is not None],
        {row[ID]: row[SPENT] for row in rows},
    )


def write(session: Session, ledger: Ledger) -> None:
    """Store every row that was changed, and the history entries."""
    session.many("write", [_values(ledger, task_id) for task_id in ledger.changed])
    for task_id, entry in ledger.attempts:
        remember(session, task_id, entry)
    if ledger.ended:
        session.run("count_ended", (ledger.ended,))


def _values(ledger: Ledger, task_id: int) -> tuple[object, ...]:
    spent = ledger.spent(task_id)
    task = ledger.active(task_id)
    if task is not None:
        return (*_common(task), task.failure_time, spent, None, None, None)
    archived = ledger.archived(task_id)
    assert archived is not None, "a changed row is active or archived"
    return (*_common(archived), None, spent, archived.result.value, archived.duration_us, archived.archived_epoch)


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
