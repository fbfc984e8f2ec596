"""Rows of Phorge's tables as values, and back."""

from queue_runtime.store import Routes
from queue_runtime.task import ArchivedTask, Result, Task
from stores.mysql_driver import Row

(
    ID,
    TASK_CLASS,
    OWNER,
    EXPIRES,
    FAILURES,
    DATA_ID,
    _FAILURE_TIME,
    PRIORITY,
    _OBJECT,
    CREATED,
    _MODIFIED,
    _CONTAINER,
    QUEUE,
    _KEY,
    _MAX_ATTEMPTS,
    LOST,
    SPENT,
) = range(17)
"""Places in the `columns` of mysql.sql."""

ARCHIVED_SPENT = 18
"""Place of the spent expiries in `archive_columns`."""

Phids = tuple[bytes | None, bytes | None]
"""Object and container of a row as stored: bytes that need not be UTF-8, and that must survive a move as they are."""

ACTIVE_WIDTH = 17
"""How many columns an active row has; what a statement adds stands behind them."""


def active_task(row: Row, routes: Routes, data: str | None = None) -> Task:
    """An active row as a Task."""
    return Task(
        id=row[0],
        task_class=row[1],
        lease_owner=row[2],
        lease_expires=row[3],
        failure_count=row[4],
        data_id=row[5],
        failure_time=row[6],
        priority=row[7],
        object_phid=shown(row[8]),
        date_created=row[9],
        date_modified=row[10],
        container_phid=shown(row[11]),
        queue=row[12] or routes.queue_for(row[1]),
        idempotency_key=shown(row[13]),
        max_attempts=row[14],
        lost_count=row[15] or 0,
        data=data,
    )


def leased_task(row: Row, routes: Routes, owner: str, expires: int, data: str) -> Task:
    """A row as it is after a lease."""
    return Task(
        id=row[0],
        task_class=row[1],
        lease_owner=owner,
        lease_expires=expires,
        failure_count=row[4],
        data_id=row[5],
        failure_time=row[6],
        priority=row[7],
        object_phid=shown(row[8]),
        date_created=row[9],
        date_modified=row[10],
        container_phid=shown(row[11]),
        queue=row[12] or routes.queue_for(row[1]),
        idempotency_key=shown(row[13]),
        max_attempts=row[14],
        lost_count=row[15] or 0,
        data=data,
    )


def archived_task(row: Row, routes: Routes, data: str | None = None) -> ArchivedTask:
    """An archived row (`archive_columns`) as an ArchivedTask.

    Rows older than the column archivedEpoch have NULL there; what changed them last was their end.
    """
    return ArchivedTask(
        id=row[0],
        task_class=row[1],
        lease_owner=row[2],
        lease_expires=row[3],
        failure_count=row[4],
        data_id=row[5],
        result=_RESULTS.get(row[6], Result.FAILURE),
        duration_us=row[7],
        priority=row[8],
        object_phid=shown(row[9]),
        date_created=row[10],
        date_modified=row[11],
        archived_epoch=row[11] if row[12] is None else row[12],
        container_phid=shown(row[13]),
        queue=row[14] or routes.queue_for(row[1]),
        idempotency_key=shown(row[15]),
        max_attempts=row[16],
        lost_count=row[17] or 0,
        data=data,
    )


_RESULTS = {int(result): result for result in Result}


def phids(row: Row) -> Phids:
    """Object and container of an active row."""
    return row[_OBJECT], row[_CONTAINER]


def archived_phids(row: Row) -> Phids:
    """Object and container of an archived row."""
    return row[9], row[13]


def shown(raw: bytes | None) -> str | None:
    """A VARBINARY as text; bytes that are not UTF-8 stand as escapes."""
    return None if raw is None else raw.decode(errors="backslashreplace")


def is_utf8(row: Row) -> bool:
    """Whether the binary columns of an active row hold text."""
    try:
        for cell in (row[_OBJECT], row[_CONTAINER]):
            if cell is not None:
                cell.decode()
    except UnicodeDecodeError:
        return False
    return True
