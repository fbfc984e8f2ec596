"""Told to stop: what can finish does, the rest is given back uncounted, nothing new begins, and the exit code tells."""

import asyncio
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from queue_runtime.supervisor import ECHO_SECONDS
from queue_runtime.task import Sentinel
from stores.sqlite import open_store
from tests.faults.process import SCRIPT, Served, archived, check_clean_log, enqueue, ledger, wait_for

PID_1 = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.parametrize(
    ("short", "middle", "grace"),
    [
        pytest.param(0.5, 2, 3, id="scaled down"),
        pytest.param(2, 8, 10, id="real figures", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("wrapper", [pytest.param((), id="plain"), pytest.param(PID_1, id="as PID 1")])
def test_a_stop_finishes_what_it_can_and_gives_back_the_rest(
    tmp_path: Path, wrapper: tuple[str, ...], short: float, middle: float, grace: float
) -> None:
    with Served(tmp_path, wrapper=wrapper, SLOTS=3, GRACE_SECONDS=grace) as served, served.client() as client:
        done = [enqueue(client, "SleepWorker", f'{{"seconds": {one}}}')[0] for one in (short, middle)]
        (long,) = enqueue(client, "SleepWorker", '{"seconds": 60}')
        wait_for("three run", lambda: len(ledger(tmp_path)) == 3, 10)
        waiting = enqueue(client, "SleepWorker", "{}", 50)

        began = time.monotonic()
        served.tell(signal.SIGTERM)
        wait_for("it is not ready", lambda: client.get("/readyz").status_code == 503, 2)
        assert client.post("/api/queue/lease", json={"limit": 1}).json() == {"data": []}
        assert served.wait(grace + 10) == 0, served.log
        assert grace <= time.monotonic() - began < grace + 5
        check_clean_log(served)
    assert {line["id"] for line in ledger(tmp_path)} == {*done, long}

    with Served(tmp_path, ROLES="api") as served, served.client() as client:
        assert [found["result"] for one in done if (found := archived(client, one))] == [0, 0]
        given_back = client.get(f"/api/queue/tasks/{long}").json()["data"]
        assert given_back["failureCount"] == 0
        assert "leaseOwner" not in given_back
        assert client.get("/api/queue/stats").json()["data"]["activeCount"] == len(waiting) + 1


def test_a_stop_that_finds_nothing_running_is_quick(tmp_path: Path) -> None:
    with Served(tmp_path, GRACE_SECONDS=60) as served:
        served.wait_for_event("listening")
        began = time.monotonic()
        served.tell(signal.SIGINT)
        assert served.wait(10) == 0, served.log
        assert time.monotonic() - began < 5
        check_clean_log(served)


def test_a_second_signal_ends_the_grace(tmp_path: Path) -> None:
    with Served(tmp_path, GRACE_SECONDS=60) as served, served.client() as client:
        (task,) = enqueue(client, "SleepWorker", '{"seconds": 60}')
        wait_for("it runs", lambda: ledger(tmp_path), 10)
        served.tell(signal.SIGTERM)
        wait_for("it is not ready", lambda: client.get("/readyz").status_code == 503, 2)
        assert served.process.poll() is None
        time.sleep(2 * ECHO_SECONDS)  # sooner it would be taken for an echo of the first
        began = time.monotonic()
        served.tell(signal.SIGTERM)
        assert served.wait(10) == 0, served.log
        assert time.monotonic() - began < 8
        check_clean_log(served)
    with Served(tmp_path, ROLES="api") as served, served.client() as client:
        assert client.get(f"/api/queue/tasks/{task}").json()["data"]["failureCount"] == 0


def test_sighup_stops_nothing(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client() as client:
        (first,) = enqueue(client, "SleepWorker")
        wait_for("it is archived", lambda: archived(client, first), 10)
        served.tell(signal.SIGHUP)
        (task,) = enqueue(client, "SleepWorker")
        wait_for("the next one is archived too", lambda: archived(client, task), 10)


def test_a_thread_that_does_not_end_is_left_behind_and_told_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_STOP_SECONDS", "0.3")
    with Served(tmp_path, GRACE_SECONDS=0.5) as served, served.client() as client:
        (task,) = enqueue(client, "ThreadWorker", '{"seconds": 60}')
        wait_for("it runs", lambda: ledger(tmp_path), 10)
        served.tell(signal.SIGTERM)
        assert served.wait(20) == 3, served.log
        assert str(task) in served.lines[-1]
        check_clean_log(served)
    with Served(tmp_path, ROLES="api") as served, served.client() as client:
        left = client.get(f"/api/queue/tasks/{task}").json()["data"]
        assert "leaseOwner" not in left
        assert left["leaseExpires"] <= time.time() + 5
        assert left["failureCount"] == 0


def test_rolling_restarts_of_a_thread_that_outlives_the_grace_cost_it_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R080 for a handler that cannot be stopped: no failure, no lost worker, and left alone it succeeds."""
    monkeypatch.setenv("TEST_STOP_SECONDS", "0.1")
    serve = partial(Served, tmp_path, GRACE_SECONDS=0.2, MAX_LOST=2)
    with serve(ROLES="api") as served, served.client() as client:
        (task,) = enqueue(client, "ThreadWorker", '{"seconds": 1.5}')
    for restarts in range(3):
        with serve() as served:
            wait_for("it runs", lambda: ledger(tmp_path)[restarts:], 10)  # noqa: B023  it is called here and now
            served.tell(signal.SIGTERM)
            assert served.wait(10) == 3, served.log
        assert asyncio.run(make_due(tmp_path, task)) == (Sentinel.UNKNOWN, 0, 0)
    with serve() as served, served.client() as client:
        ended = wait_for("it is archived", lambda: archived(client, task), 10)
        assert ended is not None
        assert (ended["result"], ended["failureCount"]) == (0, 0)
        served.tell_and_wait()
    assert len(ledger(tmp_path, "end")) == 1


async def make_due(folder: Path, task_id: int) -> tuple[str | None, int, int]:
    """Owner, failures and losses of a task whose wait is ended then."""
    async with open_store(folder / "queue.sqlite") as store:
        (task,) = await store.get([task_id])
        assert task is not None
        await store.free([task_id])
        return task.lease_owner, task.failure_count, task.lost_count


def _catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("wait", [0.0, 0.1, 0.2, 0.3, 0.4, 0.6])
def test_a_stop_during_start_up_is_obeyed(tmp_path: Path, wait: float) -> None:
    with Served(tmp_path, wrapper=PID_1) as served:
        # before Python itself is up, the kernel drops what is sent to a PID 1
        wait_for("it catches SIGTERM", lambda: _is_script(served) and _catches_sigterm(served.inner_pid()), 20)
        time.sleep(wait)
        served.tell(signal.SIGTERM)
        assert served.wait(10) == 0, served.log
        check_clean_log(served)


def _is_script(served: Served) -> bool:
    return SCRIPT.encode() in Path(f"/proc/{served.inner_pid()}/cmdline").read_bytes().split(b"\0")[:2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_up_to_the_last_moment_do_not_change_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    with Served(tmp_path) as served, served.client() as client:
        (task,) = enqueue(client, "SleepWorker")
        wait_for("it is archived", lambda: archived(client, task), 10)
        served.tell(signal.SIGTERM)
        end = time.monotonic() + 15
        while served.process.poll() is None:
            assert time.monotonic() < end
            served.process.send_signal(number)
            time.sleep(0.001)
        assert served.wait(10) == 0, served.log
