"""Tasks whose worker vanishes: counted apart from failures, and ended before they take everything down."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import LOST_MESSAGE, Failure, Result, Retry, Task
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
    OUTCOMES,
    REPLAYED,
    add_plain,
    ended,
    errors,
    held,
    ready_ids,
    receipt,
    row,
    settle,
    take,
    take_new,
    worker,
)


async def lose(store: Store, clock: Clock, times: int, *, task_id: int | None = None) -> Task:
    """Lease, and let the worker vanish, so many times; the holder of the last lease lives."""
    for _ in range(times):
        await take(store, seconds=10, only=task_id)
        clock.advance(100)
    return await take(store, seconds=10, only=task_id)


async def test_taking_over_a_stale_worker_lease_counts_one_loss_and_no_failure(store: Store, clock: Clock) -> None:
    """R009, R079, R085"""
    await add_plain(store, 1)
    for losses in range(5):
        task = await take(store, seconds=10)
        assert (task.lost_count, task.failure_count, task.failure_time) == (losses, 0, None)
        assert (await row(store, task.id)).lost_count == losses
        clock.advance(100)


async def test_an_http_caller_who_takes_over_counts_the_loss_too(store: Store, clock: Clock) -> None:
    await take_new(store, seconds=10)
    clock.advance(100)
    assert (await take(store, HTTP)).lost_count == 1


async def test_a_stale_lease_of_anybody_else_is_no_loss(store: Store, plant: Plant, clock: Clock) -> None:
    task = await take_new(store, HTTP, seconds=10)
    clock.advance(100)
    assert (await take(store, seconds=10)).lost_count == 0
    await plant(task.id, "23192:1796040935:web1:2", clock.now)
    clock.advance(1)
    assert (await take(store)).lost_count == 0
    assert await errors(store, task.id) == []


async def test_a_loss_leaves_an_entry_in_the_history(store: Store, clock: Clock) -> None:
    lost = await take_new(store, seconds=10)
    clock.advance(100)
    await take(store)
    (entry,) = await errors(store, lost.id)
    assert (entry.kind, entry.attempt, entry.when) == ("lost", 1, clock.now)
    assert (entry.owner, entry.message, entry.trace, entry.duration_us) == (lost.lease_owner, LOST_MESSAGE, "", 0)


async def test_at_the_maximum_the_task_is_archived_as_failed_and_not_handed_out(store: Store, clock: Clock) -> None:
    """R079: five by default."""
    await add_plain(store, 1)
    last = await lose(store, clock, 4)
    clock.advance(100)
    assert await ready_ids(store) == []

    found = await ended(store, last.id)
    assert (found.result, found.lost_count, found.failure_count, found.duration_us) == (Result.FAILURE, 5, 0, 0)
    assert (found.lease_owner, found.lease_expires) == (last.lease_owner, last.lease_expires)
    assert (found.archived_epoch, found.date_modified) == (clock.now, clock.now)
    assert [entry.kind for entry in await errors(store, last.id)] == ["lost"] * 5


@pytest.mark.options(max_lost=1)
async def test_the_maximum_is_a_setting_of_the_store(store: Store, clock: Clock) -> None:
    task = await take_new(store, seconds=10)
    clock.advance(100)
    assert await ready_ids(store) == []
    assert (await ended(store, task.id)).lost_count == 1


@pytest.mark.options(max_lost=3)
async def test_a_task_that_kills_its_worker_does_not_keep_the_good_ones_from_running(
    store: Store, clock: Clock
) -> None:
    """R079: the poison stands in front of a hundred good tasks; a hundred leases of one each still get them all."""
    poison = await take_new(store, priority=0, seconds=10)
    for _ in range(2):
        clock.advance(100)
        await take(store, seconds=10, only=poison.id)
    good = await add_plain(store, 100)
    for task_id in good:
        await take(store, HTTP, seconds=10, only=task_id)
    clock.advance(100)
    taken = [(await take(store, seconds=10)).id for _ in good]
    assert taken == good
    assert (await ended(store, poison.id)).result is Result.FAILURE


@pytest.mark.options(max_lost=1)
async def test_a_lease_fills_up_behind_rows_that_it_archives(store: Store, clock: Clock) -> None:
    await add_plain(store, 20)
    await store.lease(worker(), 10, 10)
    await store.lease(HTTP, 10, 10)
    clock.advance(100)
    rows = await store.lease(worker(), 10, 10)
    assert len(rows) == 10
    assert (await store.stats()).archived == 10


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_any_settled_outcome_but_release_clears_the_count(store: Store, clock: Clock, kind: str) -> None:
    await add_plain(store, 1)
    task = await lose(store, clock, 3)
    assert task.lost_count == 3
    settled = await settle(store, held(task), OUTCOMES[kind])
    if settled.archived is not None:
        assert settled.archived.lost_count == (await ended(store, task.id)).lost_count == 0
    else:
        assert (await row(store, task.id)).lost_count == (3 if kind == "release" else 0)


async def test_a_lost_outcome_clears_nothing(store: Store, clock: Clock) -> None:
    first = await take_new(store, seconds=10)
    clock.advance(100)
    await take(store)
    await settle(store, held(first), Retry())
    assert (await row(store, first.id)).lost_count == 1


async def test_renewing_and_operators_leave_the_count_alone(store: Store, clock: Clock) -> None:
    await add_plain(store, 1)
    task = await lose(store, clock, 2)
    await store.renew([held(task)], 60)
    await store.priority([task.id], 1)
    await store.free([task.id])
    await store.delay([task.id], clock.now)
    assert (await row(store, task.id)).lost_count == 2


async def test_freeing_a_worker_lease_is_no_loss(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await store.free([task.id])
    assert (await take(store)).lost_count == 0
    assert await errors(store, task.id) == []


async def test_a_task_brought_back_starts_without_losses(store: Store, clock: Clock) -> None:
    await add_plain(store, 1)
    task = await lose(store, clock, 4)
    clock.advance(100)
    assert await ready_ids(store) == []
    await store.retry([task.id])
    assert (await take(store, seconds=10)).lost_count == 0


async def test_losses_and_failures_are_counted_apart(store: Store, clock: Clock) -> None:
    await add_plain(store, 1)
    task = await lose(store, clock, 2)
    await settle(store, held(task), Retry(wait=0, failure=Failure("boom")))
    clock.advance(1)
    task = await lose(store, clock, 1)
    assert (task.failure_count, task.lost_count) == (1, 1)
    entries = [(entry.kind, entry.attempt) for entry in await errors(store, task.id)]
    assert entries == [("lost", 1), ("lost", 1), ("retry", 1), ("lost", 2)]


async def test_a_task_archived_for_its_losses_replays_a_failure_of_its_last_holder_only(
    store: Store, clock: Clock
) -> None:
    await add_plain(store, 1)
    last = await lose(store, clock, 4)
    clock.advance(100)
    await ready_ids(store)
    assert (await settle(store, held(last), OUTCOMES["complete"])).verdict == "lost"
    assert (await settle(store, held(last), OUTCOMES["fail"])).verdict is REPLAYED


async def test_a_worker_that_comes_back_before_anybody_took_its_task_has_lost_nothing(
    store: Store, clock: Clock
) -> None:
    """R011, R050: patience and the fence by owner."""
    task = await take_new(store, seconds=10)
    clock.advance(15)
    assert await ready_ids(store) == []
    await store.renew([held(task)], 10)
    assert (await row(store, task.id)).lost_count == 0
    assert (await settle(store, receipt(task), OUTCOMES["release"])).verdict == "lost"
    assert (await settle(store, held(task), OUTCOMES["release"])).verdict == "settled"
