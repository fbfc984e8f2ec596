"""Redis and the database are emptied, killed and frozen under workers, over and over: each task ends once, and soon."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import MAX_LIST, Result
from stores import mysql
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.phorge_tables import PhorgeTables
from tests.runtime.harness import Worker
from tests.servers import MariaDb, RedisServer
from tests.stores.streams_house import House, add, open_house, over, until
from tests.stores.test_streams_worker import Log

BRISK = Tending(every=0.1, reclaim=0.3, old=0.3, forget=1)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of this test alone."""
    with RedisServer() as server:
        yield server


class Load:
    """Workers, each with a store of its own, and somebody who enqueues as long as the trouble lasts."""

    def __init__(self, *stores: StreamsStore) -> None:
        self.stores = stores
        self.log = Log(seconds=0.002)
        self.accepted: list[int] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for store in self.stores:
                await stack.enter_async_context(Worker(store, self.log.registry).running())
            enqueuing = asyncio.create_task(self._enqueue())
            try:
                yield
            finally:
                enqueuing.cancel()
                with suppress(asyncio.CancelledError):
                    await enqueuing
            await self._drained()

    async def _enqueue(self) -> None:
        while True:
            for store in self.stores:
                with suppress(StoreUnavailable):  # nobody knows, and nobody tries again
                    self.accepted += await add(store, number=3)
            await asyncio.sleep(0.01)

    async def _drained(self) -> None:
        store = self.stores[0]
        async with asyncio.timeout(30):
            while await is_busy(store):  # noqa: ASYNC110  a fact of the record
                await asyncio.sleep(0.02)

    async def picks_up(self, *, seconds: float = 5) -> None:
        """A new task runs within this time."""
        began = time.monotonic()
        while True:
            with suppress(StoreUnavailable):
                (task_id,) = await add(self.stores[0])
                break
            await asyncio.sleep(0.02)
        await until(lambda: task_id in self.log.started, seconds=seconds)
        assert time.monotonic() - began < seconds

    async def assert_each_ended_once(self, *, runs_again: bool = False) -> None:
        """`runs_again`: the record was away, and with it what its last answers said."""
        rows = [
            row
            for first in range(0, len(self.accepted), MAX_LIST)
            for row in await self.stores[0].get_archived(self.accepted[first : first + MAX_LIST])
        ]
        assert {row and (row.result, row.failure_count, row.lost_count) for row in rows} == {(Result.SUCCESS, 0, 0)}
        if not runs_again:
            assert Counter(self.log.ran).most_common(1)[0][1] == 1


async def is_busy(store: Store) -> bool:
    try:
        return (await store.stats()).active > 0
    except StoreUnavailable:
        return True


async def is_back(load: Load, house: House) -> None:
    """Everybody uses the streams again, and nothing is left in them."""
    await until(lambda: all(store.dispatch.mode == "streams" for store in load.stores))
    async with asyncio.timeout(10):
        while not house.is_empty():
            await load.stores[0].sweep(100)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("times", [20, pytest.param(400, marks=pytest.mark.long)])
async def test_a_redis_that_is_emptied_all_the_time(tmp_path: Path, redis: RedisServer, times: int) -> None:
    dice = random.Random(5)
    async with open_house(tmp_path, redis) as house:
        load = Load(*[await house.store(tending=BRISK) for _ in range(3)])
        async with load.running():
            for _ in range(times):
                await asyncio.sleep(dice.uniform(0, 0.05))
                house.redis.flushall()
            await load.picks_up()
        await load.assert_each_ended_once()
        await is_back(load, house)
        assert [store.dispatch.falls for store in load.stores] == [0, 0, 0]


@pytest.mark.parametrize("times", [2, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
async def test_a_redis_that_is_killed_all_the_time(tmp_path: Path, redis: RedisServer, times: int) -> None:
    """It comes back with nothing, or with what it had a moment before."""
    dice = random.Random(6)
    async with open_house(tmp_path, redis) as house:
        load = Load(*[await house.store(tending=BRISK) for _ in range(2)])
        async with load.running():
            for number in range(times):
                await asyncio.sleep(dice.uniform(0, 0.5))
                if number % 2:
                    house.redis.save()
                redis.kill()
                await asyncio.sleep(dice.uniform(0, 0.5))
                await asyncio.to_thread(redis.start)
            await load.picks_up()
        await load.assert_each_ended_once()
        await is_back(load, house)
        assert min(store.dispatch.falls for store in load.stores) >= 1


# ---- the database too


def kill_the_database(database: MariaDb, redis: RedisServer) -> None:
    database.kill()
    database.start()


def kill_both(database: MariaDb, redis: RedisServer) -> None:
    database.kill()
    redis.kill()
    redis.start()
    database.start()


def freeze_the_database(database: MariaDb, redis: RedisServer) -> None:
    database.pause()
    time.sleep(2)
    database.resume()


def freeze_both(database: MariaDb, redis: RedisServer) -> None:
    database.pause()
    redis.pause()
    time.sleep(2)
    database.resume()
    time.sleep(0.5)
    redis.resume()


@pytest.mark.parametrize(
    "trouble",
    [
        kill_both,
        *(pytest.param(one, marks=pytest.mark.long) for one in (kill_the_database, freeze_the_database, freeze_both)),
    ],
)
async def test_a_database_of_record_that_goes_away_under_its_workers(
    tmp_path: Path, redis: RedisServer, trouble: Callable[[MariaDb, RedisServer], None]
) -> None:
    options = StoreOptions(patience=1)
    with MariaDb(durable=True) as database, closing(PhorgeTables(database)) as phorge:
        async with open_house(tmp_path, redis) as house, AsyncExitStack() as stack:
            records = [await stack.enter_async_context(mysql.open_store(phorge.settings(), options)) for _ in range(2)]
            stores = [
                await stack.enter_async_context(over(record, house.url, options=options, tending=BRISK))
                for record in records
            ]
            load = Load(*stores)
            async with load.running():
                await until(lambda: len(load.log.ran) > 20)
                await asyncio.to_thread(trouble, database, redis)
                await load.picks_up()
            await load.assert_each_ended_once(runs_again=True)
            await is_back(load, house)
