"""`QUEUE_RUNTIME_SHADOW=1 queue-runtime serve` on every store: it reports, and leaves the store as it was."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends import Servers
from tests.cli.commands import run
from tests.faults.process import Served, check_clean_log, enqueue, wait_for
from tests.phorge_tables import PhorgeTables

KEPT_BY_THE_BELL = "quiet"
"""A key of the Redis store that says whether listeners were told; a listener deletes it."""


def file_of(folder: Path) -> list[str]:
    """Everything in the file."""
    with closing(sqlite3.connect(folder / "queue.sqlite")) as database:
        return list(database.iterdump())


def fill(folder: Path, **settings: object) -> None:
    """Some tasks that a worker would take, enqueued by a process that has no worker."""
    with Served(folder, wrapper=(), ROLES="api", **settings) as served, served.client() as client:
        enqueue(client, "SleepWorker", count=3)
        enqueue(client, "SomebodysWorker")
        served.tell_and_wait()


def look_on(folder: Path, **settings: object) -> None:
    """A shadow, until it has reported twice and has refused a task."""
    with Served(folder, wrapper=(), SHADOW=1, **settings) as served, served.client() as client:
        report = served.wait_for_event("shadow report")
        assert (report["would_run"], report["nobody_here"]) == ({"SleepWorker": 3}, {"SomebodysWorker": 1})
        wait_for("another report", lambda: len(served.events("shadow report")) > 1, 20)
        assert client.post("/api/queue/enqueue", json={"taskClass": "A"}).json()["error"]["code"] == "ERR_SHADOW"
        assert client.get("/readyz").status_code == 200
        assert "SleepWorker" in client.get("/api/worker/stats").json()["data"]["supported"]
        unserved = 'queue_runtime_unserved_waiting_tasks{task_class="SomebodysWorker"} 1.0'
        assert unserved in client.get("/metrics").text
        served.tell_and_wait()
        check_clean_log(served)


def test_a_file_stays_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path)
    before = file_of(tmp_path)
    look_on(tmp_path, READY_SELFTEST=0)
    assert file_of(tmp_path) == before


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    variables = {"SQLITE_PATH": str(tmp_path / "queue.sqlite"), "SHADOW": "1", "LISTEN": "127.0.0.1:0"}
    done = run("serve", folder=tmp_path, variables=variables)
    assert (done.returncode, "a process that only reads makes none" in done.stderr) == (1, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_keys_stay_as_they_were(tmp_path: Path, servers: Servers) -> None:
    client = servers.redis_client
    client.flushall()

    def keys() -> dict[str, object]:
        names = sorted(os.fsdecode(name) for name in client.keys("*"))
        return {name: client.dump(name) for name in names if not name.endswith(KEPT_BY_THE_BELL)}

    settings = {"STORE": "redis", "SQLITE_PATH": "", "REDIS_URL": servers.redis.socket_url}
    fill(tmp_path, **settings)
    before = keys()
    look_on(tmp_path, **settings)
    assert keys() == before


def test_of_streams_the_record_alone_is_opened(tmp_path: Path, servers: Servers) -> None:
    fill(tmp_path)
    servers.redis_client.flushall()
    settings = {"STORE": "streams", "RECORD": "sqlite", "REDIS_URL": servers.redis.socket_url}
    before = file_of(tmp_path)
    look_on(tmp_path, **settings)
    assert file_of(tmp_path) == before
    assert servers.redis_client.keys("*") == []


@pytest.mark.parametrize("command", [["init"], ["doctor", "--store", "--repair"], ["selftest"]], ids=" ".join)
@pytest.mark.parametrize("store", ["sqlite", "mysql", "redis", "streams", "remote"])
def test_no_command_writes_for_a_shadow(tmp_path: Path, servers: Servers, store: str, command: list[str]) -> None:
    servers.redis_client.flushall()
    with PhorgeTables(servers.mariadb, "untouched") as tables:
        redis = {"REDIS_URL": servers.redis.socket_url}
        mysql = {"MYSQL_SOCKET": servers.mariadb.socket, "MYSQL_USER": "root", "NAMESPACE": tables.namespace}
        of_store = {
            "sqlite": {"SQLITE_PATH": str(tmp_path / "queue.sqlite")},
            "mysql": mysql,
            "redis": redis,
            "streams": mysql | redis,
            "remote": {"REMOTE_URL": "http://127.0.0.1:1"},
        }
        done = run(*command, folder=tmp_path, variables={"STORE": store, "SHADOW": "1"} | of_store[store])
        there = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        assert tables.execute(there, (tables.companion,)) == []
    assert (done.returncode, done.stdout, "QUEUE_RUNTIME_SHADOW=1 is set" in done.stderr) == (1, "", True), done.stderr
    assert list(tmp_path.iterdir()) == []
    assert servers.redis_client.keys("*") == []


@pytest.mark.parametrize("store", ["sqlite", "mysql", "redis"])
def test_the_doctor_only_looks(tmp_path: Path, servers: Servers, store: str) -> None:
    servers.redis_client.flushall()
    with PhorgeTables(servers.mariadb, "untouched") as tables:
        mysql = {"MYSQL_SOCKET": servers.mariadb.socket, "MYSQL_USER": "root", "NAMESPACE": tables.namespace}
        of_store = {
            "sqlite": {"SQLITE_PATH": str(tmp_path / "queue.sqlite")},
            "mysql": mysql,
            "redis": {"REDIS_URL": servers.redis.socket_url},
        }
        run("doctor", "--store", folder=tmp_path, variables={"STORE": store, "SHADOW": "1"} | of_store[store])
        there = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        assert tables.execute(there, (tables.companion,)) == []
    assert list(tmp_path.iterdir()) == []
    assert servers.redis_client.keys("*") == []


def test_a_gateway_contradicts_it(tmp_path: Path) -> None:
    """It would pass worker.execute on to Phorge."""
    variables = {
        "SQLITE_PATH": str(tmp_path / "queue.sqlite"),
        "LISTEN": "127.0.0.1:0",
        "SHADOW": "1",
        "GATEWAY": "1",
        "GATEWAY_URL": "http://phorge",
    }
    done = run("serve", folder=tmp_path, variables=variables)
    assert (done.returncode, "QUEUE_RUNTIME_SHADOW=1 never does" in done.stderr) == (2, True), done.stderr
