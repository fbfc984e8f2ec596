"""The lines for locked rows on a server that is slow or hangs: they share its looks, and hold up no renewal."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.task import Lease, NewTask, Task
from stores import mysql_waits
from stores.mysql import MysqlStore, open_store
from stores.mysql_driver import Connection
from tests.phorge_tables import PhorgeTables, connect
from tests.proxy import Proxy
from tests.stores.phorge_state import eventually

OWNER = "qr:0badcafe:1:1@test"


@pytest.fixture
async def proxy(phorge: PhorgeTables) -> AsyncIterator[Proxy]:
    async with Proxy(phorge.server.socket) as proxy:
        yield proxy


@pytest.fixture
async def store(phorge: PhorgeTables, proxy: Proxy) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(socket=proxy.socket, connect_seconds=1.0)) as store:
        yield store


@contextmanager
def all_locked(phorge: PhorgeTables) -> Iterator[None]:
    with closing(connect(phorge.server, database=phorge.worker)) as rival, rival.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM worker_activetask FOR UPDATE")
        yield


async def held(store: MysqlStore, count: int) -> list[Task]:
    await store.enqueue([NewTask(task_class="A")] * count)
    return await store.lease(OWNER, count, 60)


async def standing_in_line(store: MysqlStore, rows: list[Task]) -> list[asyncio.Task[int]]:
    """A call for each of these rows, all of them waiting."""
    calls = [asyncio.create_task(store.priority([row.id], 7)) for row in rows]
    await eventually(lambda: len(store._waits._awaited) == len(rows), "all wait")
    return calls


async def test_a_renewal_does_not_stand_behind_the_lines_of_a_slow_server(
    phorge: PhorgeTables, proxy: Proxy, store: MysqlStore
) -> None:
    *rows, other = await held(store, 41)
    with all_locked(phorge):
        calls = await standing_in_line(store, rows)
        proxy.delay = 0.2
        await asyncio.sleep(2)  # looks take long now, and begin anew
        began = time.monotonic()
        (renewed,) = await store.renew([Lease(other.id, OWNER)], 60)
        assert renewed is not None
        assert time.monotonic() - began < 10
    began = time.monotonic()
    assert await asyncio.gather(*calls) == [1] * 40
    assert time.monotonic() - began < 18


async def test_a_server_that_hangs_ends_all_lines_at_once(
    phorge: PhorgeTables, proxy: Proxy, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await held(store, 12)
    with all_locked(phorge):
        calls = await standing_in_line(store, rows)
        monkeypatch.setattr(Connection.run, "__kwdefaults__", {"seconds": 1.0})
        proxy.stall()
        async with asyncio.timeout(8):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        proxy.flow()
    assert {type(end) for end in ends} == {StoreUnavailable}


async def test_a_line_ends_in_time_though_a_look_hangs(
    phorge: PhorgeTables, proxy: Proxy, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_waits, "LOCKED_SECONDS", 2.0)
    rows = await held(store, 3)
    with all_locked(phorge):
        calls = await standing_in_line(store, rows)
        proxy.stall()
        async with asyncio.timeout(5):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        proxy.flow()
    assert {type(end) for end in ends} == {StoreUnavailable}


async def test_a_try_waits_for_all_its_rows_together_no_longer_than_for_one(
    phorge: PhorgeTables, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one row after the other is freed just in time, it would hold them all the while."""
    rows = await held(store, 5)
    waits: list[float] = []
    real = mysql_waits._wait

    async def timed(*arguments: object) -> object:
        began = time.monotonic()
        try:
            return await real(*arguments)  # type: ignore[arg-type]
        finally:
            waits.append(time.monotonic() - began)

    monkeypatch.setattr(mysql_waits, "_wait", timed)
    rivals = [connect(phorge.server, database=phorge.worker) for _ in rows]
    for rival, row in zip(rivals, rows, strict=True):
        with rival.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT id FROM worker_activetask WHERE id = %s FOR UPDATE", (row.id,))
    call = asyncio.create_task(store.priority([row.id for row in rows], 7))
    for rival in rivals:
        await asyncio.sleep(0.7)
        rival.rollback()
        rival.close()
    assert await call == 5
    assert max(waits) < 1.5
