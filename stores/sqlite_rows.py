"""Rows of the SQLite store as values, and back."""

from collections.abc import Iterable
from typing import Any

import msgspec

from queue_runtime.task import U32, ArchivedTask, Attempt, AttemptKind, Result, Task

Row = tuple[Any, ...]
"""As the driver gives it; goes no further than the stores/sqlite modules."""

ID, TASK_CLASS, QUEUE, PRIORITY, _CREATED, _MODIFIED, OWNER, EXPIRES, FAILURES = range(9)
KEY, _MAX_ATTEMPTS, LOST, RESULT, _DURATION, _ARCHIVED, SPENT, DATA = range(12, 20)
"""Places in the `columns` of sqlite.sql."""

INLINE_DATA = 2000
"""Payloads up to this length stand in the task's own row; longer ones in a table of their own."""


def active_task(row: Row, data: str | None = None) -> Task:
    """An active row as a Task."""
    return Task(
        id=row[0],
        task_class=row[1],
        data_id=row[0],
        priority=row[3],
        date_created=row[4],
        date_modified=row[5],
        lease_owner=row[6],
        lease_expires=row[7],
        failure_count=row[8],
        failure_time=row[9],
        object_phid=row[10],
        container_phid=row[11],
        queue=row[2],
        idempotency_key=row[12],
        max_attempts=row[13],
        lost_count=row[14],
        data=data,
    )


def leased_task(row: Row, owner: str, expires: int, data: str) -> Task:
    """A row as it is after a lease."""
    return Task(
        id=row[0],
        task_class=row[1],
        data_id=row[0],
        priority=row[3],
        date_created=row[4],
        date_modified=row[5],
        lease_owner=owner,
        lease_expires=expires,
        failure_count=row[8],
        failure_time=row[9],
        object_phid=row[10],
        container_phid=row[11],
        queue=row[2],
        idempotency_key=row[12],
        max_attempts=row[13],
        lost_count=row[14],
        data=data,
    )


def archived_task(row: Row, data: str | None = None) -> ArchivedTask:
    """An archived row as an ArchivedTask."""
    return ArchivedTask(
        id=row[0],
        task_class=row[1],
        data_id=row[0],
        priority=row[3],
        date_created=row[4],
        date_modified=row[5],
        result=_RESULTS[row[15]],
        duration_us=row[16],
        archived_epoch=row[17],
        lease_owner=row[6],
        lease_expires=row[7],
        failure_count=row[8],
        object_phid=row[10],
        container_phid=row[11],
        queue=row[2],
        idempotency_key=row[12],
        max_attempts=row[13],
        lost_count=row[14],
        data=data,
    )


def completed_task(row: Row, duration_us: int, now: int) -> ArchivedTask:
    """An active row as it is after a success."""
    return ArchivedTask(
        id=row[0],
        task_class=row[1],
        data_id=row[0],
        priority=row[3],
        date_created=row[4],
        date_modified=now,
        result=Result.SUCCESS,
        duration_us=duration_us,
        archived_epoch=now,
        lease_owner=row[6],
        lease_expires=row[7],
        failure_count=row[8],
        object_phid=row[10],
        container_phid=row[11],
        queue=row[2],
        idempotency_key=row[12],
        max_attempts=row[13],
        lost_count=0,
        data=None,
    )


_RESULTS = {int(result): result for result in Result}


def attempt(row: Row) -> Attempt:
    """A row of the error history; its first column is the task's id."""
    _, number, kind, happened, owner, duration_us, message, trace = row
    return Attempt(
        attempt=number,
        kind=AttemptKind(kind),
        when=happened,
        owner=owner,
        duration_us=duration_us,
        message=message,
        trace=trace,
    )


def id_list(task_ids: Iterable[int]) -> str:
    """Ids as the JSON array that json_each reads; numbers that cannot be an id are left out."""
    return str([task_id for task_id in task_ids if 0 < task_id <= U32])


def to_json(value: object) -> str:
    """A value as JSON text."""
    return msgspec.json.encode(value).decode()


def is_utf8(row: Row) -> bool:
    """Whether a row read with `surrogateescape` holds text only."""
    try:
        for cell in row:
            if type(cell) is str:
                cell.encode()
    except UnicodeEncodeError:
        return False
    return True
