"""Lists and single rows on MySQL. No statement here locks anything, or may run for long."""

from collections.abc import Collection, Iterable, Sequence
from fnmatch import translate

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Routes
from queue_runtime.task import (
    DEFAULT_QUEUE,
    MAX_HISTORY,
    MAX_LIST,
    ArchivedTask,
    Attempt,
    AttemptKind,
    Sentinel,
    State,
    Task,
    TaskFilter,
)
from stores.mysql_driver import Row
from stores.mysql_ledger import valid_ids
from stores.mysql_rows import active_task, archived_task
from stores.mysql_session import Session
from stores.mysql_text import Sql, Value, literal

FEW = 50_000
"""A list of classes with so many rows is sorted; one of classes with more is picked from all rows in their order."""

_LAST = 2**62


# ---- rows by id


async def get(session: Session, task_ids: Sequence[int]) -> list[Task | None]:
    """Active rows with data."""
    found = {
        row[0]: active_task(row, session.options.routes, row[-1]) for row in await _read_ids(session, "get", task_ids)
    }
    return [found.get(task_id) for task_id in task_ids]


async def get_archived(session: Session, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
    """Archived rows with data."""
    found = {
        row[0]: archived_task(row, session.options.routes, row[-1])
        for row in await _read_ids(session, "get_archived", task_ids)
    }
    return [found.get(task_id) for task_id in task_ids]


async def history(session: Session, task_ids: Sequence[int]) -> list[list[Attempt]]:
    """The error history of each task, oldest first; empty where there is no companion database."""
    found: dict[int, list[Attempt]] = {}
    if session.server.companion:
        for row in await _read_ids(session, "history", task_ids):
            found.setdefault(row[0], []).append(_attempt(row))
    return [found.get(task_id, [])[-MAX_HISTORY:] for task_id in task_ids]


async def _read_ids(session: Session, name: str, task_ids: Iterable[int]) -> Sequence[Row]:
    ids = valid_ids(task_ids)
    return await session.read(name, ids=ids) if ids else []


def _attempt(row: Row) -> Attempt:
    return Attempt(
        attempt=row[1],
        kind=AttemptKind(row[2]),
        when=row[3],
        owner=row[4],
        duration_us=row[5],
        message=row[6],
        trace=row[7],
    )


# ---- lists


async def list_active(
    session: Session, limit: int, offset: int, after: tuple[int, int] | None, where: TaskFilter
) -> list[Task]:
    """Active rows by priority then id."""
    limit, offset = max(0, min(limit, MAX_LIST)), max(0, min(offset, _LAST))
    if limit == 0 or _matches_nothing(where) or where.states == frozenset():
        return []
    wanted = _conditions(session, where)
    if after is not None:
        wanted.append(session.fill("where_after", priority=_clamp(after[0]), id=_clamp(after[1])))
    common: dict[str, Value] = {"joined": _joined(session, where), "most": limit + offset}
    parts = [
        session.fill("list_part", index=Sql(index), wanted=Sql(" AND ".join([part, *wanted])), **common)
        for index, part in await _parts(session, where)
    ]
    union = Sql(parts[0] if len(parts) == 1 else f"({') UNION ALL ('.join(parts)})")
    rows = await session.read("list_active", parts=union, limit=limit, offset=offset)
    return [active_task(row, session.options.routes) for row in rows]


async def _parts(session: Session, where: TaskFilter) -> list[tuple[str, str]]:
    """Sets of rows that have no row in common and hold all that is wanted: an index and a condition each."""
    if where.object_phid is not None:
        return [("key_object", _in_states(session, where.states))]
    if where.container_phid is not None:
        return [("key_container", _in_states(session, where.states))]
    if where.min_failures is not None and where.min_failures > 0:
        return [("key_failuretime", f"{session.fill('where_failed')} AND {_in_states(session, where.states)}")]
    if where.classes is not None:
        names = _storable(where.classes)
        ((count,),) = await session.rows("count_classes", names=names, limit=FEW + 1)
        if count <= FEW:
            return [("taskClass", _in_states(session, where.states))]
    if where.states is None:
        return _all_owners(session)
    parts = []
    for state in sorted(where.states):
        condition = _in_states(session, frozenset({state}))
        parts += [(index, f"{part} AND {condition}") for index, part in _parts_of(session, state)]
    return parts


def _all_owners(session: Session) -> list[tuple[str, str]]:
    """Every row; all but the held ones come from the index in the order of the list."""
    return [("key_owner", session.fill("where_unowned")), *_waiting(session), *_held(session)]


def _waiting(session: Session) -> list[tuple[str, str]]:
    return [("key_owner", session.fill("where_owner", owner=sentinel.value)) for sentinel in Sentinel]


def _held(session: Session) -> list[tuple[str, str]]:
    return [("key_owner", session.fill("where_held", sentinels=[sentinel.value for sentinel in Sentinel]))]


def _parts_of(session: Session, state: State) -> list[tuple[str, str]]:
    """Where rows in this state are, among others."""
    match state:
        case State.READY:
            return [
                ("key_owner", session.fill("where_unowned")),
                ("leaseExpires", session.fill("where_due", now=session.now)),
            ]
        case State.WAITING:
            others = session.fill("where_other_sentinel", sentinels=[sentinel.value for sentinel in Sentinel])
            delayed = session.fill("where_delayed", now=session.now)
            return [("leaseExpires", delayed), *_waiting(session), ("key_owner", others)]
        case State.LEASED:
            return _held(session)
        case State.PARKED:
            return [("key_owner", session.fill("where_parked"))]


def _in_states(session: Session, states: frozenset[State] | None) -> str:
    if states is None:
        return "TRUE"
    return session.fill("where_states", now=session.now, states=[state.value for state in sorted(states)])


async def list_archived(session: Session, limit: int, before: int | None, where: TaskFilter) -> list[ArchivedTask]:
    """Archived rows, newest id first."""
    limit = max(0, min(limit, MAX_LIST))
    if limit == 0 or _matches_nothing(where) or where.results == frozenset():
        return []
    wanted = _conditions(session, where)
    if before is not None:
        wanted.append(session.fill("where_before", id=_clamp(before)))
    if where.results is not None:
        wanted.append(session.fill("where_results", results=sorted(where.results)))
    if where.ended_since is not None:
        wanted.append(session.fill("where_ended_since", since=_clamp(where.ended_since)))
    index = "PRIMARY" if where.ended_since is None else "key_modified"
    if where.object_phid is not None or where.container_phid is not None:
        index = "key_container" if where.object_phid is None else "key_object"
    rows = await session.read(
        "list_archived",
        index=Sql(index),
        joined=_joined(session, where),
        wanted=Sql(" AND ".join(wanted) or "TRUE"),
        limit=limit,
    )
    return [archived_task(row, session.options.routes) for row in rows]


def _matches_nothing(where: TaskFilter) -> bool:
    return any(names is not None and not _storable(names) for names in (where.classes, where.queues))


def _conditions(session: Session, where: TaskFilter) -> list[str]:
    """What a row must be, whichever index it comes from."""
    wanted = []
    if where.classes is not None:
        wanted.append(session.fill("where_classes", classes=_storable(where.classes)))
    if where.queues is not None:
        route = route_expression(session.options.routes)
        wanted.append(session.fill("where_queues", route=route, queues=_storable(where.queues)))
    if where.object_phid is not None:
        wanted.append(session.fill("where_object", phid=_phid("object_phid", where.object_phid)))
    if where.container_phid is not None:
        wanted.append(session.fill("where_container", phid=_phid("container_phid", where.container_phid)))
    for name in ("min_failures", "max_failures", "min_priority", "max_priority"):
        bound: int | None = getattr(where, name)
        if bound is not None:
            wanted.append(session.fill(f"where_{name}", bound=_clamp(bound)))
    return wanted


def _joined(session: Session, where: TaskFilter) -> Sql:
    return Sql("" if where.queues is None else session.fill("join_queues"))


def _storable(names: Collection[str]) -> list[str]:
    """The names that a row can have: the others have no UTF-8 form."""
    return sorted(name for name in names if name.isascii() or _encodes(name))


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _phid(field: str, phid: str) -> bytes:
    try:
        return phid.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "must be valid Unicode text") from None


def _clamp(value: int) -> int:
    return max(-1, min(value, _LAST))


def route_expression(routes: Routes) -> Sql:
    """The queue of a row whose task named none, as SQL on its class: as Routes.queue_for."""
    default = literal(DEFAULT_QUEUE)
    if not routes.patterns:
        return Sql(default)
    cases = " ".join(
        f"WHEN a.taskClass REGEXP {literal(_regexp(pattern))} THEN {literal(queue)}"
        for pattern, queue in routes.patterns
    )
    return Sql(f"CASE {cases} ELSE {default} END")


def _regexp(pattern: str) -> str:
    r"""A shell-like pattern as the servers understand it. What is \Z to Python is \z to them."""
    return "^" + translate(pattern)[:-2] + r"\z"
