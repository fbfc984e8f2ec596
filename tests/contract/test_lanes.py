"""Order across task classes and queues, which a store may keep apart: it is the order of one list."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import NewTask
from tests.clock import Clock
from tests.contract.steps import add, ready_ids, take, worker

MIXED = [NewTask(task_class=f"Class{n * 5 % 7}", queue=f"q{n * 3 % 4}", priority=(n * 7 % 3) + 1) for n in range(120)]


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_fresh_work_of_many_classes_and_queues_comes_in_one_order(store: Store, limit: int) -> None:
    ids = await add(store, *MIXED)
    wanted = [task_id for _, task_id in sorted(zip([new.priority for new in MIXED], ids, strict=True))]
    seen: list[int] = []
    while rows := await ready_ids(store, limit):
        seen += rows
    assert seen == wanted


async def test_what_comes_later_and_is_more_urgent_overtakes_other_lanes(store: Store) -> None:
    async def one(task_class: str, priority: int) -> int:
        (task_id,) = await add(store, NewTask(task_class=task_class, priority=priority))
        return task_id

    waiting = [await one("A", 5), await one("B", 3)]
    urgent = [await one("A", 2), await one("B", 1)]
    moved = await one("A", 9)
    await store.priority([moved], 0)
    assert await ready_ids(store) == [moved, *urgent[::-1], *waiting[::-1]]


async def test_due_work_of_many_classes_and_queues_comes_in_one_order(store: Store, clock: Clock) -> None:
    ids = await add(store, *MIXED)
    for number, task_id in enumerate(ids):
        await store.delay([task_id], clock.now + 1 + number * 11 % 5)
    clock.advance(10)
    assert await ready_ids(store) == [
        task_id for _, task_id in sorted(zip([new.priority for new in MIXED], ids, strict=True))
    ]


async def test_a_short_lease_beside_a_long_one_is_over_in_its_own_time(store: Store, clock: Clock) -> None:
    ids = await add(store, *[NewTask(task_class="A")] * 3)
    for task_id, seconds in zip(ids, (1000, 5, 2000), strict=True):
        (task,) = await store.lease(worker(), 1, seconds)
        assert task.id == task_id
    clock.advance(500)
    assert await ready_ids(store) == [ids[1]]


async def test_what_is_passed_over_holds_nothing_up(store: Store) -> None:
    """Rows that this caller holds already, at the head of every lane."""
    ids = await add(store, *MIXED)
    heads = ids[:60]
    rows = await store.lease(worker(), 1000, 60, without=heads)
    assert sorted(task.id for task in rows) == ids[60:]
    assert sorted(await ready_ids(store)) == heads


async def test_beyond_a_thousand_due_rows_those_due_longest_come_first(store: Store, clock: Clock) -> None:
    """By priority among these, so that a lease looks at a bounded number of rows."""
    now = clock.now
    await add(store, *[NewTask(task_class="A", priority=5, delay_until=now + 1)] * 999)
    (best_of_the_old,) = await add(store, NewTask(task_class="B", priority=1, delay_until=now + 2))
    young = await add(store, *[NewTask(task_class="A", priority=0, delay_until=now + 3)] * 20)
    clock.advance(10)
    assert (await take(store)).id == best_of_the_old
    assert (await take(store)).id == young[0]
