"""A whole process on a Redis that dies, hangs, refuses or cuts lines: it says so briefly, and goes on by itself."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from tests.faults.process import Served, archived, enqueue, ledger, wait_for
from tests.servers import RedisServer
from tests.stores.redis_house import client_of

pytestmark = pytest.mark.xdist_group("redis outages")  # they share a process

RECOVERY = 5.0
TASK = {"taskClass": "SleepWorker", "data": "{}"}


class Running(NamedTuple):
    """One process with its server, and a client of it."""

    server: RedisServer
    served: Served
    client: httpx2.Client
    folder: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """It lives through all tests of this module, and ends well after them."""
    folder = tmp_path_factory.mktemp("outages")
    with RedisServer(durable=True) as server:
        url = f"{server.url}?socket_timeout=0.5"
        with Served(folder, STORE="redis", SQLITE_PATH=None, REDIS_URL=url) as served, served.client() as client:
            wait_for("green", lambda: ready(client), 10)
            yield Running(server, served, client, folder)
            served.tell_and_wait()


def ready(client: httpx2.Client) -> bool:
    return client.get("/readyz").status_code == 200


def all_succeeded(client: httpx2.Client, ids: list[int]) -> bool:
    return all((archived(client, task_id) or {}).get("result") == 0 for task_id in ids)


def cpu_seconds(served: Served) -> float:
    fields = Path(f"/proc/{served.inner_pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def become_a_replica(server: RedisServer) -> None:
    with client_of(server) as client:
        client.replicaof("127.0.0.1", 1)  # of nobody: what it has stays


def become_a_master(server: RedisServer) -> None:
    with client_of(server) as client:
        client.replicaof("NO", "ONE")


Act = Callable[[RedisServer], None]
OUTAGES: dict[str, tuple[Act, Act]] = {
    "killed": (RedisServer.kill, RedisServer.start),
    "refusing": (become_a_replica, become_a_master),
    "hanging": (RedisServer.pause, RedisServer.resume),
}


def about_it(lines: list[str]) -> list[str]:
    """What is no line of a request."""
    return [line for line in lines if '"event":"request"' not in line]


@pytest.mark.parametrize("kind", ["killed", "refusing", pytest.param("hanging", marks=pytest.mark.long)])
def test_an_outage_is_told_in_few_words_and_ends_by_itself(running: Running, kind: str) -> None:
    """R023, R024, R029. Tasks run when it begins, and callers keep calling."""
    server, served, client, folder = running
    begin, end = OUTAGES[kind]
    ids = enqueue(client, "SleepWorker", '{"seconds": 0.05}', 60)
    wait_for("some run", lambda: any(line["id"] in ids for line in ledger(folder)), 10)
    lines, cpu = len(served.lines), cpu_seconds(served)
    begin(server)
    with ThreadPoolExecutor(3) as callers:
        enqueued = callers.submit(client.post, "/api/queue/enqueue", json=TASK)
        probed = callers.submit(client.get, "/readyz")
        assert client.get("/healthz").json() == {"status": "ok"}
        time.sleep(1)  # the outage lasts
        answer = enqueued.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ERR_INTERNAL")
        assert probed.result().status_code == 503
    wait_for("a line about it", lambda: about_it(served.lines[lines:]), RECOVERY)
    said = about_it(served.lines[lines:])
    assert len(said) <= 15, said
    assert cpu_seconds(served) - cpu < 1
    assert served.process.poll() is None
    end(server)
    since = time.monotonic()
    wait_for("green again", lambda: ready(client), RECOVERY)
    (task_id,) = enqueue(client, "SleepWorker")
    wait_for("new work is done", lambda: archived(client, task_id), RECOVERY - time.monotonic() + since)
    wait_for("all is done", lambda: all_succeeded(client, ids), 15, every=0.1)
    assert all((archived(client, one) or {})["failureCount"] == 0 for one in ids)


@pytest.mark.parametrize("seconds", [0.6, pytest.param(20, marks=pytest.mark.long)])
def test_lines_cut_again_and_again_end_no_process_and_cost_no_task(running: Running, seconds: float) -> None:
    """R025"""
    server, _, client, folder = running
    ids = enqueue(client, "SleepWorker", '{"seconds": 0.02}', min(1000, round(100 + 50 * seconds)))
    until = time.monotonic() + seconds
    with client_of(server) as other:
        while time.monotonic() < until:
            other.client_kill_filter(_type="normal", skipme=True)
            other.client_kill_filter(_type="pubsub", skipme=True)
            time.sleep(0.1)
    wait_for("all is done", lambda: all_succeeded(client, ids), 20 + seconds, every=0.1)
    ended = Counter(line["id"] for line in ledger(folder, "end"))
    assert {ended[task_id] for task_id in ids} == {1}
