"""Redis fails: the record works alone at once, and the streams come back by themselves."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Complete, NewTask, Release, Result
from stores import streams_line
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.servers import RedisServer
from tests.stores.redis_house import client_of
from tests.stores.relay import relay_to
from tests.stores.streams_house import (
    BACK_SECONDS,
    KEYS,
    NOWHERE,
    House,
    add,
    finish,
    open_house,
    take,
    toggled,
    until,
)
from tests.stores.test_redis_address import watched


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of this test alone."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


def is_back(store: StreamsStore) -> bool:
    return store.dispatch.mode == "streams"


async def run_all(store: Store, number: int, *, seconds: float = 20) -> list[int]:
    """Run tasks as a worker would, until so many have ended; the ids in the order they ran."""
    ran: list[int] = []
    async with asyncio.timeout(seconds):
        while len(ran) < number:
            tasks = await take(store, 7)
            await finish(store, tasks)
            ran += [task.id for task in tasks]
            if not tasks:
                await store.changed(0.2)
    return ran


async def test_without_redis_everything_works(house: House) -> None:
    """R032: and no task is counted as failed for it."""
    store = await house.store(url=NOWHERE)
    ids = await add(store, number=20)
    assert sorted(await run_all(store, 20)) == ids
    assert store.dispatch.mode == "record"
    assert store.dispatch.reason
    assert all(row.failure_count == 0 for row in await store.list_archived(100))
    await store.sweep(100)


async def test_what_the_dispatch_says_of_itself(house: House) -> None:
    store = await house.store(url=NOWHERE)
    before = store.dispatch
    await add(store)
    facts = (await store.operations())["dispatch"]
    assert isinstance(facts, dict)
    assert before.mode == "streams"
    assert (facts["mode"], facts["falls"]) == ("record", 1)
    assert facts["since"] >= before.since
    assert "cannot connect" in facts["reason"]


async def test_an_enqueue_waits_fifty_milliseconds_for_a_frozen_redis_and_then_not_at_all(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    async with open_house(tmp_path, own_redis) as house:
        store = await house.store()
        await add(store)
        own_redis.pause()
        took = []
        for _ in range(30):
            began = time.monotonic()
            await add(store)
            took.append(time.monotonic() - began)
        await until(lambda: not is_back(store), seconds=3)
        began = time.monotonic()
        await add(store, number=100)
        took.append(time.monotonic() - began)
        assert max(took) < 0.5  # on a busy machine
        assert sum(took) < 1.5
        assert len(await take(store, 200)) == 131
        own_redis.resume()
        await until(lambda: is_back(store))


@pytest.mark.parametrize(
    ("seconds", "back_seconds"),
    [(0.5, BACK_SECONDS), pytest.param(30, streams_line.BACK_SECONDS, marks=pytest.mark.long)],
)
async def test_tasks_go_on_while_redis_is_frozen_and_after(
    tmp_path: Path, own_redis: RedisServer, seconds: float, back_seconds: float
) -> None:
    """No task is lost or runs twice, no failure is counted, and pick-up is back within five seconds."""
    async with open_house(tmp_path, own_redis) as house:
        first, second = [await house.store(back_seconds=back_seconds) for _ in range(2)]
        ids = await add(first, number=20)
        ran = await run_all(second, 5)
        own_redis.pause()
        ids += await add(first, number=20)
        began = time.monotonic()
        ran += await run_all(second, 40 - len(ran))
        assert time.monotonic() - began < 5
        await asyncio.sleep(seconds)
        ids += await add(first, number=10)
        own_redis.resume()
        await until(lambda: is_back(first) and is_back(second), seconds=5)
        ids += await add(second, number=10)
        ran += await run_all(first, 60 - len(ran), seconds=5)
        assert sorted(ran) == ids
        assert [row.result for row in await first.list_archived(100)] == [Result.SUCCESS] * 60
        assert all(row.failure_count == row.lost_count == 0 for row in await first.list_archived(100))


def fill_the_server(house: House) -> Callable[[], object]:
    house.redis.config_set("maxmemory", 1)
    return partial(house.redis.config_set, "maxmemory", 0)


def put_another_key_in_the_streams_place(house: House) -> Callable[[], object]:
    house.redis.set(KEYS + "default", "not a stream")
    return partial(house.redis.delete, KEYS + "default")


@pytest.mark.parametrize("spoil", [fill_the_server, put_another_key_in_the_streams_place])
async def test_an_xadd_that_fails_loses_no_task(house: House, spoil: Callable[[House], Callable[[], object]]) -> None:
    """The enqueue has succeeded all the same, and what the streams missed they get when they can."""
    store = await house.store()
    mend = spoil(house)
    try:
        ids = await add(store, number=10)
        assert store.dispatch.falls == 1
        ran = await run_all(store, 5)
    finally:
        mend()
    await until(lambda: is_back(store) and house.sent() == 10 - len(ran))
    ran += await run_all(store, 10 - len(ran))
    assert sorted(ran) == ids
    assert all(row.failure_count == 0 for row in await store.list_archived(100))


@pytest.mark.parametrize("call", ["enqueue", "lease", "release", "follow-up", "sweep"])
async def test_a_reply_of_redis_that_is_lost_costs_no_task_and_runs_none_twice(house: House, call: str) -> None:
    """R094: what was asked has been done. The entries are not what counts."""
    async with relay_to("127.0.0.1", house.port) as relay:
        store = await house.store(url=relay.url, tending=Tending(every=0.05, reclaim=0.1, old=0.1))
        ids = await add(store, number=5)
        ran: list[int] = []
        held = await take(store, 2) if call in {"release", "follow-up"} else []
        relay.lose_replies = 2
        match call:
            case "enqueue":
                ids += await add(store, number=5)
            case "lease":
                tasks = await take(store, 2)
                await finish(store, tasks)
                ran += [task.id for task in tasks]
            case "release":
                await finish(store, held, Release())
            case "follow-up":
                await finish(store, held, Complete(followups=[NewTask(task_class="A")]))
                ran += [task.id for task in held]
                ids += [ids[-1] + 1, ids[-1] + 2]
            case "sweep":
                await store.sweep(100)
        await until(lambda: relay.lose_replies < 2)
        relay.lose_replies = 0
        ran += await run_all(store, len(ids) - len(ran))
        assert sorted(ran) == ids
        assert await take(store, 5) == []
        rows = await store.list_archived(100)
        assert {(row.result, row.failure_count, row.lost_count) for row in rows} == {(Result.SUCCESS, 0, 0)}
        await until(lambda: is_back(store))
        async with asyncio.timeout(5):
            while not house.is_empty():
                await store.sweep(100)


async def test_a_redis_that_restarts_empty_is_told_everything_again(tmp_path: Path, own_redis: RedisServer) -> None:
    async with open_house(tmp_path, own_redis) as house:
        store = await house.store()
        ids = await add(store, number=10)
        assert [task.id for task in await take(store, 1)] == ids[:1]
        own_redis.kill()
        ids += await add(store, number=5)
        await until(lambda: not is_back(store))
        own_redis.start()
        await until(lambda: is_back(store))
        assert house.waiting() == ids[1:]
        assert await run_all(store, 14) == ids[1:]


async def test_a_failover_to_a_replica_loses_nothing(house: House, own_redis: RedisServer) -> None:
    """R032: the server becomes a replica, then the line leads to the new master."""
    old, new = house, own_redis
    host, port = "127.0.0.1", house.port
    async with relay_to(host, port) as relay:
        store = await house.store(url=relay.url)
        ids = await add(store, number=10)
        old.redis.replicaof(new.host, str(new.port))
        try:
            ids += await add(store, number=5)
            ran = await run_all(store, 8)
            relay.target = (new.host, new.port)
            relay.cut()
            await until(lambda: is_back(store))
            ids += await add(store, number=5)
            ran += await run_all(store, 20 - len(ran))
            assert sorted(ran) == ids
        finally:
            old.redis.replicaof("NO", "ONE")


@pytest.mark.long
async def test_a_failover_by_sentinels_loses_nothing(house: House) -> None:
    """The master dies for good, and the dispatch goes on at the replica that the sentinels choose."""
    with watched() as (master, replica, sentinel), client_of(replica) as client, client_of(sentinel) as watcher:
        await until(lambda: client.info("replication").get("master_link_status") == "up")
        await until(lambda: len(watcher.sentinel_slaves("queue")) == 1, seconds=30)
        url = f"redis+sentinel://{sentinel.host}:{sentinel.port}/queue/0"
        stores = [await house.store(url=url, tending=Tending(old=0.2)) for _ in range(2)]
        ids = await add(stores[0], number=20)
        ran = await run_all(stores[1], 5)
        master.kill()
        ids += await add(stores[1], number=10)
        ran += await run_all(stores[0], 20 - len(ran))
        await until(lambda: all(map(is_back, stores)), seconds=30)
        ids += await add(stores[0], number=10)
        assert client.exists(KEYS + "default")
        ran += await run_all(stores[1], 40 - len(ran))
        assert sorted(ran) == ids
        async with asyncio.timeout(10):
            while client.xlen(KEYS + "default"):  # what ended while nobody was told is dropped when it is read or old
                await stores[1].sweep(100)
                assert await take(stores[1], 5) == []


async def test_a_server_that_forgets_its_scripts_disturbs_nobody(house: House) -> None:
    """R033"""
    store = await house.store()
    for _ in range(30):
        house.redis.script_flush()
        ids = await add(store, number=3)
        house.redis.script_flush()
        assert await run_all(store, 3) == ids
    assert store.dispatch.falls == 0


async def test_a_handler_that_holds_the_event_loop_is_not_taken_for_a_dead_redis(house: House) -> None:
    store = await house.store(tending=Tending(every=0.05, reclaim=0.1))
    ids = await add(store)
    telling, leasing = asyncio.create_task(add(store, number=3)), asyncio.create_task(take(store, 1))
    for _ in range(5):
        await asyncio.sleep(0.0005)
        time.sleep(0.3)  # noqa: ASYNC251  as a handler that does not let go
    await asyncio.sleep(0)
    time.sleep(1.4)  # noqa: ASYNC251
    ids += await telling
    ran = [task.id for task in await leasing]
    ran += await run_all(store, 4 - len(ran))
    assert sorted(ran) == ids
    assert store.dispatch.falls == 0


async def test_instances_with_and_without_redis_share_a_record(house: House) -> None:
    """The record's claim decides."""
    with_redis, without = await house.store(), await house.store(url=NOWHERE)
    plain = await house.record()
    ids = [*await add(with_redis, number=50), *await add(without, number=50), *await add(plain, number=50)]
    ran = await asyncio.gather(*[run_some(store) for store in (with_redis, without, plain)])
    assert sorted(task_id for some in ran for task_id in some) == sorted(ids)
    await until(house.is_empty)


async def run_some(store: Store) -> list[int]:
    """Run until nothing is active."""
    ran: list[int] = []
    async with asyncio.timeout(30):
        while (await store.stats()).active:
            tasks = await take(store, 4)
            await finish(store, tasks)
            ran += [task.id for task in tasks]
            if not tasks:
                await store.changed(0.05)
    return ran


@pytest.mark.parametrize("back_seconds", [0.6, streams_line.BACK_SECONDS])
async def test_the_line_must_be_good_for_a_while_before_it_is_trusted_again(house: House, back_seconds: float) -> None:
    """Three seconds in a real process, whose workers are back within five."""
    async with relay_to("127.0.0.1", house.port) as relay:
        store = await house.store(url=relay.url, back_seconds=back_seconds)
        there, relay.target = relay.target, ("127.0.0.1", 1)
        ids = await add(store)
        assert not is_back(store)
        began = time.monotonic()
        relay.target = there
        ids += await add(store)
        ran = await run_all(store, 2, seconds=1)
        await until(lambda: is_back(store), seconds=5)
        assert time.monotonic() - began >= back_seconds - 0.1
        ids += await add(store)
        ran += await run_all(store, 1, seconds=1)
        assert ran == ids
        assert store.dispatch.falls == 1
        assert store.dispatch.reason is None


async def test_a_line_that_comes_and_goes_loses_no_task_and_runs_none_twice(house: House) -> None:
    async with toggled("127.0.0.1", house.port, seed=3) as relay:
        stores = [await house.store(url=relay.url) for _ in range(2)]
        new = NewTask(task_class="A")

        async def produce() -> list[int]:
            ids = []
            for number in range(60):
                ids += [row.id for row in await stores[number % 2].enqueue([new] * 5)]
                await asyncio.sleep(0.01)
            return ids

        async def consume(store: Store) -> list[int]:
            ran: list[int] = []
            while len(ended) < 300:
                tasks = await take(store, 5)
                settled = await finish(store, tasks, Complete())
                assert all(one.archived is not None for one in settled)
                ran += [task.id for task in tasks]
                ended.update(ran)
                if not tasks:
                    await store.changed(0.05)
            return ran

        ended: set[int] = set()
        async with asyncio.timeout(60):
            ids, *ran = await asyncio.gather(produce(), *map(consume, stores))
        assert sorted(task_id for some in ran for task_id in some) == sorted(ids)
        assert all(row.failure_count == row.lost_count == 0 for row in await stores[0].list_archived(1000))
    assert sum(store.dispatch.falls for store in stores) > 0
