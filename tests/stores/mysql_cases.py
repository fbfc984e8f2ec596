"""One call of each method, on rows made for it: what the fault tests break at every single trip."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import (
    Complete,
    Fail,
    Failure,
    Lease,
    NewTask,
    Outcome,
    Pause,
    PauseKind,
    Release,
    Retry,
    Settlement,
    State,
    Task,
    TaskFilter,
    Unknown,
    Verdict,
    Yield,
)
from stores.dispatchable import Due, Named, Ready, Young
from stores.mysql import MysqlStore
from tests.clock import START
from tests.phorge_tables import PhorgeTables

OWNER = "qr:0badcafe:1:1@test"
NEXT_OWNER = "qr:0badcafe:2:1@test"
WEB = "web1:4711"
CLASSES = PauseKind.CLASS

Rows = list[Task]
Prepare = Callable[[Store, PhorgeTables], Awaitable[Rows]]
Call = Callable[[Store, Rows], Awaitable[object]]


class Case(NamedTuple):
    """`repeatable`: made again after an unknown end, the call brings about what it would have done alone.

    `partial`: rows that somebody has locked at that moment are left for the next call.
    """

    name: str
    prepare: Prepare
    call: Call
    repeatable: bool = True
    partial: bool = False


def some(count: int, **fields: object) -> list[NewTask]:
    """So many tasks, each with a payload and a class of its own."""
    return [
        NewTask(task_class=f"Class{number}", data=f"payload {number}", object_phid=f"PHID-{number}", **fields)  # type: ignore[arg-type]  # a test's shorthand
        for number in range(count)
    ]


async def nothing(store: Store, phorge: PhorgeTables) -> Rows:
    return []


async def ready(store: Store, phorge: PhorgeTables) -> Rows:
    return await store.enqueue(some(4))


async def held(store: Store, phorge: PhorgeTables) -> Rows:
    """Six tasks that a worker holds, with extras on the first."""
    await store.enqueue([NewTask(task_class="First", queue="slow", max_attempts=9), *some(5)])
    return await store.lease(OWNER, 10, 60)


async def held_by_web(store: Store, phorge: PhorgeTables) -> Rows:
    await store.enqueue(some(3))
    return await store.lease(WEB, 10, 60)


async def lost(store: Store, phorge: PhorgeTables) -> Rows:
    """What a dead worker left: a task, one that is lost too often, one that cannot be read, and one that never ran."""
    rows = await held(store, phorge)
    phorge.execute("UPDATE worker_activetask SET leaseExpires = %s", (START - 100,))
    phorge.execute(
        f"INSERT INTO `{phorge.companion}`.task_extra (task_id, date_created, lost_count) VALUES (%s, %s, 4)",
        (rows[1].id, START),
    )
    phorge.execute("UPDATE worker_activetask SET objectPHID = X'FF' WHERE id = %s", (rows[2].id,))
    return rows + await store.enqueue(some(1))


async def waiting(store: Store, phorge: PhorgeTables) -> Rows:
    rows = await held(store, phorge)
    await store.settle([Settlement.held(Lease(row.id, OWNER), Yield(3600)) for row in rows[:3]])
    return rows


async def due(store: Store, phorge: PhorgeTables) -> Rows:
    """Tasks whose time has come, and some that were never held."""
    rows = await held_by_web(store, phorge)
    phorge.execute("UPDATE worker_activetask SET leaseExpires = %s", (START - 100,))
    return rows + await store.enqueue(some(2))


async def archived(store: Store, phorge: PhorgeTables) -> Rows:
    rows = await held(store, phorge)
    await store.cancel([row.id for row in rows])
    return rows


async def paused(store: Store, phorge: PhorgeTables) -> Rows:
    await store.pause(Pause(CLASSES, "Class1"))
    return []


def ids(rows: Rows) -> list[int]:
    return [row.id for row in rows]


async def settle(store: Store, settlements: list[Settlement]) -> object:
    """Send them; a row that is locked at this moment counts as an outage."""
    settled = await store.settle(settlements)
    if Verdict.BUSY in {one.verdict for one in settled}:
        raise StoreUnavailable("settle", "a row is locked at this moment")
    return settled


async def settle_each_way(store: Store, rows: Rows) -> object:
    """Every outcome in one round, two follow-ups among them, one with a key of its own."""
    followups = [NewTask(task_class="Child", data="c"), NewTask(task_class="Child", idempotency_key="child")]
    outcomes: list[Outcome] = [
        Complete(7, followups),
        Fail(Failure("no")),
        Retry(30, Failure("later")),
        Yield(30),
        Unknown(30),
        Release(),
    ]
    settlements = [Settlement.held(Lease(row.id, OWNER), outcome) for row, outcome in zip(rows, outcomes, strict=True)]
    return await settle(store, settlements)


async def settle_receipts(store: Store, rows: Rows) -> object:
    """An HTTP caller gives back, which spends its receipts, and ends one."""
    outcomes: list[Outcome] = [Release(), Complete(7), Retry(30, Failure("later"))]
    return await settle(
        store,
        [
            Settlement.held(Lease(row.id, WEB, row.lease_expires), outcome)
            for row, outcome in zip(rows, outcomes, strict=True)
        ],
    )


CASES = [
    Case("enqueue", nothing, lambda store, rows: store.enqueue(some(3)), False),
    Case(
        "enqueue with extras",
        nothing,
        lambda store, rows: store.enqueue(
            [*some(2), NewTask(task_class="Keyed", queue="q", idempotency_key="key", max_attempts=3)]
        ),
        False,
    ),
    Case("enqueue_once", nothing, lambda store, rows: store.enqueue_once("event", NewTask(task_class="A"))),
    Case("lease", ready, lambda store, rows: store.lease(NEXT_OWNER, 10, 60), partial=True),
    Case(
        "lease of a class", ready, lambda store, rows: store.lease(NEXT_OWNER, 10, 60, classes={"Class2"}), partial=True
    ),
    Case(
        "lease of named tasks",
        ready,
        lambda store, rows: store.lease(NEXT_OWNER, 10, 60, only=ids(rows[1:3])),
        partial=True,
    ),
    Case(
        "lease of what is due first",
        due,
        lambda store, rows: store.lease(NEXT_OWNER, 10, 60, due_first=True, queues={"default"}),
        partial=True,
    ),
    Case("lease for a caller", ready, lambda store, rows: store.lease(WEB, 10, 60), partial=True),
    Case("lease of what was lost", lost, lambda store, rows: store.lease(NEXT_OWNER, 10, 60), partial=True),
    Case("renew", held, lambda store, rows: store.renew([Lease(row.id, OWNER) for row in rows], 120)),
    Case(
        "renew of receipts",
        held_by_web,
        lambda store, rows: store.renew([Lease(row.id, WEB, row.lease_expires) for row in rows], 120),
    ),
    Case("settle", held, settle_each_way, partial=True),
    Case("settle receipts", held_by_web, settle_receipts, partial=True),
    Case("cancel", held, lambda store, rows: store.cancel(ids(rows[:3]))),
    Case("awaken", waiting, lambda store, rows: store.awaken(ids(rows))),
    Case("free", held, lambda store, rows: store.free(ids(rows[:3]))),
    Case("priority", held, lambda store, rows: store.priority(ids(rows), 77)),
    Case("delay", ready, lambda store, rows: store.delay(ids(rows), START + 900)),
    Case("retry", archived, lambda store, rows: store.retry(ids(rows))),
    Case("pause", nothing, lambda store, rows: store.pause(Pause(CLASSES, "Class1"))),
    Case("resume", paused, lambda store, rows: store.resume(Pause(CLASSES, "Class1"))),
]


# ---- what only reads


async def of_every_kind(store: Store, phorge: PhorgeTables) -> None:
    """Tasks with the ids 1 to 9 in most states, an error, a pause."""
    await store.enqueue([*some(8), NewTask(task_class="Slow", queue="slow", idempotency_key="key", max_attempts=3)])
    rows = await store.lease(OWNER, 5, 60)
    ends: list[Outcome] = [Complete(7), Fail(Failure("no", "line 1")), Retry(30, Failure("later")), Yield(30)]
    await store.settle(
        [Settlement.held(Lease(row.id, OWNER), end) for row, end in zip(rows[:4], ends, strict=True)],
    )
    await store.pause(Pause(CLASSES, "Class7"))


async def read_operations(store: MysqlStore) -> object:
    """Without the sizes of the tables, which are the server's guesses."""
    return {name: value for name, value in (await store.operations()).items() if name != "tables"}


async def read_changed(store: MysqlStore) -> object:
    """Whether it answers; what it says depends on what it was told before."""
    return isinstance(await store.changed(0), bool)


EVERY_ID = range(1, 12)
READS: dict[str, Callable[[MysqlStore], Awaitable[object]]] = {
    "paused": lambda store: store.paused(),
    "get": lambda store: store.get(EVERY_ID),
    "get_archived": lambda store: store.get_archived(EVERY_ID),
    "list_active": lambda store: store.list_active(100),
    "list_active of a queue": lambda store: store.list_active(100, where=TaskFilter(queues=frozenset({"slow"}))),
    "list_active of classes": lambda store: store.list_active(100, where=TaskFilter(classes=frozenset({"Class6"}))),
    "list_active of states": lambda store: store.list_active(100, where=TaskFilter(states=frozenset(State))),
    "list_archived": lambda store: store.list_archived(100),
    "history": lambda store: store.history(EVERY_ID),
    "stats": lambda store: store.stats(),
    "backlog": lambda store: store.backlog(),
    "operations": read_operations,
    "ping": lambda store: store.ping(),
    "changed": read_changed,
    "dispatchable ready": lambda store: store.dispatchable(Ready(), 100),
    "dispatchable due": lambda store: store.dispatchable(Due(), 100),
    "dispatchable young": lambda store: store.dispatchable(Young(3), 100),
    "dispatchable named": lambda store: store.dispatchable(Named([6, 7, 99]), 100),
}
"""The first word is the method."""
