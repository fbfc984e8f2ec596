"""The sweep: retention of ended tasks, in small steps."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Fail, Failure, NewTask, SweepReport
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import add, add_plain, ended, errors, everything, held, row, settle, take, take_new

DAY = 86400


@pytest.mark.options(retention=100)
async def test_an_ended_task_goes_when_its_retention_is_over_and_not_before(store: Store, clock: Clock) -> None:
    """R106: with its payload and its history. Counted from the end, not from the enqueue."""
    await add_plain(store, 1)
    clock.advance(10_000)
    task = await take(store)
    await settle(store, held(task), Fail(Failure("boom")))
    clock.advance(99)
    assert await store.sweep(100) == SweepReport()
    assert (await ended(store, task.id)).data == ""

    clock.advance(1)
    assert await store.sweep(100) == SweepReport(expired=1)
    assert await everything(store) == ([], [], [])
    assert await store.get_archived([task.id]) == [None]
    assert await errors(store, task.id) == []
    assert (await store.stats()).archived == 0
    assert await store.retry([task.id]) == [None]


async def test_the_default_retention_is_fourteen_days(store: Store, clock: Clock) -> None:
    ids = await add_plain(store, 1)
    await store.cancel(ids)
    clock.advance(14 * DAY - 1)
    assert (await store.sweep(100)).expired == 0
    clock.advance(1)
    assert (await store.sweep(100)).expired == 1


@pytest.mark.options(retention=None)
async def test_without_a_retention_everything_is_kept(store: Store, clock: Clock) -> None:
    ids = await add_plain(store, 1)
    await store.cancel(ids)
    clock.advance(3650 * DAY)
    assert (await store.sweep(100)).expired == 0
    assert await ended(store, ids[0])


@pytest.mark.options(retention=100)
async def test_a_sweep_does_no_more_than_its_limit_and_says_that_more_is_left(store: Store, clock: Clock) -> None:
    """R105: housekeeping in short transactions."""
    ids = await add_plain(store, 25)
    await store.cancel(ids)
    clock.advance(100)
    assert await store.sweep(10) == SweepReport(expired=10, more=True)
    assert len(await store.list_archived(99)) == 15
    assert await store.sweep(10) == SweepReport(expired=10, more=True)
    assert (await store.sweep(10)).expired == 5
    assert await store.sweep(10) == SweepReport()
    assert await store.list_archived(99) == []


@pytest.mark.options(retention=100)
async def test_active_rows_are_never_swept_however_old(store: Store, plant: Plant, clock: Clock) -> None:
    """R006"""
    free, parked, delayed = await add(store, *[NewTask(task_class="A", data="x")] * 3)
    await plant(parked, "gorge-completion-pending", 2**31 - 1)
    await store.delay([delayed], clock.now + 5)
    leased = await take_new(store, seconds=5)
    clock.advance(100_000)
    before = await everything(store)
    report = await store.sweep(100)
    assert (report.expired, report.more) == (0, False)
    assert await everything(store) == before
    for task_id in (free, parked, delayed):
        assert (await row(store, task_id)).data == "x"
    assert (await row(store, leased.id)).lease_owner == leased.lease_owner


@pytest.mark.options(retention=100)
async def test_ids_are_not_reused_when_the_newest_tasks_are_gone(store: Store, clock: Clock) -> None:
    """R093"""
    ids = await add_plain(store, 3)
    await store.cancel(ids)
    clock.advance(100)
    await store.sweep(100)
    assert min(await add_plain(store, 3)) > max(ids)


@pytest.mark.options(retention=100)
async def test_a_task_brought_back_counts_its_retention_from_its_next_end(store: Store, clock: Clock) -> None:
    (task_id,) = await add_plain(store, 1)
    await store.cancel([task_id])
    clock.advance(50)
    await store.retry([task_id])
    clock.advance(60)
    assert (await store.sweep(100)).expired == 0
    await store.cancel([task_id])
    clock.advance(99)
    assert (await store.sweep(100)).expired == 0
    clock.advance(1)
    assert (await store.sweep(100)).expired == 1


@pytest.mark.options(retention=100)
async def test_a_sweep_takes_only_what_is_over(store: Store, clock: Clock) -> None:
    old, young = await add(store, *[NewTask(task_class="A", data="x")] * 2)
    await store.cancel([old])
    clock.advance(60)
    await store.cancel([young])
    clock.advance(40)
    assert (await store.sweep(100)).expired == 1
    assert [task.id for task in await store.list_archived(9)] == [young]
    assert (await ended(store, young)).data == "x"


@pytest.mark.options(retention=0)
async def test_a_retention_of_nothing_clears_at_the_next_sweep(store: Store) -> None:
    ids = await add_plain(store, 2)
    await store.cancel(ids)
    assert (await store.sweep(100)).expired == 2
