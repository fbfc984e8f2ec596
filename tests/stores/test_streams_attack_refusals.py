"""A Redis that is there and says no, and one that is asked by very many at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from queue_runtime.task import NewTask
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.servers import RedisServer
from tests.stores.streams_house import House, add, finish, open_house, take, until

BACK_SECONDS = 0.02
"""In place of three seconds of PINGs."""


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


@pytest.fixture
def narrow(house: House) -> Iterator[str]:
    """The URL of an account that may do everything but listen."""
    may(house, "-xread")
    yield house.url.replace("unix://", "unix://narrow:secret@")
    house.redis.acl_deluser("narrow")


def may(house: House, command: str) -> None:
    """Give a right to the account, or take one."""
    house.redis.acl_setuser(
        "narrow", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=[command]
    )


async def falls_to(store: StreamsStore, number: int) -> None:
    """Wait for news until the dispatch has fallen so often."""
    async with asyncio.timeout(5):
        while store.dispatch.falls < number:
            await store.changed(0.01)


async def test_a_server_that_refuses_again_and_again_is_asked_less_and_less_often(house: House, narrow: str) -> None:
    """Or the log has two lines every three seconds, and workers change over all the time."""
    store = await house.store(url=narrow, back_seconds=BACK_SECONDS)
    ids = await add(store, number=2)
    assert [task.id for task in await take(store)] == ids[:1]
    await falls_to(store, 1)
    began = time.monotonic()
    await falls_to(store, 4)
    assert time.monotonic() - began >= BACK_SECONDS * (1 + 2 + 4)
    assert store._line._watch_seconds == BACK_SECONDS * 8
    assert [task.id for task in await take(store)] == ids[1:]  # which none of that holds up


NEEDED = ("evalsha", "xadd", "xreadgroup", "xautoclaim", "xinfo", "xack", "hscan", "smembers", "type", "set", "get")


@pytest.mark.parametrize("command", NEEDED)
async def test_an_account_that_lacks_a_command_holds_up_nothing_and_says_which(house: House, command: str) -> None:
    """Some are met at once, others only by the housekeeping."""
    may(house, f"-{command}")
    try:
        url = house.url.replace("unix://", "unix://narrow:secret@")
        store = await house.store(url=url, tending=Tending(every=0.05))
        ids, ran = await add(store, number=5), list[int]()
        async with asyncio.timeout(10):
            while len(ran) < len(ids) or store.dispatch.falls == 0:
                tasks = await take(store, 2)
                await finish(store, tasks)
                ran += [task.id for task in tasks]
                await store.changed(0.02)
                await store.sweep(100)
        assert sorted(ran) == ids
        assert store.dispatch.reason is None or "may not" in store.dispatch.reason
    finally:
        house.redis.acl_deluser("narrow")


async def test_a_server_that_refuses_no_more_is_trusted_again(house: House, narrow: str) -> None:
    store = await house.store(url=narrow, back_seconds=BACK_SECONDS)
    await falls_to(store, 3)
    may(house, "+xread")
    await until(lambda: store.dispatch.mode == "streams")
    (task_id,) = await add(await house.store())
    async with asyncio.timeout(3):
        assert await store.changed(3)
    assert [task.id for task in await take(store)] == [task_id]


async def test_an_outage_after_refusals_is_watched_no_longer_than_any_other(house: House, narrow: str) -> None:
    store = await house.store(url=narrow, back_seconds=BACK_SECONDS)
    await falls_to(store, 3)
    may(house, "+xread")
    await until(lambda: store.dispatch.mode == "streams")
    assert store._line._watch_seconds > BACK_SECONDS
    store._line.hang_up("the server went away")
    assert store._line._watch_seconds == BACK_SECONDS
    await until(lambda: store.dispatch.mode == "streams")


async def test_many_callers_at_one_moment_are_no_outage(house: House) -> None:
    store = await house.store()
    await store.changed(0)
    new = NewTask(task_class="A")
    rows = await asyncio.gather(*[store.enqueue_once(f"event {number}", new) for number in range(200)])
    assert store.dispatch.falls == 0
    await until(lambda: len(house.waiting()) == len(rows))


async def test_a_server_that_does_not_keep_up_is_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer comes within its second, and calls come faster than answers."""
    store = await house.store()
    await store.changed(0)
    answer = store._line.link.call

    async def slowly(*words: Any) -> object:
        await asyncio.sleep(0.3)
        return await answer(*words)

    monkeypatch.setattr(store._line.link, "call", cast(Any, slowly))
    monkeypatch.setattr("stores.streams_chores.LATE_SECONDS", 0.1)
    ids: list[int] = []
    async with asyncio.timeout(5):
        while store.dispatch.falls == 0:
            ids += await add(store)
    assert store.dispatch.reason == "too many calls wait for their answers"
    assert [task.id for task in await take(store, len(ids))] == ids
