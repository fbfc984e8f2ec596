"""Bounds are checked before anything is changed: bad input is no database error (docs/architecture.md, rule 10)."""

from collections.abc import Awaitable, Callable

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import U32, Complete, Fail, Failure, Lease, NewTask, Retry, Settlement
from tests.clock import Clock
from tests.contract.steps import LOST, add, add_plain, everything, held, take_new, verdicts, worker


@pytest.mark.parametrize(
    "fields",
    [
        {"task_class": ""},
        {"task_class": "x" * 65},
        {"task_class": "a\0b"},
        {"task_class": "\ud800"},
        {"priority": -1},
        {"priority": U32 + 1},
        {"object_phid": ""},
        {"object_phid": "x" * 65},
        {"object_phid": "\u00e9" * 33},
        {"container_phid": "x" * 65},
        {"container_phid": "\ud800"},
        {"delay_until": 0},
        {"delay_until": -1},
        {"delay_until": U32 + 1},
        {"queue": ""},
        {"queue": "x" * 65},
        {"queue": "with space"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
        {"idempotency_key": "a\0b"},
        {"max_attempts": 0},
        {"max_attempts": 2**31},
    ],
)
def test_a_task_outside_the_bounds_cannot_be_built(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        NewTask(**{"task_class": "A", **fields})  # type: ignore[arg-type]


async def test_a_task_at_the_bounds_is_kept(store: Store) -> None:
    new = NewTask(
        task_class="\U0001f642" * 64,
        priority=U32,
        object_phid="\u00e9" * 32,
        container_phid="x" * 64,
        delay_until=U32,
        queue="x" * 64,
        idempotency_key="x" * 255,
        max_attempts=2**31 - 1,
    )
    (task_id,) = await add(store, new)
    (task,) = await store.get([task_id])
    assert task is not None
    assert (task.task_class, task.priority, task.object_phid, task.container_phid) == (
        new.task_class,
        new.priority,
        new.object_phid,
        new.container_phid,
    )
    assert (task.lease_expires, task.queue, task.idempotency_key, task.max_attempts) == (
        new.delay_until,
        new.queue,
        new.idempotency_key,
        new.max_attempts,
    )


REFUSED: dict[str, Callable[[Store, int], Awaitable[object]]] = {
    "a lease under a sentinel": lambda store, _: store.lease("(retry)", 1, 60),
    "a lease for no time": lambda store, _: store.lease(worker(), 1, 0),
    "a renewal for no time": lambda store, task_id: store.renew([Lease(task_id, "x")], 0),
    "a negative wait": lambda store, task_id: store.settle([Settlement.unfenced(task_id, Retry(wait=-1))]),
    "a negative duration": lambda store, task_id: store.settle(
        [Settlement.unfenced(task_id, Complete()), Settlement.unfenced(task_id, Complete(duration_us=-1))]
    ),
    "a negative duration of a failure": lambda store, task_id: store.settle(
        [Settlement.unfenced(task_id, Complete()), Settlement.unfenced(task_id, Fail(Failure(duration_us=-1)))]
    ),
    "a duration of a failure too large": lambda store, task_id: store.settle(
        [Settlement.unfenced(task_id, Complete()), Settlement.unfenced(task_id, Fail(Failure(duration_us=2**63)))]
    ),
    "a negative duration of a retry": lambda store, task_id: store.settle(
        [Settlement.unfenced(task_id, Complete()), Settlement.unfenced(task_id, Retry(1, Failure(duration_us=-1)))]
    ),
    "a priority too large": lambda store, task_id: store.priority([task_id], U32 + 1),
    "a delay until nothing": lambda store, task_id: store.delay([task_id], 0),
    "an event without an id": lambda store, _: store.enqueue_once("", NewTask(task_class="A")),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_refused_call_changes_nothing(store: Store, clock: Clock, what: str) -> None:
    (task_id,) = await add_plain(store, 1)
    leased = await take_new(store)
    before = await everything(store)
    clock.advance(5)
    for one in (task_id, leased.id):
        with pytest.raises(InvalidRequest):
            await REFUSED[what](store, one)
    assert await everything(store) == before


@pytest.mark.parametrize("task_id", [0, -1, 2**32, 2**63 - 1])
async def test_an_id_that_cannot_exist_is_simply_not_found(store: Store, task_id: int) -> None:
    await add_plain(store, 1)
    lease = Lease(task_id, "x", 5)
    assert (
        await verdicts(store, Settlement.held(lease, Complete()), Settlement.unfenced(task_id, Retry())) == [LOST] * 2
    )
    assert await store.renew([lease], 60) == [None]
    assert await store.lease(worker(), 5, 60, only=[task_id]) == []
    assert len(await store.lease(worker(), 5, 60, without=[task_id])) == 1


@pytest.mark.parametrize("expires", [0, -1, 2**32, 2**63 - 1])
async def test_an_expiry_that_cannot_exist_is_simply_wrong(store: Store, expires: int) -> None:
    task = await take_new(store)
    assert task.lease_owner is not None
    forged = Lease(task.id, task.lease_owner, expires)
    assert await verdicts(store, Settlement.held(forged, Complete())) == [LOST]
    assert await store.renew([forged], 60) == [None]
    assert await store.renew([held(task)], 60) != [None]


@pytest.mark.parametrize("owner", ["", "x" * 5000, "a\0b", "it's", "\U0001f642", "\udcff"])
async def test_an_owner_that_cannot_exist_is_simply_wrong(store: Store, owner: str) -> None:
    task = await take_new(store)
    assert await verdicts(store, Settlement.held(Lease(task.id, owner), Complete())) == [LOST]
    assert await store.renew([Lease(task.id, owner)], 60) == [None]
