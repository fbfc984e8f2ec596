"""An older copy of Phorge's database is put back under processes that work on it: ids go back, rows come again."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, closing, suppress
from itertools import count

import pytest

from queue_runtime.context import Context
from queue_runtime.errors import StoreUnavailable
from queue_runtime.registry import Registry
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Result
from stores import mysql
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.backends import Servers
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables, connect
from tests.runtime.harness import Worker
from tests.stores.mysql_tables import insert_active
from tests.stores.streams_house import KEYS, add, over, taken, until

PATIENCE = 1
LEASE_SECONDS = 3
OPTIONS = StoreOptions(patience=PATIENCE)


class Dump:
    """A copy of both databases, as `mysqldump` and `mysql` make it and put it back: table by table."""

    _numbers = count(1)

    def __init__(self, phorge: PhorgeTables) -> None:
        self._phorge = phorge
        self._name = f"dump_{next(self._numbers)}"
        names = {name: phorge.execute(f"SHOW TABLES FROM `{name}`") for name in (phorge.worker, phorge.companion)}
        places = [f"`{database}`.`{table}`" for database, tables in names.items() for (table,) in tables]
        self._copies = {place: f"{self._name}.`{number}`" for number, place in enumerate(places)}

    async def take(self) -> None:
        """One snapshot of all tables."""
        await self._run(
            f"CREATE DATABASE {self._name}",
            *(f"CREATE TABLE {copy} LIKE {place}" for place, copy in self._copies.items()),
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            *(f"INSERT INTO {copy} SELECT * FROM {place}" for place, copy in self._copies.items()),
            "COMMIT",
        )

    def ids(self) -> set[int]:
        """All its tasks."""
        tables = [self._copies[f"`{self._phorge.worker}`.`worker_{kind}task`"] for kind in ("active", "archive")]
        rows = self._phorge.execute(" UNION ALL ".join(f"SELECT id FROM {table}" for table in tables))
        return {task_id for (task_id,) in rows}

    async def restore(self) -> None:
        """Put it back. Each of Phorge's own tables is away for long enough that everybody sees it."""
        steps = []
        for place, copy in self._copies.items():
            away = 0.02 if place.startswith(f"`{self._phorge.worker}`") else 0
            steps += [f"DROP TABLE {place}", f"DO SLEEP({away})"]
            steps += [f"CREATE TABLE {place} LIKE {copy}", f"INSERT INTO {place} SELECT * FROM {copy}"]
        await self._run(*steps)

    async def drop(self) -> None:
        await self._run(f"DROP DATABASE IF EXISTS {self._name}")

    async def _run(self, *statements: str) -> None:
        """In a thread: a worker that is held up in a transaction would keep the tables from everybody."""

        def run() -> None:
            with closing(connect(self._phorge.server)) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        await asyncio.to_thread(run)


class Office:
    """Instances on one Phorge and one Redis."""

    def __init__(self, stack: AsyncExitStack, phorge: PhorgeTables, servers: Servers) -> None:
        self._stack = stack
        self.phorge = phorge
        self.redis = servers.redis_client
        self._url = servers.redis.socket_url

    async def store(self, tending: Tending | None = None) -> StreamsStore:
        record = await self._stack.enter_async_context(mysql.open_store(self.phorge.settings(), OPTIONS))
        await record.ping()  # so that the companion is there
        return await self._stack.enter_async_context(over(record, self._url, options=OPTIONS, tending=tending))

    async def dump(self) -> Dump:
        dump = Dump(self.phorge)
        self._stack.push_async_callback(dump.drop)
        await dump.take()
        return dump

    def is_empty(self) -> bool:
        return not self.redis.hlen(f"{KEYS}/sent") and not self.redis.xlen(f"{KEYS}default")

    def worker(self, store: Store, registry: Registry) -> Worker:
        return Worker(store, registry, lease_seconds=LEASE_SECONDS, patience=PATIENCE)


@pytest.fixture
async def office(phorge: PhorgeTables, servers: Servers) -> AsyncIterator[Office]:
    servers.redis_client.flushall()
    async with AsyncExitStack() as stack:
        yield Office(stack, phorge, servers)


class Log:
    """What ran, by the payloads, and which tasks ran twice at once."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.ran: Counter[str] = Counter()
        self.stopped: list[str] = []
        self.ended: list[str] = []
        self.running: Counter[int] = Counter()
        self.twice: list[int] = []
        self.registry = Registry()
        self._seconds = seconds
        self.registry.task("A")(self._run)

    async def _run(self, context: Context, data: str) -> None:
        task_id = context.task.id
        self.running[task_id] += 1
        if self.running[task_id] > 1:
            self.twice.append(task_id)
        self.ran[data] += 1
        try:
            await asyncio.sleep(60 if data == "long" and self.ran[data] == 1 else self._seconds)
        except asyncio.CancelledError:
            self.stopped.append(data)
            raise
        finally:
            self.running[task_id] -= 1
        self.ended.append(data)


class Callers:
    """PHP, and callers of the API, who enqueue all the time. Who is told of an outage does not try again."""

    def __init__(self, office: Office, stores: Sequence[Store]) -> None:
        self._php = Php(office.phorge)
        self._stores = stores
        self._numbers = count(1)

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(0.01)

    async def once(self) -> list[str]:
        """A task each; the payloads."""
        taken = [f"php {next(self._numbers)}"]
        self._php.schedule("A", taken[0])
        for store in self._stores:
            data = f"api {next(self._numbers)}"
            with suppress(StoreUnavailable):
                await add(store, data=data)
                taken.append(data)
        return taken

    def close(self) -> None:
        self._php.close()


async def drained(store: Store) -> None:
    """Wait until nothing is active: also what the copy says is leased, whose leases have to run out."""
    async with asyncio.timeout(20):
        while (await store.stats()).active:  # noqa: ASYNC110  a fact of the record
            await asyncio.sleep(0.02)


async def test_workers_go_on_with_what_the_copy_has_and_pick_up_at_once(office: Office) -> None:
    """Half of what it has to run has run already, and runs again; no row is lost, and none runs twice at once."""
    stores = [await office.store() for _ in range(2)]
    log = Log()
    await add(stores[0], number=300, data="before")
    workers = [office.worker(store, log.registry) for store in stores]
    with closing(Callers(office, stores)) as callers:
        async with workers[0].running(), workers[1].running():
            calling = asyncio.create_task(callers.run())
            await until(lambda: log.ran["before"] > 50)
            dump = await office.dump()
            seen = log.ran.total()
            await until(lambda: log.ran.total() > seen + 150)
            calling.cancel()
            await asyncio.wait([calling])
            await dump.restore()
            began = time.monotonic()
            after = await callers.once()
            await until(lambda: all(log.ran[data] for data in after))
            assert time.monotonic() - began < 5
            for _ in range(20):
                await callers.once()
            await drained(stores[0])
            await until(office.is_empty, seconds=20)  # entries of a claim that failed are free after ten
    rows = await stores[0].list_archived(5000)
    assert {row.id for row in rows} >= dump.ids()
    assert {(row.result, row.failure_count) for row in rows} == {(Result.SUCCESS, 0)}
    assert log.twice == []
    assert [store.dispatch.mode for store in stores] == ["streams"] * 2


async def test_a_task_with_the_id_of_one_that_the_copy_does_not_know_runs_after_that_one_was_stopped(
    office: Office,
) -> None:
    """The old run has the id in its hands, and its outcome must not end the new task."""
    store, log = await office.store(), Log()
    await add(store, data="before")
    async with office.worker(store, log.registry).running():
        await drained(store)
        dump = await office.dump()
        (old,) = await add(store, data="long")
        await until(lambda: log.ran["long"])
        await dump.restore()
        (new,) = await add(store, data="new")
        assert new == old
        await until(lambda: log.ended.count("new"), seconds=5)
        await drained(store)
    assert (log.stopped, log.twice) == (["long"], [])
    (ended,) = await store.get_archived([new])
    assert ended is not None
    assert (ended.result, ended.failure_count, ended.lost_count) == (Result.SUCCESS, 0, 0)


async def test_a_run_whose_row_is_ready_again_in_the_copy_is_stopped_by_its_next_renewal(office: Office) -> None:
    """Until then another instance may run the task too: nobody but the record knows who has it."""
    stores, log = [await office.store() for _ in range(2)], Log()
    (task_id,) = await add(stores[0], data="long")
    dump = await office.dump()
    async with office.worker(stores[0], log.registry).running(), office.worker(stores[1], log.registry).running():
        await until(lambda: log.ran["long"])
        await dump.restore()
        began = time.monotonic()
        await until(lambda: log.stopped == ["long"])
        assert time.monotonic() - began < LEASE_SECONDS / 3 + 1
        await drained(stores[0])
        await until(office.is_empty, seconds=20)  # entries of a claim that failed are free after ten
    assert log.ended == ["long"]
    (ended,) = await stores[0].get_archived([task_id])
    assert ended is not None
    assert (ended.result, ended.failure_count) == (Result.SUCCESS, 0)


async def test_what_a_copy_has_to_run_is_found_though_the_ids_have_gone_on_since(office: Office) -> None:
    """They went back for so short that no look for new tasks saw it."""
    store = await office.store(Tending(every=0.05))
    office.phorge.execute("INSERT INTO lisk_counter VALUES ('worker_activetask', 5000)")
    for task_id in (1, 2, 3):  # among ids that nobody looks at any more
        insert_active(office.phorge, task_id)
    dump = await office.dump()
    assert len(await taken(store, 3)) == 3
    await add(store, number=5)
    assert len(await taken(store, 5)) == 5
    await store.changed(0)
    await dump.restore()
    await store._feeder.leasable([1])  # as after any lease
    await add(store, number=9)
    assert {1, 2, 3} <= set(await taken(store, 12, seconds=5))
