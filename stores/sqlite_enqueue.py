"""Enqueueing on SQLite: ids as one block, rows in one statement, idempotency keys and events."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from queue_runtime.errors import EventConflict, StoreFull
from queue_runtime.task import DEFAULT_PRIORITY, U32, NewTask, Sentinel, Task
from stores.answers import answer_text, answered_task
from stores.sqlite_rows import INLINE_DATA
from stores.sqlite_session import Session

_DELAY = Sentinel.DELAY.value
"""The driver binds a plain str without looking for an adapter."""

_ROWS_AT_ONCE = 64
"""Rows of one INSERT. After each statement the thread waits for the interpreter, which the event loop likes to keep."""


def enqueue(session: Session, tasks: Sequence[NewTask]) -> list[Task]:
    """Insert the tasks; those with a known key are answered as they were."""
    return insert(session, [(task, DEFAULT_PRIORITY) for task in tasks])


def enqueue_once(session: Session, event_id: str, digest: str, task: NewTask) -> Task:
    """Insert the task of an event, or answer what the event was answered before."""
    known = session.row("find_event", (event_id,))
    if known is None:
        (row,) = insert(session, [(task, DEFAULT_PRIORITY)])
        session.run("insert_event", (event_id, digest, answer_text(row)))
        return row
    if known[0] != digest:
        raise EventConflict(event_id)
    return answered_task(known[1])


def insert(session: Session, tasks: Sequence[tuple[NewTask, int]]) -> list[Task]:
    """Insert each task, with the priority it gets when it names none."""
    known = _known_answers(session, tasks)
    fresh_keys = {new.idempotency_key for new, _ in tasks} - known.keys() - {None}
    keyless = sum(new.idempotency_key is None for new, _ in tasks)
    next_id = _draw_ids(session, keyless + len(fresh_keys))
    now, queue_for, lane_of = session.now(), session.options.routes.queue_for, session.lanes.id_of
    answers: list[Task] = []
    rows: list[tuple[Any, ...]] = []
    payloads: list[tuple[int, str]] = []
    for new, default_priority in tasks:
        key = new.idempotency_key
        if key is not None and (answer := known.get(key)) is not None:
            answers.append(answer)
            continue
        queue = queue_for(new.task_class) if new.queue is None else new.queue
        priority = default_priority if new.priority is None else new.priority
        owner = None if new.delay_until is None else _DELAY
        answer = Task(
            id=next_id,
            task_class=new.task_class,
            data_id=next_id,
            priority=priority,
            date_created=now,
            date_modified=now,
            lease_owner=owner,
            lease_expires=new.delay_until,
            object_phid=new.object_phid,
            container_phid=new.container_phid,
            queue=queue,
            idempotency_key=key,
            max_attempts=new.max_attempts,
        )
        data: str | None = new.data
        if len(new.data) > INLINE_DATA:
            payloads.append((next_id, new.data))
            data = None
        rows.append(
            (
                next_id,
                lane_of(session, new.task_class, queue),
                priority,
                owner,
                new.delay_until,
                now,
                now,
                new.object_phid,
                new.container_phid,
                key,
                new.max_attempts,
                data,
            )
        )
        answers.append(answer)
        if key is not None:
            known[key] = answer
        next_id += 1
    _insert_rows(session, rows)
    if payloads:
        session.many("insert_payload", payloads)
    if fresh_keys:
        session.many("insert_key", [(key, known[key].id, answer_text(known[key])) for key in fresh_keys if key])
    return answers


def _insert_rows(session: Session, rows: Sequence[tuple[Any, ...]]) -> None:
    """By statements of 64 rows, 32, 16, …: few statements, and few different ones."""
    start = 0
    while left := len(rows) - start:
        count = min(_ROWS_AT_ONCE, 1 << (left.bit_length() - 1))
        values = list(chain.from_iterable(rows[start : start + count]))
        session.connection.execute(_for_rows(session.statements["insert_task"], count), values)
        start += count


@cache
def _for_rows(statement: str, count: int) -> str:
    """The INSERT of one row as one of several."""
    row = statement[statement.rindex("(") :]
    return statement + f", {row}" * (count - 1)


def _known_answers(session: Session, tasks: Sequence[tuple[NewTask, int]]) -> dict[str, Task]:
    """What the keys among these were answered before."""
    answers: dict[str, Task] = {}
    for new, _ in tasks:
        if new.idempotency_key is not None and (row := session.row("find_key", (new.idempotency_key,))) is not None:
            answers[new.idempotency_key] = answered_task(row[0])
    return answers


def _draw_ids(session: Session, count: int) -> int:
    """The first id of a block of this many."""
    if not count:
        return 0
    drawn = session.row("draw_ids", {"count": count})
    if drawn is None:
        raise StoreFull("enqueue", f"task ids end at {U32}, and fewer than {count} are left")
    last_id: int = drawn[0]
    return last_id - count + 1
