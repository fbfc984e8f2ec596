"""The worker's loops on a Redis that forgets, dies, or lies in another process's hands."""

import asyncio
import time
from collections.abc import AsyncIterator

import anyio
import pytest

from queue_runtime.context import Context
from queue_runtime.registry import Registry
from queue_runtime.store import StoreOptions
from stores.redis import RedisStore, open_store
from tests.runtime.harness import Worker, until
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, emptied, until_empty


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


class Runs:
    """A handler that notes what ran."""

    def __init__(self, *, seconds: float = 0) -> None:
        self.registry = Registry()
        self.ids: list[int] = []
        self.at: list[float] = []

        @self.registry.task("A")
        async def note(context: Context, data: str) -> None:
            await anyio.sleep(seconds)
            self.ids.append(context.task.id)
            self.at.append(time.monotonic())


async def test_a_flush_in_mid_run_stops_no_worker_and_new_work_runs(
    redis_server: RedisServer, store: RedisStore
) -> None:
    runs = Runs(seconds=0.005)
    async with Worker(store, runs.registry, slots=8).running():
        with client_of(redis_server) as client:
            for _ in range(5):
                await add(store, 50)
                await until(lambda: runs.ids)
                client.flushall()
                runs.ids.clear()
            ids = await add(store, 50)
            await until(lambda: set(ids) <= set(runs.ids))
        await until_empty(store)
    assert [row.id for row in await store.list_archived(99)] == ids[::-1]
    await assert_whole(store)


async def test_work_of_another_process_starts_at_once(redis_server: RedisServer, store: RedisStore) -> None:
    """R070: the median of an idle worker's pick-up, far below any poll."""
    runs = Runs()
    async with open_store(redis_server.socket_url) as producer, Worker(store, runs.registry).running():
        await add(producer, 1)
        await until(lambda: runs.ids)
        waits = []
        for number in range(20):
            await asyncio.sleep(0.06)
            asked_at = time.monotonic()
            await add(producer, 1)
            await until(lambda: len(runs.ids) == number + 2)  # noqa: B023  awaited before it changes
            waits.append(runs.at[-1] - asked_at)
    assert sorted(waits)[10] < 0.1


async def test_a_worker_goes_on_by_itself_when_the_server_is_back() -> None:
    """R023: leasing is back within seconds, and nothing that was acknowledged is lost."""
    runs = Runs(seconds=0.002)
    options = StoreOptions(patience=1)
    with RedisServer("--appendonly", "yes") as server:
        async with emptied(server, options) as store, Worker(store, runs.registry, lease_seconds=3).running():
            ids = await add(store, 300)
            await until(lambda: len(runs.ids) > 20)
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
            await until_empty(store)
            assert sorted(row.id for row in await store.list_archived(999)) == ids
            assert set(runs.ids) == set(ids)
            await assert_whole(store)
