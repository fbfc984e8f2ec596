"""A worker in a process of its own, which reaches no database: it leases and reports over the API of another one."""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.process import Served, archived, check_clean_log, enqueue, ledger, wait_for

TOKEN = "the token of both ends"
LEASE, PATIENCE = 3, 1


@contextmanager
def server(folder: Path, listen: str = "127.0.0.1:0", **more: Any) -> Iterator[tuple[Served, httpx2.Client]]:
    """The process that has the queue, and no worker."""
    settings: dict[str, Any] = {
        "ROLES": "api,sweep",
        "TOKEN": TOKEN,
        "LISTEN": listen,
        "LEASE_SECONDS": LEASE,
        "HANDLERS": "",
    }
    with Served(folder, **(settings | more)) as served, served.client() as client:
        client.headers["X-Service-Token"] = TOKEN
        yield served, client


def worker(folder: Path, client: httpx2.Client, **settings: Any) -> Served:
    """The process that has nothing but an address and a token."""
    folder.mkdir(exist_ok=True)
    url = str(client.base_url)
    chosen: dict[str, Any] = {"STORE": "remote", "REMOTE_URL": url, "REMOTE_TOKEN": TOKEN, "LEASE_SECONDS": LEASE}
    return Served(folder, SQLITE_PATH="", **(chosen | settings))


def active(client: httpx2.Client) -> int:
    return int(client.get("/api/queue/stats").json()["data"]["activeCount"])


def ran(folder: Path, number: int) -> bool:
    """Whether a worker has ended so many runs."""
    return len(ledger(folder, "end")) >= number


def test_a_worker_elsewhere_drains_the_queue(tmp_path: Path) -> None:
    """Follow-ups, retries and threads too; and what arrives while it idles is picked up at once."""
    elsewhere = tmp_path / "elsewhere"
    with server(tmp_path) as (served, client), worker(elsewhere, client) as working:
        ids = [
            *enqueue(client, "SleepWorker", '{"seconds": 0.01}', 100),
            *enqueue(client, "ThreadWorker", "{}", 20),
            *enqueue(client, "FollowWorker", "{}", 20),
            *enqueue(client, "FlakyWorker", "x", 5),
        ]
        wait_for("the end of all tasks", lambda: not active(client), 60)
        ended = [archived(client, one) for one in ids]
        assert {one["result"] for one in ended if one is not None} == {0}
        assert len(ledger(elsewhere)) == 100 + 20 + 20
        with working.client() as probe:
            assert probe.get("/readyz").status_code == 200
            assert probe.get("/api/worker/stats").json()["data"]["processed"] == 165
            assert probe.post("/api/queue/enqueue", json={"taskClass": "A"}).status_code == 404
        (last,) = enqueue(client, "SleepWorker", "{}")
        wait_for("the end of the last task", lambda: archived(client, last), 10)
        working.tell_and_wait()
        served.tell_and_wait()
    assert not list(elsewhere.glob("*.sqlite*"))


def test_work_of_a_killed_worker_elsewhere_runs_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with server(tmp_path) as (served, client):
        with worker(first, client) as working:
            ids = enqueue(client, "SleepWorker", '{"seconds": 60}', 4)
            wait_for("all run", lambda: len(ledger(first)) == 4, 20)
            killed_at = working.kill()
        with worker(second, client, GRACE_SECONDS=0) as working:
            wait_for("all run again", lambda: len(ledger(second)) == 4, LEASE + PATIENCE + 20)
            late = max(line["at"] for line in ledger(second)) - killed_at
            assert late <= LEASE + PATIENCE + 2, f"{late:.2f} s after the kill"
            lost = [client.get(f"/api/queue/tasks/{one}").json()["data"]["lostCount"] for one in ids]
            assert lost == [1] * 4
            working.tell_and_wait()  # what runs is cancelled and given back
        rows = client.get("/api/queue/tasks").json()["data"]
        assert [row.get("leaseOwner") for row in rows] == [None] * 4
        served.tell_and_wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_worker_elsewhere_outlives_restarts_of_its_server(tmp_path: Path, end: signal.Signals) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    elsewhere = tmp_path / "elsewhere"
    accepted: list[int] = []
    with ExitStack() as stack:
        with server(tmp_path, listen) as (served, client):
            working = stack.enter_context(worker(elsewhere, client, MAX_LOST=1000))
            wait_for("the worker's start", lambda: working.events("worker started"), 30)
            served.tell(end)
            served.wait(30)
        for goal in (50, 250):
            with server(tmp_path, listen) as (served, client):
                accepted += enqueue(client, "SleepWorker", '{"seconds": 0.02}', 200)
                wait_for("some of it", partial(ran, elsewhere, goal), 30)
                served.tell(end)
                served.wait(30)
        with server(tmp_path, listen) as (served, client):
            wait_for("the end of all tasks", lambda: not active(client), 60)
            ended = [archived(client, one) for one in accepted]
            assert [(one["result"], one["failureCount"]) for one in ended if one] == [(0, 0)] * 400
            working.tell_and_wait()
            served.tell_and_wait()
    assert working.events("store away")
    assert working.events("store back")
    check_clean_log(working)
