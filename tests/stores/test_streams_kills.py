"""A process that dies in the middle of its housekeeping ends nobody else's (R038)."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults.process import Served, archived, enqueue, ledger, wait_for
from tests.servers import RedisServer
from tests.stores.redis_house import client_of
from tests.stores.streams_house import KEYS


@pytest.mark.long
@pytest.mark.timeout(300)
def test_thirty_kills_amid_sweeps_leave_no_guard_behind_and_lose_nothing(tmp_path: Path) -> None:
    """Two processes sweep all the time; one dies at a random moment, the other one delivers what was in its hands."""
    chance = random.Random(38)
    with RedisServer() as redis, client_of(redis) as view:
        settings: dict[str, Any] = {
            "STORE": "streams",
            "RECORD": "sqlite",
            "REDIS_URL": redis.socket_url,
            "SWEEP_SECONDS": 0.1,
            "SLOTS": 4,
            "MAX_LOST": 1000,
        }
        accepted: list[int] = []
        with Served(tmp_path, **settings) as stays, stays.client() as client:
            for _ in range(30):
                with Served(tmp_path, **settings) as dies:
                    dies.wait_for_event("listening")
                    accepted += enqueue(client, "SleepWorker", '{"seconds": 0.02}', 40)
                    ran = len(ledger(tmp_path)) + chance.randrange(40)
                    wait_for("some have begun", lambda ran=ran: len(ledger(tmp_path)) >= ran, 20)  # type: ignore[misc]
                    dies.kill()
            wait_for("all is done", lambda: not client.get("/api/queue/tasks?limit=1").json()["data"], 60, every=0.1)
            rows = [archived(client, task_id) or {} for task_id in accepted]
            assert {(row["result"], row["failureCount"]) for row in rows} == {(0, 0)}
            wait_for("the stream is empty", lambda: not view.xlen(f"{KEYS}default"), 30)
            guards = [key for key in view.scan_iter(f"{KEYS}/filling/*") if view.ttl(key) < 0]
            assert guards == []
            stays.tell_and_wait()
