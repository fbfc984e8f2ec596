"""Which tasks a lease hands out, and in which order (docs/architecture.md, rule 6)."""

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import MAX_LEASE_BYTES, MAX_LEASE_SECONDS, U32, NewTask, Release, Result, Retry, Yield
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
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
    worker,
)


async def test_priority_first_then_id(store: Store) -> None:
    """R073: enqueued against the order of priority; ties by id; large priorities to the last digit."""
    priorities = [U32, 2**31 - 1, 2**31 - 2, 100_000, 5678, 4000, 1000, 1, 0, 1000, 2**31 - 1, U32]
    ids = await add(store, *[NewTask(task_class="A", priority=priority) for priority in priorities])
    wanted = [task_id for _, task_id in sorted(zip(priorities, ids, strict=True))]
    assert await ready_ids(store) == wanted


async def test_one_by_one_the_order_is_the_same(store: Store) -> None:
    ids = await add(store, *[NewTask(task_class="A", priority=priority) for priority in (3, 1, 2, 1)])
    assert [(await take(store)).id for _ in ids] == [ids[1], ids[3], ids[2], ids[0]]


async def test_a_lease_writes_owner_and_expiry_and_nothing_else(store: Store, clock: Clock) -> None:
    (task_id,) = await add(store, NewTask(task_class="A", data="payload"))
    before = await row(store, task_id)
    clock.advance(7)
    owner = worker()
    (task,) = await store.lease(owner, 1, 60)

    assert (task.lease_owner, task.lease_expires, task.data) == (owner, clock.now + 60, "payload")
    assert (task.date_created, task.date_modified) == (before.date_created, before.date_modified)
    assert (task.failure_count, task.failure_time, task.lost_count) == (0, None, 0)
    assert await row(store, task_id) == task


async def test_failures_are_kept_by_the_next_lease(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=1))
    failed_at = clock.now
    clock.advance(2)
    again = await take(store)
    assert (again.id, again.failure_count, again.failure_time) == (task.id, 1, failed_at)
    assert again.date_modified == failed_at


async def test_fresh_work_goes_before_due_work_whatever_its_priority(store: Store, clock: Clock) -> None:
    due, fresh = await add(
        store, NewTask(task_class="A", priority=1, delay_until=clock.now), NewTask(task_class="A", priority=4000)
    )
    assert await ready_ids(store) == [fresh, due]


async def test_due_first_swaps_the_phases(store: Store, clock: Clock) -> None:
    due, fresh = await add(
        store, NewTask(task_class="A", priority=4000, delay_until=clock.now), NewTask(task_class="A", priority=1)
    )
    rows = await store.lease(worker(), 9, 60, due_first=True)
    assert [task.id for task in rows] == [due, fresh]


async def test_a_stream_of_new_work_cannot_starve_due_work_under_due_first(store: Store, clock: Clock) -> None:
    """R074: the lease loop asks for due work first now and then."""
    (due,) = await add(store, NewTask(task_class="A", delay_until=clock.now))
    await add(store, *[NewTask(task_class="A", priority=0)] * 5)
    (task,) = await store.lease(worker(), 1, 60, due_first=True)
    assert task.id == due


async def test_due_work_is_taken_by_priority_then_id_and_not_by_its_time(store: Store, clock: Clock) -> None:
    late_urgent, early, tie = await add(
        store,
        NewTask(task_class="A", priority=1, delay_until=clock.now - 1),
        NewTask(task_class="A", priority=2, delay_until=clock.now - 500),
        NewTask(task_class="A", priority=2, delay_until=clock.now - 900),
    )
    assert await ready_ids(store) == [late_urgent, early, tie]


async def test_of_due_work_too_the_most_urgent_is_taken_when_there_is_room_for_few(store: Store, clock: Clock) -> None:
    priorities = [3, 1, 2, 1]
    ids = await add(store, *[NewTask(task_class="A", priority=p, delay_until=clock.now - p) for p in priorities])
    assert [(await take(store)).id for _ in ids] == [ids[1], ids[3], ids[2], ids[0]]


async def test_all_kinds_of_due_rows_stand_in_one_order(store: Store, clock: Clock) -> None:
    yielded = await take_new(store, priority=3)
    retried = await take_new(store, priority=2)
    lost = await take_new(store, HTTP, priority=4, seconds=5)
    (delayed,) = await add(store, NewTask(task_class="A", priority=5, delay_until=clock.now + 2))
    await settle(store, held(yielded), Yield(wait=5))
    await settle(store, held(retried), Retry(wait=5))
    clock.advance(6)
    assert await ready_ids(store) == [retried.id, yielded.id, lost.id, delayed]


async def test_the_second_phase_fills_only_what_the_first_left(store: Store, clock: Clock) -> None:
    due = await add(store, *[NewTask(task_class="A", delay_until=clock.now)] * 3)
    fresh = await add_plain(store, 3)
    assert [task.id for task in await store.lease(worker(), 4, 60)] == [*fresh, due[0]]


async def test_a_released_task_is_fresh_again(store: Store, clock: Clock) -> None:
    (due,) = await add(store, NewTask(task_class="A", priority=1, delay_until=clock.now))
    task = await take_new(store, priority=3000)
    await settle(store, held(task), Release())
    assert await ready_ids(store) == [task.id, due]


async def test_a_freed_task_and_one_brought_back_are_due_and_not_fresh(store: Store) -> None:
    freed, back = await add(store, *[NewTask(task_class="A", priority=1)] * 2)
    await take(store, only=freed)
    await store.free([freed])
    await store.cancel([back])
    await store.retry([back])
    (fresh,) = await add(store, NewTask(task_class="A", priority=4000))
    assert await ready_ids(store) == [fresh, freed, back]


async def test_a_task_that_yields_for_another_lets_it_run(store: Store, clock: Clock) -> None:
    """R072: A waits for B by yielding, B waits to be tried again; one slot. No livelock."""
    waiting = await take_new(store)
    failed = await take_new(store)
    await settle(store, held(failed), Retry(wait=12))
    await settle(store, held(waiting), Yield(wait=5))
    ran: list[int] = []
    for _ in range(40):
        clock.advance(1)
        for task in await store.lease(worker(), 1, 60):
            ran.append(task.id)
            if task.id == waiting.id:
                await settle(store, held(task), Yield(wait=5))
        if failed.id in ran:
            break
    assert failed.id in ran


async def test_never_more_than_the_limit(store: Store) -> None:
    await add_plain(store, 5)
    assert [len(await store.lease(worker(), limit, 60)) for limit in (2, 1, 9)] == [2, 1, 2]


@pytest.mark.parametrize("limit", [0, -1])
async def test_no_room_means_no_tasks(store: Store, limit: int) -> None:
    await add_plain(store, 2)
    assert await store.lease(worker(), limit, 60) == []
    assert len(await ready_ids(store)) == 2


async def test_an_over_large_limit_is_lowered_to_a_thousand(store: Store) -> None:
    for _ in range(2):
        await add_plain(store, 600)
    assert len(await store.lease(worker(), 10**9, 60)) == 1000
    assert len(await store.lease(worker(), 5000, 60)) == 200


async def test_an_empty_store_leases_nothing(store: Store) -> None:
    assert await store.lease(worker(), 10, 60) == []


async def test_a_lease_is_bounded_by_bytes_and_leaves_the_rest_ready(store: Store) -> None:
    """R027: no reply grows without bound, and no row is taken that is not in the reply."""
    ids = await add(store, *[NewTask(task_class="A", data="x" * 3_500_000)] * 5)
    seen: list[int] = []
    while rows := await store.lease(worker(), 5, 60):
        assert len(rows) < 5
        seen += [task.id for task in rows]
        assert len(seen) <= 5
    assert seen == ids


@pytest.mark.parametrize("due_first", [False, True])
async def test_the_bound_counts_small_and_large_payloads_of_both_phases(
    store: Store, clock: Clock, due_first: bool
) -> None:
    """900 small ones are 5.4 MB; one large one of 1.9 MB fits beside them, four of them fit alone."""
    small, large = "\u20ac" * 2000, "x" * 1_900_000
    await add(store, *[NewTask(task_class="A", data=large, delay_until=clock.now)] * 6)
    await add(store, *[NewTask(task_class="A", data=small)] * 900)
    await add(store, *[NewTask(task_class="A", data=small, delay_until=clock.now, priority=1)] * 20)
    rows = await store.lease(worker(), 1000, 60, due_first=due_first)
    size = sum(len((task.data or "").encode()) for task in rows)
    assert MAX_LEASE_BYTES - len(large) < size <= MAX_LEASE_BYTES
    assert [task.data == large for task in rows] == [False] * (20 if due_first else 920) + [True] * (
        4 if due_first else 1
    )


@pytest.mark.options(max_lost=1)
async def test_a_row_that_is_given_up_takes_no_room_in_the_reply(store: Store, clock: Clock) -> None:
    lost = await take_new(store, data="x" * 8_000_000)
    kept = await add(store, *[NewTask(task_class="A", data="x" * 3_000_000, delay_until=clock.now)] * 2)
    clock.advance(1000)
    assert await ready_ids(store) == kept
    assert (await ended(store, lost.id)).result is Result.FAILURE


async def test_a_payload_beyond_the_byte_bound_is_handed_out_alone(store: Store) -> None:
    big, small = await add(store, NewTask(task_class="A", data="x" * 9_000_000), NewTask(task_class="A", data="y"))
    (task,) = await store.lease(worker(), 5, 60)
    assert (task.id, len(task.data or "")) == (big, 9_000_000)
    assert await ready_ids(store) == [small]


async def test_a_reused_owner_name_gets_only_the_rows_of_this_call(store: Store) -> None:
    """R091, F2: the name is the same three times, the rows never are."""
    ids = await add_plain(store, 4)
    assert [[task.id for task in await store.lease(HTTP, 1, 60)] for _ in range(3)] == [[ids[0]], [ids[1]], [ids[2]]]
    assert [task.id for task in await store.lease(HTTP, 9, 60)] == [ids[3]]


async def test_dispatch_order_hands_out_the_same_rows(store: Store) -> None:
    ids = await add_plain(store, 3)
    rows = await store.lease(worker(), 9, 60, order="dispatch")
    assert sorted(task.id for task in rows) == ids


@pytest.mark.parametrize(
    "owner", ["", "x" * 65, "(yield)", "(anything)", "()", "gorge-completion-pending", "gorge-failure-pending", "a\0"]
)
async def test_a_name_that_cannot_hold_a_lease_is_refused(store: Store, owner: str) -> None:
    await add_plain(store, 1)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.lease(owner, 1, 60)
    assert await everything(store) == before


@pytest.mark.parametrize("owner", ["x", "\u00e9" * 64, "it's 100 %", "(open", "shut)", "o ", "\U0001f642" * 64])
async def test_any_other_name_is_stored_and_answered_as_it_is(store: Store, owner: str) -> None:
    await add_plain(store, 1)
    (task,) = await store.lease(owner, 1, 60)
    assert task.lease_owner == (await row(store, task.id)).lease_owner == owner


@pytest.mark.parametrize("seconds", [0, -1, MAX_LEASE_SECONDS + 1])
async def test_a_lease_time_outside_the_bounds_is_refused(store: Store, seconds: int) -> None:
    await add_plain(store, 1)
    with pytest.raises(InvalidRequest):
        await store.lease(worker(), 1, seconds)
    assert len(await ready_ids(store)) == 1
