"""A real process that delegates, and is killed: PHP never runs one task twice at one time, and nothing is lost."""

import asyncio
import random
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conduit import stub
from tests.conduit.stub import Call, Early, Http, StubPhp
from tests.conduit.threaded import phorge
from tests.faults.process import Served, archived, check_clean_log, enqueue, wait_for


def serving(folder: Path, php: StubPhp, **settings: object) -> Served:
    """A process that delegates to the stub."""
    phorge = {"CONDUIT_URL": php.url, "CONDUIT_TOKEN": stub.TOKEN, "CONDUIT_HOST": stub.HOST}
    return Served(folder, wrapper=(), MAX_LOST=1000, **phorge, **settings)


def rows(folder: Path) -> dict[int, tuple[int | None, int]]:
    """Result and failures of each task in the file, read while no process has it."""
    with closing(sqlite3.connect(folder / "queue.sqlite")) as database:
        found = database.execute("SELECT id, result, failure_count FROM task").fetchall()
    assert len({row[0] for row in found}) == len(found)
    return {task_id: (result, failures) for task_id, result, failures in found}


LEASE_SECONDS = 3


@pytest.mark.parametrize(
    ("locks", "class_seconds", "apart"), [(False, 9, 9), (True, 5, LEASE_SECONDS)], ids=["fork", "drop-in"]
)
def test_kills_at_any_instant_and_lost_answers_run_nothing_twice_at_once_and_lose_nothing(
    tmp_path: Path, locks: bool, class_seconds: int, apart: int
) -> None:
    """No run is asked for again before its class must have ended, or a lock has had its time.

    Half of the first answers are lost while PHP goes on, and each process is killed in the middle of runs that last
    longer than its own short lease.
    """
    chance = random.Random(20240609)

    async def work(call: Call) -> dict[str, Any] | Http | Early:
        seconds = chance.choice((0, 0.02, 0.5, class_seconds - 1.5))
        if len(php.asked[call.params["taskID"]]) == 1 and chance.random() < 0.5:
            if seconds:
                return Early(chance.choice([stub.NGINX_TIMEOUT, stub.PHP_CUT_OFF, stub.HANG_UP]), 0.01, seconds)
            return stub.EXIT
        await asyncio.sleep(seconds)
        return {"result": "success", "duration": 5}

    php = StubPhp()
    php.locks = locks
    php.work = work
    php.lease_durations["PhpWorker"] = class_seconds
    serve = partial(serving, tmp_path, php, CONDUIT_CONCURRENCY=8, LEASE_SECONDS=LEASE_SECONDS)
    accepted: list[int] = []
    with phorge(php):
        for _ in range(4):
            with serve() as served, served.client() as client:
                accepted += enqueue(client, "PhpWorker", "7", 10)
                served.wait_for_event("Phorge runs tasks")
                time.sleep(chance.uniform(0.1, 1.2))  # the random instant
                served.kill()
        with serve() as served, served.client() as client:
            wait_for("all is done", lambda: not client.get("/api/queue/tasks?limit=1").json()["data"], 90, every=0.2)
            served.tell_and_wait()
    gaps = [later - earlier for times in php.asked.values() for earlier, later in pairwise(times)]
    assert len(gaps) > 12  # there was something to go wrong
    assert min(gaps) >= apart
    assert php.doubled == set()
    assert (php.busy > 0) is locks
    assert rows(tmp_path) == dict.fromkeys(accepted, (0, 0))
    assert set(php.ended) == set(accepted)


def test_a_run_that_outlives_its_process_and_its_lease_is_not_begun_again_while_php_holds_the_lock(
    tmp_path: Path,
) -> None:
    release = threading.Event()

    async def outlive(call: Call) -> dict[str, Any]:
        if len(php.runs) == 1:
            await asyncio.to_thread(release.wait, 60)
        return {"result": "success"}

    php = StubPhp()
    php.locks = True
    php.work = outlive
    with phorge(php):
        with serving(tmp_path, php) as served, served.client() as client:
            (task_id,) = enqueue(client, "PhpWorker")
            wait_for("PHP runs it", lambda: php.runs == [task_id], 10)
            served.kill()
        with serving(tmp_path, php) as served, served.client() as client:
            wait_for("it is tried again", lambda: php.phases().count("execute") >= 2, 20)
            assert php.runs == [task_id]
            release.set()
            wait_for("it is done", lambda: archived(client, task_id), 20)
            served.tell_and_wait()
    assert (php.runs, php.doubled) == ([task_id, task_id], set())
    assert rows(tmp_path) == {task_id: (0, 0)}


def test_the_grace_ends_and_php_goes_on_so_the_row_waits_for_the_lease_of_its_class(tmp_path: Path) -> None:
    async def slow(call: Call) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"result": "success"}

    php = StubPhp()
    php.work = slow
    with phorge(php):
        with serving(tmp_path, php, GRACE_SECONDS=0.2) as served, served.client() as client:
            (task_id,) = enqueue(client, "PhpWorker")
            wait_for("PHP runs it", lambda: php.runs == [task_id], 10)
            served.tell_and_wait()
        with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as database:
            owner, expires = database.execute("SELECT owner, expires FROM task").fetchone()
    assert owner == "(unknown)"
    assert 7100 <= expires - time.time() <= 7200


def test_readiness_and_metrics_tell_of_a_phorge_that_cannot_run_tasks_and_of_its_repair(tmp_path: Path) -> None:
    php = StubPhp()
    php.broken = stub.NO_METHOD
    with phorge(php), serving(tmp_path, php) as served, served.client() as client:
        (task_id, native) = [*enqueue(client, "PhpWorker"), *enqueue(client, "SleepWorker")]
        loud = served.wait_for_event("Phorge cannot run tasks, none is leased for it")
        assert "queue-runtime phorge install" in loud["fix"]
        wait_for("the native task is done", lambda: archived(client, native), 10)
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert "does not exist" in ready.json()["reason"]
        assert "queue_runtime_conduit_ready 0.0" in client.get("/metrics").text
        assert archived(client, task_id) is None
        assert stub.TOKEN not in served.log
        served.tell_and_wait()
    php.broken = None
    with phorge(php), serving(tmp_path, php) as served, served.client() as client:
        wait_for("the task is done", lambda: archived(client, task_id), 10)
        assert client.get("/readyz").status_code == 200
        figures = client.get("/metrics").text
        assert "queue_runtime_conduit_ready 1.0" in figures
        assert 'queue_runtime_conduit_calls_total{ending="answered"} 3.0' in figures
        assert client.get("/api/worker/stats").json()["data"]["supported"][-1] == "*"
        served.tell_and_wait()
        check_clean_log(served)


def test_readiness_and_metrics_tell_of_a_class_that_waits_and_stay_green_for_the_others(tmp_path: Path) -> None:
    async def refuse(call: Call) -> Http:
        return stub.error("ERR-WORKER-CLASS", "This task class may not be run here.")

    php = StubPhp()
    php.work = refuse
    with phorge(php), serving(tmp_path, php) as served, served.client() as client:
        enqueue(client, "PhpWorker")

        def held() -> dict[str, Any]:
            ready = client.get("/readyz?verbose=1")
            assert ready.status_code == 200
            found: dict[str, Any] = ready.json()["details"]["conduit"]
            return found if found["held"] else {}

        details = wait_for("the class waits", held, 10)
        assert "ERR-WORKER-CLASS" in details["held"]["PhpWorker"]
        assert (details["open"], details["setbacks"]) == (True, {"class": 1})
        figures = client.get("/metrics").text
        assert 'queue_runtime_conduit_held{task_class="PhpWorker"} 1.0' in figures
        assert 'queue_runtime_conduit_setbacks_total{why="class"} 1.0' in figures
        served.tell_and_wait()


def test_the_gateway_of_a_real_process_passes_calls_on_beside_the_queue(tmp_path: Path) -> None:
    php = StubPhp()
    with (
        phorge(php),
        Served(tmp_path, GATEWAY=1, GATEWAY_URL=php.url, TOKEN="gate-token") as served,
        served.client() as client,
    ):
        token = {"X-Service-Token": "gate-token"}
        answer = client.post("/api/conduit.ping", data={"params": "{}", "output": "json"}, headers=token)
        assert answer.json()["result"] == "conduit.ping was called"
        assert client.post("/api/conduit.ping").json()["error_code"] == "ERR-CONDUIT-AUTH"
        assert client.get("/api/queue/stats", headers=token).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert 'route="/api/{method}",status="200"' in client.get("/metrics").text
        served.tell_and_wait()


def test_without_the_switch_there_is_no_gateway(tmp_path: Path) -> None:
    php = StubPhp()
    with phorge(php), serving(tmp_path, php) as served, served.client() as client:
        assert client.post("/api/conduit.ping").json() == {
            "error": {"code": "ERR_NOT_FOUND", "message": "no such path"}
        }
        served.tell_and_wait()
