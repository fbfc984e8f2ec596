"""Whole processes on the streams: API and worker apart, killed, and without their Redis."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from stores.streams_line import BACK_SECONDS
from tests.faults.process import Served, archived, enqueue, ledger, wait_for
from tests.servers import RedisServer
from tests.stores.redis_house import client_of
from tests.stores.streams_house import KEYS


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def served(folder: Path, redis: RedisServer, **settings: Any) -> Served:
    """A process on the file in the folder."""
    chosen: dict[str, Any] = {"STORE": "streams", "RECORD": "sqlite", "REDIS_URL": redis.socket_url}
    return Served(folder, **(chosen | settings))


def active(client: httpx2.Client) -> int:
    return int(client.get("/api/queue/stats").json()["data"]["activeCount"])


def ran_more_than(folder: Path, number: int) -> bool:
    return len(ledger(folder, "end")) > number


def mode(client: httpx2.Client) -> str:
    return str(client.get("/readyz?verbose=1").json()["details"]["dispatch"]["mode"])


def test_a_worker_only_process_runs_what_another_process_takes_in(tmp_path: Path, redis: RedisServer) -> None:
    with (
        served(tmp_path, redis, ROLES="api,sweep", HANDLERS="") as api,
        served(tmp_path, redis, ROLES="worker") as worker,
        api.client() as client,
    ):
        ids = enqueue(client, "SleepWorker", '{"seconds": 0.001}', 200)
        wait_for("the end of all tasks", lambda: not active(client), 30)
        assert {(archived(client, task_id) or {})["result"] for task_id in ids} == {0}
        with worker.client() as probe:
            assert mode(probe) == "streams"
            assert probe.post("/api/queue/enqueue", json={"taskClass": "A"}).status_code == 404
        worker.tell_and_wait()
        api.tell_and_wait()
    assert len(ledger(tmp_path, "end")) == 200


def test_a_killed_worker_loses_no_task(tmp_path: Path, redis: RedisServer) -> None:
    with served(tmp_path, redis, ROLES="api,sweep", HANDLERS="") as api, api.client() as client:
        ids = []
        for _ in range(3):
            with served(tmp_path, redis, ROLES="worker", SLOTS=8) as worker:
                ran = partial(ran_more_than, tmp_path, len(ledger(tmp_path, "end")) + 20)
                ids += enqueue(client, "SleepWorker", '{"seconds": 0.02}', 100)
                wait_for("some tasks", ran, 20)
                worker.process.kill()
        with served(tmp_path, redis, ROLES="worker"):
            wait_for("the end of all tasks", lambda: not active(client), 40)
        rows = [archived(client, task_id) or {} for task_id in ids]
        assert {(row["result"], row["failureCount"]) for row in rows} == {(0, 0)}


def test_a_redis_that_goes_and_comes_back_is_seen_and_disturbs_nobody(tmp_path: Path, redis: RedisServer) -> None:
    with served(tmp_path, redis) as process, process.client() as client:
        wait_for("the streams", lambda: mode(client) == "streams", 10)
        redis.kill()
        ids = enqueue(client, "SleepWorker", '{"seconds": 0.001}', 50)
        wait_for("the end of all tasks", lambda: not active(client), 10)
        assert mode(client) == "record"
        assert client.get("/readyz").status_code == 200
        redis.start()
        began = time.monotonic()
        ids += enqueue(client, "SleepWorker", '{"seconds": 0.001}', 50)  # nobody waits for the streams
        wait_for("the streams again", lambda: mode(client) == "streams", 5)
        assert time.monotonic() - began > BACK_SECONDS - 1  # it has been looked at for a while
        ids += enqueue(client, "SleepWorker", '{"seconds": 0.001}', 50)
        wait_for("the end of all tasks", lambda: not active(client), 5)
        assert sorted(line["id"] for line in ledger(tmp_path)) == ids  # each once
        assert {(archived(client, task_id) or {})["result"] for task_id in ids} == {0}
        process.tell_and_wait()
    assert len(process.events("dispatch lost: tasks are leased from the record")) == 1
    assert len(process.events("dispatch back: tasks are leased from the streams")) == 1


def test_two_installations_on_one_redis_with_one_prefix_work_and_the_second_says_what_to_set(
    tmp_path: Path, redis: RedisServer
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with served(folders[0], redis) as first, first.client() as client:
        enqueue(client, "SleepWorker", '{"seconds": 0.001}')
        with served(folders[1], redis) as second, second.client() as other:
            ids = [enqueue(each, "SleepWorker", '{"seconds": 0.001}', 50) for each in (client, other)]
            wait_for("the end of all tasks", lambda: not active(client) and not active(other), 20)
            wait_for("the reason", lambda: mode(other) == "record", 10)
            for place in ("/readyz?verbose=1", "/api/queue/operations"):
                assert "QUEUE_RUNTIME_STREAMS_PREFIX" in other.get(place).text
            assert mode(client) == "streams"
            second.tell_and_wait()
        first.tell_and_wait()
    assert [len(ledger(folder, "end")) for folder in folders] == [len(ids[0]) + 1, len(ids[1])]


def test_a_group_that_somebody_sets_to_the_end_holds_up_tasks_for_seconds_only(
    tmp_path: Path, redis: RedisServer
) -> None:
    """The process says all the time that its dispatch is healthy, so nobody else would notice."""
    with (
        served(tmp_path, redis, ROLES="api,sweep", HANDLERS="", SWEEP_SECONDS=600) as api,
        api.client() as client,
        client_of(redis) as view,
    ):
        ids = enqueue(client, "SleepWorker", '{"seconds": 0.001}', 20)
        wait_for("the entries", lambda: view.xlen(f"{KEYS}default") == 20, 10)
        view.xgroup_create(f"{KEYS}default", "queue-runtime", "$")
        with served(tmp_path, redis, ROLES="worker", SWEEP_SECONDS=600) as worker:
            worker.wait_for_event("listening")
            wait_for("the end of all tasks", lambda: not active(client), 10)
    assert sorted(line["id"] for line in ledger(tmp_path)) == ids


@pytest.mark.parametrize("name", ["/sent", "/queues", "/behind", "/classes/default", "default"])
def test_a_key_that_somebody_overwrote_ends_no_process(tmp_path: Path, redis: RedisServer, name: str) -> None:
    with served(tmp_path, redis) as process, process.client() as client, client_of(redis) as view:
        wait_for("the streams", lambda: mode(client) == "streams", 10)
        ids = enqueue(client, "SleepWorker", '{"seconds": 0.001}', 20)
        wait_for("the end of all tasks", lambda: not active(client), 10)
        view.delete(f"{KEYS}{name}")
        view.set(f"{KEYS}{name}", "x")
        ids += enqueue(client, "SleepWorker", '{"seconds": 0.001}', 20)
        wait_for("the end of all tasks", lambda: not active(client), 10)
        wait_for("the streams again", lambda: mode(client) == "streams", 10)
        process.tell_and_wait()
    assert sorted(line["id"] for line in ledger(tmp_path)) == ids
