"""Phorge's tables for the tests of the MySQL store's parts: rows as PHP writes them, and what a statement reads."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple, TypeVar

from queue_runtime.store import StoreOptions
from queue_runtime.task import Task
from stores.mysql import open_store
from stores.mysql_driver import Answer
from stores.mysql_pool import Pool
from stores.mysql_session import Session, Sessions
from stores.mysql_settings import MysqlSettings
from tests.clock import START
from tests.phorge_tables import PhorgeTables
from tests.proxy import Fault, Proxy
from tests.stores.phorge_state import TRANSACTIONS_EVERY, eventually

T = TypeVar("T")
Work = Callable[[Session], Awaitable[T]]

NATIVE = "23192:1796040935:web1:2"
"""An owner as native taskmasters write it."""

_numbers = count(1)


@asynccontextmanager
async def open_sessions(
    settings: MysqlSettings, options: StoreOptions = StoreOptions(), *, skip_locked: bool = True
) -> AsyncIterator[Sessions]:
    """Sessions as a store has them. The companion database is made when the account may."""
    pool = Pool(settings, options, skip_locked=skip_locked)
    try:
        yield Sessions(pool, options)
    finally:
        await pool.close()


# ---- rows


def php_enqueue(tables: PhorgeTables, task_class: str = "A", *, data: str = "{}", **columns: object) -> int:
    """As PHP does: a payload, an id, a row, each committed by itself. `columns` win over the usual values."""
    task_id = draw_id(tables)
    insert_active(tables, task_id, task_class, data=data, **columns)
    return task_id


def draw_id(tables: PhorgeTables) -> int:
    """The next id of Phorge's counter."""
    tables.execute(
        "INSERT INTO lisk_counter VALUES ('worker_activetask', LAST_INSERT_ID(1))"
        " ON DUPLICATE KEY UPDATE counterValue = LAST_INSERT_ID(counterValue + 1)"
    )
    return int(tables.execute("SELECT counterValue FROM lisk_counter")[0][0])


def insert_active(
    tables: PhorgeTables, task_id: int, task_class: str = "A", *, data: str = "{}", **columns: Any
) -> None:
    """The row of an id, with its payload."""
    row = {"leaseOwner": None, "leaseExpires": None, "failureTime": None} | usual(task_id, task_class) | columns
    insert(tables, "worker_activetask", row)
    insert(tables, "worker_taskdata", {"id": row["dataID"], "data": data})


def insert_archived(tables: PhorgeTables, task_class: str = "A", *, data: str = "{}", **columns: Any) -> int:
    """A task that has ended, with its payload."""
    task_id = columns.pop("id", None) or draw_id(tables)
    row = {"leaseOwner": NATIVE, "leaseExpires": START, "result": 0, "duration": 7, "archivedEpoch": START}
    row |= usual(task_id, task_class) | columns
    insert(tables, "worker_archivetask", row)
    insert(tables, "worker_taskdata", {"id": row["dataID"], "data": data})
    return int(task_id)


def usual(task_id: int, task_class: str) -> dict[str, Any]:
    """What both tables have."""
    return {
        "id": task_id,
        "taskClass": task_class,
        "failureCount": 0,
        "dataID": next(_numbers) * 7 + 1_000_000,
        "priority": 2000,
        "objectPHID": None,
        "containerPHID": None,
        "dateCreated": START,
        "dateModified": START,
    }


def insert(tables: PhorgeTables, table: str, row: dict[str, Any]) -> None:
    """One row, committed."""
    places = ", ".join(["%s"] * len(row))
    tables.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))


def fill_active(tables: PhorgeTables, rows: int, *, first: int = 1, **columns: str) -> None:
    """So many rows at once: 20 classes, 6 priorities. `columns` are SQL on `seq`, and win."""
    values = {
        "id": "seq",
        "taskClass": "CONCAT('Class', seq * 7919 % 20)",
        "leaseOwner": "NULL",
        "leaseExpires": "NULL",
        "failureCount": "0",
        "dataID": "seq",
        "failureTime": "NULL",
        "priority": "ELT(1 + seq * 31 % 6, 1000, 2000, 2500, 3000, 3500, 4000)",
        "objectPHID": "CONCAT('PHID-', seq % 1000)",
        "dateCreated": f"{START} + seq DIV 1000",
        "dateModified": f"{START} + seq DIV 1000",
        "containerPHID": "NULL",
    }
    _fill(tables, "worker_activetask", values | columns, first, rows)


def fill_archived(tables: PhorgeTables, rows: int, *, first: int = 1_000_001, **columns: str) -> None:
    """So many ended tasks at once, a hundred a second."""
    values = {
        "id": "seq",
        "taskClass": "CONCAT('Class', seq * 7919 % 20)",
        "leaseOwner": "'qr:0badcafe:1:1@x'",
        "leaseExpires": str(START),
        "failureCount": "0",
        "dataID": "seq",
        "result": "seq % 100 = 0",
        "duration": "1000",
        "priority": "2000",
        "objectPHID": "CONCAT('PHID-', seq % 1000)",
        "dateCreated": f"{START} + seq DIV 100",
        "dateModified": f"{START} + seq DIV 100",
        "containerPHID": "NULL",
        "archivedEpoch": f"{START} + seq DIV 100",
    }
    _fill(tables, "worker_archivetask", values | columns, first, rows)


def _fill(tables: PhorgeTables, table: str, values: dict[str, str], first: int, rows: int) -> None:
    tables.execute(
        f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(values.values())}"
        f" FROM seq_{first}_to_{first + rows - 1}"
    )
    tables.execute(f"ANALYZE TABLE {table}")


# ---- what statements do


class Step(NamedTuple):
    """A line of EXPLAIN."""

    table: str
    how: str
    key: str | None
    extra: str


class _Watched(Session):
    """Writes down what is sent."""

    statements: list[str]

    async def trip(self, *statements: str) -> list[Answer]:
        self.statements += statements
        return await super().trip(*statements)


async def watch(sessions: Sessions, work: Work[Any]) -> list[str]:
    """The statements that the work sends."""

    async def watched(session: Session) -> list[str]:
        spy = _Watched(session._connection, session.server, session.options)
        spy.statements = []
        await work(spy)
        return spy.statements

    return await sessions.play("watch", watched)


async def plan(sessions: Sessions, work: Work[Any]) -> list[Step]:
    """How the server goes about the statements of the work that look for rows."""
    steps: list[Step] = []
    for statement in await watch(sessions, work):
        bare = statement.partition(" FOR ")[2] if statement.startswith("SET STATEMENT") else statement
        if bare.startswith(("SELECT", "DELETE")):
            steps += await _explain(sessions, bare)
    return steps


async def _explain(sessions: Sessions, statement: str) -> Sequence[Step]:
    async def explain(session: Session) -> list[Step]:
        (answer,) = await session.trip(f"EXPLAIN {statement}")
        return [Step(row[2] or "", row[3] or "", row[5], row[9] or "") for row in answer.rows]

    return await sessions.play("explain", explain)


def scanned(steps: Sequence[Step]) -> list[Step]:
    """Tables that are read whole; intermediate results (`<derived2>`) do not count."""
    return [step for step in steps if step.how in {"ALL", "index"} and not step.table.startswith("<")]


async def rows_read(sessions: Sessions, work: Work[Any]) -> int:
    """How many rows and index entries the server touches for the work, those of intermediate results too."""

    async def counted(session: Session) -> int:
        await session.trip("FLUSH STATUS")
        await work(session)
        (answer,) = await session.trip("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in answer.rows)

    return await sessions.play("count", counted)


def global_rows_read(phorge: PhorgeTables) -> int:
    """How many rows and index entries the server has read since it started, those of intermediate results left out."""
    found = phorge.execute("SHOW GLOBAL STATUS LIKE 'Handler_read_%'")
    return sum(int(value) for name, value in found if name in READS)


READS = frozenset(f"Handler_read_{how}" for how in ("first", "key", "last", "next", "prev", "rnd"))


class HeldLease:
    """`locked`: rows and index entries that it has locked, as the server counts them. `tasks`: what it takes."""

    locked = 0
    tasks: Sequence[Task] = ()


@asynccontextmanager
async def lease_before_its_commit(
    tables: PhorgeTables, limit: int, options: StoreOptions = StoreOptions(), **filters: Any
) -> AsyncIterator[HeldLease]:
    """A lease of a store of its own that has done all but its COMMIT, which goes on its way at the end of the block.

    It is the second of its kind: what a store remembers of the first, it has.
    """
    held = HeldLease()
    async with (
        Proxy(tables.server.socket) as proxy,
        open_store(tables.settings(socket=proxy.socket), options) as store,
    ):
        await store.lease("qr:before", 1, 60, **filters)
        proxy.break_when(b"COMMIT", Fault.HOLD)
        call = asyncio.ensure_future(store.lease("qr:held", limit, 60, **filters))
        await eventually(lambda: proxy.fired or call.done(), "the COMMIT is on its way", 60)
        assert not call.done(), "it took nothing"
        await asyncio.sleep(TRANSACTIONS_EVERY)
        ((held.locked,),) = tables.execute("SELECT MAX(trx_rows_locked) FROM information_schema.INNODB_TRX")
        try:
            yield held
        finally:
            proxy.deliver()
            held.tasks = await call
