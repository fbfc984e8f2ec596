"""The second in which each kind of row may be leased: not one earlier, not one later (docs/architecture.md, rule 6)."""

from collections.abc import Awaitable, Callable

import pytest

from queue_runtime.store import Store
from queue_runtime.task import NewTask, Release, Retry, State, TaskFilter, Unknown, Yield
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import HTTP, add, add_plain, held, ready_ids, receipt, row, settle, take_new, worker

PATIENCE = 10  # the default of StoreOptions

Make = Callable[[Store, Plant, Clock], Awaitable[int]]


async def free_row(store: Store, plant: Plant, clock: Clock) -> int:
    return (await add_plain(store, 1))[0]


def delayed(seconds: int) -> Make:
    async def make(store: Store, plant: Plant, clock: Clock) -> int:
        return (await add(store, NewTask(task_class="A", delay_until=clock.now + seconds)))[0]

    return make


def given_back(outcome: Retry | Yield | Unknown | Release) -> Make:
    async def make(store: Store, plant: Plant, clock: Clock) -> int:
        task = await take_new(store)
        await settle(store, held(task), outcome)
        return task.id

    return make


def leased(owner: Callable[[], str], seconds: int) -> Make:
    async def make(store: Store, plant: Plant, clock: Clock) -> int:
        return (await take_new(store, owner(), seconds=seconds)).id

    return make


def renewed(owner: Callable[[], str], seconds: int) -> Make:
    async def make(store: Store, plant: Plant, clock: Clock) -> int:
        task = await take_new(store, owner(), seconds=5)
        await store.renew([receipt(task)], seconds)
        return task.id

    return make


def planted(owner: str | None, seconds: int | None) -> Make:
    async def make(store: Store, plant: Plant, clock: Clock) -> int:
        (task_id,) = await add_plain(store, 1)
        await plant(task_id, owner, None if seconds is None else clock.now + seconds)
        return task_id

    return make


async def freed(store: Store, plant: Plant, clock: Clock) -> int:
    task = await take_new(store)
    await store.free([task.id])
    return task.id


async def brought_back(store: Store, plant: Plant, clock: Clock) -> int:
    (task_id,) = await add_plain(store, 1)
    await store.cancel([task_id])
    await store.retry([task_id])
    return task_id


async def awakened(store: Store, plant: Plant, clock: Clock) -> int:
    task = await take_new(store)
    await settle(store, held(task), Yield(wait=600))
    await store.awaken([task.id])
    return task.id


def postponed(first: int | None, then: int) -> Make:
    async def make(store: Store, plant: Plant, clock: Clock) -> int:
        until = None if first is None else clock.now + first
        (task_id,) = await add(store, NewTask(task_class="A", delay_until=until))
        await store.delay([task_id], clock.now + then)
        return task_id

    return make


TABLE: dict[str, tuple[Make, int]] = {
    "a fresh row at once": (free_row, 0),
    "a delay in its own second": (delayed(30), 30),
    "a delay until now at once": (delayed(0), 0),
    "a delay until the past at once": (delayed(-500), 0),
    "a retry one second after its wait": (given_back(Retry(wait=30)), 31),
    "a retry without a wait in the next second": (given_back(Retry(wait=0)), 1),
    "a yield one second after its wait": (given_back(Yield(wait=30)), 31),
    "a yield below the floor after six seconds": (given_back(Yield(wait=0)), 6),
    "an unknown outcome one second after its wait": (given_back(Unknown(wait=30)), 31),
    "an unknown outcome without a wait in the next second": (given_back(Unknown(wait=0)), 1),
    "a released row at once": (given_back(Release()), 0),
    "a freed row at once": (freed, 0),
    "a row brought back at once": (brought_back, 0),
    "an awakened yield at once": (awakened, 0),
    "a row postponed by an operator in its second": (postponed(None, 40), 40),
    "a delay made longer": (postponed(10, 40), 40),
    "a delay made shorter": (postponed(60, 20), 20),
    "a row held over HTTP one second after its lease": (leased(lambda: HTTP, 30), 31),
    "a row held by a worker after its lease and the patience": (leased(worker, 30), 31 + PATIENCE),
    "a renewed HTTP lease one second after the new end": (renewed(lambda: HTTP, 50), 51),
    "a renewed worker lease after the new end and the patience": (renewed(worker, 50), 51 + PATIENCE),
    "a native delay (no owner) in its own second": (planted(None, 30), 30),
    "a native lease or back-off one second after its end": (planted("23192:1796040935:web1:2", 30), 31),
    "a native yield one second after its end": (planted("(yield)", 30), 31),
    "a sentinel of somebody else one second after its end": (planted("(other)", 30), 31),
}


@pytest.mark.parametrize("kind", TABLE)
async def test_a_row_is_leased_in_its_second_and_not_before(
    store: Store, plant: Plant, clock: Clock, kind: str
) -> None:
    """R065, R066, R003"""
    make, after = TABLE[kind]
    began = clock.now
    task_id = await make(store, plant, clock)
    assert clock.now == began
    if after:
        clock.advance(after - 1)
        assert await ready_ids(store) == []
        assert await store.list_active(9, where=TaskFilter(states=frozenset({State.READY}))) == []
        clock.advance(1)
    (shown,) = await store.list_active(9, where=TaskFilter(states=frozenset({State.READY})))
    assert shown.id == task_id
    assert await ready_ids(store) == [task_id]


@pytest.mark.parametrize("expires", [None, 30, -10_000])
@pytest.mark.parametrize("owner", ["gorge-completion-pending", "gorge-failure-pending"])
async def test_a_parked_row_is_never_leased(
    store: Store, plant: Plant, clock: Clock, owner: str, expires: int | None
) -> None:
    await planted(owner, expires)(store, plant, clock)
    clock.advance(1_000_000)
    assert await ready_ids(store) == []


async def test_an_owner_without_an_expiry_is_nothing_anybody_may_take(store: Store, plant: Plant, clock: Clock) -> None:
    task_id = await planted("odd", None)(store, plant, clock)
    clock.advance(1_000_000)
    assert await ready_ids(store) == []
    assert await store.free([task_id]) == 1
    assert await ready_ids(store) == [task_id]


@pytest.mark.options(patience=3)
async def test_the_patience_is_a_setting_of_the_store(store: Store, clock: Clock) -> None:
    task = await take_new(store, seconds=30)
    clock.advance(33)
    assert await ready_ids(store) == []
    clock.advance(1)
    assert await ready_ids(store) == [task.id]


@pytest.mark.options(patience=0)
async def test_without_patience_a_worker_is_treated_like_anybody(store: Store, clock: Clock) -> None:
    task = await take_new(store, seconds=30)
    clock.advance(30)
    assert await ready_ids(store) == []
    clock.advance(1)
    assert await ready_ids(store) == [task.id]


async def test_patience_binds_http_callers_too(store: Store, clock: Clock) -> None:
    """R050: whoever leases, a live worker gets its chance to renew first."""
    task = await take_new(store, seconds=30)
    clock.advance(30 + PATIENCE)
    assert await store.lease(HTTP, 9, 60) == []
    clock.advance(1)
    assert [one.id for one in await store.lease(HTTP, 9, 60)] == [task.id]


async def test_a_wait_beyond_the_largest_epoch_ends_at_it(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=2**32 - 1))
    assert (await row(store, task.id)).lease_expires == 2**32 - 1


async def test_a_row_due_in_2106_neither_blocks_nor_comes_early(store: Store, clock: Clock) -> None:
    """R069"""
    await add(store, NewTask(task_class="A", priority=0, delay_until=2**32 - 1))
    (now,) = await add(store, NewTask(task_class="A", delay_until=clock.now))
    assert await ready_ids(store) == [now]


async def test_a_clock_set_back_frees_nothing_early(store: Store, clock: Clock) -> None:
    """R068"""
    task = await take_new(store, seconds=30)
    clock.advance(-3600)
    assert await ready_ids(store) == []
    clock.advance(3600 + 31 + PATIENCE)
    assert await ready_ids(store) == [task.id]


async def test_five_hundred_tasks_that_came_due_meanwhile_are_each_leased_once(store: Store, clock: Clock) -> None:
    """R071"""
    ids = await add(store, *[NewTask(task_class="A", delay_until=clock.now + 1 + n % 60) for n in range(500)])
    clock.advance(600)
    seen: list[int] = []
    while rows := await store.lease(worker(), 64, 60):
        seen += [task.id for task in rows]
        assert len(seen) <= 500
    assert seen == ids
