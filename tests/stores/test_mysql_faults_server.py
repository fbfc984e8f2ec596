"""The server dies, hangs, is absent or has no room: calls say why, nothing is lost, and the store goes on by itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pymysql
import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask
from stores import mysql_pool, mysql_session
from stores.mysql import MysqlStore, open_store
from stores.mysql_driver import Connection
from stores.mysql_settings import MysqlSettings
from tests.phorge_php import Php
from tests.phorge_tables import DDL, PhorgeTables, connect
from tests.proxy import Proxy, Way
from tests.servers import MariaDb
from tests.stores.mysql_load import Load
from tests.stores.phorge_state import check_whole, connections, eventually, succeeds

RECOVERY = 5.0
"""Most seconds from a server that is back to a store that works."""


class Tables(PhorgeTables):
    """Phorge's tables on a server that dies now and then."""

    def reconnect(self) -> None:
        """A new connection, after a death."""
        self.close()
        self._connection = connect(self.server, database=self.worker)


@pytest.fixture(scope="module")
def durable() -> Iterator[MariaDb]:
    """A server that keeps what it has answered, whatever happens to it."""
    with MariaDb(durable=True) as server:
        yield server


@pytest.fixture
def tables(durable: MariaDb) -> Iterator[Tables]:
    """Phorge's tables on that server."""
    tables = Tables(durable)
    yield tables
    tables.reconnect()
    tables.drop()
    tables.close()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=(pytest.mark.long, pytest.mark.timeout(600)))])
async def test_a_server_killed_under_load_loses_nothing_and_repeats_nothing(tables: Tables, kills: int) -> None:
    async with open_store(tables.settings(), StoreOptions(patience=0)) as store:
        loads = [Load(store, seed) for seed in range(1, 4)]
        running = asyncio.gather(*(load.run() for load in loads))
        for number in range(kills):
            await asyncio.sleep(0.15 + 0.05 * (number % 5))  # the load runs at full speed
            tables.server.kill()
            await asyncio.sleep(0.05)
            await asyncio.to_thread(tables.server.start)
            back_at = time.monotonic()
            await eventually(lambda at=back_at: all(one.succeeded_at > at for one in loads), "all go on", RECOVERY)  # type: ignore[misc]
        for load in loads:
            load.stopping = True
        await running
        tables.reconnect()
        check_whole(tables)
        enqueued = [task_id for load in loads for task_id in (*load.enqueued, *load.keys.values())]
        ended = [task_id for load in loads for task_id in load.ended]
        known = {
            task_id
            for (task_id,) in tables.execute(
                "SELECT id FROM worker_activetask UNION ALL SELECT id FROM worker_archivetask"
            )
        }
        assert len(set(enqueued)) == len(enqueued), "an id was given twice"
        assert set(enqueued) <= known, "an answered task is lost"
        assert len(set(ended)) == len(ended), "a task ended twice"
        archived = {task_id for (task_id,) in tables.execute("SELECT id FROM worker_archivetask")}
        assert set(ended) <= archived
        ((keyed, keys),) = tables.execute(
            "SELECT COUNT(*), COUNT(DISTINCT dataID) FROM (SELECT dataID, taskClass FROM"
            " worker_activetask UNION ALL SELECT dataID, taskClass FROM worker_archivetask) t WHERE taskClass = 'Keyed'"
        )
        assert keyed == keys == sum(len(load.keys) for load in loads), "a key made two tasks"
        assert sum(load.failures for load in loads) > 0


async def test_a_server_that_hangs_is_an_outage_and_ends_with_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: connections stay open and nothing answers. R029."""
    assert Connection.run.__kwdefaults__ is not None
    monkeypatch.setitem(Connection.run.__kwdefaults__, "seconds", 0.5)
    async with open_store(tables.settings(connect_seconds=0.5), StoreOptions(patience=0)) as store:
        await store.ping()
        tables.server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="no answer in time"):
                await store.enqueue([NewTask(task_class="A")])
            with pytest.raises(StoreUnavailable):
                await store.lease("qr:1", 1, 60)
            assert time.monotonic() - began < 10
        finally:
            tables.server.resume()
        before = {row[0] for row in tables.execute("SELECT id FROM worker_activetask")}
        (task,) = await succeeds(lambda: store.enqueue([NewTask(task_class="B")]), RECOVERY)
        assert task.id not in before
        (leased,) = await succeeds(lambda: store.lease("qr:2", 1, 60, only={task.id}), RECOVERY)
        assert leased.id == task.id
        check_whole(tables)


async def refused(store: MysqlStore) -> str:
    """The reason that a call gives."""
    with pytest.raises(StoreUnavailable) as caught:
        await store.enqueue([NewTask(task_class="A")])
    with pytest.raises(StoreUnavailable):
        await store.ping()
    return caught.value.reason


async def test_a_store_opens_before_its_server_and_its_database_are_there() -> None:
    with ExitStack() as stack:
        server = MariaDb()
        stack.callback(server.close)
        async with open_store(MysqlSettings(socket=server.socket), StoreOptions()) as store:
            assert "cannot connect" in await refused(store)
            await asyncio.to_thread(server.start)
            reason = await refused(store)
            assert "there is no database phabricator_worker" in reason
            other = PhorgeTables(server, "elsewhere")
            stack.callback(other.close)
            assert "queues of other namespaces are there: elsewhere" in await refused(store)
            with closing(connect(server)) as root, root.cursor() as cursor:
                cursor.execute("CREATE DATABASE phabricator_worker CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
                assert "no table" in await refused(store)
                cursor.execute("USE phabricator_worker; " + DDL.read_text())
                while cursor.nextset():
                    pass
                (task,) = await store.enqueue([NewTask(task_class="A")])
                cursor.execute("RENAME TABLE worker_archivetask TO away")
                leased = await succeeds(lambda: store.lease("qr:1", 1, 60), 1)
                assert [row.id for row in leased] == [task.id]
                with pytest.raises(StoreUnavailable, match="worker_archivetask"):
                    await store.cancel([task.id])
                with pytest.raises(StoreUnavailable, match="no table worker_archivetask"):
                    await store.ping()
                cursor.execute("RENAME TABLE away TO worker_archivetask")
            assert await store.cancel([task.id]) != [None]


async def test_a_wrong_password_says_so_and_is_tried_again(phorge: PhorgeTables) -> None:
    phorge.create_account("late", "secret", [f"ALL ON `{phorge.worker}`.*"])
    async with open_store(phorge.settings(user="late", password="wrong"), StoreOptions()) as store:
        reason = await refused(store)
        assert "Access denied" in reason
        assert "wrong" not in reason
        phorge.create_account("late", "wrong", [f"ALL ON `{phorge.worker}`.*"])
        assert len(await store.enqueue([NewTask(task_class="A")])) == 1
    phorge.execute("DROP USER late@localhost")


async def test_a_read_only_server_is_an_outage_with_its_reason(phorge: PhorgeTables) -> None:
    """R024. As during a failover. Reading goes on; the account is one that may not write then, as root may."""
    grants = [f"ALL ON `{phorge.worker}`.*", f"ALL ON `{phorge.companion}`.*"]
    phorge.create_account("queue", "secret", grants)
    async with open_store(phorge.settings(user="queue", password="secret"), StoreOptions(patience=0)) as store:
        (task,) = await store.enqueue([NewTask(task_class="A")])
        phorge.execute("SET GLOBAL read_only = 1")
        try:
            for call in _writes(store, task.id):
                with pytest.raises(StoreUnavailable, match="read-only"):
                    await call()
            assert [row.id for row in await store.list_active(5)] == [task.id]
        finally:
            phorge.execute("SET GLOBAL read_only = 0")
        assert await store.cancel([task.id]) != [None]
        await store.ping()
    phorge.execute("DROP USER queue@localhost")


def _writes(store: MysqlStore, task_id: int) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: store.enqueue([NewTask(task_class="B")]),
        lambda: store.lease("qr:1", 1, 60),
        lambda: store.cancel([task_id]),
        lambda: store.priority([task_id], 5),
        lambda: store.enqueue_once("event", NewTask(task_class="B")),
    ]


async def test_no_room_for_connections_says_so_and_ends_with_it(phorge: PhorgeTables) -> None:
    ((allowed,),) = phorge.execute("SELECT @@max_connections")
    phorge.create_account("queue", "secret", [f"ALL ON `{phorge.worker}`.*", f"ALL ON `{phorge.companion}`.*"])
    async with open_store(phorge.settings(user="queue", password="secret"), StoreOptions()) as store:
        phorge.execute("SET GLOBAL max_connections = 10")
        others = []
        try:
            with suppress(pymysql.OperationalError):
                while True:
                    others.append(connect(phorge.server))
            assert "too many connections" in await refused(store)
            others.pop().close()
            others.pop().close()
            await succeeds(store.ping, 1)
        finally:
            phorge.execute(f"SET GLOBAL max_connections = {allowed}")
            for other in others:
                other.close()
        assert len(await store.enqueue([NewTask(task_class="A")])) == 1
    phorge.execute("DROP USER queue@localhost")


async def test_two_hundred_callers_share_five_connections(phorge: PhorgeTables) -> None:
    """R046. They wait for one another; none is refused, and the server never sees a sixth connection."""
    phorge.create_account("queue", "secret", [f"ALL ON `{phorge.worker}`.*", f"ALL ON `{phorge.companion}`.*"])
    settings = phorge.settings(user="queue", password="secret", connections=5)
    async with open_store(settings, StoreOptions()) as store:
        most = 0

        async def call(number: int) -> int:
            nonlocal most
            (task,) = await store.enqueue([NewTask(task_class=f"Class{number}")])
            most = max(most, connections(phorge, "queue"))
            return task.id

        ids = await asyncio.gather(*(call(number) for number in range(200)))
        assert len(set(ids)) == 200
        assert 1 < most <= 5
    await eventually(lambda: connections(phorge, "queue") == 0, "a closed store leaves no connection")
    phorge.execute("DROP USER queue@localhost")


async def test_large_payloads_come_over_a_slow_line_in_bounded_batches(phorge: PhorgeTables) -> None:
    """R027. About 10 MiB a second; a lease of 64 tasks of 1 MiB takes what fits into one reply, and no half batch."""
    async with open_store(phorge.settings(), StoreOptions()) as store:
        for _ in range(4):
            await store.enqueue([NewTask(task_class="A", data="x" * 2**20) for _ in range(4)])
    async with Proxy(phorge.server.socket) as proxy:
        proxy.delay = 0.006  # for each 64 KiB
        async with open_store(phorge.settings(socket=proxy.socket), StoreOptions()) as store:
            first = await store.lease("qr:1", 64, 60)
            second = await store.lease("qr:2", 64, 60)
    assert [len(first), len(second)] == [8, 8]
    assert {len(row.data or "") for row in (*first, *second)} == {2**20}
    held = phorge.execute("SELECT leaseOwner, COUNT(*) FROM worker_activetask GROUP BY leaseOwner ORDER BY 1")
    assert held == [("qr:1", 8), ("qr:2", 8)]


@pytest.mark.parametrize("way", Way)
async def test_a_line_that_is_deaf_in_one_direction_is_found_out_and_replaced(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """R029, over TCP: nothing is closed, and everything that goes one way is swallowed."""
    assert Connection.run.__kwdefaults__ is not None
    monkeypatch.setitem(Connection.run.__kwdefaults__, "seconds", 0.3)
    async with Proxy((phorge.server.host, phorge.server.port)) as proxy:
        settings = phorge.settings(socket=None, host=proxy.host, port=proxy.port, connect_seconds=0.3)
        async with open_store(settings, StoreOptions()) as store:
            (task,) = await store.enqueue([NewTask(task_class="A")])
            proxy.deaf = {way}
            with pytest.raises(StoreUnavailable):
                await store.cancel([task.id])
            proxy.deaf = set()
            await succeeds(lambda: store.cancel([task.id]), RECOVERY)
            assert phorge.execute("SELECT COUNT(*) FROM worker_archivetask") == [(1,)]
            check_whole(phorge)


async def test_a_call_waits_for_room_within_a_bound(phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """R045. All connections are stuck: the next caller is told so, and the stuck ones end well."""
    monkeypatch.setattr(mysql_pool, "ROOM_SECONDS", 0.2)
    async with (
        Proxy(phorge.server.socket) as proxy,
        open_store(phorge.settings(socket=proxy.socket, connections=2), StoreOptions()) as store,
    ):
        await store.ping()
        proxy.stall()
        stuck = [asyncio.ensure_future(store.get([1])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="all 2 connections were busy"):
            await store.lease("qr:1", 1, 60)
        proxy.flow()
        assert await asyncio.gather(*stuck) == [[None], [None]]


async def test_enqueues_leave_room_and_wait_for_theirs_within_a_bound(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the connections are theirs, however many there are of them."""
    monkeypatch.setattr(mysql_session, "LOCKED_SECONDS", 0.2)
    async with open_store(phorge.settings(connections=2)) as store:
        await store.ping()
        with Php(phorge) as php, php.transaction():
            php.schedule("Slow")  # it holds the counter
            stuck = asyncio.ensure_future(store.enqueue([NewTask(task_class="A")]))
            await asyncio.sleep(0)
            with pytest.raises(StoreUnavailable, match="enqueues before it take their time"):
                await store.enqueue([NewTask(task_class="B")])
            assert await store.lease("qr:1", 1, 60) == []
        assert len(await stuck) == 1
