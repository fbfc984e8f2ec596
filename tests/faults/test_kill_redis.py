"""`kill -9` of the runtime on Redis: nothing accepted is lost, each task ends once, and all indexes are whole."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.task import ArchivedTask, Result, Task
from stores.redis import open_store
from stores.redis_check import Report, check
from tests.faults.load import Load, everything, left
from tests.faults.process import Served, enqueue, ledger, wait_for
from tests.servers import RedisServer


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def served(folder: Path, redis: RedisServer, **settings: Any) -> Served:
    """A process on the server."""
    return Served(folder, STORE="redis", SQLITE_PATH=None, REDIS_URL=redis.socket_url, **settings)


async def look(redis: RedisServer) -> tuple[dict[int, Task], dict[int, ArchivedTask], Report]:
    """All tasks, and what the doctor finds."""
    async with open_store(redis.socket_url) as store:
        return *await everything(store), await check(store)


@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, id="3"), pytest.param(20, id="20", marks=(pytest.mark.long, pytest.mark.timeout(600)))],
)
def test_a_kill_at_any_instant_loses_nothing_and_repeats_nothing(
    tmp_path: Path, redis: RedisServer, kills: int
) -> None:
    chance = random.Random(20240811)
    accepted: list[int] = []
    completed: list[int] = []
    serve = partial(served, tmp_path, redis, MAX_LOST=1000, HTTP_LEASE_SECONDS=2)
    for round_number in range(kills):
        with serve() as process:
            loads = [Load(process, seed=round_number * 2 + one) for one in range(2)]
            for load in loads:
                load.start()
            time.sleep(chance.uniform(0.1, 1.0))  # the random instant
            process.kill()
            for load in loads:
                load.join(20)
                accepted += load.accepted
                completed += load.completed
        active, ended, report = asyncio.run(look(redis))
        assert report.whole, report
        assert not active.keys() & ended.keys()
        assert set(accepted) <= active.keys() | ended.keys()
        assert {ended[one].result for one in completed} <= {Result.SUCCESS}
    assert len(set(accepted)) == len(accepted) > kills
    assert len(set(completed)) == len(completed)

    # left alone, everything that our handlers run ends well, each task once
    with serve(SLOTS=200) as process, process.client() as client:
        wait_for("all is done", lambda: left(client) == 0, 60 + kills, every=0.2)
        process.tell_and_wait()
    active, ended, report = asyncio.run(look(redis))
    assert report.whole, report
    assert {task.task_class for task in active.values()} <= {"CalledWorker"}
    assert not active.keys() & ended.keys()
    assert set(accepted) <= active.keys() | ended.keys()
    assert Counter(task.result for task in ended.values()).keys() == {Result.SUCCESS}


def test_killed_work_runs_again_within_lease_and_patience_and_two_seconds(tmp_path: Path, redis: RedisServer) -> None:
    lease, patience = 3, 1
    with served(tmp_path, redis, LEASE_SECONDS=lease) as process, process.client() as client:
        ids = enqueue(client, "SleepWorker", '{"seconds": 60}', 8)
        wait_for("all run", lambda: len(ledger(tmp_path)) == 8, 10)
        time.sleep(1.5)  # past a renewal, so that the leases are as fresh as they get
        killed_at = process.kill()
    with served(tmp_path, redis, LEASE_SECONDS=lease):
        (last,) = wait_for("all run again", lambda: ledger(tmp_path)[15:], lease + patience + 30)
        late = last["at"] - killed_at
        assert late <= lease + patience + 2, f"{late:.2f} s after the kill"
        assert Counter(line["id"] for line in ledger(tmp_path)) == dict.fromkeys(ids, 2)
