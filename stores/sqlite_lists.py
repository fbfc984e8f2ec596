"""Reading on SQLite: single rows, lists, counts. Runs on the reading thread."""

from collections.abc import Sequence
from pathlib import Path

from queue_runtime.errors import InvalidRequest
from queue_runtime.task import (
    MAX_LIST,
    ArchivedTask,
    Backlog,
    QueueStats,
    State,
    Task,
    TaskFilter,
)
from stores.sqlite_rows import DATA, ID, RESULT, active_task, archived_task, id_list, to_json
from stores.sqlite_session import Session

EXACT = 200_000
"""Counts above this are taken from the kept counters and marked as estimated."""

_LAST = 2**63 - 1
_TIMED_STATES = frozenset({State.LEASED, State.WAITING, State.PARKED})


def get(session: Session, task_ids: Sequence[int]) -> list[Task | None]:
    """Active rows with data."""
    found = {
        row[ID]: active_task(row, row[DATA]) for row in session.rows("get", (id_list(task_ids),)) if row[RESULT] is None
    }
    return [found.get(task_id) for task_id in task_ids]


def get_archived(session: Session, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
    """Archived rows with data."""
    found = {
        row[ID]: archived_task(row, row[DATA])
        for row in session.rows("get", (id_list(task_ids),))
        if row[RESULT] is not None
    }
    return [found.get(task_id) for task_id in task_ids]


def list_active(
    session: Session, limit: int, offset: int, after: tuple[int, int] | None, where: TaskFilter
) -> list[Task]:
    """Active rows by priority then id."""
    values = _filter_values(session, where)
    after_priority, after_id = (-1, -1) if after is None else after
    values |= {
        "after_priority": _clamp(after_priority),
        "after_id": _clamp(after_id),
        "limit": max(0, min(limit, MAX_LIST)),
        "offset": max(0, min(offset, _LAST)),
        "now": session.now(),
        "patience": session.options.patience,
        "states": None if where.states is None else to_json(sorted(where.states)),
    }
    timed = where.states is not None and where.states <= _TIMED_STATES
    return [active_task(row) for row in session.rows("list_timed" if timed else "list_active", values)]


def list_archived(session: Session, limit: int, before: int | None, where: TaskFilter) -> list[ArchivedTask]:
    """Archived rows, newest id first."""
    values = _filter_values(session, where)
    values |= {
        "before": _LAST if before is None else _clamp(before),
        "limit": max(0, min(limit, MAX_LIST)),
        "results": None if where.results is None else to_json(sorted(where.results)),
        "ended_since": _bound(where.ended_since),
    }
    return [archived_task(row) for row in session.rows("list_archived", values)]


def _filter_values(session: Session, where: TaskFilter) -> dict[str, object]:
    for field in ("object_phid", "container_phid"):
        try:
            (getattr(where, field) or "").encode()
        except UnicodeEncodeError:
            raise InvalidRequest(field, "must be valid Unicode text") from None
    lanes = None
    if where.classes is not None or where.queues is not None:
        ((newest, _),) = session.rows("lease_gates")
        session.lanes.refresh(session, newest)
        lanes = session.lanes.choose(where.classes, (), where.queues)
    return {
        "lanes": lanes,
        "object_phid": where.object_phid,
        "container_phid": where.container_phid,
        "min_failures": _bound(where.min_failures),
        "max_failures": _bound(where.max_failures),
        "min_priority": _bound(where.min_priority),
        "max_priority": _bound(where.max_priority),
    }


def _bound(value: int | None) -> int | None:
    return None if value is None else _clamp(value)


def _clamp(value: int) -> int:
    return max(-1, min(value, _LAST))


def stats(session: Session) -> QueueStats:
    """Counts: exact up to EXACT, above that as kept."""
    (counted,) = session.rows("stats", {"now": session.now(), "limit": EXACT + 1})
    active, leased, archived, failing, parked, parked_failing, kept_active, kept_archived = counted
    return QueueStats(
        active=(active if active <= EXACT else max(active, kept_active)) - parked,
        leased=leased,
        archived=archived if archived <= EXACT else max(archived, kept_archived),
        failed=failing - parked_failing,
        estimated=max(active, leased, archived, failing) > EXACT,
    )


def backlog(session: Session) -> list[Backlog]:
    """Rows that could be leased now, by class, queue and priority."""
    values = {"now": session.now(), "patience": session.options.patience}
    return [
        Backlog(task_class=name, queue=queue, priority=priority, waiting=waiting, oldest=oldest)
        for name, queue, priority, waiting, oldest in session.rows("backlog", values)
    ]


def operations(session: Session) -> dict[str, object]:
    """Facts about the file. Counts are those the store keeps, so the answer does not grow with the file."""
    ((lanes, pauses, last_id, active, archived),) = session.rows("table_sizes")
    pages = {
        name: session.connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_size", "page_count", "freelist_count")
    }
    records = {"task (active)": active, "task (archived)": archived, "lane": lanes, "pause": pauses}
    return {
        "backend": "sqlite",
        "snapshot": "observational",
        "generatedEpoch": session.now(),
        "lastID": last_id,
        "fileBytes": _size(session.path),
        "walBytes": _size(session.path.with_name(session.path.name + "-wal")),
        "pageBytes": pages["page_size"],
        "pages": pages["page_count"],
        "freePages": pages["freelist_count"],
        "tables": [{"table": name, "state": "observed", "records": count} for name, count in records.items()],
    }


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
