"""Renewing leases."""

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_LEASE_SECONDS,
    Complete,
    Lease,
)
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
    SETTLED,
    add_plain,
    everything,
    held,
    ready_ids,
    receipt,
    row,
    settle,
    take_new,
    worker,
)


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
