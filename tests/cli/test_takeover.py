"""`queue-runtime takeover`: who works on Phorge's queue is told by its rows, and a canary goes the whole way."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_runtime.takeover import Who, who
from tests.backends import Servers
from tests.cli.commands import invoke, run
from tests.faults.process import Served, archived, enqueue, wait_for
from tests.phorge_php import PhpTask, Taskmaster
from tests.phorge_tables import PhorgeTables

CLASS = "PhabricatorTestWorker"


@pytest.fixture
def settings(servers: Servers) -> dict[str, str]:
    """Of a process on an empty Phorge."""
    servers.phorge.empty()
    return {"STORE": "mysql", "MYSQL_SOCKET": servers.mariadb.socket, "MYSQL_USER": "root"}


@contextmanager
def native_taskmaster(tables: PhorgeTables) -> Iterator[None]:
    """One that takes whatever there is, until the end."""
    stop = threading.Event()

    def work() -> None:
        with Taskmaster(tables) as taskmaster:
            while not stop.is_set():
                if not taskmaster.step(_nothing):
                    stop.wait(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _nothing(task: PhpTask) -> list[tuple[str, str]]:
    return []


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        ("qr:481e9685:4:19966@host", Who.OURS),
        ("23192:1796040935:web1:2", Who.NATIVE),
        ("23192:1796040935:web:with:colons:2", Who.NATIVE),
        ("gorge-worker-1", Who.CALLERS),
        ("(yield)", Who.NOBODY),
        ("gorge-completion-pending", Who.NOBODY),
        (None, Who.NOBODY),
    ],
)
def test_an_owner_says_whose_it_is(owner: str | None, whose: Who) -> None:
    assert who(owner) is whose


def test_the_plan_has_the_way_there_and_the_way_back() -> None:
    done = invoke("takeover", "plan", "--phorge", "/opt/phorge")
    assert done.exit_code == 0
    there, _, back = done.output.partition("The way back")
    assert "/opt/phorge/bin/config set phd.taskmasters 0" in there
    assert "queue-runtime takeover status" in there
    assert "/opt/phorge/bin/config set phd.taskmasters NUMBER" in back
    assert "phd restart" not in done.output  # it has no --keep-leases
    assert done.output.count("phd start --keep-leases") == 2


@pytest.mark.parametrize("command", ["status", "check"])
def test_a_store_that_no_taskmaster_sees_is_refused(command: str, tmp_path: Path) -> None:
    done = run("takeover", command, folder=tmp_path, variables={"SQLITE_PATH": str(tmp_path / "queue.sqlite")})
    assert (done.returncode, "the store mysql alone" in done.stderr) == (1, True)


def test_it_is_not_done_while_nobody_works(settings: dict[str, str], tmp_path: Path) -> None:
    done = run("takeover", "status", folder=tmp_path, variables=settings)
    assert (done.returncode, "not done: no task was ended" in done.stdout) == (1, True)


def test_it_is_done_when_only_this_runtime_has_worked(settings: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)
        done = run("takeover", "status", folder=tmp_path, variables=settings)
        served.tell_and_wait()
    assert (done.returncode, "takeover: done" in done.stdout) == (0, True), done.stdout


def test_it_is_not_done_while_a_native_taskmaster_acts(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)
        served.tell_and_wait()
    with Taskmaster(servers.phorge) as taskmaster:
        taskmaster.schedule("SomeWorker")
        taskmaster.schedule("SomeWorker")
        held, other = taskmaster.lease(2)
        done = run("takeover", "status", folder=tmp_path, variables=settings)
        assert (done.returncode, "native taskmasters of web1" in done.stdout) == (1, True)
        assert "hold 2 tasks" in done.stdout
        taskmaster.archive(held, result=0)
        taskmaster.archive(other, result=1)
        done = run("takeover", "status", folder=tmp_path, variables=settings)
    assert (done.returncode, "ended 2 in the last" in done.stdout) == (1, True)


def test_a_canary_comes_back(settings: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served:
        served.wait_for_event("worker started")
        done = run("takeover", "check", folder=tmp_path, variables=settings)
        served.tell_and_wait()
    assert (done.returncode, "came back as done" in done.stdout) == (0, True), done.stdout
    assert "none has acted" in done.stdout


def test_a_canary_that_nobody_takes_is_cancelled(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    done = run("takeover", "check", "--seconds", "1", folder=tmp_path, variables=settings)
    assert (done.returncode, "nobody ended task" in done.stdout) == (1, True)
    assert servers.phorge.execute("SELECT taskClass, result FROM worker_archivetask") == [(CLASS, 2)]
    assert servers.phorge.execute("SELECT id FROM worker_activetask") == []


def test_a_canary_that_fails_is_told_with_its_reason(settings: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served:
        served.wait_for_event("worker started")
        done = run("takeover", "check", "--canary", "FlakyWorker", folder=tmp_path, variables=settings)
        served.tell_and_wait()
    assert (done.returncode, "failed: " in done.stdout) == (1, True), done.stdout


def test_a_canary_that_a_native_taskmaster_took_says_so(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with native_taskmaster(servers.phorge):
        done = run("takeover", "check", folder=tmp_path, variables=settings)
    assert "was ended by native taskmasters" in done.stdout
    assert "those of web1 work on the queue" in done.stdout


def test_no_canary_is_sent_into_a_store_that_is_not_in_order(settings: dict[str, str], tmp_path: Path) -> None:
    wrong = settings | {"NAMESPACE": "nothere"}
    done = run("takeover", "check", folder=tmp_path, variables=wrong)
    assert done.returncode == 1
    assert "canary" not in done.stdout
