"""The dispatch over Phorge's own tables, beside PHP that enqueues, awakens and runs tasks by itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing

import pytest
from redis import Redis

from queue_runtime.store import Routes, StoreOptions
from queue_runtime.task import NewTask, Pause, PauseKind, Result, Yield
from stores import mysql
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.backends import Servers
from tests.phorge_php import Php, Taskmaster
from tests.phorge_tables import PhorgeTables, connect
from tests.runtime.harness import Worker
from tests.stores.mysql_tables import draw_id, insert_active
from tests.stores.streams_house import KEYS, add, finish, over, take, taken, until
from tests.stores.test_streams_worker import Log

BRISK = Tending(every=0.1, old=0.2)


class Office:
    """Instances of the store on one server each of Phorge and Redis."""

    def __init__(self, stack: AsyncExitStack, phorge: PhorgeTables, servers: Servers) -> None:
        self._stack = stack
        self.phorge = phorge
        self.redis: Redis = servers.redis_client
        self._url = servers.redis.socket_url

    async def store(self, options: StoreOptions = StoreOptions()) -> StreamsStore:
        record = await self._stack.enter_async_context(mysql.open_store(self.phorge.settings(), options))
        return await self._stack.enter_async_context(over(record, self._url, options=options, tending=BRISK))

    def waiting(self, queue: str = "default") -> int:
        """Entries in a stream."""
        return int(self.redis.xlen(KEYS + queue))


@pytest.fixture
async def office(phorge: PhorgeTables, servers: Servers) -> AsyncIterator[Office]:
    servers.redis_client.flushall()
    async with AsyncExitStack() as stack:
        yield Office(stack, phorge, servers)


async def test_what_php_schedules_is_dispatched_at_once(office: Office) -> None:
    """R070"""
    store = await office.store()
    await store.changed(0)
    with Php(office.phorge) as php:
        for _ in range(3):
            began = time.monotonic()
            task_id = php.schedule("A")
            assert await taken(store, 1) == [task_id]
            assert time.monotonic() - began < 1


async def test_a_task_that_php_delays_starts_in_its_second(office: Office) -> None:
    store = await office.store()
    due = int(time.time()) + 2
    with Php(office.phorge) as php:
        task_id = php.schedule("A", delay_until=due)
        assert await taken(store, 1) == [task_id]
    assert due <= time.time() < due + 1.1


async def test_a_row_whose_id_was_drawn_long_before_it_can_be_seen_is_found(office: Office) -> None:
    store = await office.store()
    early = draw_id(office.phorge)
    later = await add(store, number=5)
    assert sorted(await taken(store, 5)) == later
    await asyncio.sleep(1.2)  # nobody waits for it specially any more
    insert_active(office.phorge, early)
    assert await taken(store, 1, seconds=5) == [early]


async def test_a_yield_that_php_awakens_is_dispatched_at_once(office: Office) -> None:
    """R077: its time goes back an hour, behind everything that was looked at."""
    store = await office.store()
    await add(store)
    tasks = await take(store)
    await finish(store, tasks, Yield(wait=600))
    with Php(office.phorge) as php:
        assert php.awaken([tasks[0].id]) == 1
    assert await taken(store, 1, seconds=3) == [tasks[0].id]


async def test_tasks_that_php_runs_itself_leave_the_streams_too(office: Office) -> None:
    """R039, mixed fleet: the row decides, and what nobody reads is dropped by the sweep."""
    store = await office.store()
    ids = await add(store, number=6)
    with Taskmaster(office.phorge) as taskmaster:
        for _ in range(4):
            assert taskmaster.step(lambda _task: ())
        done = taskmaster.archived
    assert sorted(done) == ids[:4]
    assert await taken(store, 2) == ids[4:]
    async with asyncio.timeout(5):
        while office.waiting():
            await store.sweep(100)
            await asyncio.sleep(0.05)


async def test_a_row_that_somebody_has_locked_holds_up_no_other_and_makes_no_hot_loop(office: Office) -> None:
    """Its entry goes back until the row is free, and it runs soon after."""
    stores, log = [await office.store() for _ in range(2)], Log()
    ids = await add(stores[0], number=5)
    with closing(connect(office.phorge.server, database=office.phorge.worker)) as holder, holder.cursor() as cursor:
        holder.begin()
        cursor.execute("SELECT id FROM worker_activetask WHERE id = %s FOR UPDATE", (ids[1],))
        workers = [Worker(store, log.registry) for store in stores]
        async with workers[0].running(), workers[1].running():
            await until(lambda: len(log.ran) == 4)
            leases, cpu = sum(worker.stats.leases for worker in workers), time.process_time()
            await asyncio.sleep(1)
            assert sum(worker.stats.leases for worker in workers) - leases <= 16
            assert time.process_time() - cpu < 0.5
            assert ids[1] not in log.ran
            holder.rollback()
            await until(lambda: ids[1] in log.ran, seconds=3)
    assert sorted(log.ran) == ids


async def test_rows_that_cannot_be_read_are_archived_and_the_others_run(office: Office) -> None:
    """R086, R087: bytes that are no text, and a payload that is gone, among eight good ones."""
    store = await office.store()
    with Php(office.phorge) as php:
        ids = [php.schedule("A", f'"{number}"') for number in range(10)]
        php.write("UPDATE worker_activetask SET objectPHID = X'FF' WHERE id = %s", (ids[2],))
        payload = "(SELECT dataID FROM worker_activetask WHERE id = %s)"
        php.write(f"DELETE FROM worker_taskdata WHERE id = {payload}", (ids[5],))
    bad = [ids[2], ids[5]]
    assert await taken(store, 8) == [task_id for task_id in ids if task_id not in bad]
    assert [row and row.result for row in await store.get_archived(bad)] == [Result.FAILURE] * 2
    assert await take(store, 5) == []
    assert store.dispatch.mode == "streams"


async def test_rows_are_in_the_queue_of_their_class_or_of_their_own(office: Office) -> None:
    """Queue, idempotency and attempts go through the companion."""
    store = await office.store(StoreOptions(routes=Routes((("Mail*", "high"), ("*Index", "search")))))
    await store.changed(0)
    with Php(office.phorge) as php:
        php.schedule("SlowIndex", priority=1)
        php.schedule("MailWorker", priority=9000)
    await store.enqueue([NewTask(task_class="SlowIndex", queue="events", idempotency_key="k")] * 2)
    async with asyncio.timeout(5):
        while not (office.waiting("high") and office.waiting("search")):
            await store.changed(0.1)
    tasks = await take(store, 10)
    assert [(task.task_class, task.queue) for task in tasks] == [
        ("MailWorker", "high"),
        ("SlowIndex", "events"),
        ("SlowIndex", "search"),
    ]


async def test_a_pause_lifted_by_an_instance_without_redis_is_noticed(office: Office) -> None:
    store = await office.store()
    await store.pause(Pause(PauseKind.CLASS, "A"))
    (task_id,) = await add(store)
    assert await take(store, 5) == []
    async with mysql.open_store(office.phorge.settings()) as plain:
        await plain.resume(Pause(PauseKind.CLASS, "A"))
    assert await taken(store, 1, seconds=5) == [task_id]


async def test_a_database_that_was_restored_is_dispatched_from_its_first_id(office: Office) -> None:
    draw_id(office.phorge)
    office.phorge.execute("UPDATE lisk_counter SET counterValue = 5000")
    store = await office.store()
    ids = await add(store, number=50)
    assert (sorted(await taken(store, 50)), min(ids)) == (ids, 5001)
    office.phorge.empty()
    with Php(office.phorge) as php:
        ids = [php.schedule("A") for _ in range(3)]
        assert max(ids) <= 3
        assert sorted(await taken(store, 3, seconds=5)) == ids
    ids = await add(store, number=3)
    assert sorted(await taken(store, 3)) == ids
