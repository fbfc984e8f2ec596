"""Counts: stats, backlog, operations, ping."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Backlog, NewTask, Pause, PauseKind, QueueStats, Retry, Sentinel
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import HTTP, OUTCOMES, add, add_plain, held, settle, take, take_new


async def test_an_empty_store_counts_nothing(store: Store) -> None:
    assert await store.stats() == QueueStats(active=0, leased=0, archived=0, failed=0)
    assert await store.backlog() == []


async def test_counts_of_each_kind(store: Store, clock: Clock) -> None:
    await add_plain(store, 3)
    await add(store, NewTask(task_class="A", delay_until=clock.now + 60))
    for kind in OUTCOMES:
        await settle(store, held(await take_new(store)), OUTCOMES[kind])
    (gone,) = await add_plain(store, 1)
    await store.cancel([gone])
    await take_new(store)
    await take_new(store, HTTP)
    # 3 fresh, 1 delayed, 4 given back, 2 leased; leased: the two and the yield
    assert await store.stats() == QueueStats(active=10, leased=3, archived=3, failed=1)


@pytest.mark.parametrize(
    ("owner", "counts"),
    [*[(sentinel, sentinel is Sentinel.YIELD) for sentinel in Sentinel], (HTTP, True), ("qr:1:1:1@x", True)],
)
async def test_leased_counts_owners_until_their_last_second_and_yields_but_no_other_wait(
    store: Store, plant: Plant, clock: Clock, owner: str, counts: bool
) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, owner, clock.now + 5)
    clock.advance(5)
    assert (await store.stats()).leased == int(counts)
    clock.advance(1)
    assert (await store.stats()).leased == 0


async def test_parked_rows_are_not_counted(store: Store, plant: Plant, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry())
    await plant(task.id, "gorge-failure-pending", 2**31 - 1)
    assert await store.stats() == QueueStats(active=0, leased=0, archived=0, failed=0)
    assert await store.backlog() == []


async def test_a_failure_counts_while_the_task_is_alive(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=0))
    clock.advance(1)
    task = await take(store)
    assert (await store.stats()).failed == 1
    await settle(store, held(task), OUTCOMES["fail"])
    assert (await store.stats()).failed == 0


async def test_counts_follow_at_once(store: Store) -> None:
    ids = await add_plain(store, 2)
    assert (await store.stats()).active == 2
    await store.cancel(ids)
    assert (await store.stats()).active == 0
    await store.retry(ids)
    stats = await store.stats()
    assert (stats.active, stats.archived) == (2, 0)


async def test_the_backlog_groups_what_could_be_leased_now(store: Store, plant: Plant, clock: Clock) -> None:
    """R074, R103, R113: which class, queue and priority waits, and since when."""
    old = clock.now
    await add(store, NewTask(task_class="B", priority=9), NewTask(task_class="B", priority=1, queue="q"))
    clock.advance(100)
    await add(store, *[NewTask(task_class="B", priority=9)] * 2, NewTask(task_class="A"))
    await add(store, NewTask(task_class="A", delay_until=clock.now), NewTask(task_class="A", delay_until=clock.now + 1))
    await take_new(store)
    (parked,) = await add(store, NewTask(task_class="A"))
    await plant(parked, "gorge-completion-pending", 0)
    await store.pause(Pause(PauseKind.ALL))

    assert await store.backlog() == [
        Backlog(task_class="A", queue="default", priority=2000, waiting=2, oldest=clock.now),
        Backlog(task_class="B", queue="default", priority=9, waiting=3, oldest=old),
        Backlog(task_class="B", queue="q", priority=1, waiting=1, oldest=old),
    ]


async def test_a_stale_lease_is_backlog_once_it_may_be_taken(store: Store, clock: Clock) -> None:
    """R112"""
    await take_new(store, HTTP, seconds=5)
    await take_new(store, seconds=5)
    clock.advance(6)
    assert [(one.task_class, one.waiting) for one in await store.backlog()] == [("Plain", 1)]


async def test_operations_name_the_backend_first_and_hold_no_payload(store: Store) -> None:
    await add(store, NewTask(task_class="A", data="a secret payload"))
    facts = await store.operations()
    assert next(iter(facts)) == "backend"
    assert facts["backend"]
    assert "secret payload" not in str(facts)


async def test_ping_returns_when_the_store_answers(store: Store) -> None:
    await store.ping()
