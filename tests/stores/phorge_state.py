"""All that can be seen in Phorge's tables and the companion, without the numbers that differ from run to run."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from queue_runtime.errors import StoreUnavailable
from tests.phorge_tables import PhorgeTables, Row

State = dict[str, list[Row]]

_COMPANION = {
    "task_extra": "task_id, date_created, queue, idempotency_key, max_attempts, lost_count, spent",
    "attempt": "task_id, date_created, attempt, kind, happened, owner, message",
    "idempotency": "task_id, idempotency_key, date_created",
    "event": "0, event_id, digest",
    "pause": "0, kind, name",
}
"""Columns of each table that are compared. The first is the id of a task, or 0."""

_WHOLE = ("active", "archive")


def state(phorge: PhorgeTables) -> State:
    """Every row. Ids stand as their rank, payloads as themselves, so that gaps in the ids make no difference."""
    rows: State = {}
    for name, extra in (("active", "a.failureTime"), ("archive", "a.result, a.duration, a.archivedEpoch")):
        rows[name] = phorge.execute(
            f"SELECT a.id, a.taskClass, a.leaseOwner, a.leaseExpires, a.failureCount, a.priority, a.objectPHID,"
            f" a.containerPHID, a.dateCreated, a.dateModified, {extra}, d.data"
            f" FROM worker_{name}task a LEFT JOIN worker_taskdata d ON d.id = a.dataID ORDER BY a.id"
        )
    for name, columns in _COMPANION.items():
        rows[name] = phorge.execute(f"SELECT {columns} FROM `{phorge.companion}`.{name} ORDER BY 1, 2, 3")
    ids = sorted({row[0] for name in _WHOLE for row in rows[name]})
    ranks: dict[int, Any] = {task_id: rank for rank, task_id in enumerate(ids, 1)}
    return {
        name: [(ranks.get(row[0], f"no task {row[0]}") if row[0] else 0, *row[1:]) for row in found]
        for name, found in rows.items()
    }


def check_whole(phorge: PhorgeTables) -> None:
    """Each task is in one table, and has a payload of its own that nobody else has. No payload belongs to nobody."""
    # in one picture: what a lost COMMIT began may still come to its end
    rows = phorge.execute(
        "SELECT 'task', id, dataID FROM worker_activetask UNION ALL SELECT 'task', id, dataID FROM worker_archivetask"
        " UNION ALL SELECT 'payload', NULL, id FROM worker_taskdata"
    )
    ids = [task_id for kind, task_id, _ in rows if kind == "task"]
    assert len(set(ids)) == len(ids), "a task is in both tables"
    held = sorted(data_id for kind, _, data_id in rows if kind == "task")
    payloads = sorted(data_id for kind, _, data_id in rows if kind == "payload")
    assert held == payloads, "payloads and tasks do not belong together one to one"


TRANSACTIONS_EVERY = 0.15
"""Seconds between two looks at transactions: asked more often, the server shows an old picture for ever."""


def open_transactions(phorge: PhorgeTables) -> list[Row]:
    """Transactions that are open on the server, which may be up to 0.1 s old."""
    return phorge.execute("SELECT trx_id, trx_state, trx_query FROM information_schema.INNODB_TRX")


def connections(phorge: PhorgeTables, user: str = "root") -> int:
    """How many connections of this account the server has, without the test's own."""
    ((number,),) = phorge.execute("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = %s", (user,))
    return int(number) - (user == "root")


async def eventually(condition: Callable[[], object], what: str, seconds: float = 5.0, *, every: float = 0.01) -> None:
    """Wait until the condition holds. It looks by SQL, in this thread: keep it short."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        await asyncio.sleep(every)


async def succeeds(call: Callable[[], Awaitable[Any]], seconds: float = 5.0) -> Any:
    """The answer of a call that is made again while the store is away, for at most so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.1)):
                return await call()
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.02)
