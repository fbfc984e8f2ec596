"""Operators: cancel, awaken, free, priority, delay, retry."""

import pytest
from msgspec.structs import replace

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import U32, Complete, NewTask, Result, Retry, Sentinel, Yield
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
    UNKNOWN_IDS,
    add,
    add_plain,
    ended,
    everything,
    held,
    ready_ids,
    row,
    settle,
    take,
    take_new,
)

# ---- cancel


async def test_cancel_archives_whoever_holds_the_row(store: Store, clock: Clock) -> None:
    free = (await add_plain(store, 1))[0]
    leased, http = await take_new(store), await take_new(store, HTTP)
    waiting = await take_new(store)
    await settle(store, held(waiting), Retry())
    clock.advance(5)
    found = await store.cancel([free, leased.id, http.id, waiting.id])

    assert [one.id if one else None for one in found] == [free, leased.id, http.id, waiting.id]
    for one in found:
        assert one is not None
        assert (one.result, one.duration_us, one.archived_epoch) == (Result.CANCELLED, 0, clock.now)
        assert (one.date_modified, one.data) == (clock.now, None)
    assert [one.failure_count if one else None for one in found] == [0, 0, 0, 1]
    assert await store.list_active(9) == []


async def test_a_cancelled_task_keeps_its_payload_and_its_last_holder(store: Store) -> None:
    task = await take_new(store, HTTP, data="x")
    await store.cancel([task.id])
    found = await ended(store, task.id)
    assert (found.data, found.lease_owner, found.lease_expires) == ("x", HTTP, task.lease_expires)


async def test_cancel_answers_in_order_and_none_where_no_row_is_active(store: Store) -> None:
    first, second = await add_plain(store, 2)
    await store.cancel([first])
    found = await store.cancel([999_999, second, first, second])
    assert [one.id if one else None for one in found] == [None, second, None, None]


# ---- awaken


async def test_awaken_makes_yields_due_now_and_dates_them_back(store: Store, clock: Clock) -> None:
    """R077"""
    task = await take_new(store)
    await settle(store, held(task), Yield(wait=86400))
    before = await row(store, task.id)
    clock.advance(3)
    assert await store.awaken([task.id]) == 1
    assert await row(store, task.id) == replace(before, lease_expires=clock.now - 3600)
    assert await ready_ids(store) == [task.id]


async def test_awaken_counts_each_row_once_and_again_nothing(store: Store, clock: Clock) -> None:
    tasks = [await take_new(store) for _ in range(3)]
    for task in tasks:
        await settle(store, held(task), Yield(wait=60))
    ids = [task.id for task in tasks]
    assert await store.awaken([*ids, ids[0], 999_999]) == 3
    assert await store.awaken(ids) == 0
    clock.advance(50)
    assert await store.awaken(ids) == 0


async def test_awaken_moves_up_what_came_due_less_than_an_hour_ago(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Yield(wait=5))
    clock.advance(5 + 3599)
    assert await store.awaken([task.id]) == 1
    assert (await row(store, task.id)).lease_expires == clock.now - 3600


async def test_awaken_leaves_what_came_due_an_hour_ago(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Yield(wait=5))
    clock.advance(5 + 3600)
    assert await store.awaken([task.id]) == 0


async def test_awaken_leaves_a_yield_that_has_ever_failed(store: Store, clock: Clock) -> None:
    """R077"""
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store)), Yield(wait=600))
    assert await store.awaken([task.id]) == 0
    assert await ready_ids(store) == []


async def test_awaken_leaves_everything_but_yields(store: Store, clock: Clock) -> None:
    leased, retried, unknown = [await take_new(store) for _ in range(3)]
    await settle(store, held(retried), Retry(wait=600))
    (delayed, free) = await add(store, NewTask(task_class="A", delay_until=clock.now + 600), NewTask(task_class="A"))
    archived = await take_new(store)
    await settle(store, held(archived), Complete())
    before = await everything(store)
    ids = [leased.id, retried.id, unknown.id, delayed, free, archived.id, *UNKNOWN_IDS]
    assert await store.awaken(ids) == 0
    assert await everything(store) == before


async def test_ten_thousand_ids_can_be_awakened_at_once(store: Store) -> None:
    """R036"""
    task = await take_new(store)
    await settle(store, held(task), Yield(wait=600))
    assert await store.awaken([*range(5_000_000, 5_009_999), task.id]) == 1


# ---- free


async def test_free_takes_rows_from_any_owner(store: Store, plant: Plant, clock: Clock) -> None:
    owners = [*Sentinel, HTTP, "qr:1:1:1@x", "gorge-completion-pending", "gorge-failure-pending", "23:5:web1:2"]
    ids = await add_plain(store, len(owners))
    for task_id, owner in zip(ids, owners, strict=True):
        await plant(task_id, owner, clock.now + 600)
    clock.advance(4)
    assert await store.free([*ids, ids[0], 999_999]) == len(ids)
    for task_id in ids:
        found = await row(store, task_id)
        assert (found.lease_owner, found.lease_expires, found.failure_count) == (None, clock.now, 0)
    assert await ready_ids(store) == ids


async def test_free_leaves_rows_that_nobody_has(store: Store, plant: Plant, clock: Clock) -> None:
    free, native_delay, gone = await add_plain(store, 3)
    await plant(native_delay, None, clock.now + 60)
    await store.cancel([gone])
    before = await everything(store)
    assert await store.free([free, native_delay, gone, *UNKNOWN_IDS]) == 0
    assert await everything(store) == before


async def test_free_keeps_the_count_of_failures(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=600))
    failed_at = clock.now
    clock.advance(3)
    await store.free([task.id])
    again = await take(store)
    assert (again.failure_count, again.failure_time) == (1, failed_at)


# ---- priority


async def test_priority_is_set_on_active_rows_held_or_not(store: Store, clock: Clock) -> None:
    leased = await take_new(store)
    free, gone = await add_plain(store, 2)
    await store.cancel([gone])
    clock.advance(2)
    assert await store.priority([leased.id, free, free, gone, *UNKNOWN_IDS], 7) == 2
    for task_id in (leased.id, free):
        found = await row(store, task_id)
        assert (found.priority, found.date_modified) == (7, clock.now)
    assert (await row(store, leased.id)).lease_owner == leased.lease_owner
    assert (await ended(store, gone)).priority == 2000


async def test_priority_counts_rows_that_had_it_already(store: Store) -> None:
    ids = await add_plain(store, 2)
    assert await store.priority(ids, 7) == 2
    assert await store.priority(ids, 7) == 2


async def test_a_new_priority_decides_the_next_lease(store: Store) -> None:
    first, second, third = await add_plain(store, 3)
    await store.priority([third], 1)
    await store.priority([first], U32)
    assert await ready_ids(store) == [third, second, first]


@pytest.mark.parametrize("priority", [-1, U32 + 1])
async def test_a_priority_outside_the_bounds_is_refused(store: Store, priority: int) -> None:
    ids = await add_plain(store, 1)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.priority(ids, priority)
    assert await everything(store) == before


# ---- delay


async def test_delay_holds_rows_that_nobody_has(store: Store, plant: Plant, clock: Clock) -> None:
    free, delayed, native, freed = await add(store, *[NewTask(task_class="A")] * 4)
    await store.delay([delayed], clock.now + 5)
    await plant(native, None, clock.now + 9)
    await plant(freed, "somebody", clock.now + 9)
    await store.free([freed])
    ids = [free, delayed, native, freed]
    clock.advance(1)
    assert await store.delay([*ids, free, *UNKNOWN_IDS], clock.now + 60) == 4
    assert await store.delay(ids, clock.now + 60) == 4
    for task_id in ids:
        found = await row(store, task_id)
        assert (found.lease_owner, found.lease_expires) == ("(delay)", clock.now + 60)
        assert found.date_modified == clock.now


async def test_delay_leaves_rows_that_are_held_or_wait_for_something_else(
    store: Store, plant: Plant, clock: Clock
) -> None:
    owners = ["(yield)", "(retry)", "(unknown)", HTTP, "qr:1:1:1@x", "gorge-failure-pending"]
    ids = await add_plain(store, len(owners))
    for task_id, owner in zip(ids, owners, strict=True):
        await plant(task_id, owner, clock.now + 600)
    (gone,) = await add_plain(store, 1)
    await store.cancel([gone])
    before = await everything(store)
    assert await store.delay([*ids, gone], clock.now + 60) == 0
    assert await everything(store) == before


@pytest.mark.parametrize("until", [0, -1, U32 + 1])
async def test_a_delay_outside_the_bounds_is_refused(store: Store, until: int) -> None:
    ids = await add_plain(store, 1)
    with pytest.raises(InvalidRequest):
        await store.delay(ids, until)
    assert await ready_ids(store) == ids


# ---- all of them


async def test_operators_given_no_ids_do_nothing(store: Store) -> None:
    assert await store.cancel([]) == []
    assert await store.retry([]) == []
    assert [await store.awaken([]), await store.free([]), await store.priority([], 1), await store.delay([], 1)] == [
        0,
        0,
        0,
        0,
    ]


async def test_operators_find_nothing_under_ids_that_cannot_exist(store: Store) -> None:
    """Never a database error for bad input (docs/architecture.md, rule 10)."""
    assert await store.cancel(UNKNOWN_IDS) == [None] * 5
    assert await store.retry(UNKNOWN_IDS) == [None] * 5
    assert await store.get(UNKNOWN_IDS) == [None] * 5
    assert await store.get_archived(UNKNOWN_IDS) == [None] * 5
    assert await store.history(UNKNOWN_IDS) == [[]] * 5
