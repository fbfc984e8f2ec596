"""Reading on MySQL: single rows, lists, counts. No statement here locks anything, or may run for long."""

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import translate
from hashlib import sha256

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Routes
from queue_runtime.task import (
    DEFAULT_QUEUE,
    MAX_HISTORY,
    MAX_LIST,
    U32,
    ArchivedTask,
    Attempt,
    AttemptKind,
    Backlog,
    QueueStats,
    Sentinel,
    State,
    Task,
    TaskFilter,
)
from stores.mysql_driver import Row
from stores.mysql_rows import active_task, archived_task
from stores.mysql_server import INBOX, WORKER_TABLES
from stores.mysql_session import Session
from stores.mysql_text import Sql, Value, literal

EXACT = 200_000
"""Counts above this are taken from the server's statistics and marked as estimated."""

SECONDS = 10
"""How long a statement may run. The server ends it then."""

FEW = 50_000
"""A list of classes with so many rows is sorted; one of classes with more is picked from all rows in their order."""

FOREIGN = 1000
"""How many foreign lease owners are looked at."""

LATELY = 3600
"""Seconds for which the lease owners of ended tasks are of interest."""

_LAST = 2**62
_NATIVE_OWNER = re.compile(r"\d+:\d+:(.*):\d+")
"""`pid:epoch:host:sequence`"""


async def _read(session: Session, name: str, **values: Value) -> Sequence[Row]:
    """The rows of a statement that begins with SELECT. The server ends it after SECONDS."""
    statement = session.fill(name, **values)
    if session.server.is_mariadb:
        statement = f"SET STATEMENT max_statement_time = {SECONDS} FOR {statement}"
    else:
        statement = f"SELECT /*+ MAX_EXECUTION_TIME({SECONDS * 1000}) */ {statement.removeprefix('SELECT')}"
    return (await session.trip(statement))[0].rows


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
    ids = sorted({task_id for task_id in task_ids if 0 < task_id <= U32})
    return await _read(session, name, ids=ids) if ids else []


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
    union = Sql(" UNION ALL ".join(parts))
    rows = await _read(session, "list_active", parts=union, limit=limit, offset=offset)
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
        ((count,),) = await session.rows("count_classes", classes=names, limit=FEW + 1)
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
    index = "PRIMARY"
    if where.object_phid is not None or where.container_phid is not None:
        index = "key_container" if where.object_phid is None else "key_object"
    rows = await _read(
        session,
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


# ---- counts


async def stats(session: Session) -> QueueStats:
    """Counts: exact up to EXACT, above that as the server estimates."""
    ((active, archived, failed, parked, parked_failed, held, leased),) = await _read(
        session, "stats", now=session.now, limit=EXACT + 1
    )
    if max(active, archived) > EXACT:
        sizes = {name: records for _, name, records, _, _ in await _table_sizes(session)}
        active = _estimated(active, sizes.get("worker_activetask"))
        archived = _estimated(archived, sizes.get("worker_archivetask"))
    return QueueStats(
        active=active - parked,
        leased=leased,
        archived=archived,
        failed=failed - parked_failed,
        estimated=max(active, archived, failed, held) > EXACT,
    )


def _estimated(counted: int, statistic: int | None) -> int:
    return counted if counted <= EXACT else max(counted, statistic or 0)


async def _table_sizes(session: Session) -> Sequence[Row]:
    """What the server's statistics say of the tables of both databases."""
    server = session.server
    statement = session.fill("table_sizes", schemas=[server.worker_database, server.companion_database])
    if server.is_mariadb or server.version.startswith("5."):
        return (await session.trip(statement))[0].rows
    # MySQL 8 answers from a cache that is a day old
    return (await session.trip("SET SESSION information_schema_stats_expiry = 0", statement))[1].rows


async def backlog(session: Session) -> list[Backlog]:
    """Rows that could be leased now, by class, queue and priority."""
    groups: dict[tuple[str, str, int], tuple[int, int]] = {}
    for name, queue, priority, waiting, oldest in await _read(session, "backlog", now=session.now, limit=EXACT):
        place = (name, queue or session.options.routes.queue_for(name), priority)
        before, first = groups.get(place, (0, oldest))
        groups[place] = (before + waiting, min(first, oldest))
    return [
        Backlog(task_class=name, queue=queue, priority=priority, waiting=waiting, oldest=oldest)
        for (name, queue, priority), (waiting, oldest) in sorted(groups.items())
    ]


# ---- operations


async def operations(session: Session) -> dict[str, object]:
    """Facts about the server and the tables, from its statistics: the answer does not grow with the queue."""
    server = session.server
    ((now,),) = await session.rows("time", now=session.now)
    counter = await session.rows("last_id")
    identity = next((str(value) for _, value in await session.rows("identity") if value), None)
    found = {(schema, name): sizes for schema, name, *sizes in await _table_sizes(session)}
    named = [(server.worker_database, name) for name in sorted(WORKER_TABLES)]
    named += [place for place in sorted(found) if place[1] == INBOX or place[0] == server.companion_database]
    facts: dict[str, object] = {
        "backend": "mysql",
        "snapshot": "observational",
        "generatedEpoch": now,
        "serverVersion": server.version,
        "skipLocked": server.skips_locked,
        "companion": server.companion,
        "inbox": server.inbox,
        "lastID": counter[0][0] if counter else 0,
        "foreignLeaseOwners": await foreign_owners(session),
        "tables": [_table_facts(place, found.get(place)) for place in named],
    }
    if identity is None:
        facts["physicalIdentityState"] = "unavailable"
    else:
        digest = sha256(f"{identity}/{server.worker_database}".encode()).hexdigest()
        facts["physicalDatabaseIdentity"] = digest
    return facts


def _table_facts(place: tuple[str, str], sizes: Sequence[int | None] | None) -> dict[str, object]:
    facts: dict[str, object] = {"table": ".".join(place), "state": "unavailable" if sizes is None else "observed"}
    if sizes is not None:
        facts |= zip(("records", "approximateDataBytes", "approximateIndexBytes"), sizes, strict=True)
    return facts


async def foreign_owners(session: Session) -> list[dict[str, object]]:
    """Hosts whose native taskmasters hold tasks or ended some lately."""
    since = Sql(f"{session.now} - {LATELY}")
    return native_hosts(await _read(session, "foreign_owners", since=since, limit=FOREIGN))


def native_hosts(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The hosts of native owners, and how many owners of each there are."""
    hosts: dict[str, int] = {}
    for (owner,) in rows:
        native = _NATIVE_OWNER.fullmatch(owner)
        if native:
            hosts[native[1]] = hosts.get(native[1], 0) + 1
    return [{"host": host, "owners": count} for host, count in sorted(hosts.items())]
