"""Clients are sent to another server while the old one stays up, without a word: it is left all the same."""

import time
from itertools import count

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Task
from stores import mysql_pool
from stores.mysql import MysqlStore, open_store
from tests.phorge_tables import PhorgeTables
from tests.proxy import Proxy
from tests.servers import MariaDb
from tests.stores.phorge_state import succeeds

OWNER = "qr:0badcafe:{}:1@test"


async def test_a_worker_without_work_leaves_a_server_that_is_read_only_now(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that finds nothing writes nothing, and would never learn of it. Root may write all the same."""
    monkeypatch.setattr(mysql_pool, "LOOK_SECONDS", 0.2)
    with MariaDb() as second, PhorgeTables(second) as new:
        async with (
            Proxy(phorge.server.socket) as proxy,
            open_store(phorge.settings(socket=proxy.socket)) as worker,
            open_store(new.settings()) as web,
        ):
            assert await worker.lease(OWNER.format(1), 5, 60) == []
            (task,) = await web.enqueue([NewTask(task_class="A")])
            phorge.execute("SET GLOBAL read_only = 1")
            try:
                proxy._server = second.socket
                assert [row.id for row in await _leased(worker)] == [task.id]
            finally:
                phorge.execute("SET GLOBAL read_only = 0")


async def _leased(worker: MysqlStore) -> list[Task]:
    """What it leases when it has found work, for which it asks for at most 5 s."""
    until, owners = time.monotonic() + 5, count(2)
    found: list[Task] = []
    while not found and time.monotonic() < until:
        found = await succeeds(lambda: worker.lease(OWNER.format(next(owners)), 5, 60))
    return found


async def test_a_connection_is_replaced_when_it_has_become_old(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a server is left that does not even know that it is the old one."""
    async with Proxy(phorge.server.socket) as proxy, open_store(phorge.settings(socket=proxy.socket)) as store:
        await store.ping()
        await store.ping()
        assert proxy.opened == 1
        clock = time.monotonic
        for age, opened in ((0.7, 1), (1.3, 2)):
            until = clock() + age * mysql_pool.AGE_SECONDS
            monkeypatch.setattr(mysql_pool, "IDLE_SECONDS", 2 * mysql_pool.AGE_SECONDS)
            monkeypatch.setattr("stores.mysql_pool.time.monotonic", lambda at=until: at)
            await store.ping()
            monkeypatch.setattr("stores.mysql_pool.time.monotonic", clock)
            assert proxy.opened == opened


async def test_a_read_only_server_can_be_read_and_looked_at_by_a_shadow(phorge: PhorgeTables) -> None:
    async with open_store(phorge.settings()) as store:
        await store.enqueue([NewTask(task_class="A")])
    phorge.execute("SET GLOBAL read_only = 1")
    try:
        async with open_store(phorge.settings()) as store:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.ping()
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.lease(OWNER.format(1), 1, 60)
            assert len(await store.list_active(5)) == (await store.stats()).active == 1
        async with open_store(phorge.settings(), StoreOptions(read_only=True)) as shadow:
            await shadow.ping()
            assert len(await shadow.list_active(5)) == 1
    finally:
        phorge.execute("SET GLOBAL read_only = 0")
