"""Several instances in one group: each task once, and nothing is left with those that die or stop."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Release
from stores.dispatchable import Page, Which
from stores.sqlite import SqliteStore
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.faulty_store import FaultyStore, Reply
from tests.servers import RedisServer
from tests.stores.streams_house import (
    KEYS,
    House,
    add,
    finish,
    insert_as_php,
    open_house,
    over,
    take,
    until,
    worker,
)

BRISK = Tending(every=0.05, reclaim=0.1, forget=0.1, old=60)


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


async def drain(store: Store, ran: list[int], number: int) -> None:
    """Lease and finish with others until so many have run."""
    while len(ran) < number:
        tasks = await take(store, random.randint(1, 9))
        await finish(store, tasks)
        ran += [task.id for task in tasks]
        if not tasks:
            await store.changed(0.05)


async def test_two_instances_in_one_group_run_each_task_once(house: House) -> None:
    stores = [await house.store() for _ in range(3)]
    ids = [task_id for store in stores for task_id in await add(store, number=200)]
    ran: list[int] = []
    async with asyncio.timeout(60):
        await asyncio.gather(*[drain(store, ran, 600) for store in stores])
    assert sorted(ran) == sorted(ids)
    assert {row.lost_count for row in await stores[0].list_archived(1000)} == {0}
    await until(house.is_empty)


async def test_an_instance_takes_no_more_than_its_free_slots(house: House) -> None:
    """R042: another instance can have the rest."""
    first, second = await house.store(), await house.store()
    ids = await add(first, number=100)
    assert len(await take(first, 2)) == 2
    for _ in range(3):
        await first.changed(0.05)
    await until(lambda: house.pending() == 0)
    assert [task.id for task in await take(second, 100)] == ids[2:]


async def test_what_a_killed_consumer_had_read_goes_to_others(house: House) -> None:
    """R041: and its name is forgotten. The record decides whether it is still work."""
    plain = await house.record()
    ids = await add(plain, number=5)
    insert_as_php(house.path, 5000)  # so that nobody looks among such low ids any more
    store = await house.store(tending=BRISK)
    await store.changed(0)
    house.redis.xgroup_create(KEYS + "default", "queue-runtime", id="0")
    house.redis.xreadgroup("queue-runtime", "dead", {KEYS + "default": ">"}, count=3)
    await store.cancel(ids[:1])
    found: list[int] = []
    async with asyncio.timeout(5):
        while len(found) < 5:
            found += [task.id for task in await take(store, 5)]
            await store.changed(0.02)
    assert sorted(found) == [*ids[1:], 5000]
    await until(lambda: not house.waiting())
    async with asyncio.timeout(5):
        while "dead" in house.consumers():
            await store.changed(0.05)


class Held(FaultyStore):
    """A record whose lease waits for the test, and may fail then."""

    def __init__(self, record: SqliteStore) -> None:
        super().__init__(record)
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def _call(self, method: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        if method == "lease":
            self.entered.set()
            await self.go_on.wait()
        return await super()._call(method, call)


async def test_a_task_that_comes_back_while_its_entry_is_taken_away_is_delivered(house: House) -> None:
    """Its reader has claimed it, and is slow to take the entry away; meanwhile the task was run and came back."""
    store, plain = await house.store(), await house.record()
    (task_id,) = await add(store)
    await store.changed(0)
    house.redis.xgroup_create(KEYS + "default", "queue-runtime", id="0")
    ((_, ((number, _),)),) = cast(Any, house.redis.xreadgroup("queue-runtime", "slow", {KEYS + "default": ">"}))
    await finish(plain, await plain.lease(worker(), 1, 20), Release())
    await store.sweep(100)  # the entry is on its way, for all that anybody can see
    assert house.waiting() == [task_id]
    await store._feeder.drop([("default", number, task_id)])
    assert [task.id for task in await take(store)] == [task_id]


async def test_a_slow_consumer_whose_entries_went_to_others_runs_nothing_twice(house: House) -> None:
    """By idle time alone its entries are free; by the lease in the record the tasks are not."""
    quick = await house.store(tending=BRISK)
    record = Held(await house.record())
    slow = await house.store(record=record)
    ids = await add(quick, number=4)
    late = asyncio.create_task(take(slow, 4))
    await record.entered.wait()
    found: list[int] = []
    async with asyncio.timeout(5):
        while len(found) < 4:
            found += [task.id for task in await take(quick, 4)]
            await quick.changed(0.02)
    record.go_on.set()
    assert await late == []
    assert sorted(found) == ids


async def test_a_record_that_fails_in_mid_claim_gives_the_entries_back(house: House) -> None:
    """A database error is no end of an entry: it is delivered again."""
    record = Held(await house.record())
    record.go_on.set()
    store = await house.store(record=record)
    ids = await add(store, number=3)
    record.refuse("lease")
    with pytest.raises(StoreUnavailable):
        await take(store, 5)
    await until(lambda: sorted(house.waiting()) == ids and house.pending() == 0)
    assert sorted(task.id for task in await take(store, 5)) == ids


async def test_a_lease_that_is_cancelled_gives_its_entries_back(house: House) -> None:
    record = Held(await house.record())
    async with over(record, house.url) as store:
        ids = await add(store, number=3)
        leasing = asyncio.create_task(take(store, 2))
        await record.entered.wait()
        assert house.pending() == 2
        leasing.cancel()
        await asyncio.wait([leasing])
    assert sorted(house.waiting()) == ids
    assert house.pending() == 0


async def test_a_stop_ends_the_blocking_read_at_once_and_leaves_the_group(house: House) -> None:
    record = await house.record()
    async with over(record, house.url, block_seconds=lambda: 30) as store:
        await add(store)
        assert len(await take(store, 5)) == 1
        await store.changed(0.1)
        began = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(store.changed(30))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert asyncio.get_running_loop().time() - began < 2
    assert house.consumers() == []


async def test_restarts_leave_no_consumers_behind(house: House) -> None:
    """R041, R038: a killed one is forgotten when it has been silent long enough."""
    record = await house.record()
    for _ in range(20):
        async with over(record, house.url) as store:
            await add(store)
            assert len(await take(store, 5)) == 1
    assert house.consumers() == []
    for number in range(20):
        house.redis.xgroup_createconsumer(KEYS + "default", "queue-runtime", f"killed {number}")
    assert len(house.consumers()) == 20
    store = await house.store(tending=BRISK)
    await take(store)
    async with asyncio.timeout(5):
        while len(house.consumers()) > 1:
            await store.changed(0.05)


async def test_an_entry_wakes_another_instance_at_once(house: House) -> None:
    first, second = await house.store(), await house.store(options=StoreOptions())
    await second.changed(0)
    while await second.changed(0.3):
        pass
    waiting = asyncio.create_task(second.changed(5))
    await asyncio.sleep(0.05)
    began = asyncio.get_running_loop().time()
    (task_id,) = await add(first)
    assert await waiting
    assert asyncio.get_running_loop().time() - began < 0.5
    assert [task.id for task in await take(second, 5)] == [task_id]


async def test_one_that_is_killed_while_it_fills_a_stream_again_holds_nobody_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R038: the guard against two who fill has a time limit."""
    killed, other = [await house.store(cap=20) for _ in range(2)]
    ids = await add(other, number=60)

    async def end(*_: object) -> None:
        """It was chosen to fill, and did nothing."""

    monkeypatch.setattr(killed._feeder, "refill", end)
    ran = [task.id for task in await take(killed, 15)]
    await until(lambda: house.waiting() == ids[15:20])
    ran += [task.id for task in await take(killed, 100)]
    assert 0 < house.redis.pttl(f"{KEYS}/filling/default") <= 2000
    ids += await add(other, number=5)
    async with asyncio.timeout(10):
        await drain(other, ran, 65)
        while house.redis.hexists(f"{KEYS}/behind", "default"):
            await take(other)
            await asyncio.sleep(0.05)
    assert ran == ids
    (task_id,) = await add(other)
    await until(lambda: house.waiting() == [task_id])


class Deaf(FaultyStore):
    """A record that never has news, so that what is heard is heard from the streams."""

    async def changed(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False


async def test_an_entry_wakes_an_instance_whose_record_has_no_news(house: House) -> None:
    first, second = await house.store(), await house.store(record=Deaf(await house.record()))
    while await second.changed(0.1):
        pass
    waiting = asyncio.create_task(second.changed(10))
    await asyncio.sleep(0.05)
    began = asyncio.get_running_loop().time()
    await add(first)
    assert await waiting
    assert asyncio.get_running_loop().time() - began < 1


async def test_an_entry_that_came_between_two_reads_is_heard(house: House) -> None:
    """In a queue that nobody has heard of: no read waits for that yet, and the next one looks."""
    first = await house.store()
    second = await house.store(record=Deaf(await house.record()), block_seconds=lambda: 0.2)
    while await second.changed(0.1):
        pass
    waiting = asyncio.create_task(second.changed(10))
    await asyncio.sleep(0.05)
    await add(first, queue="unheard_of")
    assert await waiting


async def test_a_new_block_time_counts_from_the_next_read_on(house: House) -> None:
    seconds, reads = 0.05, 0

    def block_seconds() -> float:
        nonlocal reads
        reads += 1
        return seconds

    store = await house.store(record=Deaf(await house.record()), block_seconds=block_seconds)
    await store.changed(0)
    await until(lambda: reads >= 4)
    seconds = 30
    seen = reads
    await until(lambda: reads > seen)
    await asyncio.sleep(0.3)
    assert reads == seen + 1
    began = asyncio.get_running_loop().time()
    await add(await house.store())
    assert await store.changed(10)  # a long read ends with the first entry all the same
    assert asyncio.get_running_loop().time() - began < 1


async def test_a_fault_of_our_own_in_the_background_is_raised_by_the_next_call(house: House) -> None:
    class Broken(Deaf):
        async def dispatchable(self, which: Which, limit: int) -> Page:
            raise RuntimeError("a bug")

    store = await house.store(record=Broken(await house.record()))
    (task_id,) = await add(store)
    await store.delay([task_id], 1)
    with pytest.raises(RuntimeError, match="a bug"):
        await take(store)


async def test_waiting_for_news_takes_no_entry_from_anybody(house: House) -> None:
    """An instance that only serves the API, or whose slots are busy, holds nothing up."""
    idle: StreamsStore = await house.store()
    store = await house.store()
    waiting = asyncio.create_task(idle.changed(5))
    await asyncio.sleep(0.1)
    ids = await add(store, number=5)
    assert await waiting
    assert house.pending() == 0
    assert [task.id for task in await take(store, 10)] == ids
