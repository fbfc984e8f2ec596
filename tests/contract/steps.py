"""Short names for the moves that the contract tests make."""

import asyncio
from itertools import count

from queue_runtime.store import Store
from queue_runtime.task import (
    ArchivedTask,
    Attempt,
    Complete,
    Fail,
    Failure,
    Lease,
    NewTask,
    Outcome,
    Release,
    Retry,
    Settled,
    Settlement,
    Task,
    Unknown,
    Verdict,
    Yield,
)

HTTP = "web1:4711"
"""An HTTP caller's owner name: it may come back, so only its receipts fence."""

UNKNOWN_IDS = [0, -1, 999_999, 2**32, 2**63 - 1]
"""Ids that no task has, and some that none can have."""

SETTLED, REPLAYED, LOST = Verdict.SETTLED, Verdict.REPLAYED, Verdict.LOST

OUTCOMES: dict[str, Outcome] = {
    "complete": Complete(),
    "fail": Fail(Failure("gone for good")),
    "retry": Retry(wait=30, failure=Failure("not yet")),
    "yield": Yield(wait=30),
    "unknown": Unknown(wait=30),
    "release": Release(),
}
"""One of each way to end a run."""

ENDS = ("complete", "fail")
GIVES_BACK = ("retry", "yield", "unknown", "release")

_calls = count(1)


def worker() -> str:
    """A fresh owner of one of our workers: a name belongs to one lease call and is never used again."""
    return f"qr:0badcafe:{next(_calls)}:1@test"


async def add(store: Store, *tasks: NewTask) -> list[int]:
    """Enqueue and return the ids."""
    return [task.id for task in await store.enqueue(tasks)]


async def add_plain(store: Store, number: int) -> list[int]:
    """Enqueue so many tasks that differ in nothing."""
    return await add(store, *[NewTask(task_class="Plain")] * number)


async def take(store: Store, owner: str | None = None, *, seconds: int = 60, only: int | None = None) -> Task:
    """Lease the next task, which must be there, or the one of this id."""
    rows = await store.lease(owner or worker(), 1, seconds, only=None if only is None else {only})
    assert rows, "nothing to lease"
    return rows[0]


async def take_new(store: Store, owner: str | None = None, *, seconds: int = 60, **options: object) -> Task:
    """Enqueue a task and lease it."""
    fields: dict[str, object] = {"task_class": "Plain", **options}
    (task_id,) = await add(store, NewTask(**fields))  # type: ignore[arg-type]  # a test's shorthand
    return await take(store, owner, seconds=seconds, only=task_id)


async def ready_ids(store: Store, limit: int = 1000) -> list[int]:
    """Lease everything that can be leased now, and return the ids in the order of the reply."""
    return [task.id for task in await store.lease(worker(), limit, 60)]


def held(task: Task) -> Lease:
    """The fence of one of our workers."""
    assert task.lease_owner is not None
    return Lease(task.id, task.lease_owner)


def receipt(task: Task) -> Lease:
    """The fence of an HTTP caller, who sends back what the lease reply said."""
    assert task.lease_owner is not None
    return Lease(task.id, task.lease_owner, task.lease_expires)


def expiry(task: Task) -> int:
    """When the lease ends."""
    assert task.lease_expires is not None
    return task.lease_expires


async def settle(store: Store, lease: Lease, outcome: Outcome) -> Settled:
    """Settle one, again while somebody else has the row locked."""
    while True:
        (settled,) = await store.settle([Settlement.held(lease, outcome)])
        if settled.verdict is not Verdict.BUSY:
            return settled
        await asyncio.sleep(0.001)


async def verdicts(store: Store, *settlements: Settlement) -> list[Verdict]:
    """Settle a round and return what became of each."""
    return [settled.verdict for settled in await store.settle(settlements)]


async def row(store: Store, task_id: int) -> Task:
    """The active row, which must be there."""
    (found,) = await store.get([task_id])
    assert found is not None, f"task {task_id} is not active"
    return found


async def ended(store: Store, task_id: int) -> ArchivedTask:
    """The archived row, which must be there."""
    (found,) = await store.get_archived([task_id])
    assert found is not None, f"task {task_id} is not archived"
    return found


async def errors(store: Store, task_id: int) -> list[Attempt]:
    """The error history of one task."""
    (found,) = await store.history([task_id])
    return found


async def everything(store: Store) -> tuple[list[Task], list[ArchivedTask], list[list[Attempt]]]:
    """All that can be seen of all tasks, to compare before and after."""
    active, archived = await store.list_active(5000), await store.list_archived(5000)
    ids = [task.id for task in active] + [task.id for task in archived]
    return active, archived, await store.history(ids)
