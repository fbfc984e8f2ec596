"""The servers under test are those that the report speaks of; what runs on them beside the runtime does its work."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.backends import Backend, MariaDbTables, RecordAlone, RedisKeys, Subject, open_backend, questions
from benchmarks.runtime import Runtime
from benchmarks.workloads import fill
from tests.phorge_tables import PhorgeTables
from tests.scratch import new_folder

DURABLE = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON", "sync_binlog": "0"}


@pytest.fixture(scope="module")
def mysql() -> Iterator[MariaDbTables]:
    with open_backend("mysql", new_folder("bench")) as backend:
        assert isinstance(backend, MariaDbTables)
        yield backend


def tables(backend: Backend) -> PhorgeTables:
    assert isinstance(backend, MariaDbTables)
    assert backend.tables is not None
    return backend.tables


def test_mariadb_answers_a_commit_when_it_is_on_disk(mysql: MariaDbTables, tmp_path: Path) -> None:
    mysql.fresh(tmp_path)
    found = tables(mysql).execute(f"SHOW VARIABLES WHERE Variable_name IN ({','.join(map(repr, DURABLE))})")
    assert dict(found) == DURABLE


def test_every_measurement_begins_with_empty_tables(mysql: MariaDbTables, tmp_path: Path) -> None:
    first = mysql.fresh(tmp_path)["NAMESPACE"]
    tables(mysql).execute("INSERT INTO worker_taskdata (data) VALUES ('left')")
    second = mysql.fresh(tmp_path)["NAMESPACE"]
    assert first != second
    assert tables(mysql).execute("SELECT data FROM worker_taskdata") == []
    assert tables(mysql).execute(f"SHOW DATABASES LIKE '{first}%'") == []


def test_single_rows_are_drained_to_the_last_one(mysql: MariaDbTables, tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "run", Subject(mysql))
    fill(runtime, "load", 50)
    assert runtime.ask("row_by_row", "3", timeout=60) == b"50"
    assert tables(mysql).execute("SELECT result, COUNT(*) FROM worker_archivetask GROUP BY result") == [(0, 50)]
    assert tables(mysql).execute("SELECT COUNT(*) FROM worker_activetask") == [(0,)]


def test_the_sender_that_plays_php_leaves_ready_rows(mysql: MariaDbTables, tmp_path: Path) -> None:
    sent = dict(json.loads(Runtime(tmp_path / "run", Subject(mysql)).ask("senders", "php", "3", timeout=60)))
    assert [number for number in sent if number >= 0] == [0, 1, 2]
    rows = tables(mysql).execute("SELECT id, taskClass, leaseOwner, leaseExpires, priority FROM worker_activetask")
    assert rows == [(number, "mark", None, None, 2000) for number in range(1, len(sent) + 1)]


def test_the_streams_and_their_record_alone_are_on_one_server(tmp_path: Path) -> None:
    with open_backend("streams", new_folder("bench")) as backend:
        whole = backend.fresh(tmp_path)
        assert whole.keys() == {"MYSQL_SOCKET", "MYSQL_USER", "NAMESPACE", "RECORD", "REDIS_URL"}
        with Redis.from_url(whole["REDIS_URL"]) as client:
            client.set("left", 1)
            alone = RecordAlone(backend).fresh(tmp_path)
            assert client.dbsize() == 0
        assert alone.keys() == {"MYSQL_SOCKET", "MYSQL_USER", "NAMESPACE"}
        assert alone["MYSQL_SOCKET"] == whole["MYSQL_SOCKET"]
        before = questions(RecordAlone(backend))
        tables(backend).execute("SELECT 1")
        after = questions(backend)
        assert before is not None
        assert after == before + 2  # and the question itself


def test_redis_writes_a_file_once_a_second_and_begins_empty(tmp_path: Path) -> None:
    with open_backend("redis", new_folder("bench")) as backend:
        assert isinstance(backend, RedisKeys)
        with Redis(port=backend.port, decode_responses=True) as client:
            client.set("left", 1)
            assert backend.fresh(tmp_path) == {"REDIS_URL": f"redis://127.0.0.1:{backend.port}/0"}
            assert client.dbsize() == 0
            config = client.config_get("append*")
            assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")


def test_the_bare_loop_claims_and_archives_every_task_once(tmp_path: Path) -> None:
    with open_backend("redis", new_folder("bench")) as backend:
        assert isinstance(backend, RedisKeys)
        # not a whole number of batches
        assert Runtime(tmp_path / "run", Subject(backend)).ask("bare_lua", "2345", timeout=60) == b"2345"
        with Redis(port=backend.port, decode_responses=True) as client:
            left = {name: client.type(f"{{bare}}:{name}") for name in ("ready", "owner", "leased")}
            assert set(left.values()) == {"none"}
            assert client.zcard("{bare}:archive") == 2345
            assert set(client.hvals("{bare}:ended")) == {"0"}
