"""What comes back while somebody fills its stream again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queue_runtime.task import Release, Retry
from stores.dispatchable import Due, Page, Ready, Which
from stores.sqlite import SqliteStore
from tests.faulty_store import FaultyStore
from tests.servers import RedisServer
from tests.stores.streams_house import KEYS, House, add, finish, open_house, take, until


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


class Late(FaultyStore):
    """A record whose answer is under way for as long as the test wants, when somebody fills a stream again."""

    def __init__(self, record: SqliteStore) -> None:
        super().__init__(record)
        self.read, self.go_on = asyncio.Event(), asyncio.Event()

    async def dispatchable(self, which: Which, limit: int) -> Page:
        page = await super().dispatchable(which, limit)
        if isinstance(which, Ready) and which != Ready():
            self.read.set()
            await self.go_on.wait()
        return page


@pytest.mark.parametrize("given_back", [0, 4])
async def test_a_task_that_is_given_back_while_its_stream_is_filled_again_is_not_passed_over(
    house: House, given_back: int
) -> None:
    """As at each stop of a worker with a backlog. No look and no sweep helps here."""
    record = Late(await house.record())
    store = await house.store(record=record, cap=8)
    ids = await add(store, number=20)
    held = await take(store, 6)
    await until(lambda: len(house.waiting()) == 2)
    found = [task.id for task in await take(store, 15)]  # and sees that the record has no more
    await asyncio.wait_for(record.read.wait(), 3)
    await finish(store, held[given_back : given_back + 2], Release())
    record.go_on.set()
    await until(lambda: not house.redis.exists(f"{KEYS}/filling/default"))
    found += [task.id for task in held if task not in held[given_back : given_back + 2]]
    async with asyncio.timeout(3):
        while len(found) < 20:
            found += [task.id for task in await take(store, 2)]
            await asyncio.sleep(0.002)
    assert sorted(found) == ids


async def test_a_task_behind_the_mark_that_comes_back_meanwhile_is_not_passed_over_either(house: House) -> None:
    """It was held by somebody who does not know of the streams."""
    record = Late(await house.record())
    plain, store = await house.record(), await house.store(record=record, cap=8)
    ids = await add(store, number=20)
    held = [task for task in await plain.lease("qr:0badcafe:0:1@test", 20, 20) if task.id in ids[9:11]]
    others = await plain.get(ids)
    await finish(plain, [task for task in others if task is not None and task.id not in ids[9:11]], Release())
    found = [task.id for task in await take(store, 6)]
    await until(lambda: len(house.waiting()) == 2)
    found += [task.id for task in await take(store, 13)]
    await asyncio.wait_for(record.read.wait(), 3)
    await finish(store, held, Release())
    record.go_on.set()
    await until(lambda: not house.redis.exists(f"{KEYS}/filling/default"))
    async with asyncio.timeout(3):
        while len(found) < 20:
            found += [task.id for task in await take(store, 2)]
            await asyncio.sleep(0.002)
    assert sorted(found) == ids


async def test_the_guard_of_a_filling_ends_with_it(house: House) -> None:
    """Else the next one would wait for the end of its time."""
    store = await house.store(cap=8)
    await add(store, number=20)
    house.redis.set(f"{KEYS}/filling/default", "1")
    await store._feeder.refill("default", 2000, 1)
    assert not house.redis.exists(f"{KEYS}/filling/default")


async def test_a_stream_is_filled_with_what_is_due_too(house: House) -> None:
    """And first, because what is ready may be a flood."""
    store = await house.store(cap=8)
    ids = await add(store, number=20)
    held = await take(store, 12)
    await finish(store, held[10:], Retry(wait=0))
    await until(house.is_empty)
    async with asyncio.timeout(5):
        while len((await store.dispatchable(Due(), 10)).tasks) < 2:  # noqa: ASYNC110  a fact of the record
            await asyncio.sleep(0.05)
    await store._feeder.refill("default", 2000, 1)
    assert house.waiting()[:2] == ids[10:12]


async def test_a_task_that_left_its_stream_and_came_back_unheard_is_found(house: House) -> None:
    """An instance without Redis gives it back at the next moment, when nobody adds what has just left."""
    store, plain = await house.store(), await house.record()
    ids = await add(store)
    held = await take(store)
    await until(house.is_empty)
    await finish(plain, held, Release())
    await store.sweep(10)
    assert house.waiting() == ids
