"""Who may change a held task: owners of workers, receipts of HTTP callers (ARCHITECTURE rule 4)."""

import asyncio

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import MAX_LEASE_SECONDS, Complete, Fail, Lease, Release, Retry, Sentinel, Settlement, Yield
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
    LOST,
    OUTCOMES,
    SETTLED,
    add_plain,
    everything,
    held,
    ready_ids,
    receipt,
    row,
    settle,
    take,
    take_new,
    verdicts,
    worker,
)

# ---- our workers: (id, owner)


async def test_a_worker_renews_and_settles_after_its_lease_is_over_while_nobody_took_the_row(
    store: Store, clock: Clock
) -> None:
    """`phd start` expires every lease in the table; a live holder goes on."""
    task = await take_new(store, seconds=10)
    clock.advance(100_000)
    (renewed,) = await store.renew([held(task)], 30)
    assert renewed is not None
    assert renewed.lease_expires == clock.now + 30

    clock.advance(100_000)
    assert (await settle(store, held(task), Complete())).verdict is SETTLED


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_an_old_holder_changes_nothing_once_somebody_else_has_the_row(
    store: Store, clock: Clock, kind: str
) -> None:
    """R009, R050"""
    old = await take_new(store, seconds=10)
    clock.advance(100)
    await take(store)
    before = await everything(store)

    assert await store.renew([held(old)], 60) == [None]
    assert (await settle(store, held(old), OUTCOMES[kind])).verdict is LOST
    assert await everything(store) == before


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_fence_that_settled_once_never_settles_again(store: Store, clock: Clock, kind: str) -> None:
    task = await take_new(store)
    assert (await settle(store, held(task), OUTCOMES[kind])).verdict is SETTLED
    for again in OUTCOMES.values():
        assert (await settle(store, held(task), again)).verdict is not SETTLED
    assert await store.renew([held(task)], 60) == [None]

    clock.advance(1000)
    await store.retry([task.id], repeat=True)
    next_holder = await take(store)
    assert next_holder.id == task.id
    for again in OUTCOMES.values():
        assert (await settle(store, held(task), again)).verdict is LOST


@pytest.mark.parametrize("sentinel", Sentinel)
@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_sentinel_never_fences(store: Store, plant: Plant, clock: Clock, sentinel: str, kind: str) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, sentinel, clock.now + 60)
    before = await everything(store)
    for lease in (Lease(task_id, sentinel), Lease(task_id, sentinel, clock.now + 60)):
        assert await store.renew([lease], 600) == [None]
        assert (await settle(store, lease, OUTCOMES[kind])).verdict is LOST
    assert await everything(store) == before


async def test_a_sentinel_in_the_archive_is_no_receipt(store: Store, plant: Plant, clock: Clock) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, "(yield)", clock.now + 60)
    assert await verdicts(store, Settlement.unfenced(task_id, Complete())) == [SETTLED]
    assert (await settle(store, Lease(task_id, "(yield)"), Complete())).verdict is LOST


@pytest.mark.parametrize("owner", ["gorge-completion-pending", "gorge-failure-pending"])
async def test_a_parked_owner_never_fences(store: Store, plant: Plant, clock: Clock, owner: str) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, owner, 2**31 - 1)
    lease = Lease(task_id, owner, 2**31 - 1)
    assert await store.renew([lease], 60) == [None]
    assert (await settle(store, lease, Complete())).verdict is LOST


async def test_the_owner_must_be_the_very_same(store: Store) -> None:
    task = await take_new(store, "Worker")
    for name in ("worker", "WORKER", "Worker ", " Worker", "Worke", ""):
        assert (await settle(store, Lease(task.id, name), Complete())).verdict is LOST
    assert (await settle(store, Lease(task.id, "Worker"), Complete())).verdict is SETTLED


async def test_a_fence_fits_only_its_own_task(store: Store) -> None:
    first, second = await take_new(store), await take_new(store)
    assert first.lease_owner is not None
    assert (await settle(store, Lease(second.id, first.lease_owner), Complete())).verdict is LOST


# ---- HTTP callers: (id, owner, expires)


async def test_a_receipt_is_alive_in_the_last_second_of_its_lease(store: Store, clock: Clock) -> None:
    task = await take_new(store, HTTP, seconds=60)
    clock.advance(59)
    assert (await settle(store, receipt(task), Complete())).verdict is SETTLED


@pytest.mark.parametrize("late", [60, 61, 5000])
@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_receipt_is_dead_once_its_expiry_is_reached(store: Store, clock: Clock, late: int, kind: str) -> None:
    task = await take_new(store, HTTP, seconds=60)
    clock.advance(late)
    before = await everything(store)
    assert (await settle(store, receipt(task), OUTCOMES[kind])).verdict is LOST
    assert await store.renew([receipt(task)], 60) == [None]
    assert await everything(store) == before


@pytest.mark.parametrize("off", [-1, 1])
async def test_a_receipt_needs_the_very_expiry(store: Store, off: int) -> None:
    task = await take_new(store, HTTP)
    assert task.lease_expires is not None
    forged = Lease(task.id, HTTP, task.lease_expires + off)
    assert (await settle(store, forged, Complete())).verdict is LOST
    assert await store.renew([forged], 600) == [None]


async def test_a_receipt_needs_the_very_owner(store: Store) -> None:
    task = await take_new(store, HTTP)
    assert (await settle(store, Lease(task.id, "web2:1", task.lease_expires), Complete())).verdict is LOST


async def test_a_renewed_receipt_is_dead_and_the_new_one_lives(store: Store) -> None:
    old = await take_new(store, HTTP, seconds=60)
    (new,) = await store.renew([receipt(old)], 600)
    assert new is not None
    assert (await settle(store, receipt(old), Complete())).verdict is LOST
    assert (await settle(store, receipt(new), Complete())).verdict is SETTLED


async def test_two_leases_of_one_name_are_told_apart_by_their_tasks(store: Store) -> None:
    """R091: the same X-Lease-Owner in every call."""
    first, second = await take_new(store, HTTP), await take_new(store, HTTP)
    assert (await settle(store, receipt(second), Fail())).verdict is SETTLED
    assert (await settle(store, receipt(first), Complete())).verdict is SETTLED


@pytest.mark.parametrize("how", ["release", "free", "unfenced release", *("complete", "fail", "cancel")])
async def test_no_receipt_is_ever_granted_twice(store: Store, how: str) -> None:
    """The same name leases the same task again in the same second, for the same time or a shorter one."""
    old = await take_new(store, HTTP, seconds=600)
    match how:
        case "release":
            await settle(store, receipt(old), Release())
        case "free":
            await store.free([old.id])
        case "unfenced release":
            await store.settle([Settlement.unfenced(old.id, Release())])
        case "cancel":
            await store.cancel([old.id])
            await store.retry([old.id])
        case _:
            await settle(store, receipt(old), OUTCOMES[how])
            await store.retry([old.id], repeat=True)

    for seconds in (600, 10):
        new = await take(store, HTTP, seconds=seconds)
        assert (new.id, new.lease_owner) == (old.id, HTTP)
        assert new.lease_expires is not None
        assert old.lease_expires is not None
        assert new.lease_expires > old.lease_expires
        assert await verdicts(store, Settlement.held(receipt(old), Complete())) == [LOST]
        assert await store.renew([receipt(old)], 60) == [None]
        assert (await settle(store, receipt(new), Release())).verdict is SETTLED
        old = new


async def test_a_renewed_receipt_that_was_given_back_is_not_granted_again(store: Store) -> None:
    first = await take_new(store, HTTP, seconds=60)
    (renewed,) = await store.renew([receipt(first)], 600)
    assert renewed is not None
    await settle(store, receipt(renewed), Release())
    again = await take(store, HTTP, seconds=60)
    assert again.lease_expires == (renewed.lease_expires or 0) + 1


async def test_another_name_does_not_get_a_spent_expiry_either(store: Store) -> None:
    old = await take_new(store, HTTP, seconds=600)
    await settle(store, receipt(old), Release())
    await settle(store, receipt(await take(store, "web2:1", seconds=60)), Release())
    assert (await take(store, HTTP, seconds=60)).lease_expires == (old.lease_expires or 0) + 2


async def test_a_worker_lease_is_exactly_as_long_as_asked_whatever_was_given_back(store: Store, clock: Clock) -> None:
    await settle(store, receipt(await take_new(store, HTTP, seconds=600)), Release())
    assert (await take(store, seconds=20)).lease_expires == clock.now + 20


async def test_a_receipt_given_back_by_one_task_does_not_lengthen_another(store: Store, clock: Clock) -> None:
    await settle(store, receipt(await take_new(store, HTTP, seconds=600)), Yield(wait=60))
    assert (await take_new(store, HTTP, seconds=20)).lease_expires == clock.now + 20


# ---- renew


async def test_renew_moves_each_expiry_and_never_shortens_it(store: Store, clock: Clock) -> None:
    task = await take_new(store, seconds=100)
    clock.advance(10)
    for seconds, left in ((50, 90), (90, 90), (91, 91), (20, 91), (500, 500)):
        (renewed,) = await store.renew([held(task)], seconds)
        assert renewed is not None
        assert renewed.lease_expires == clock.now + left
        assert renewed == await row_without_data(store, task.id)


async def row_without_data(store: Store, task_id: int) -> object:
    """The row as lists show it."""
    (shown,) = await store.list_active(1)
    assert shown.id == task_id
    assert shown.data is None
    return shown


async def test_renew_answers_in_the_order_asked_and_none_where_the_lease_is_lost(store: Store) -> None:
    first, second, third = [await take_new(store) for _ in range(3)]
    await store.free([second.id])
    asked = [held(third), held(second), Lease(999_999, "nobody"), held(first), held(third)]
    found = await store.renew(asked, 600)
    assert [one.id if one else None for one in found] == [third.id, None, None, first.id, third.id]


async def test_a_renew_whose_reply_was_lost_is_repeated_without_harm(store: Store) -> None:
    """F13, R094"""
    task = await take_new(store)
    assert await store.renew([held(task)], 60) == await store.renew([held(task)], 60)


async def test_a_receipt_survives_a_renew_that_moved_nothing(store: Store) -> None:
    task = await take_new(store, HTTP, seconds=60)
    assert (await store.renew([receipt(task)], 60))[0] is not None
    assert (await store.renew([receipt(task)], 30))[0] is not None
    assert (await settle(store, receipt(task), Complete())).verdict is SETTLED


async def test_renewing_touches_no_count_and_no_date(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    clock.advance(5)
    (renewed,) = await store.renew([held(task)], 600)
    assert renewed is not None
    assert (renewed.failure_count, renewed.lost_count, renewed.date_modified) == (0, 0, task.date_modified)


async def test_renewing_nothing_is_fine(store: Store) -> None:
    assert await store.renew([], 60) == []


@pytest.mark.parametrize("seconds", [0, -5, MAX_LEASE_SECONDS + 1])
async def test_a_renewal_outside_the_bounds_is_refused_and_nothing_moves(store: Store, seconds: int) -> None:
    task = await take_new(store)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.renew([held(task)], seconds)
    assert await everything(store) == before


async def test_a_thousand_leases_are_renewed_in_one_round(store: Store, clock: Clock) -> None:
    await add_plain(store, 1000)
    rows = await store.lease(worker(), 1000, 60)
    renewed = await store.renew([held(task) for task in reversed(rows)], 600)
    assert [task.id if task else None for task in renewed] == [task.id for task in reversed(rows)]
    assert {task.lease_expires for task in renewed if task} == {clock.now + 600}


async def test_a_renewed_lease_is_not_taken_over(store: Store, clock: Clock) -> None:
    """R001, R002: work longer than its lease goes on as long as it renews."""
    task = await take_new(store, seconds=20)
    for _ in range(20):
        clock.advance(19)
        await store.renew([held(task)], 20)
        assert await ready_ids(store) == []
    assert (await row(store, task.id)).lost_count == 0


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
