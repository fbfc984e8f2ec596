"""Leasing through the streams: which queue comes first, and whose tasks a worker reads."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Pause, PauseKind, Retry, Yield
from stores.streams import StreamsStore
from stores.streams_order import QUEUES, Preference
from tests.clock import Clock
from tests.faulty_store import FaultyStore
from tests.servers import RedisServer
from tests.stores.streams_house import KEYS, House, add, finish, open_house, take, until


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


@pytest.fixture
async def store(house: House) -> StreamsStore:
    return await house.store()


async def test_high_is_served_before_low_whatever_their_priorities(store: StreamsStore) -> None:
    low = await add(store, queue="low", priority=1, number=3)
    high = await add(store, queue="high", priority=9000, number=3)
    assert [task.id for task in await take(store, 4)] == [*high, low[0]]
    assert [task.id for task in await take(store, 4)] == low[1:]


async def test_the_known_queues_come_in_their_order_and_within_one_by_arrival(store: StreamsStore) -> None:
    shuffled = random.Random(1).sample(QUEUES, len(QUEUES))
    for queue in [*shuffled, *shuffled]:
        await add(store, queue=queue)
    tasks = await take(store, 100)
    assert [task.queue for task in tasks] == [queue for queue in QUEUES for _ in range(2)]
    assert all(first.id < second.id for first, second in zip(tasks[::2], tasks[1::2], strict=True))


async def test_a_queue_that_nobody_named_is_served_last(store: StreamsStore) -> None:
    for queue in ("unheard_of", "also_new", "purgable"):
        await add(store, queue=queue)
    assert [task.queue for task in await take(store, 5)] == ["purgable", "also_new", "unheard_of"]


async def test_a_pool_for_some_queues_reads_no_others(store: StreamsStore) -> None:
    for queue in ("high", "low", "search", "own"):
        await add(store, queue=queue)
    assert [task.queue for task in await take(store, 5, queues={"own", "search"})] == ["search", "own"]
    assert [task.queue for task in await take(store, 5)] == ["high", "low"]


async def test_the_order_of_queues_is_the_one_that_was_configured(house: House) -> None:
    store = await house.store(queues=("low", "high"))
    for queue in ("default", "high", "low"):
        await add(store, queue=queue)
    assert [task.queue for task in await take(store, 5)] == ["low", "high", "default"]


async def test_weighted_service_prefers_and_starves_nobody(house: House) -> None:
    store = await house.store(queues=("a", "b", "c"), policy="weighted", dice=random.Random(7))
    for queue in ("a", "b", "c"):
        await add(store, queue=queue, number=100)
    served = Counter([(await take(store))[0].queue for _ in range(100)])
    assert served["a"] > served["b"] > served["c"] > 0


def test_a_weighted_order_has_every_queue_once() -> None:
    orders = [Preference(("a", "b", "c"), "weighted").of(None)[0] for _ in range(50)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


async def test_a_worker_never_reads_a_class_that_it_did_not_ask_for(store: StreamsStore, house: House) -> None:
    """Its tasks of that queue come from the record, and the entries of others are left to others."""
    (mixed, foreign) = [row.id for row in await store.enqueue([NewTask(task_class="A"), NewTask(task_class="B")])]
    (pure,) = await add(store, queue="low")
    assert [task.id for task in await take(store, 5, classes={"A"})] == [mixed, pure]
    await until(lambda: house.waiting() == [foreign])
    assert house.pending() == 0
    assert await take(store, 5, without_classes={"B"}) == []
    assert [task.id for task in await take(store, 5, without_classes={"A"})] == [foreign]


async def test_a_class_that_the_entry_does_not_tell_is_not_leased(store: StreamsStore, house: House) -> None:
    """An entry is a hint; the row says what the task is. The hint may have the number of the task's own entry."""
    (task_id,) = await add(store, task_class="B", queue="low")
    ((number, _),) = cast(Any, house.redis.xrange(KEYS + "low"))
    house.redis.xadd(KEYS + "high", {"job_id": task_id, "job_type": "A", "queue": "high"}, id=number)
    assert await take(store, 5, classes={"A"}) == []
    await until(lambda: (house.waiting("high"), house.waiting("low"), house.pending("high")) == ([], [task_id], 0))
    assert [task.id for task in await take(store, 5, classes={"B"})] == [task_id]


async def test_a_class_that_waits_no_more_keeps_nobody_from_its_queue(store: StreamsStore) -> None:
    await add(store, task_class="B")
    await finish(store, await take(store, 1))
    ids = await add(store, priority=9) + await add(store, priority=1)
    assert [task.id for task in await take(store, 2, classes={"A"})] == ids  # by arrival, so from the stream


async def test_what_the_record_could_not_give_in_one_reply_stays_in_the_stream(
    store: StreamsStore, house: House
) -> None:
    ids = await add(store, number=5, data="x" * 3_000_000)
    first = [task.id for task in await take(store, 5)]
    assert first == ids[: len(first)]
    assert 1 < len(first) < 5
    await until(lambda: house.waiting() == ids[len(first) :] and house.pending() == 0)
    second = [task.id for task in await take(store, 5)]
    assert second == ids[len(first) :][: len(second)]


@pytest.mark.parametrize("other", ["search", "unknown"])
async def test_a_queue_that_found_its_stream_full_keeps_its_place(house: House, other: str) -> None:
    """What a worker leases from the record of such a queue comes before the queues behind it, and nothing else does."""
    store = await house.store(cap=4)
    ids = await add(store, number=12)
    late = await add(store, queue=other, priority=0)
    (first,) = await add(store, queue="high", priority=9999)
    assert [task.id for task in await take(store, 5)] == [first, *ids[:4]]
    assert [task.id for task in await take(store, 6)] == ids[4:10]
    assert [task.id for task in await take(store, 6)] == [*ids[10:], *late]


async def test_two_queues_that_found_their_streams_full_are_served_in_their_order(house: House) -> None:
    store = await house.store(cap=4)
    low = await add(store, queue="low", number=10, priority=0)
    high = await add(store, queue="high", number=10)
    assert [task.id for task in await take(store, 7)] == high[:7]
    assert [task.id for task in await take(store, 7)] == high[7:] + low[:4]
    assert [task.id for task in await take(store, 20)] == low[4:]
    await until(house.is_empty)


async def test_a_worker_of_some_queues_has_no_others_when_a_stream_was_full(house: House) -> None:
    store = await house.store(cap=4)
    await add(store, queue="low", number=2, priority=0)
    ids = await add(store, number=10)
    taken = [task.id for task in await take(store, 20, queues={"default"})]
    assert taken == ids
    assert [task.queue for task in await take(store, 20)] == ["low"] * 2


async def test_what_was_leased_past_a_full_stream_and_given_back_is_delivered(house: House) -> None:
    """With an entry in the stream, and without."""
    store = await house.store(cap=4)
    ids = await add(store, number=12)
    held = await take(store, 12)
    assert [task.id for task in held] == ids
    await until(house.is_empty)
    await finish(store, held, Yield(wait=0))
    found: list[int] = []
    async with asyncio.timeout(10):
        while len(found) < 12:
            found += [task.id for task in await take(store, 5)]
            await store.changed(0.05)
    assert sorted(found) == ids


async def test_a_queue_with_strange_classes_keeps_its_place(store: StreamsStore) -> None:
    """What a worker leases from the record of such a queue comes before the queues behind it."""
    await add(store, queue="high", task_class="B")
    (first,) = await add(store, queue="high")
    (second,) = await add(store, queue="low", priority=0)
    assert [task.id for task in await take(store, 1, classes={"A"})] == [first]
    assert [task.id for task in await take(store, 1, classes={"A"})] == [second]


@pytest.mark.parametrize(
    "pause", [Pause(PauseKind.CLASS, "A"), Pause(PauseKind.QUEUE, "default"), Pause(PauseKind.ALL)]
)
async def test_a_paused_task_is_not_read_away_for_good(store: StreamsStore, house: House, pause: Pause) -> None:
    ids = await add(store, number=3)
    await store.pause(pause)
    assert await take(store, 5) == []
    await until(lambda: house.pending() == 0)
    await store.resume(pause)
    await until(lambda: house.waiting() == ids)
    assert [task.id for task in await take(store, 5)] == ids


async def test_a_task_that_this_process_holds_is_not_leased_to_it_again(store: StreamsStore) -> None:
    (task_id,) = await add(store)
    assert await take(store, 5, without=[task_id]) == []


async def test_a_lease_in_strict_order_is_the_records_own(store: StreamsStore) -> None:
    (low,) = await add(store, queue="low", priority=1)
    (high,) = await add(store, queue="high", priority=2)
    tasks = await store.lease("web1:1", 5, 20)
    assert [task.id for task in tasks] == [low, high]


async def test_what_was_leased_past_the_streams_leaves_them(store: StreamsStore, house: House) -> None:
    await add(store, number=3)
    tasks = await store.lease("web1:1", 2, 20)
    await until(lambda: len(house.waiting()) == 1)
    await finish(store, tasks)
    assert len(await take(store, 5)) == 1
    await until(house.is_empty)


async def test_a_task_that_yields_for_another_lets_it_run(house: House, clock: Clock) -> None:
    """R072: the first waits for the second by yielding, the second waits to be tried again; one slot. No livelock."""
    store = await house.store(options=StoreOptions(now=clock))
    ids = await add(store, number=2)
    held = {task.id: task for task in await take(store, 2)}
    await finish(store, [held[ids[0]]], Yield(wait=5))
    await finish(store, [held[ids[1]]], Retry(wait=12))
    ran: list[int] = []
    for _ in range(30):
        clock.advance(1)
        await store.sweep(100)
        for task in await take(store, 1):
            ran.append(task.id)
            if task.id == ids[0]:
                await finish(store, [task], Yield(wait=5))
        if ids[1] in ran:
            break
    assert ran == [ids[0], ids[0], ids[1]]


async def test_a_full_stream_of_strange_classes_costs_the_record_one_lease(house: House) -> None:
    record = FaultyStore(await house.record())
    store = await house.store(record=record, cap=4)
    await add(store, task_class="B", number=12)
    assert await take(store, 5, classes={"A"}) == []
    assert record.calls["lease"] == 1
    (task_id,) = await add(store)
    assert [task.id for task in await take(store, 5, classes={"A"})] == [task_id]
