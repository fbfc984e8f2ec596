"""The servers that other tests run on: they start, die, come back with their data, and never outlive the tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from redis import Redis

from tests.backends import Servers
from tests.phorge_tables import PhorgeTables, connect
from tests.servers import MariaDb, MissingServerError, RedisServer, Server, ServerError, find_program

ROW = "INSERT INTO worker_taskdata (data) VALUES ('kept')"

HOLDER = """
import sys
from tests.servers import MariaDb, RedisServer
servers = [MariaDb(), RedisServer()]
for server in servers:
    server.start()
    print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def wait_until(what: str, look: Callable[[], object], seconds: float = 10) -> None:
    """Return as soon as it is true."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


@pytest.fixture(params=[MariaDb, RedisServer])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One of each kind, for this test alone."""
    with request.param() as server:
        yield server


def test_a_missing_program_fails_with_what_to_install() -> None:
    with pytest.raises(MissingServerError, match=r"no-such-server.*apt-get install.* its-package"):
        find_program("no-such-server", "its-package")


def test_a_server_lives_and_dies_as_told(server: Server) -> None:
    assert server.running
    server.kill()
    assert not server.running
    server.start()
    server.pause()
    with pytest.raises(ServerError, match="not ready within"):
        server.wait_until_ready(0.1)
    server.resume()
    server.wait_until_ready()
    server.restart()
    server.pause()
    server.stop()
    assert not server.running
    server.close()
    assert not server.folder.exists()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerError, match="no-such-option"), MariaDb("--no-such-option"):
        pass
    with pytest.raises(ServerError, match="nonsense"), RedisServer("--maxmemory-policy", "nonsense"):
        pass


def test_a_durable_mariadb_keeps_what_it_committed_through_a_kill() -> None:
    with MariaDb(durable=True) as server:
        place = server.socket, server.port
        tables = PhorgeTables(server)
        tables.execute(ROW)
        server.kill()
        tables.close()
        server.start()
        assert (server.socket, server.port) == place
        with closing(connect(server, database="phabricator_worker", tcp=True)) as line, line.cursor() as cursor:
            cursor.execute("SELECT data FROM worker_taskdata")
            assert cursor.fetchall() == (("kept",),)


def test_a_durable_redis_keeps_what_it_answered_through_a_kill() -> None:
    with RedisServer(durable=True) as server:
        for value in (b"1", b"2"):
            with Redis.from_url(server.url) as client:
                client.append("key", value)
            server.kill()
            server.start()
        with Redis.from_url(server.socket_url) as client:
            assert client.get("key") == b"12"


def test_options_given_win_over_the_defaults() -> None:
    with MariaDb("--max-connections=17") as server, closing(connect(server)) as line, line.cursor() as cursor:
        cursor.execute("SELECT @@max_connections, @@sql_mode, @@tx_isolation")
        assert cursor.fetchone() == (17, "STRICT_ALL_TABLES", "REPEATABLE-READ")


def test_servers_do_not_run_as_root(server: Server) -> None:
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, None])
def test_servers_and_folders_are_gone_when_the_tests_end(number: signal.Signals | None) -> None:
    """None: it ends by itself, and forgot to close them."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        shown = [holder.stdout.readline().split() for _ in range(2)]
        places = [place for pid, folder in shown for place in (Path(f"/proc/{pid}"), Path(folder).parent)]
        assert all(place.exists() for place in places)
        if number is not None:
            os.kill(holder.pid, number)
        holder.stdin.close()
        holder.wait(20)
    wait_until("servers and folders are gone", lambda: not any(place.exists() for place in places))


# ---- Phorge's tables


def test_emptied_tables_are_as_if_nothing_had_been_there(mariadb: MariaDb) -> None:
    with PhorgeTables(mariadb, "emptied") as tables:
        tables.empty()  # before there is a companion
        tables.execute(f"""
            CREATE DATABASE {tables.companion};
            CREATE TABLE {tables.companion}.meta SELECT 1 AS version;
            CREATE TABLE {tables.companion}.extra SELECT 1 AS id;
            INSERT INTO lisk_counter VALUES ('worker_activetask', 7);
            {ROW}""")
        tables.empty()
        names = (
            "worker_taskdata",
            "lisk_counter",
            "emptied_queue_runtime.extra",
            "emptied_queue_runtime.meta",
        )
        counts = [tables.execute(f"SELECT count(*) FROM {name}") for name in names]
        assert counts == [[(0,)], [(0,)], [(0,)], [(1,)]]


def test_namespaces_stand_side_by_side(mariadb: MariaDb, phorge: PhorgeTables) -> None:
    with PhorgeTables(mariadb, "other") as other:
        other.execute(ROW)
        assert phorge.execute("SELECT count(*) FROM worker_taskdata") == [(0,)]
        assert other.settings().worker_database == "other_worker"
    assert ("other_worker",) not in phorge.execute("SHOW DATABASES")


def test_an_account_may_do_what_it_was_granted_and_no_more(phorge: PhorgeTables) -> None:
    phorge.create_account("reader", "p'w", [f"SELECT ON {phorge.worker}.*"])
    reader = connect(phorge.server, user="reader", password="p'w", database=phorge.worker)
    with closing(reader), reader.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM worker_activetask")
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            cursor.execute(ROW)


def test_a_session_has_one_server_of_each_kind_and_only_when_asked() -> None:
    with Servers() as servers:
        assert not {"redis", "mariadb"} & vars(servers).keys()
        first = servers.redis
        assert servers.redis is first
        assert servers.redis_client.ping()
        assert "mariadb" not in vars(servers)
    assert not first.running
