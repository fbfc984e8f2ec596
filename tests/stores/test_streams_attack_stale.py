"""Entries that stand for other work than they seem to, and work that has no entry where it should have one."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.store import Store
from queue_runtime.task import NewTask, Pause, PauseKind, Retry
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.servers import RedisServer
from tests.stores.streams_house import KEYS, House, add, finish, insert_as_php, open_house, take, until

BRISK = Tending(every=0.05, reclaim=0.1, old=0.05)


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


async def taken(store: Store, ids: Collection[int], **filters: Any) -> None:
    """Lease as a worker does, without a sweep, until exactly these are there."""
    found: list[int] = []
    async with asyncio.timeout(3):
        while len(found) < len(ids):
            tasks = await take(store, 10, **filters)
            found += [task.id for task in tasks]
            if not tasks:
                await store.changed(0.02)
    assert sorted(found) == sorted(ids)


async def quiet(store: Store, house: House) -> None:
    """Have the ids of all tasks so far lie below those that anybody looks for, and everything looked at."""
    insert_as_php(house.path, 5000, "Last")
    await taken(store, [5000], classes={"Last"})


def restore_an_empty_database(house: House) -> None:
    with closing(sqlite3.connect(house.path)) as connection, connection:
        connection.execute("DELETE FROM task")
        connection.execute("UPDATE counter SET last_id = 0, active = 0")


async def test_an_id_that_is_given_again_after_a_restore_is_delivered_where_its_task_waits(house: House) -> None:
    """Nobody here reads the queue in which its entry stands, nor runs the class that it tells."""
    store = await house.store(tending=BRISK)
    before = await add(store, queue="low", task_class="Z")
    restore_an_empty_database(house)
    after = await add(store, queue="high")
    assert before == after
    assert (house.waiting("low"), house.waiting("high")) == ([], after)
    await taken(store, after, queues={"high"}, classes={"A"})
    await until(house.is_empty)


async def test_an_entry_that_is_being_claimed_stays_though_its_task_is_wanted_elsewhere(house: House) -> None:
    store = await house.store()
    (task_id,) = await add(store, queue="low")
    house.redis.xgroup_create(KEYS + "low", "queue-runtime", id="0")
    house.redis.xreadgroup("queue-runtime", "another", {KEYS + "low": ">"})
    with closing(sqlite3.connect(house.path)) as connection, connection:
        connection.execute("INSERT INTO lane (task_class, queue) VALUES ('A', 'high')")
        connection.execute("UPDATE task SET lane = (SELECT id FROM lane WHERE queue = 'high')")
    await store.sweep(100)
    assert (house.waiting("low"), house.waiting("high")) == ([task_id], [])


async def test_old_entries_that_nobody_may_take_do_not_hide_those_of_tasks_that_are_gone(house: House) -> None:
    store, plain = await house.store(tending=BRISK), await house.record()
    stays = [row.id for row in await store.enqueue([NewTask(task_class="Z")] * 250)]
    gone = [*await add(store, number=3), *await add(store, number=3, queue="unread")]
    await plain.cancel(gone)
    async with asyncio.timeout(3):
        while house.sent() > 250:
            await store.changed(0.02)
    assert (house.waiting(), house.waiting("unread")) == (stays, [])


async def test_what_stands_for_no_task_leaves_a_stream_that_nobody_reads(house: House) -> None:
    """Nonsense, a second entry of a task that waits, and one of a task that nobody knows."""
    store = await house.store(tending=BRISK)
    ids = await add(store, queue="unread")
    for job_id in ("x", ids[0], 77):
        house.redis.xadd(KEYS + "unread", {"job_id": job_id, "job_type": "A"})
    async with asyncio.timeout(3):
        while house.redis.xlen(KEYS + "unread") > 1:
            await store.changed(0.02)
    assert house.waiting("unread") == ids


async def test_a_pause_that_was_lifted_elsewhere_at_once_leaves_no_task_without_an_entry(house: House) -> None:
    """Only the lease that met it knows of it, and has taken the entries away."""
    store, plain = await house.store(tending=BRISK), await house.record()
    ids = await add(store, number=3)
    await quiet(store, house)
    pause = Pause(PauseKind.CLASS, "A")
    await plain.pause(pause)
    assert await take(store, 5, classes={"A"}) == []
    await plain.resume(pause)
    await until(lambda: not house.pending())
    await taken(store, ids, classes={"A"})


async def test_a_task_that_was_held_back_is_there_as_soon_as_it_is_not(house: House) -> None:
    """As the quarantine does with tasks that have lost their workers."""
    store = await house.store()
    ids = await add(store, number=3)
    await quiet(store, house)
    assert [task.id for task in await take(store, 5, without=ids[:2])] == ids[2:]
    await until(lambda: not house.waiting())
    assert await take(store, 5, without=ids[:2]) == []
    assert sorted(task.id for task in await take(store, 5)) == ids[:2]


async def test_a_task_that_one_process_holds_back_goes_to_another(house: House) -> None:
    store, other = await house.store(tending=BRISK), await house.store()
    assert await take(other) == []
    ids = await add(store, number=2)
    await quiet(store, house)
    assert await take(store, 5, without=ids) == []
    await until(lambda: not house.waiting())
    async with asyncio.timeout(3):
        while len(house.waiting()) < 2:
            await store.changed(0.02)
    assert sorted(task.id for task in await take(other, 5)) == ids


async def test_what_is_due_in_a_queue_is_not_hidden_by_what_is_due_in_others(house: House) -> None:
    """It found its stream full, and nothing else happens after that."""
    store = await house.store(cap=8, tending=BRISK)
    await add(store, number=30, queue="low", task_class="Z")
    await back_at_once(store, house, 30, classes={"Z"})
    ids = await add(store, number=20)
    await back_at_once(store, house, 20, classes={"A"})
    await store.sweep(100)
    found: list[int] = []
    began = time.monotonic()
    while len(found) < 20 and time.monotonic() - began < 3:
        tasks = await take(store, 3, queues={"default"})
        found += [task.id for task in tasks]
        if not tasks:
            await asyncio.sleep(0.01)  # not `changed`, which would look at the record
    assert sorted(found) == ids


async def back_at_once(store: StreamsStore, house: House, number: int, **filters: Any) -> None:
    """Run so many tasks, which fail and are due again at this moment."""
    record = await house.record()
    tasks = await record.lease("qr:0badcafe:0:1@test", number, 20, **filters)
    assert len(tasks) == number
    await finish(record, tasks, Retry(wait=1))
    with closing(sqlite3.connect(house.path)) as connection, connection:
        connection.execute("UPDATE task SET expires = expires - 60 WHERE owner = '(retry)'")
