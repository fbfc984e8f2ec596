"""Loads a ledger from Phorge's tables with its rows locked, and turns what has changed into statements."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct

from queue_runtime.task import MAX_HISTORY, U32, ArchivedTask, Attempt, Task
from stores.ledger import Ledger
from stores.mysql_driver import Row
from stores.mysql_enqueue import active_literal
from stores.mysql_rows import (
    ARCHIVED_SPENT,
    CREATED,
    ID,
    LOST,
    QUEUE,
    SPENT,
    Phids,
    active_task,
    archived_phids,
    archived_task,
    phids,
)
from stores.mysql_session import Session
from stores.mysql_text import Sql, literal, row_literal

T = TypeVar("T")

_known_literal = lru_cache(256)(literal)
"""For texts that many rows of a round share."""


class Loaded(Struct, frozen=True):
    """A ledger, the rows as they were, and the ids whose rows somebody else has locked."""

    ledger: Ledger
    before: dict[int, Row]
    locked: frozenset[int]


def valid_ids(task_ids: Iterable[int]) -> list[int]:
    """Each number that can be an id, once and sorted: rows are locked in one order by everybody.

    The counter never gives out 0, but a hand that inserts a row may.
    """
    return sorted({task_id for task_id in task_ids if 0 <= task_id <= U32})


async def load(session: Session, task_ids: Iterable[int], *, wait: bool = False, fresh: bool = False) -> Loaded:
    """Begin a transaction that locks the active rows of these ids. Archived ones are read as they are.

    With `wait` it waits for rows that somebody else has locked; without they are told apart. `fresh` reads the extras
    again after the lock: a snapshot may be older than it, which matters where no fence is compared.
    """
    ids = valid_ids(task_ids)
    if not ids:
        (answer,) = await session.begin(session.fill("time", now=session.now))
        return Loaded(Ledger(int(answer.rows[0][0]), (), (), {}), {}, frozenset())
    rows_of = session.patient(session.fill("wait_rows", ids=ids)) if wait else session.fill("lock_rows", ids=ids)
    answers = await session.begin(session.fill("time", now=session.now), rows_of)
    now, rows = int(answers[0].rows[0][0]), answers[1].rows
    before = {row[ID]: row for row in rows}
    missing = [task_id for task_id in ids if task_id not in before]
    archived: Sequence[Row] = ()
    locked: frozenset[int] = frozenset()
    routes = session.options.routes
    if missing:
        # active rows first: one that is archived in between is then seen in the archive
        seen, ended = await session.trip(
            session.fill("see_rows", ids=missing), session.fill("see_archived", ids=missing)
        )
        locked = frozenset(row[ID] for row in seen.rows)
        archived = ended.rows
    if fresh and rows and session.server.companion:
        before = await with_fresh_extras(session, before)
    ledger = Ledger(
        now,
        [active_task(row, routes) for row in before.values()],
        [archived_task(row, routes) for row in archived],
        {row[ID]: row[SPENT] for row in before.values()} | {row[0]: row[ARCHIVED_SPENT] for row in archived},
    )
    return Loaded(ledger, before, locked)


async def with_fresh_extras(session: Session, rows: Mapping[int, Row]) -> dict[int, Row]:
    """The locked rows, with what the companion has for them now."""
    found = {row[0]: row[1:] for row in await session.rows("read_extras", ids=list(rows))}
    nothing = (None,) * (SPENT + 1 - QUEUE)
    return {task_id: (*row[:QUEUE], *found.get(task_id, nothing), *row[SPENT + 1 :]) for task_id, row in rows.items()}


class LoadedArchive(Struct, frozen=True):
    """A ledger of archived rows, their PHIDs as stored, and the ids whose rows somebody else has locked."""

    ledger: Ledger
    stored: dict[int, Phids]
    locked: frozenset[int]


async def load_archived(session: Session, task_ids: Iterable[int], *, wait: bool) -> LoadedArchive:
    """Begin a transaction that locks the archived rows of these ids. `wait` as in `load`."""
    ids = valid_ids(task_ids)
    statement = session.fill("wait_archived" if wait else "lock_archived", ids=ids)
    answers = await session.begin(
        session.fill("time", now=session.now), session.patient(statement) if wait else statement
    )
    rows, routes = answers[1].rows, session.options.routes
    stored = {row[0]: archived_phids(row) for row in rows}
    locked: frozenset[int] = frozenset()
    if missing := [task_id for task_id in ids if task_id not in stored]:
        locked = frozenset(row[0] for row in await session.rows("see_archived", ids=missing))
    spent = {row[0]: row[ARCHIVED_SPENT] for row in rows}
    ledger = Ledger(int(answers[0].rows[0][0]), (), [archived_task(row, routes) for row in rows], spent)
    return LoadedArchive(ledger, stored, locked)


def changes(session: Session, loaded: Loaded, *, replace: bool = False) -> list[str]:
    """The statements that store what has changed and what has ended.

    With `replace` an archived row of the same id is written over: the id was issued twice.
    """
    ledger = loaded.ledger
    ended = _rows(ledger.archived(task_id) for task_id in sorted(ledger.changed))
    kept = _rows(ledger.active(task_id) for task_id in sorted(ledger.changed))
    statements: list[str] = []
    if ended:
        rows = Sql(",".join([archived_literal(row, phids(loaded.before[row.id])) for row in ended]))
        ids = [row.id for row in ended]
        statements += [
            session.fill("replace_archived" if replace else "insert_archived", rows=rows),
            session.fill("delete_active", ids=ids, count=len(ids)),
        ]
    statements += _updates(session, kept)
    if session.server.companion:
        statements += _extras(session, loaded, [*ended, *kept])
        statements += attempts(
            session, ledger.attempts, {task_id: row[CREATED] for task_id, row in loaded.before.items()}
        )
    return statements


def renewals(session: Session, loaded: Loaded) -> list[str]:
    """The statements that store new expiries."""
    groups: dict[int | None, list[int]] = {}
    rows = [row for row in loaded.ledger.all_active() if row.id in loaded.ledger.changed]
    for row in rows:
        groups.setdefault(row.lease_expires, []).append(row.id)
    statements = [session.fill("renew", expires=expires, ids=sorted(ids)) for expires, ids in groups.items()]
    return statements + (_extras(session, loaded, rows) if session.server.companion else [])


def _rows(found: Iterable[T | None]) -> list[T]:
    return [row for row in found if row is not None]


def _updates(session: Session, rows: Sequence[Task]) -> list[str]:
    """One statement for all rows that become equal in what can change."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for row in rows:
        change = (
            row.lease_owner,
            row.lease_expires,
            row.failure_count,
            row.failure_time,
            row.priority,
            row.date_modified,
        )
        groups.setdefault(change, []).append(row.id)
    return [
        session.fill(
            "update_rows",
            owner=owner,  # type: ignore[arg-type]
            expires=expires,  # type: ignore[arg-type]
            failures=failures,  # type: ignore[arg-type]
            failure_time=failure_time,  # type: ignore[arg-type]
            priority=priority,  # type: ignore[arg-type]
            modified=modified,  # type: ignore[arg-type]
            ids=ids,
        )
        for (owner, expires, failures, failure_time, priority, modified), ids in groups.items()
    ]


def _extras(session: Session, loaded: Loaded, rows: Sequence[Task | ArchivedTask]) -> list[str]:
    changed = []
    for row in rows:
        before, spent = loaded.before[row.id], loaded.ledger.spent(row.id)
        if (before[LOST] or 0) != row.lost_count or before[SPENT] != spent:
            changed.append(row_literal((row.id, row.date_created, row.lost_count, spent)))
    return [session.fill("write_extras", rows=Sql(",".join(changed)))] if changed else []


def attempts(session: Session, entries: Sequence[tuple[int, Attempt]], created: dict[int, int]) -> list[str]:
    """The statements that add entries to error histories. `created` has dateCreated of each task."""
    if not entries or not session.server.companion:
        return []
    rows = [
        row_literal(
            (
                task_id,
                created[task_id],
                entry.attempt,
                entry.kind.value,
                entry.when,
                entry.owner,
                entry.duration_us,
                entry.message,
                entry.trace,
            )
        )
        for task_id, entry in entries
    ]
    trims = [
        session.fill("trim_attempts", task_id=task_id, keep=MAX_HISTORY) for task_id in {one for one, _ in entries}
    ]
    return [session.fill("insert_attempts", rows=Sql(",".join(rows))), *trims]


def archived_literal(row: ArchivedTask, stored: Phids) -> str:
    """An archived row as SQL, in the order of insert_archived."""
    object_phid, container_phid = stored
    return (
        f"({row.id},{_known_literal(row.task_class)},{_known_literal(row.lease_owner)},{literal(row.lease_expires)},"
        f"{row.failure_count},{row.data_id},{int(row.result)},{row.duration_us},{row.priority},"
        f"{literal(object_phid)},{row.date_created},{row.date_modified},{row.archived_epoch},"
        f"{literal(container_phid)})"
    )


def revivals(session: Session, ledger: Ledger, tasks: Sequence[Task], stored: Mapping[int, Phids]) -> list[str]:
    """The statements that bring archived rows back."""
    if not tasks:
        return []
    ids = sorted(task.id for task in tasks)
    rows = Sql(",".join([active_literal(task, stored[task.id]) for task in tasks]))
    statements = [
        session.fill("delete_archived", ids=ids, count=len(ids)),
        session.fill("insert_tasks", rows=rows),
    ]
    if session.server.companion:
        extras = [row_literal((task.id, task.date_created, 0, ledger.spent(task.id))) for task in tasks]
        statements.append(session.fill("write_extras", rows=Sql(",".join(extras))))
    return statements
