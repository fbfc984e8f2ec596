"""Reading on Redis: single rows, lists in bounded steps, counts."""

from collections.abc import Collection, Sequence

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import StoreOptions
from queue_runtime.task import (
    MAX_LEASE_BYTES,
    MAX_LIST,
    U32,
    ArchivedTask,
    Attempt,
    Backlog,
    QueueStats,
    State,
    Task,
    TaskFilter,
)
from stores.redis_calls import Calls
from stores.redis_lease import names
from stores.redis_link import Reply
from stores.redis_rows import active_task, archived_task, attempts, id_text, id_texts, pack, payload

STEP = 2000
"""Rows that one script call looks at; the server serves others in between."""

_IDS_AT_ONCE = 500
_TIMED_STATES = frozenset({State.LEASED, State.WAITING, State.PARKED})


async def get(calls: Calls, task_ids: Sequence[int]) -> list[Task | None]:
    """Active rows with data."""
    rows: list[Task | None] = []
    for task_id, body, hold, state, ended, apart in await _read(calls, task_ids):
        active = body is not None and ended is None
        rows.append(active_task(task_id, body, hold, state, _text(body, apart)) if active else None)
    return rows


async def get_archived(calls: Calls, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
    """Archived rows with data."""
    rows: list[ArchivedTask | None] = []
    for task_id, body, _hold, _state, ended, apart in await _read(calls, task_ids):
        archived = body is not None and ended is not None
        rows.append(archived_task(task_id, body, ended, _text(body, apart)) if archived else None)
    return rows


async def _read(calls: Calls, task_ids: Sequence[int]) -> list[tuple[int, Reply, Reply, Reply, Reply, Reply]]:
    found: list[tuple[int, Reply, Reply, Reply, Reply, Reply]] = []
    while len(found) < len(task_ids):
        part = task_ids[len(found) : len(found) + _IDS_AT_ONCE]
        reply = await calls.script("get", pack(id_texts(part)), MAX_LEASE_BYTES, repeatable=True)
        found += [
            (task_id, *reply[5 * number : 5 * number + 5]) for number, task_id in enumerate(part[: len(reply) // 5])
        ]
    return found


def _text(body: bytes, apart: bytes | None) -> str:
    """The payload; what is not UTF-8 in it is shown as replacement characters."""
    return (payload(body, apart) or b"").decode(errors="replace")


async def list_active(
    calls: Calls,
    options: StoreOptions,
    limit: int,
    *,
    offset: int,
    after: tuple[int, int] | None,
    where: TaskFilter,
) -> list[Task]:
    """Active rows by priority then id."""
    limit, offset = max(0, min(limit, MAX_LIST)), max(0, offset)
    if limit == 0:
        return []
    if where.states is not None and where.states <= _TIMED_STATES:
        rows = await _list_timed(calls, options, after, where, limit + offset)
        return rows[offset:]
    packed = _pack_filter(where)
    plain = where == TaskFilter(
        min_priority=where.min_priority,
        max_priority=where.max_priority,
        results=where.results,
        ended_since=where.ended_since,
    )
    skip = min(offset, U32) if plain else 0
    wanted = limit if plain else limit + offset
    priority, after_id = ("", "") if after is None else _place(after)
    rows = []
    while len(rows) < wanted:
        priority, after_id, *found = await calls.script(
            "list_active",
            options.patience,
            packed,
            STEP,
            wanted - len(rows),
            priority,
            after_id,
            skip,
            repeatable=True,
        )
        skip = 0
        rows += _active_rows(found)
        if not priority:
            break
    return rows[wanted - limit : wanted]


def _place(after: tuple[int, int]) -> tuple[str, str]:
    """Priority and id of the row to go on after, as the index has them."""
    priority, task_id = after
    if priority < 0:
        return "", ""
    if priority > U32:
        return str(U32), f"{U32:010d}"
    return str(priority), f"{max(0, min(task_id, 10**10 - 1)):010d}"


async def _list_timed(
    calls: Calls, options: StoreOptions, after: tuple[int, int] | None, where: TaskFilter, wanted: int
) -> list[Task]:
    """As list_active, for states that only rows with a time have: looks at these rows alone.

    They are in another order there, so every one is looked at; only what may still stand on the page is brought here.
    """
    packed = _pack_filter(where)
    first = ("", "") if after is None else _place(after)
    last = ("", "")
    rows: list[Task] = []
    place, rank = b"", b"0"
    while True:
        place, rank, *part = await calls.script(
            "list_timed", options.patience, packed, STEP, place, rank, *first, *last, wanted, repeatable=True
        )
        if part:
            found = {row.id: row for row in (*rows, *_active_rows(part))}
            rows = sorted(found.values(), key=lambda row: (row.priority, row.id))[:wanted]
        if len(rows) == wanted:
            last = _place((rows[-1].priority, rows[-1].id))
        if not place:
            return rows


def _active_rows(flat: Sequence[bytes]) -> list[Task]:
    return [
        active_task(int(task_id), head, hold, state)
        for task_id, head, hold, state in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    ]


async def list_archived(calls: Calls, limit: int, before: int | None, where: TaskFilter) -> list[ArchivedTask]:
    """Archived rows, newest id first."""
    limit = max(0, min(limit, MAX_LIST))
    packed = _pack_filter(where)
    last: Reply = "" if before is None else str(max(0, min(before, U32 + 1)))
    rows: list[ArchivedTask] = []
    while len(rows) < limit:
        last, *found = await calls.script("list_archived", packed, STEP, limit - len(rows), last, repeatable=True)
        rows += [
            archived_task(int(task_id), head, ended)
            for task_id, head, ended in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]
        if not last:
            break
    return rows


def _pack_filter(where: TaskFilter) -> bytes:
    return pack(
        (
            names(where.classes),
            names(where.queues),
            _values(where.states),
            _values(where.results),
            _phid("object_phid", where.object_phid),
            _phid("container_phid", where.container_phid),
            _bound(where.min_failures),
            _bound(where.max_failures),
            _bound(where.min_priority),
            _bound(where.max_priority),
            _bound(where.ended_since),
        )
    )


def _values(wanted: Collection[str | int] | None) -> list[str | int] | bool:
    return False if wanted is None else list(wanted)


def _phid(field: str, value: str | None) -> str | bool:
    if value is None:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "must be valid Unicode text") from None
    return value


def _bound(value: int | None) -> int | bool:
    return False if value is None else max(-1, min(value, U32 + 1))


async def history(calls: Calls, task_ids: Sequence[int]) -> list[list[Attempt]]:
    """The error history of each task, oldest first."""
    found: list[list[Attempt]] = []
    for start in range(0, len(task_ids), _IDS_AT_ONCE):
        part = pack(id_texts(task_ids[start : start + _IDS_AT_ONCE]))
        found += [attempts(entries) for entries in await calls.script("history", part, repeatable=True)]
    return found


async def stats(calls: Calls) -> QueueStats:
    """Counts of the whole queue, all of them exact: the server keeps the sizes of its sets."""
    active, leased, archived, failed = await calls.script("stats", repeatable=True)
    return QueueStats(active=active, leased=leased, archived=archived, failed=failed)


async def backlog(calls: Calls, options: StoreOptions) -> list[Backlog]:
    """Rows that could be leased now, by class, queue and priority.

    Ids are drawn in the order of time, so the smallest id stands for the oldest row.
    """
    groups: dict[tuple[str, str, int], tuple[int, int]] = {}
    place, rank = b"", b"0"
    while True:
        place, rank, *found = await calls.script("backlog", options.patience, STEP, place, rank, repeatable=True)
        for lane, priority, count, first in zip(*(found[part::4] for part in range(4)), strict=True):
            queue, _, task_class = lane.partition(b":")[2].decode(errors="replace").partition("/")
            group = task_class, queue, int(priority)
            waiting, oldest = groups.get(group, (0, U32))
            groups[group] = waiting + int(count), min(oldest, int(first))
        if not place:
            break
    created = await _created(calls, [first for _, first in groups.values()])
    return [
        Backlog(task_class=name, queue=queue, priority=priority, waiting=waiting, oldest=created[first])
        for (name, queue, priority), (waiting, first) in sorted(groups.items())
        if first in created
    ]


async def _created(calls: Calls, task_ids: Sequence[int]) -> dict[int, int]:
    """When these tasks were enqueued."""
    key = f"{calls.keys}body"
    found: dict[int, int] = {}
    for start in range(0, len(task_ids), _IDS_AT_ONCE):
        part = task_ids[start : start + _IDS_AT_ONCE]
        bodies = await calls.command("backlog", "HMGET", key, *[id_text(task_id) for task_id in part])
        found |= {task_id: int.from_bytes(body[:4]) for task_id, body in zip(part, bodies, strict=True) if body}
    return found
