"""Rows parked by the forked PHP client: known by their owner alone, and left to the operator."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import PARKED_OWNERS, NewTask, Result, State, TaskFilter
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import HTTP, add, ended, ready_ids, row, worker

PARKED = sorted(PARKED_OWNERS)


@pytest.fixture(params=PARKED)
async def parked(request: pytest.FixtureRequest, store: Store, plant: Plant) -> int:
    """A parked row, as PHP writes it."""
    (task_id,) = await add(store, NewTask(task_class="A", data="x"))
    await plant(task_id, request.param, 2**31 - 1)
    return task_id


async def test_no_lease_finds_it(store: Store, clock: Clock, parked: int) -> None:
    clock.advance(2**31)
    assert await ready_ids(store) == []
    assert await store.lease(HTTP, 9, 60, due_first=True) == []
    assert await store.lease(worker(), 9, 60, only={parked}, classes={"A"}, queues={"default"}) == []


async def test_it_is_shown_as_parked(store: Store, parked: int) -> None:
    (shown,) = await store.list_active(9)
    assert shown.id == parked
    assert [task.id for task in await store.list_active(9, where=TaskFilter(states=frozenset({State.PARKED})))] == [
        parked
    ]


async def test_it_can_be_cancelled(store: Store, parked: int) -> None:
    await store.cancel([parked])
    found = await ended(store, parked)
    assert (found.result, found.data) == (Result.CANCELLED, "x")


async def test_it_can_be_freed_and_runs_then(store: Store, parked: int) -> None:
    assert await store.free([parked]) == 1
    assert await ready_ids(store) == [parked]


async def test_its_priority_can_be_changed_and_it_stays_parked(store: Store, parked: int) -> None:
    assert await store.priority([parked], 5) == 1
    found = await row(store, parked)
    assert (found.priority, found.lease_owner in PARKED_OWNERS) == (5, True)
    assert await ready_ids(store) == []


async def test_it_does_not_fill_the_window_of_the_second_phase(store: Store, plant: Plant, clock: Clock) -> None:
    ids = await add(store, *[NewTask(task_class="A")] * 3)
    for task_id in ids[:2]:
        await plant(task_id, PARKED[0], 1)
    await plant(ids[2], "gone", clock.now - 1)
    assert await ready_ids(store) == [ids[2]]
