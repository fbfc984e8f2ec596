"""Rows that somebody else keeps locked for many seconds, under whole processes with everybody at work around them."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.faults.process import Served, wait_for
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables
from tests.stores.phorge_crowd import ANSWER_SECONDS, Crowd, audited
from tests.stores.phorge_state import check_whole

HOLDER = {"X-Lease-Owner": "web1:4711"}
CROWD = 12
"""Callers for one locked row at the same moment: more than a process has connections."""


class Answer(NamedTuple):
    """What a caller got, and when."""

    route: str
    status: int
    at: float


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(240)
def test_rows_that_are_locked_for_long_stall_nobody_and_cost_no_caller_an_error(
    phorge: PhorgeTables, tmp_path: Path, seconds: int
) -> None:
    """Who asks for just such a row gets the answer when it is free, as PHP itself would; everybody else goes on."""
    settings: dict[str, Any] = {
        "STORE": "mysql",
        "SQLITE_PATH": "",
        "MYSQL_SOCKET": phorge.server.socket,
        "MYSQL_USER": "root",
        "LEASE_SECONDS": 6,
        "LOG_LEVEL": "info",
    }
    with ExitStack() as stack:
        stack.enter_context(audited(phorge))
        served = [stack.enter_context(Served(tmp_path, **settings)) for _ in range(2)]
        client = stack.enter_context(served[0].client())
        client.timeout = httpx2.Timeout(ANSWER_SECONDS)
        crowd = Crowd(phorge, [one.client for one in served])
        stack.callback(crowd.join)
        rows = held_rows(client, 6)
        crowd.start(crowd.php_enqueuer, 2)
        crowd.start(crowd.http_enqueuer, 2)
        crowd.start(crowd.consumer, 1)
        crowd.start(crowd.http_operator, 1)
        callers = stack.enter_context(Callers(client))
        with Php(phorge) as rival, rival.transaction():
            for row in rows:
                rival.query("SELECT id FROM worker_activetask WHERE id = %s FOR UPDATE", (row["id"],))
            until = time.monotonic() + seconds
            renewed = callers.ask("renew", receipt(rows[3]) | {"duration": 60})
            waiting = callers.ask_for_each(rows)
            before = counts(phorge, crowd)
            assert renewed.result(ANSWER_SECONDS).status == 200, "nobody can take a locked row from its holder"
            goes_on(lambda: counts(phorge, crowd), before, until)
            assert not any(one.done() for one in waiting)
            unlocked_at = time.monotonic()
        answers = [one.result(ANSWER_SECONDS) for one in waiting]
        assert [one for one in answers if one.status != 200 or one.at < unlocked_at] == []
        assert {rows[0]["id"], rows[1]["id"], rows[2]["id"]} & active(phorge) == set()
        crowd.stop_making.set()
        crowd.start(lambda _: crowd.expire_everything(1), 1)  # so that nobody has to wait for back-offs
        wait_for("all is done", lambda: not active(phorge), 60, every=0.2)
        crowd.join()
        for one in served:
            one.tell_and_wait()
        check(phorge, crowd, served)


def check(phorge: PhorgeTables, crowd: Crowd, served: Sequence[Served]) -> None:
    """Nobody met an error, and each task is archived exactly once."""
    assert crowd.errors == []
    assert {status for status in crowd.statuses if status >= 500} == set()
    assert [line for one in served for line in one.events("request") if line["status"] >= 500] == []
    assert [line for one in served for line in one.lines if '"level":"error"' in line] == []
    check_whole(phorge)
    assert phorge.execute("SELECT task FROM audit.moves GROUP BY task HAVING SUM(step) <> 1") == []


class Callers(ThreadPoolExecutor):
    """Threads that ask for one row each."""

    def __init__(self, client: httpx2.Client) -> None:
        super().__init__(2 * CROWD)
        self._client = client

    def ask(self, route: str, body: Mapping[str, object]) -> Future[Answer]:
        def call() -> Answer:
            status = self._client.post(f"/api/queue/{route}", json=body).status_code
            return Answer(route, status, time.monotonic())

        return self.submit(call)

    def ask_for_each(self, rows: Sequence[Mapping[str, Any]]) -> list[Future[Answer]]:
        """Every kind of change, each of another row; of one of them many at once."""
        priority = {"taskIDs": [rows[4]["id"]], "priority": 7}
        retry = receipt(rows[5]) | {"outcome": "retry", "retryWait": 3600}
        return [
            self.ask("finalize", receipt(rows[0]) | {"duration": 7}),
            self.ask("complete", {"taskID": rows[1]["id"], "duration": 7}),
            self.ask("cancel", {"taskID": rows[2]["id"]}),
            self.ask("settle-batch", {"settlements": [retry]}),
            *(self.ask("priority", priority) for _ in range(CROWD)),
        ]


def held_rows(client: httpx2.Client, count: int) -> list[dict[str, Any]]:
    """Tasks that an HTTP caller has leased, of a class that nobody here runs."""
    tasks = [{"taskClass": "HeldWorker", "data": "{}"} for _ in range(count)]
    assert client.post("/api/queue/enqueue-batch", json={"tasks": tasks}).status_code == 200
    body = {"limit": count, "taskClasses": ["HeldWorker"]}
    rows: list[dict[str, Any]] = client.post("/api/queue/lease", json=body, headers=HOLDER).json()["data"]
    assert len(rows) == count
    return rows


def receipt(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"taskID": row["id"], "leaseOwner": row["leaseOwner"], "leaseExpires": row["leaseExpires"]}


def counts(phorge: PhorgeTables, crowd: Crowd) -> list[int]:
    """What grows while all is well: tasks ended, tasks made over HTTP or by PHP, answers to callers."""
    ((ended,),) = phorge.execute("SELECT COUNT(*) FROM audit.moves WHERE step = 1")
    return [int(ended), len(crowd.made), sum(crowd.statuses.values())]


def goes_on(look: Callable[[], list[int]], before: list[int], until: float) -> None:
    """All of it grows, second by second, until then."""
    while time.monotonic() < until:
        wait_for(
            f"everybody goes on after {before}",
            lambda: all(now > then for now, then in zip(look(), before, strict=True)),  # noqa: B023  called at once
            20,
            every=0.1,
        )
        before = look()
        time.sleep(min(1.0, max(until - time.monotonic(), 0.0)))


def active(phorge: PhorgeTables) -> set[int]:
    return {task for (task,) in phorge.execute("SELECT id FROM worker_activetask")}
