"""Tasks that are taken from their holder: by an operator, by another lease, by an unfenced report."""

import asyncio

import pytest

from queue_runtime.store import Store
from queue_runtime.task import (
    Complete,
    Release,
    Retry,
    Settlement,
)
from tests.clock import Clock
from tests.contract.steps import (
    LOST,
    OUTCOMES,
    SETTLED,
    add_plain,
    held,
    row,
    settle,
    take_new,
    verdicts,
    worker,
)

# ---- taken away


async def test_a_cancelled_task_is_lost_to_its_holder(store: Store) -> None:
    """R010"""
    for outcome in OUTCOMES.values():
        task = await take_new(store)
        await store.cancel([task.id])
        assert await store.renew([held(task)], 60) == [None]
        assert (await settle(store, held(task), outcome)).verdict is LOST
    assert (await store.stats()).active == 0


async def test_a_freed_task_is_lost_to_its_holder_even_when_nobody_took_it(store: Store) -> None:
    task = await take_new(store)
    await store.free([task.id])
    assert await store.renew([held(task)], 60) == [None]
    assert (await settle(store, held(task), Complete())).verdict is LOST
    assert (await row(store, task.id)).lease_owner is None


async def test_a_change_of_priority_takes_no_lease_away(store: Store) -> None:
    task = await take_new(store)
    await store.priority([task.id], 1)
    assert (await settle(store, held(task), Retry())).verdict is SETTLED


async def test_two_callers_that_find_the_same_stale_lease_do_not_both_get_it(store: Store, clock: Clock) -> None:
    """R009"""
    await add_plain(store, 200)
    await store.lease(worker(), 200, 10)
    clock.advance(100)
    calls = await asyncio.gather(*[store.lease(worker(), 200, 60) for _ in range(4)])
    taken = [task.id for rows in calls for task in rows]
    assert len(taken) == len(set(taken)) == 200
    assert {task.failure_count for rows in calls for task in rows} == {0}
    assert {task.lost_count for rows in calls for task in rows} == {1}


# ---- the legacy routes, whose clients send no owner


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_an_unfenced_outcome_is_written_whoever_holds_the_row(store: Store, kind: str) -> None:
    free, task = (await add_plain(store, 1))[0], await take_new(store)
    wanted = [Settlement.unfenced(task_id, OUTCOMES[kind]) for task_id in (free, task.id)]
    assert await verdicts(store, *wanted) == [SETTLED, SETTLED]
    assert (await settle(store, held(task), Release())).verdict is LOST


async def test_an_unfenced_outcome_for_no_task_is_lost_and_creates_nothing(store: Store) -> None:
    """F7"""
    (task_id,) = await add_plain(store, 1)
    await store.cancel([task_id])
    for outcome in OUTCOMES.values():
        rounds = [Settlement.unfenced(one, outcome) for one in (task_id, 999_999, 0)]
        assert await verdicts(store, *rounds) == [LOST, LOST, LOST]
    assert await store.list_active(9) == []


async def test_an_unfenced_end_is_not_replayed(store: Store) -> None:
    (task_id,) = await add_plain(store, 1)
    end = Settlement.unfenced(task_id, Complete())
    assert await verdicts(store, end, end) == [SETTLED, LOST]
