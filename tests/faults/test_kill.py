"""`kill -9` at any instant: nothing accepted is lost, nothing is done twice in the books, killed work runs again."""

import asyncio
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from queue_runtime.task import ArchivedTask, Result, Task
from stores.sqlite import open_store
from tests.faults.load import Load, everything, left
from tests.faults.process import Served, archived, enqueue, ledger, let_leases_run_out, wait_for


async def look(folder: Path) -> tuple[dict[int, Task], dict[int, ArchivedTask]]:
    """All tasks of the file."""
    async with open_store(folder / "queue.sqlite") as store:
        return await everything(store)


@pytest.mark.parametrize(
    "kills",
    [pytest.param(10, id="10"), pytest.param(200, id="200", marks=(pytest.mark.long, pytest.mark.timeout(2400)))],
)
def test_a_kill_at_any_instant_loses_nothing_and_repeats_nothing(tmp_path: Path, kills: int) -> None:
    chance = random.Random(20240607)
    accepted: list[int] = []
    completed: list[int] = []
    serve = partial(Served, tmp_path, MAX_LOST=1000, HTTP_LEASE_SECONDS=2)
    for round_number in range(kills):
        with serve() as served:
            loads = [Load(served, seed=round_number * 2 + one) for one in range(2)]
            for load in loads:
                load.start()
            time.sleep(chance.uniform(0.0, 1.0))  # the random instant
            served.kill()
            for load in loads:
                load.join(20)
                accepted += load.accepted
                completed += load.completed
        active, ended = asyncio.run(look(tmp_path))
        assert not active.keys() & ended.keys()
        assert set(accepted) <= active.keys() | ended.keys()
        assert {ended[one].result for one in completed} <= {Result.SUCCESS}
    assert len(set(accepted)) == len(accepted) > kills
    assert len(set(completed)) == len(completed)

    # left alone, everything that our handlers run ends well, each task once
    with serve(SLOTS=200) as served, served.client() as client:
        wait_for("all is done", lambda: left(client) == 0, 60 + kills, every=0.2)
        served.tell_and_wait()
    active, ended = asyncio.run(look(tmp_path))
    assert {task.task_class for task in active.values()} <= {"CalledWorker"}
    assert not active.keys() & ended.keys()
    assert set(accepted) <= active.keys() | ended.keys()
    assert Counter(task.result for task in ended.values()).keys() == {Result.SUCCESS}


def test_killed_work_runs_again_within_lease_and_patience_and_two_seconds(tmp_path: Path) -> None:
    lease, patience = 3, 1
    with Served(tmp_path, LEASE_SECONDS=lease) as served, served.client() as client:
        enqueue(client, "SleepWorker", '{"seconds": 60}', 8)
        wait_for("all run", lambda: len(ledger(tmp_path)) == 8, 10)
        time.sleep(1.5)  # past a renewal, so that the leases are as fresh as they get
        killed_at = served.kill()
    with Served(tmp_path, LEASE_SECONDS=lease) as served:
        (last,) = wait_for("all run again", lambda: ledger(tmp_path)[15:], lease + patience + 30)
        late = last["at"] - killed_at
        assert late <= lease + patience + 2, f"{late:.2f} s after the kill"


@pytest.mark.parametrize("seconds", [pytest.param(0.01, id="short neighbours"), pytest.param(1, id="long neighbours")])
@pytest.mark.parametrize("poison_first", [True, False])
def test_a_task_that_kills_its_process_is_given_up_and_the_others_finish(
    tmp_path: Path, seconds: float, poison_first: bool
) -> None:
    """R079. Its neighbours of the first two deaths are lost twice too, and run one at a time from then on."""
    serve = partial(Served, tmp_path, MAX_LOST=3, SLOTS=4, LEASE_SECONDS=3)
    deaths = 0
    with serve(ROLES="api") as served, served.client() as client:
        good = [] if poison_first else enqueue(client, "SleepWorker", f'{{"seconds": {seconds}}}', 3)
        (poison,) = enqueue(client, "PoisonWorker", "x")
        good += enqueue(client, "SleepWorker", f'{{"seconds": {seconds}}}', 3)
        good += enqueue(client, "SleepWorker", '{"seconds": 0.01}', 100)
    while deaths < 10:
        with serve() as served:
            if _outlives(served, tmp_path):
                served.tell_and_wait()
                break
            assert served.wait(10) == 137
            deaths += 1
        let_leases_run_out(tmp_path)
    with serve(ROLES="api") as served, served.client() as client:
        ended = archived(client, poison)
        assert ended is not None
        assert ended["result"] == 1
        assert "worker lost" in str(ended["errors"])
        results = [found["result"] for one in good if (found := archived(client, one))]
        assert results == [0] * len(good)
    assert deaths == 3
    assert len([line for line in ledger(tmp_path) if line["id"] == poison]) == 3


def _outlives(served: Served, folder: Path) -> bool:
    """Whether all tasks end while this process lives."""

    def look_once() -> str:
        if served.process.poll() is not None:
            return "dead"
        with closing(sqlite3.connect(folder / "queue.sqlite")) as database:
            (active,) = database.execute("SELECT count(*) FROM task WHERE result IS NULL").fetchone()
        return "" if active else "done"

    return wait_for("the end of the process or of all tasks", look_once, 60) == "done"
