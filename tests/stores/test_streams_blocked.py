"""What happens to the stream while an instance waits in its blocking read: it wakes, or comes round in time."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Release
from stores.dispatchable import Page, Which
from stores.sqlite import SqliteStore
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.faulty_store import FaultyStore
from tests.servers import RedisServer
from tests.stores.redis_house import client_of
from tests.stores.streams_house import KEYS, House, add, finish, open_house, take, until
from tests.stores.test_streams_consumers import Deaf

BLOCK = 0.5


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


async def listener(house: House, url: str | None = None) -> StreamsStore:
    """An instance that hears of work through the streams alone."""
    return await house.store(record=Deaf(await house.record()), url=url, block_seconds=lambda: BLOCK)


async def waiting(house: House, store: StreamsStore) -> "asyncio.Task[bool]":
    """Somebody waits for work there, in the blocking read."""
    while await store.changed(0.05):
        pass
    call = asyncio.create_task(store.changed(20))
    await until(lambda: is_blocked(house))
    return call


def is_blocked(house: House) -> bool:
    """Whether an instance is in a blocking read, the one that there is."""
    return int(cast(Any, house.redis.info("clients"))["blocked_clients"]) == 1


async def test_a_stream_that_is_deleted_under_a_blocking_read_is_heard_of_again(house: House) -> None:
    """R031: nobody is woken by the end of a stream, so the read ends by itself."""
    second = await listener(house)
    call = await waiting(house, second)
    first = await house.store()
    house.redis.delete(KEYS + "default")
    began = time.monotonic()
    (task_id,) = await add(first)
    assert await call is True
    assert time.monotonic() - began < BLOCK + 1
    assert [task.id for task in await take(second, 5)] == [task_id]
    assert second.dispatch.falls == 0


async def test_a_blocking_read_ends_when_its_server_becomes_a_replica(house: House) -> None:
    """R032: the server ends it (UNBLOCKED), which is an outage as any other; nobody else need ask to notice."""
    second = await listener(house)
    call = await waiting(house, second)
    house.redis.replicaof("127.0.0.1", "1")  # of nobody: what it has stays
    try:
        await until(lambda: second.dispatch.mode == "record", seconds=BLOCK + 1)
        assert "not ours" not in (second.dispatch.reason or "")
    finally:
        house.redis.replicaof("NO", "ONE")
    await until(lambda: second.dispatch.mode == "streams" and is_blocked(house))
    first = await house.store()
    (task_id,) = await add(first)
    assert await call is True
    assert [task.id for task in await take(second, 5)] == [task_id]


async def test_a_bound_for_replies_below_the_block_time_does_not_disturb_the_blocking_read(
    house: House, redis_server: RedisServer
) -> None:
    """R026: it has a bound of its own, so an idle stream is no outage and costs no connection."""
    second = await listener(house, f"{redis_server.url}?socket_timeout=0.2")
    call = await waiting(house, second)
    before = connections(redis_server)
    await asyncio.sleep(2.5 * BLOCK)
    assert (connections(redis_server) - before, second.dispatch.falls) == (1, 0)  # the one that asks
    await add(await house.store())
    assert await call is True


def connections(server: RedisServer) -> int:
    """Opened since the server began."""
    with client_of(server) as client:
        return int(client.info("stats")["total_connections_received"])


async def test_what_came_due_while_all_were_down_is_dispatched_once_between_two_that_start_together(
    house: House,
) -> None:
    """R071: five hundred rows; each has one entry, and each is taken once."""
    plain = await house.record()
    ids = await add(plain, number=500, delay_until=int(time.time()) - 60)
    house.redis.config_resetstat()
    tending = Tending(every=0.1)
    stores = [await house.store(options=StoreOptions(), tending=tending) for _ in range(2)]
    ran: list[int] = []

    async def work(store: StreamsStore) -> None:
        while len(ran) < 500:
            tasks = await take(store, 16)
            ran.extend(task.id for task in tasks)
            await finish(store, tasks)
            if not tasks:
                await store.changed(0.1)

    async with asyncio.timeout(20):
        await asyncio.gather(*map(work, stores))
    assert sorted(ran) == ids
    await until(house.is_empty)
    assert xadds(house) == 500


class Slow(FaultyStore):
    """A record whose pages of work arrive when the test lets them."""

    def __init__(self, record: SqliteStore) -> None:
        super().__init__(record)
        self._record = record
        self.read, self.arrive = asyncio.Event(), asyncio.Event()

    async def dispatchable(self, which: Which, limit: int) -> Page:
        page = await self._record.dispatchable(which, limit)
        if page.tasks and not self.read.is_set():
            self.read.set()
            await self.arrive.wait()
        return page


@pytest.mark.parametrize("then", ["running", "ended", "given back"])
async def test_what_was_leased_since_the_record_was_read_gets_no_second_entry(house: House, then: str) -> None:
    """R071: another instance has read and claimed them meanwhile, and taken their entries away."""
    plain = await house.record()
    ids = await add(plain, number=3)
    house.redis.config_resetstat()
    slow = Slow(await house.record())
    first, second = await house.store(), await house.store(record=slow)
    starting = asyncio.create_task(second.changed(0))
    await slow.read.wait()
    tasks = await take(first, 3)
    await until(house.is_empty)
    if then == "ended":
        await finish(first, tasks)
    elif then == "given back":
        await finish(first, tasks, Release())
    await starting
    house.redis.delete(f"{KEYS}/epoch")  # set again at the end of what is under way
    slow.arrive.set()
    await until(lambda: house.redis.exists(f"{KEYS}/epoch"))
    again = await take(second, 3)
    assert [task.id for task in again] == (ids if then == "given back" else [])
    await until(house.is_empty)
    assert xadds(house) == (6 if then == "given back" else 3)


def xadds(house: House) -> int:
    """Entries that were ever added."""
    return int(cast(Any, house.redis.info("commandstats"))["cmdstat_xadd"]["calls"])
