"""Whole processes on MySQL while the line, the server or their callers misbehave: they say so, and go on."""

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pymysql
import pytest

from tests.faults.process import Served, archived, check_clean_log, enqueue, ledger, wait_for
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables
from tests.proxy import Proxy
from tests.servers import MariaDb
from tests.stores.phorge_state import TRANSACTIONS_EVERY, check_whole, open_transactions

RECOVERY = 5.0
TASK = {"taskClass": "SleepWorker", "data": "{}"}


@contextmanager
def serving(folder: Path, server: MariaDb, **settings: Any) -> Iterator[tuple[Served, httpx2.Client]]:
    """A process on Phorge's tables, and a client."""
    usual = {"STORE": "mysql", "SQLITE_PATH": "", "MYSQL_SOCKET": server.socket, "MYSQL_USER": "root"}
    with Served(folder, **(usual | settings)) as served, served.client() as client:
        yield served, client


def ready(client: httpx2.Client) -> bool:
    return client.get("/readyz").status_code == 200


def not_ready(client: httpx2.Client) -> str:
    """The reason that readiness gives; empty when it is green."""
    answer = client.get("/readyz")
    return answer.json()["reason"] if answer.status_code == 503 else ""


@pytest.mark.parametrize("seconds", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["refused", "stalled"])
async def test_an_outage_turns_readiness_red_and_ends_by_itself(
    phorge: PhorgeTables, tmp_path: Path, kind: str, seconds: int
) -> None:
    """R023"""
    async with Proxy(phorge.server.socket) as proxy:

        def play() -> None:
            with serving(tmp_path, phorge.server, MYSQL_SOCKET=proxy.socket) as (served, client), Php(phorge) as php:
                wait_for("green", lambda: ready(client), 10)
                loop.call_soon_threadsafe(begin)
                wait_for("red", lambda: not_ready(client), 10)
                assert client.get("/healthz").status_code == 200
                if kind == "refused":
                    answer = client.post("/api/queue/enqueue", json=TASK)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ERR_INTERNAL")
                assert not served.process.poll()
                time.sleep(seconds)  # the outage lasts
                loop.call_soon_threadsafe(end)
                since = time.monotonic()
                task_id = php.schedule("SleepWorker", "{}")
                wait_for("green again", lambda: ready(client), RECOVERY)
                wait_for("its work is done", lambda: archived(client, task_id), RECOVERY - time.monotonic() + since)
                assert client.post("/api/queue/enqueue", json=TASK).status_code == 200
                served.tell_and_wait()

        def begin() -> None:
            if kind == "stalled":
                proxy.stall()
            else:
                proxy.refusing = True
                proxy.cut()

        def end() -> None:
            proxy.refusing = False
            proxy.flow()

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(play)


def test_a_process_starts_before_its_server_and_its_database(tmp_path: Path) -> None:
    server = MariaDb()
    try:
        with serving(tmp_path, server) as (served, client):
            assert "cannot connect" in wait_for("red", lambda: not_ready(client), 10)
            assert client.get("/healthz").json() == {"status": "ok"}
            assert client.post("/api/queue/enqueue", json=TASK).status_code == 503
            server.start()
            wait_for("named", lambda: "there is no database phabricator_worker" in not_ready(client), RECOVERY)
            PhorgeTables(server, "elsewhere").close()
            wait_for(
                "the other namespace", lambda: "elsewhere (set QUEUE_RUNTIME_NAMESPACE)" in not_ready(client), RECOVERY
            )
            tables = PhorgeTables(server)
            tables.close()
            wait_for("green", lambda: ready(client), RECOVERY)
            (task_id,) = enqueue(client, "SleepWorker")
            wait_for("it has run", lambda: archived(client, task_id), RECOVERY)
            served.tell_and_wait()
    finally:
        server.close()


def test_a_server_killed_under_a_process_is_back_within_five_seconds(tmp_path: Path) -> None:
    with MariaDb(durable=True) as server:
        PhorgeTables(server).close()
        with serving(tmp_path, server, LEASE_SECONDS=6) as (served, client):
            accepted: list[int] = []
            for number in range(2):
                accepted += enqueue(client, "SleepWorker", '{"seconds": 0.3}', 100)
                wait_for("they run", lambda number=number: len(ledger(tmp_path)) >= 50 + 100 * number, 10)  # type: ignore[misc]
                server.kill()
                wait_for("red", lambda: not_ready(client), 10)
                server.start()
                wait_for("green", lambda: ready(client), RECOVERY)
                accepted += enqueue(client, "FollowWorker", "{}", 5)
            wait_for("all is done", lambda: all(archived(client, one) for one in accepted), 30, every=0.3)
            assert {(archived(client, one) or {})["result"] for one in accepted} == {0}
            served.tell_and_wait()


def cpu_seconds(served: Served) -> float:
    fields = Path(f"/proc/{served.inner_pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_read_only_server_makes_few_log_lines_and_little_work(phorge: PhorgeTables, tmp_path: Path) -> None:
    """R024. A worker with work to lease, a sweep and callers, all of them refused."""
    phorge.create_account("queue", "secret", [f"ALL ON `{phorge.worker}`.*", f"ALL ON `{phorge.companion}`.*"])
    account = {"MYSQL_USER": "queue", "MYSQL_PASSWORD": "secret"}
    with serving(tmp_path, phorge.server, **account) as (served, client), Php(phorge) as php:
        wait_for("green", lambda: ready(client), 10)
        ids = [php.schedule("SleepWorker", "{}") for _ in range(50)]
        wait_for("all is done", lambda: all(archived(client, one) for one in ids), 10)
        phorge.execute("SET GLOBAL read_only = 1")
        try:
            with Php(phorge) as late:
                ids = [late.schedule("SleepWorker", "{}") for _ in range(50)]
            lines, cpu = len(served.lines), cpu_seconds(served)
            assert client.post("/api/queue/enqueue", json=TASK).status_code == 503
            time.sleep(2)  # the refusal lasts
            said = [line for line in served.lines[lines:] if '"event":"request"' not in line]
            assert 1 <= len(said) <= 12, said
            assert "read-only" in "".join(said)
            assert cpu_seconds(served) - cpu < 1
        finally:
            phorge.execute("SET GLOBAL read_only = 0")
        wait_for("all is done", lambda: all(archived(client, one) for one in ids), RECOVERY + 2)
        served.tell_and_wait()
    phorge.execute("DROP USER queue@localhost")


@pytest.mark.parametrize("seconds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_connections_killed_again_and_again_cost_no_task_and_no_process(
    phorge: PhorgeTables, tmp_path: Path, seconds: int
) -> None:
    """R025"""
    with serving(tmp_path, phorge.server) as (served, client):
        wait_for("green", lambda: ready(client), 10)
        ids = enqueue(client, "SleepWorker", '{"seconds": 0.2}', 200 + 30 * seconds)
        until = time.monotonic() + seconds
        killed = 0
        while time.monotonic() < until:
            own = phorge.execute("SELECT CONNECTION_ID()")[0][0]
            for (connection,) in phorge.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'root'"):
                if connection != own:
                    with suppress(pymysql.Error):  # it may have ended by itself
                        phorge.execute(f"KILL {connection}")
                        killed += 1
            time.sleep(0.2)
        wait_for("all is done", lambda: all(archived(client, one) for one in ids), 60, every=0.3)
        assert killed > seconds
        runs = Counter(line["id"] for line in ledger(tmp_path))
        assert set(runs.values()) == {1}, "no connection's end costs a lease"
        served.tell_and_wait()
    check_whole(phorge)


async def test_connections_that_died_in_their_sleep_are_replaced_before_anybody_notices(
    phorge: PhorgeTables, tmp_path: Path
) -> None:
    """R028. And an idle process opens none."""
    async with Proxy(phorge.server.socket) as proxy:

        def play() -> None:
            with serving(tmp_path, phorge.server, MYSQL_SOCKET=proxy.socket) as (served, client):
                wait_for("green", lambda: ready(client), 10)
                opened = proxy.opened
                time.sleep(2)  # idle
                assert proxy.opened - opened <= 1
                for _ in range(3):
                    asyncio.run_coroutine_threadsafe(cut(), loop).result()
                    with ThreadPoolExecutor(20) as callers:
                        answers = callers.map(lambda _: client.post("/api/queue/enqueue", json=TASK), range(100))
                        assert Counter(answer.status_code for answer in answers) == {200: 100}
                served.tell_and_wait()

        async def cut() -> int:
            return proxy.cut()

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(play)


@pytest.mark.parametrize("number", [150, pytest.param(1000, marks=pytest.mark.long)])
def test_callers_that_reset_their_line_leave_no_transaction_open(
    phorge: PhorgeTables, tmp_path: Path, number: int
) -> None:
    """R047"""
    with serving(tmp_path, phorge.server, ROLES="api") as (served, client):
        wait_for("green", lambda: ready(client), 10)
        host, port = client.base_url.host, client.base_url.port
        assert port is not None
        bodies = {"enqueue": b'{"taskClass":"Reset"}', "lease": b'{"limit":3,"taskClasses":["Reset"]}'}
        for place in range(number):
            route = ("enqueue", "lease")[place % 2]
            with socket.create_connection((host, port)) as line:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
                head = f"POST /api/queue/{route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                line.sendall(f"{head}Content-Length: {len(bodies[route])}\r\n\r\n".encode() + bodies[route])
                time.sleep(0.002 * (place % 3))  # at different moments of the request's life
        for _ in range(20):
            assert client.post("/api/queue/lease", json={"limit": 5}).status_code == 200
            assert client.post("/api/queue/enqueue", json=TASK).status_code == 200
        wait_for("nothing is open", lambda: not open_transactions(phorge), 5, every=TRANSACTIONS_EVERY)
        served.tell_and_wait()
        check_clean_log(served)
    check_whole(phorge)


def test_what_was_enqueued_through_one_process_is_read_at_once_through_another(
    phorge: PhorgeTables, tmp_path: Path
) -> None:
    """R061"""
    with (
        serving(tmp_path, phorge.server, ROLES="api") as (_, writer),
        serving(tmp_path, phorge.server, ROLES="api") as (_, reader),
        ThreadPoolExecutor(16) as callers,
    ):

        def call(number: int) -> int:
            task = writer.post("/api/queue/enqueue", json={"taskClass": f"Class{number}"}).json()["data"]
            answer = reader.get(f"/api/queue/tasks/{task['id']}")
            assert answer.json()["data"]["taskClass"] == f"Class{number}"
            return answer.status_code

        assert Counter(callers.map(call, range(150))) == {200: 150}
