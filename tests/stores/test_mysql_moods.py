"""Whatever number a server, plugin or proxy refuses with: an outage that passes, and no outcome becomes another."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pymysql.constants import ER
from pymysql.err import DataError, InternalError, MySQLError, OperationalError, ProgrammingError

from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Settled, Settlement, Verdict
from stores import mysql_driver
from stores.mysql import MysqlStore, open_store
from stores.mysql_errors import Kind, translate
from stores.mysql_settings import MysqlSettings
from tests.faults.process import Served, wait_for
from tests.phorge_tables import PhorgeTables
from tests.servers import MariaDb
from tests.stores.test_mysql_faults_errors import Refusals

OWNER = "qr:0badcafe:1:1@test"
MOODS = (1036, 1047, 1180, 1197, 1206, 1452, 1644, 1874, 3032, 3098, 3101, 4025, 4151, 9001, 29999)
"""Numbers of servers, plugins, triggers and proxies; the last ones nobody has yet."""

AT_LOGIN = (*MOODS, 1042, 1043, 1129, 1130, 1820, 1862, 3118, 1064, 1213, 1062)


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions(patience=0)) as store:
        await store.ping()
        yield store


@pytest.fixture
def refusals(phorge: PhorgeTables, store: MysqlStore) -> Iterator[Refusals]:
    refusals = Refusals(phorge)
    yield refusals
    refusals.remove()


async def passes(call: Callable[[], Awaitable[object]]) -> None:
    """The call happens, or is refused as in an outage."""
    with suppress(StoreUnavailable):
        await call()


@pytest.mark.parametrize("number", MOODS)
async def test_a_call_that_the_server_refuses_is_played_again_or_an_outage(
    store: MysqlStore, refusals: Refusals, number: int
) -> None:
    refusals.refuse(1, number)
    await passes(lambda: store.enqueue([NewTask(task_class="A")]))
    refusals.refuse(0, 0)
    await store.enqueue([NewTask(task_class="A")])
    refusals.refuse(1, number)
    await passes(lambda: store.lease(OWNER, 1, 60))
    refusals.refuse(0, 0)
    (row,) = await store.lease(OWNER, 1, 60)
    outcome = Settlement.held(Lease(row.id, OWNER), Complete(5))
    refusals.refuse(1, number)
    await passes(lambda: store.settle([outcome]))
    refusals.refuse(0, 0)
    (settled,) = await store.settle([outcome])
    assert settled.verdict in {Verdict.SETTLED, Verdict.REPLAYED}


@pytest.mark.parametrize("number", MOODS)
async def test_a_success_stays_one_whatever_the_server_says_meanwhile(
    store: MysqlStore, refusals: Refusals, phorge: PhorgeTables, number: int
) -> None:
    await store.enqueue([NewTask(task_class="A")])
    (row,) = await store.lease(OWNER, 2, 60)
    settler, told = Settler(store, clock=lambda: 0.0), list[Settled]()
    settler.submit(Settlement.held(Lease(row.id, OWNER), Complete(5)), told.append)
    refusals.refuse(1, number)
    await settler.round()
    refusals.refuse(0, 0)
    settler._hurry()
    await settler.round()
    assert [one.archived.result for one in told if one.archived is not None] == [0]
    assert phorge.execute("SELECT result FROM worker_archivetask") == [(0,)]


@pytest.mark.parametrize("number", AT_LOGIN)
async def test_a_server_that_lets_nobody_in_is_an_outage_with_its_words(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def refused(settings: MysqlSettings) -> mysql_driver.Connection:
        raise OperationalError(number, "injected")

    await store.enqueue([NewTask(task_class="A")])
    with monkeypatch.context() as patch:
        patch.setattr(mysql_driver, "_aiomysql", refused)
        store._sessions._pool.forget()
        for call in (store.ping, lambda: store.lease(OWNER, 1, 60), lambda: store.enqueue([NewTask(task_class="A")])):
            with pytest.raises(StoreUnavailable, match="injected"):
                await call()
    assert len(await store.lease(OWNER, 5, 60)) == 1


@pytest.mark.parametrize(
    ("trouble", "remedy"),
    [("ACCOUNT LOCK", "ACCOUNT UNLOCK"), ("PASSWORD EXPIRE", "IDENTIFIED BY 'x'")],
    ids=["account locked", "password expired"],
)
def test_a_process_outlives_what_is_done_to_its_account(
    phorge: PhorgeTables, tmp_path: Path, trouble: str, remedy: str
) -> None:
    phorge.create_account("queue", "x", ["ALL ON *.*"])
    account = {"MYSQL_SOCKET": phorge.server.socket, "MYSQL_USER": "queue", "MYSQL_PASSWORD": "x"}
    with Served(tmp_path, STORE="mysql", SQLITE_PATH="", **account) as served, served.client() as client:
        wait_for("green", lambda: client.get("/readyz").status_code == 200, 10)
        phorge.execute(f"ALTER USER queue@localhost {trouble}; KILL USER queue@localhost")
        wait_for("red", lambda: client.get("/readyz").status_code == 503, 10)
        assert client.get("/readyz").json()["reason"]
        assert client.post("/api/queue/enqueue", json={"taskClass": "A"}).status_code == 503
        phorge.execute(f"ALTER USER queue@localhost {remedy}")
        wait_for("green again", lambda: client.get("/readyz").status_code == 200, 10)
        served.tell_and_wait()
    phorge.execute("DROP USER queue@localhost")


async def test_a_server_whose_engine_takes_no_writes_is_an_outage() -> None:
    with MariaDb() as server, closing(PhorgeTables(server)) as phorge:
        async with open_store(phorge.settings(), StoreOptions()) as store:
            await store.enqueue([NewTask(task_class="A")])
            server.stop()
            server.arguments = ("--innodb-read-only",)
            server.start()
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.enqueue([NewTask(task_class="B")])
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.lease(OWNER, 1, 60)
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.ping()
            server.stop()
            server.arguments = ()
            server.start()
            assert len(await store.lease(OWNER, 5, 60)) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OperationalError(29999, "?"), Kind.AWAY),
        (InternalError(999, "?"), Kind.AWAY),
        (DataError(ER.DATA_TOO_LONG, "?"), Kind.INVALID),
        (OperationalError(3101, "?"), Kind.REPLAY),
        (OperationalError(9006, "?"), Kind.LOST),
        (ProgrammingError(ER.PARSE_ERROR, "?"), None),
        (OperationalError(1136, "?"), None),
    ],
)
def test_only_faults_of_our_own_statements_are_bugs(error: MySQLError, kind: Kind | None) -> None:
    found = translate(error)
    assert (None if found is None else found.kind) is kind


async def test_a_value_that_has_no_place_in_a_column_is_refused_as_invalid(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    phorge.execute("ALTER TABLE worker_activetask MODIFY taskClass VARCHAR(5) NOT NULL")
    try:
        with pytest.raises(InvalidRequest, match="too long"):
            await store.enqueue([NewTask(task_class="LongerThanThat")])
    finally:
        phorge.execute("ALTER TABLE worker_activetask MODIFY taskClass VARCHAR(64) NOT NULL")
