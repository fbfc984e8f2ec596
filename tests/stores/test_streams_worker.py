"""A whole worker on the streams: the real lease loop, many tasks, several instances."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from queue_runtime.context import Context
from queue_runtime.registry import Registry
from queue_runtime.store import Store
from queue_runtime.task import NewTask, Result
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.faulty_store import FaultyStore
from tests.runtime.harness import Worker
from tests.servers import RedisServer
from tests.stores.relay import relay_to
from tests.stores.streams_house import NOWHERE, House, add, insert_as_php, open_house, until


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


class Log:
    """A registry whose handlers note what ran, and when."""

    def __init__(self, *classes: str, seconds: float = 0.0) -> None:
        self.registry = Registry()
        self.ran: list[int] = []
        self.queues: list[str] = []
        self.started: dict[int, float] = {}
        self.at_once = self.most_at_once = 0
        self._seconds = seconds
        for task_class in classes or ("A",):
            self.registry.task(task_class)(self.run)

    async def run(self, context: Context, data: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.ran.append(context.task.id)
        self.queues.append(context.task.queue)
        self.started[context.task.id] = time.time()
        await asyncio.sleep(self._seconds)
        self.at_once -= 1


async def drained(store: Store, *, seconds: float = 60) -> None:
    """Wait until nothing is active."""
    async with asyncio.timeout(seconds):
        while (await store.stats()).active:  # noqa: ASYNC110  what is waited for is a fact of a store
            await asyncio.sleep(0.02)


async def test_the_lease_loop_leases_through_the_streams(house: House) -> None:
    """Its order is that of the queues, which the record does not know."""
    store, log = await house.store(), Log()
    for queue in ("low", "default", "high"):
        await add(store, queue=queue, number=5, priority={"low": 1, "default": 2, "high": 3}[queue])
    async with Worker(store, log.registry, slots=1).running():
        await drained(store)
    assert log.queues == ["high"] * 5 + ["default"] * 5 + ["low"] * 5
    await until(house.is_empty)


async def test_so_many_slots_really_run_so_many_at_once(house: House) -> None:
    store, log = await house.store(), Log(seconds=0.05)
    await add(store, number=40)
    async with Worker(store, log.registry, slots=8).running():
        await drained(store)
    assert log.most_at_once == 8


@pytest.mark.parametrize("number", [2000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
async def test_after_many_tasks_the_streams_are_empty_and_redis_has_its_memory_back(house: House, number: int) -> None:
    """Each runs once on two instances, though both stop and start in between."""
    stores, log = [await house.store() for _ in range(2)], Log()
    await add(stores[0], number=1)
    async with Worker(stores[0], log.registry).running():
        await drained(stores[0])
    before = memory(house)
    for start in range(0, number, 1000):
        await stores[start // 1000 % 2].enqueue([NewTask(task_class="A")] * min(1000, number - start))
    for _ in range(2):
        async with (
            Worker(stores[0], log.registry, slots=32).running(),
            Worker(stores[1], log.registry, slots=32).running(),
        ):
            await until(lambda: len(log.ran) > number // 2, seconds=600)
    async with Worker(stores[0], log.registry, slots=32).running(), Worker(stores[1], log.registry, slots=32).running():
        await drained(stores[0], seconds=600)
    assert Counter(log.ran).most_common(1)[0][1] == 1
    assert len(log.ran) == number + 1
    await until(house.is_empty)
    # what left lately is remembered for some seconds
    await until(lambda: memory(house) < before + 500_000, seconds=30)


def memory(house: House) -> int:
    """Bytes that Redis uses for what it keeps."""
    return int(cast(Any, house.redis.info("memory"))["used_memory_dataset"])


async def test_due_work_starts_within_a_second_of_its_second(house: House) -> None:
    """Waits of one to five seconds, as for an upload that is still under way."""
    store, log = await house.store(), Log()
    now = int(time.time())
    due = {(await add(store, delay_until=now + wait))[0]: now + wait for wait in (1, 2, 3)}
    async with Worker(store, log.registry).running():
        await drained(store)
    assert all(due[task_id] <= at < due[task_id] + 1 for task_id, at in log.started.items())


async def test_a_row_of_php_and_an_enqueue_elsewhere_start_at_once(house: House) -> None:
    """R070"""
    store, other, log = await house.store(), await house.store(), Log()
    async with Worker(store, log.registry).running():
        await asyncio.sleep(0.3)
        began = time.monotonic()
        (task_id,) = await add(other)
        await until(lambda: log.ran == [task_id])
        assert time.monotonic() - began < 0.5
        began = time.monotonic()
        insert_as_php(house.path, 99)
        await until(lambda: log.ran == [task_id, 99])
        assert time.monotonic() - began < 1


async def test_a_flood_in_a_low_queue_does_not_hold_up_a_high_one(house: House) -> None:
    """R074"""
    store, log = await house.store(cap=50), Log(seconds=0.005)
    await add(store, queue="low", number=1500)
    async with Worker(store, log.registry, slots=4).running():
        await until(lambda: len(log.ran) > 50)
        took = []
        for _ in range(5):
            began = time.monotonic()
            (task_id,) = await add(store, queue="high")
            await until(lambda task_id=task_id: task_id in log.started)  # type: ignore[misc]
            took.append(time.monotonic() - began)
    assert max(took) < 0.5
    assert len(log.ran) < 1500


async def test_capped_classes_have_their_share_and_all_ends(house: House) -> None:
    """A class with a cap is leased by calls of its own, none of which may read the other's entries."""
    store, log = await house.store(tending=Tending(every=0.05, old=0.2)), Log("A", "B")
    capped = Log()
    log.registry.task("C", concurrency=1)(capped.run)
    for _ in range(30):
        await store.enqueue([NewTask(task_class=task_class) for task_class in ("A", "B", "C")])
    async with Worker(store, log.registry, slots=6).running():
        await drained(store)
    assert (len(log.ran), len(capped.ran), capped.most_at_once) == (60, 30, 1)
    async with asyncio.timeout(10):
        while not house.is_empty():
            await store.sweep(100)  # drops what the record gave to a worker before the streams had it
            await asyncio.sleep(0.05)


async def test_a_fallback_and_its_end_pass_unnoticed_by_the_worker(house: House) -> None:
    log = Log(seconds=0.002)
    async with relay_to("127.0.0.1", house.port) as relay:
        store = await house.store(url=relay.url)
        ids: list[int] = []
        async with Worker(store, log.registry, slots=4).running():
            for turn in range(6):
                relay.target = ("127.0.0.1", house.port if turn % 2 else 1)
                relay.cut()
                ids += await add(store, number=50)
                await asyncio.sleep(0.15)
            await drained(store)
        assert sorted(log.ran) == ids
        assert store.dispatch.falls >= 2


async def test_two_workers_one_without_redis_share_the_work(house: House) -> None:
    log = Log(seconds=0.002)
    stores: list[StreamsStore] = [await house.store(), await house.store(url=NOWHERE)]
    ids = [task_id for store in stores for task_id in await add(store, number=200)]
    async with Worker(stores[0], log.registry).running(), Worker(stores[1], log.registry).running():
        await drained(stores[0])
    assert sorted(log.ran) == sorted(ids)


async def test_a_stop_gives_back_what_was_not_started(house: House) -> None:
    """And it can be started again, any number of times."""
    store, log = await house.store(), Log(seconds=0.01)
    ids = await add(store, number=100)
    for _ in range(5):
        async with Worker(store, log.registry, slots=3).running():
            seen = len(log.ran)
            await until(lambda seen=seen: len(log.ran) > seen)  # type: ignore[misc]
        assert house.pending() == 0
    async with Worker(store, log.registry, slots=10).running():
        await drained(store)
    assert {row.result for row in await store.list_archived(200)} == {Result.SUCCESS}
    assert all(row.failure_count == row.lost_count == 0 for row in await store.list_archived(200))
    assert set(log.ran) == set(ids)


async def test_the_worker_asks_for_the_order_of_dispatch(house: House) -> None:
    orders: set[str] = set()

    class Asked(FaultyStore):
        async def lease(self, *args: Any, **options: Any) -> Any:
            orders.add(options["order"])
            return await super().lease(*args, **options)

    store, log = await house.store(), Log()
    (task_id,) = await add(store)
    async with Worker(cast(Store, Asked(store)), log.registry).running():
        await until(lambda: log.ran == [task_id])
    assert orders == {"dispatch"}
