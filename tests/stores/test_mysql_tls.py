"""MariaDB over TCP, in the clear and by TLS, with both drivers: who cannot prove itself is told nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.task import Complete, Lease, NewTask, Settlement, Verdict
from stores.mysql import open_store
from stores.mysql_session import Session
from stores.mysql_settings import DriverName, MysqlSettings
from tests.authority import Authority
from tests.faults.process import Served, archived, enqueue, wait_for
from tests.phorge_tables import PhorgeTables
from tests.proxy import Proxy
from tests.servers import MariaDb
from tests.stores.mysql_tables import open_sessions

VARIABLE = "QUEUE_RUNTIME_MYSQL_TLS_CA"
PAYLOADS = ["x" * 200_000, "{}", "ü☃🂡"]


@pytest.fixture(params=get_args(DriverName))
def driver(request: pytest.FixtureRequest) -> DriverName:
    found: DriverName = request.param
    return found


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def plain() -> Iterator[PhorgeTables]:
    """Phorge's tables on a server without TLS."""
    with MariaDb() as server, PhorgeTables(server) as tables:
        yield tables


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Iterator[PhorgeTables]:
    """The same on a server that has a certificate for its address."""
    with MariaDb(identity=authority.issue("127.0.0.1", "localhost")) as server, PhorgeTables(server) as tables:
        yield tables


def by_tcp(tables: PhorgeTables, driver: DriverName, tls_ca: Path | None = None, port: int = 0) -> MysqlSettings:
    return tables.settings(socket=None, port=port or tables.server.port, driver=driver, tls_ca=tls_ca)


async def cipher(settings: MysqlSettings) -> str:
    """What the connection is encrypted with; empty when it is not."""

    async def ask(session: Session) -> str:
        (answer,) = await session.trip("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return str(answer.rows[0][1])

    async with open_sessions(settings) as sessions:
        return await sessions.play("ask", ask)


async def refusal(settings: MysqlSettings) -> str:
    """Why the store cannot be reached."""
    async with open_store(settings) as store:
        with pytest.raises(StoreUnavailable) as raised:
            await store.ping()
    return str(raised.value)


@pytest.mark.parametrize("tls", [False, True], ids=["in the clear", "encrypted"])
async def test_a_task_goes_its_way_over_tcp(
    plain: PhorgeTables, encrypted: PhorgeTables, authority: Authority, driver: DriverName, tls: bool
) -> None:
    settings = by_tcp(encrypted, driver, authority.file) if tls else by_tcp(plain, driver)
    assert bool(await cipher(settings)) is tls
    (encrypted if tls else plain).empty()
    async with open_store(settings) as store:
        await store.enqueue([NewTask(task_class="A", data=data) for data in PAYLOADS])
        rows = await store.lease("qr:1", 9, 60)
        assert [row.data for row in rows] == PAYLOADS
        settled = await store.settle([Settlement.held(Lease(row.id, "qr:1"), Complete()) for row in rows])
        assert {one.verdict for one in settled} == {Verdict.SETTLED}


async def test_a_server_that_offers_tls_serves_those_who_do_not_ask_for_it(
    encrypted: PhorgeTables, driver: DriverName
) -> None:
    assert await cipher(by_tcp(encrypted, driver)) == ""


async def test_a_certificate_of_another_authority_is_refused(encrypted: PhorgeTables, driver: DriverName) -> None:
    said = await refusal(by_tcp(encrypted, driver, Authority("another one").file))
    assert "certificate verify failed" in said
    assert VARIABLE in said


async def test_a_certificate_for_another_name_is_refused(authority: Authority, driver: DriverName) -> None:
    with MariaDb(identity=authority.issue("database.example")) as server, PhorgeTables(server) as tables:
        said = await refusal(by_tcp(tables, driver, authority.file))
    assert "127.0.0.1" in said
    assert VARIABLE in said


async def test_a_server_without_tls_is_refused_before_a_login_is_sent(
    plain: PhorgeTables, authority: Authority, driver: DriverName
) -> None:
    """As is somebody in between who says so."""
    async with Proxy((plain.server.host, plain.server.port)) as proxy:
        said = await refusal(by_tcp(plain, driver, authority.file, proxy.port))
        assert "the server offers none" in said
        assert VARIABLE in said
        assert (proxy.opened, proxy.trips) == (1, 0)


async def test_a_file_without_certificates_is_named(
    encrypted: PhorgeTables, driver: DriverName, tmp_path: Path
) -> None:
    path = tmp_path / "authorities.pem"
    path.write_text("nothing to trust\n")
    said = await refusal(by_tcp(encrypted, driver, path))
    assert f"{VARIABLE} is {path}" in said


def test_a_process_reaches_its_server_by_host_and_port_and_says_whom_it_does_not_trust(
    encrypted: PhorgeTables, authority: Authority, driver: DriverName, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "STORE": "mysql",
        "SQLITE_PATH": "",
        "MYSQL_HOST": encrypted.server.host,
        "MYSQL_PORT": encrypted.server.port,
        "MYSQL_USER": "root",
        "MYSQL_DRIVER": driver,
    }
    with Served(tmp_path, **settings, MYSQL_TLS_CA=authority.file) as served, served.client() as client:
        (task_id,) = enqueue(client, "SleepWorker")
        wait_for("it has run", lambda: archived(client, task_id), 30)
        served.tell_and_wait()
    with Served(tmp_path, **settings, MYSQL_TLS_CA=Authority().file) as served, served.client() as client:
        wait_for("it says so", lambda: VARIABLE in client.get("/readyz").text, 30)
        served.tell_and_wait()
