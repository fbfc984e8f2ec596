"""Operators bring ended tasks back."""

from msgspec.structs import replace

from queue_runtime.store import Store
from queue_runtime.task import Complete, Fail, Result, Retry, Task
from tests.clock import Clock
from tests.contract.steps import (
    UNKNOWN_IDS,
    add_plain,
    ended,
    errors,
    held,
    ready_ids,
    row,
    settle,
    take,
    take_new,
)


async def test_retry_brings_back_a_failed_task_under_its_id(store: Store, clock: Clock) -> None:
    created = clock.now
    task = await take_new(
        store, data="x", priority=7, object_phid="O", container_phid="C", queue="q", idempotency_key="k", max_attempts=2
    )
    await settle(store, held(task), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store)), Fail())
    clock.advance(10)
    (back,) = await store.retry([task.id])

    assert back == Task(
        id=task.id,
        task_class="Plain",
        data_id=task.data_id,
        priority=7,
        date_created=created,
        date_modified=clock.now,
        lease_expires=0,
        object_phid="O",
        container_phid="C",
        queue="q",
        idempotency_key="k",
        max_attempts=2,
    )
    assert await row(store, task.id) == replace(back, data="x")
    assert await store.get_archived([task.id]) == [None]


async def test_retry_brings_back_a_cancelled_task(store: Store) -> None:
    (task_id,) = await add_plain(store, 1)
    await store.cancel([task_id])
    (back,) = await store.retry([task_id])
    assert back is not None
    assert await ready_ids(store) == [task_id]


async def test_retry_brings_back_a_success_only_when_told_to_repeat(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Complete())
    assert await store.retry([task.id]) == [None]
    assert (await ended(store, task.id)).result is Result.SUCCESS
    (back,) = await store.retry([task.id], repeat=True)
    assert back is not None
    assert await ready_ids(store) == [task.id]


async def test_repeat_brings_back_failures_too(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Fail())
    assert (await store.retry([task.id], repeat=True))[0] is not None


async def test_retry_answers_in_order_and_none_where_nothing_can_come_back(store: Store) -> None:
    active, first, second = await add_plain(store, 3)
    await store.cancel([first, second])
    found = await store.retry([second, active, *UNKNOWN_IDS, first, second])
    assert [one.id if one else None for one in found] == [second, *[None] * 6, first, None]


async def test_a_task_brought_back_keeps_its_history_and_can_end_again(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Fail())
    await store.retry([task.id])
    await settle(store, held(await take(store)), Fail())
    assert [(entry.kind, entry.attempt) for entry in await errors(store, task.id)] == [("failure", 1)] * 2
    assert (await ended(store, task.id)).result is Result.FAILURE
