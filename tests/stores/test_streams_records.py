"""Two databases of record with one prefix on one Redis: the streams are of one of them, and the other says so."""

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from queue_runtime.errors import StoreUnavailable
from queue_runtime.findings import Level
from queue_runtime.store import Store
from stores import mysql, sqlite, streams_line
from stores.dispatchable import Record
from stores.sqlite import SqliteStore
from stores.streams import StreamsStore
from stores.streams_doctor import examine
from stores.streams_feeder import Tending
from tests.backends import Servers
from tests.faulty_store import FaultyStore
from tests.phorge_tables import PhorgeTables
from tests.servers import RedisServer
from tests.stores.streams_house import KEYS, PREFIX, House, add, finish, open_house, over, take, until

SETTING = "QUEUE_RUNTIME_STREAMS_PREFIX"
BRISK = Tending(every=0.05, reclaim=0.2, old=0.2)


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


@pytest.fixture
async def stranger(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A record of another installation."""
    async with sqlite.open_store(tmp_path / "another.sqlite3") as record:
        yield record


def wait_no_longer(house: House) -> None:
    """Who asks for the streams has done so for long enough."""
    house.redis.set(f"{KEYS}/claim", int(time.time()) - 20)


def is_back(store: StreamsStore) -> bool:
    return store.dispatch.mode == "streams"


async def run_all(store: Store) -> list[int]:
    """Lease and finish until nothing is active; the ids in the order they ran."""
    ran: list[int] = []
    while (await store.stats()).active:
        tasks = await take(store, 10)
        await finish(store, tasks)
        ran += [task.id for task in tasks]
        await store.changed(0.01)
    return ran


async def test_the_second_one_works_from_its_record_and_names_the_setting(house: House, stranger: SqliteStore) -> None:
    """Their ids are the same, so each would drop or run what stands for the tasks of the other."""
    store = await house.store(tending=BRISK)
    ids = await add(store, number=5)
    with capture_logs() as lines:
        other = await house.store(record=stranger, tending=BRISK)
        assert await add(other, number=8, task_class="B") == list(range(1, 9))
        assert await run_all(other) == list(range(1, 9))
        await other.sweep(100)
    assert SETTING in (other.dispatch.reason or "")
    assert SETTING in str((await other.operations())["dispatch"])
    assert [line["reason"] for line in lines if line["log_level"] == "warning"] == [other.dispatch.reason]
    assert house.waiting() == ids
    assert [task.id for task in await take(store, 9)] == ids
    assert store.dispatch.falls == 0


async def test_the_doctor_of_either_tells_of_it(house: House, stranger: SqliteStore) -> None:
    async def warnings() -> list[str]:
        findings = await examine(house.url, PREFIX, "queue-runtime")
        return [one.sentence for one in findings if one.level is Level.WARNING]

    store = await house.store()
    await add(store)
    assert await warnings() == []
    await add(await house.store(record=stranger))
    assert SETTING in (await warnings())[0]
    await add(store)
    assert SETTING in (await warnings())[0]


async def test_it_goes_on_by_itself_when_the_first_one_is_there_no_more(house: House, stranger: SqliteStore) -> None:
    other = await house.store(record=stranger)
    async with over(await house.record(), house.url, tending=BRISK) as store:
        await add(store, number=5, queue="low")
        ids = await add(other, number=3)
        assert not is_back(other)
    wait_no_longer(house)
    await until(lambda: is_back(other))
    assert (house.waiting(), house.waiting("low"), house.sent()) == (ids, [], 3)
    assert [task.id for task in await take(other, 9)] == ids


@pytest.mark.long
async def test_that_takes_half_a_minute_with_the_times_of_a_real_process(house: House, stranger: SqliteStore) -> None:
    other = await house.store(record=stranger, back_seconds=streams_line.BACK_SECONDS)
    async with over(await house.record(), house.url) as store:
        await add(store)
        await add(other)
    await until(lambda: is_back(other), seconds=30)


async def test_keys_that_are_not_ours_keep_nobody_from_taking_over(house: House, stranger: SqliteStore) -> None:
    await add(await house.store())
    for name in ("/queues", "/sent", "default"):
        house.redis.delete(KEYS + name)
        house.redis.set(KEYS + name, "x")
    other = await house.store(record=stranger)
    ids = await add(other, number=3)
    wait_no_longer(house)
    await until(lambda: is_back(other))
    assert house.waiting() == ids


async def test_who_asks_is_refused_as_long_as_the_first_one_is_there(house: House, stranger: SqliteStore) -> None:
    store = await house.store()
    await add(store)
    other = await house.store(record=stranger, back_seconds=600)
    await add(other)
    assert await other._line._deliver_all() is False  # it has not waited for long enough
    for _ in range(3):
        wait_no_longer(house)
        await store.sweep(100)
        assert await other._line._deliver_all() is False
    assert is_back(store)


async def test_an_older_copy_of_the_same_database_has_its_streams_at_once(house: House, tmp_path: Path) -> None:
    """Restored under the name of the old one, or another name: the name of the record came along."""
    async with sqlite.open_store(tmp_path / "first.sqlite3") as record:
        store = await house.store(record=record)
        ids = await add(store, number=3)
        with closing(sqlite3.connect(tmp_path / "first.sqlite3")) as before:
            before.execute("VACUUM INTO ?", (str(tmp_path / "copy.sqlite3"),))
        await add(store, number=3)
    async with sqlite.open_store(tmp_path / "copy.sqlite3") as record:
        store = await house.store(record=record)
        assert [task.id for task in await take(store, 9)] == ids
        assert (is_back(store), store.dispatch.falls) == (True, 0)


async def test_streams_of_an_older_release_are_taken_as_they_are(house: House) -> None:
    """It has not written whose they are."""
    store = await house.store()
    ids = await add(store, number=3)
    house.redis.delete(f"{KEYS}/record")
    assert [task.id for task in await take(await house.store(), 9)] == ids
    assert house.redis.exists(f"{KEYS}/record")


async def test_nothing_is_read_or_written_before_the_record_has_said_which_it_is(house: House) -> None:
    record = FaultyStore(await house.record())
    record.refuse("names", times=2)
    store = await house.store(record=record)
    ids = await add(store)
    assert "does not say which it is" in (store.dispatch.reason or "")
    assert house.redis.dbsize() == 0
    record.down = True
    with pytest.raises(StoreUnavailable):
        await take(store)
    record.down = False
    assert [task.id for task in await take(store)] == ids
    await until(lambda: is_back(store))
    ids = await add(store)
    await until(lambda: house.waiting() == ids)


async def test_a_fall_for_another_reason_tells_the_new_one_when_it_is_known(
    house: House, stranger: SqliteStore
) -> None:
    store = await house.store()
    await add(store)
    other = await house.store(record=stranger)
    other._line.hang_up("the server went away")
    await until(lambda: SETTING in (other.dispatch.reason or ""))
    assert other.dispatch.falls == 1


async def test_a_database_without_a_name_is_believed(house: House, stranger: SqliteStore) -> None:
    class Nameless(FaultyStore):
        async def names(self) -> list[str]:
            return []

    await add(await house.store())
    store = await house.store(record=Nameless(stranger))
    await add(store)
    assert is_back(store)


# ---- what Phorge's tables call themselves


async def names_of(tables: PhorgeTables, **settings: Any) -> set[str]:
    async with mysql.open_store(tables.settings(**settings)) as record:
        return set(await cast(Record, record).names())


async def test_two_namespaces_of_one_server_are_two_records(phorge: PhorgeTables) -> None:
    with PhorgeTables(phorge.server, "staging") as other:
        first, second = await names_of(phorge), await names_of(other)
    assert (len(first), len(second), first & second) == (2, 2, set())
    assert await names_of(phorge) == first


async def test_an_account_that_may_not_see_the_companion_knows_its_record_by_the_place(phorge: PhorgeTables) -> None:
    names = await names_of(phorge)
    phorge.create_account("narrow", "secret", [f"SELECT, INSERT, UPDATE, DELETE ON `{phorge.worker}`.*"])
    assert len(await names_of(phorge, user="narrow", password="secret") & names) == 1


async def test_a_database_that_moved_to_another_server_keeps_its_name(phorge: PhorgeTables, servers: Servers) -> None:
    """A failover, or a dump of all databases. Both servers are seen as one record while it goes on."""
    names = await names_of(phorge)
    ((name,),) = phorge.execute(f"SELECT value FROM `{phorge.companion}`.meta WHERE name = 'record'")
    with PhorgeTables(phorge.server, "moved") as moved:
        await names_of(moved)
        moved.execute(f"UPDATE `{moved.companion}`.meta SET value = %s WHERE name = 'record'", (name,))
        assert len(await names_of(moved) & names) == 1
