"""A process that dies in the middle of a step of the dispatch loses no task, and ends nobody else's work (R038)."""

import asyncio
import random
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.task import MAX_LIST, Result
from tests.faults.process import Served, archived, enqueue, ledger, wait_for
from tests.runtime.harness import Worker
from tests.servers import RedisServer
from tests.stores.redis_house import client_of
from tests.stores.streams_dying import LEASE_SECONDS, OPTIONS, STEPS, TENDING
from tests.stores.streams_house import KEYS, add, open_house, until
from tests.stores.test_redis_versions import ROOT
from tests.stores.test_streams_worker import Log, drained

IN_CI = {"the record has given it tasks", "it is to take entries away", "it has enqueued"}


def some_long(steps: Iterable[str]) -> list[Any]:
    return [step if step in IN_CI else pytest.param(step, marks=pytest.mark.long) for step in steps]


@pytest.mark.parametrize("step", some_long(STEPS))
async def test_three_that_die_when(tmp_path: Path, redis_server: RedisServer, step: str) -> None:
    """What each had in its hands runs to its end elsewhere, when its lease is over at the latest."""
    async with open_house(tmp_path, redis_server) as house:
        store, log = await house.store(options=OPTIONS, tending=TENDING), Log()
        await add(store, number=30)
        command = [sys.executable, "-m", "tests.stores.streams_dying", str(house.path), house.url, step]
        dying = [await asyncio.create_subprocess_exec(*command, str(3 + number), cwd=ROOT) for number in range(3)]
        codes = await asyncio.gather(*[process.wait() for process in dying])
        assert codes == [-signal.SIGKILL] * 3
        async with Worker(store, log.registry, slots=8, lease_seconds=LEASE_SECONDS, patience=0).running():
            await drained(store, seconds=10)
            await until(house.is_empty)
        rows = await store.list_archived(MAX_LIST)
        assert len(rows) >= 30
        assert [row.id for row in reversed(rows)] == list(range(1, len(rows) + 1))
        assert {(row.result, row.failure_count) for row in rows} == {(Result.SUCCESS, 0)}
        assert len(log.ran) == len(set(log.ran))


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
